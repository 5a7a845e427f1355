"""What a fault was, from the step that was taken again: data, format, order of sums, or the machine.

    python -m lockstep_capture.trigger FAULT.json

runs verify, a replay in what ran, FP32, FP64 and a twin, and the report, next to the loop.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from ..errors import CaptureError
from ..program import run_program

_NICE = 10
ENDING = ".lscap.h5"  # of captures
_BROKEN = {"overflow", "storage overflow", "sum overflow", "state overflow", "invalid operation"}  # kinds of findings
_SAME = 0.01  # of a loss: two lanes have the same


@dataclass
class Fault:
    """path: of the capture. loss: the mean over the micro-batches, taken again. differs: what was not the same in the loop."""

    path: str
    step: int
    why: str
    loss: float
    differs: list[str]


@dataclass
class Answer:
    """kind: "data", "format", "order", "machine" or "unclear". sentence: why. text: of the report, the lane's."""

    kind: str
    sentence: str
    text: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.sentence}" + (f"\n{self.text}" if self.text else "")


def told_at_once(fault: Fault) -> str:
    """What needs no replay."""
    if fault.differs:
        more = f" and {len(fault.differs) - 1} more" if len(fault.differs) > 1 else ""
        verb = "differs" if fault.differs == ["the loss"] else "differ"
        return (
            " The machine, or an op that is not deterministic: with the same weights, batch and generators "
            f"{fault.differs[0]}{more} {verb}."
        )
    return ""


def answer_later(fault: Fault, program: str) -> subprocess.Popen[bytes]:
    """In a process of its own, which prints the answer and writes it into PATH.answer.txt."""
    place = f"{fault.path}.fault.json"
    with open(place, "w", encoding="utf-8") as file:
        json.dump(dataclasses.asdict(fault) | {"program": program}, file)
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-m", str(__package__), place],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        start_new_session=True,  # Ctrl-C in the loop does not end it
    )


def answer(fault: Fault, program: str) -> Answer:
    """Throws: CaptureError where the program refuses."""
    if fault.differs:
        return Answer("machine", told_at_once(fault).strip())
    verified = subprocess.run([program, "verify", fault.path, "--threads", "1"], capture_output=True, text=True)
    if verified.returncode not in (0, 1, 3):
        raise CaptureError(f"lockstep verify: {verified.stderr.strip()}")
    with open(f"{fault.path}.verify.json", encoding="utf-8") as file:
        gates = {gate["name"]: gate for gate in json.load(file)["gates"]}
    run = f"{fault.path.removesuffix(ENDING)}.run.h5"
    ran = gates["V7"]["subject"].partition(" against ")[0] if "V7" in gates else "fp32"
    ran = "fp32" if " " in ran else ran  # no preset's name: where the loop has no autocast
    lanes = ",".join(dict.fromkeys(["fp32", ran, "fp64"]))
    run_program(
        program,
        "replay",
        fault.path,
        "--lanes",
        lanes,
        "--twins",
        "1",
        "--threads",
        "1",
        "-o",
        run,
        "--quiet",
        "--overwrite",
    )
    for leftover in ("state", "state.1", "progress.json"):  # for a replay that is stopped
        with contextlib.suppress(OSError):
            os.remove(f"{run}.{leftover}")
    report = json.loads(run_program(program, "report", run, "--format", "json"))
    return judge(fault, ran, {lane["name"]: lane for lane in report["lanes"]})


def judge(fault: Fault, ran: str, lanes: dict[str, dict[str, Any]]) -> Answer:
    """ran: the lane that does what the loop did. lanes: of the report's JSON."""

    def loss_of(name: str) -> float:
        loss = lanes[name]["losses"][0]
        return math.nan if loss is None else float(loss)

    def is_well(name: str) -> bool:
        lane = lanes[name]
        broken = any(finding["kind"] in _BROKEN for finding in lane["findings"])
        lost = any(row["nan"] or row["to_infinity"] for row in lane["layers"] if row["role"].startswith("grad"))
        return math.isfinite(loss_of(name)) and not lane["skipped_steps"] and not broken and not lost

    def same(a: str, b: str) -> bool:
        return _are_same(loss_of(a), loss_of(b))

    text = str(lanes[ran].get("sentence", ""))
    what = f"loss {loss_of('fp32'):.4g} in fp32, {loss_of(ran):.4g} in {ran}"
    if not is_well("fp32"):
        if not same("fp32", "fp64"):
            return Answer("format", f"fp32 itself: loss {loss_of('fp32'):.4g}, {loss_of('fp64'):.4g} in fp64", text)
        return Answer(
            "data",
            "fp32 has the fault as well: the batch, or its loss, not the format",
            str(lanes["fp32"].get("sentence", "")),
        )
    if not _are_same(loss_of(ran), fault.loss):
        return Answer(
            "order",
            f"loss {fault.loss:.4g} in the loop, {loss_of(ran):.4g} in {ran} with another order of sums, {loss_of('fp64'):.4g} in fp64",
            text,
        )
    if ran != "fp32" and (not is_well(ran) or not same("fp32", ran)):
        return Answer("format", what, text)
    if not same("fp32", "twin") or not same("fp32", "fp64"):
        return Answer(
            "order",
            f"one ulp in the weights changes as much: loss {loss_of('fp32'):.4g}, {loss_of('twin'):.4g} with it",
            text,
        )
    if "not finite" in fault.why:
        return Answer("unclear", f"no lane repeats it: {what}", text)
    seen = what if ran != "fp32" else "fp64 has the same loss as fp32"
    return Answer("data", f"{seen}: the batch, or where training stands, not the format", text)


def _are_same(a: float, b: float) -> bool:
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.isfinite(a) == math.isfinite(b)
    return abs(a - b) <= _SAME * max(abs(a), abs(b))


def main(place: str) -> None:
    os.nice(_NICE)  # training goes first
    with open(place, encoding="utf-8") as file:
        facts = json.load(file)
    os.remove(place)
    program = facts.pop("program")
    fault = Fault(**facts)
    try:
        text = str(answer(fault, program))
    except (CaptureError, OSError, KeyError, ValueError) as error:
        text = f"no answer: {error}"
    told = f"{fault.path}, step {fault.step}: {text}\n"
    with open(f"{fault.path}.answer.txt", "w", encoding="utf-8") as file:
        file.write(told)
    print(f"lockstep_capture: {told}", end="", file=sys.stderr)
