"""debug(): which formats would break this training, in one call and without files."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .errors import CaptureError
from .offline import capture
from .program import find_program, run_program
from .trace.step_function import StepFunction
from .trace.user_code import shown_to_users

LANES = ("torch-autocast-fp16", "torch-autocast-bf16", "pure-bf16")
# Sections of the report.
_IMPORT, _VERDICT = "Is the import faithful?", "Verdict"


@dataclass
class Debugged:
    """text: the first screen of the report. lanes: of its JSON (docs/report-json.md). faithful: all gates of verify passed."""

    text: str
    lanes: list[dict[str, Any]]
    faithful: bool

    def __str__(self) -> str:
        return self.text


@shown_to_users
def debug(
    model: torch.nn.Module,
    optimizer: Any,
    loader: Iterable[Any],
    step_fn: StepFunction,
    *,
    lanes: Sequence[str] = LANES,
    steps: int = 8,
    cycle: int | None = None,
    threads: int | None = None,
    program: str | os.PathLike[str] | None = None,
    keep: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Debugged:
    """Captures `steps` steps as capture() does, verifies and replays them, and prints what broke first.

    lanes: policies to compare with FP32, as `lockstep list presets` has them, or policy files. cycle: so many steps are
    replayed, the captured ones over and over. threads: of the replay, by default all. program: the lockstep program, by
    default $LOCKSTEP or the one on the PATH. keep: a folder for capture, run and report, which the commands at the end of
    the text need; by default nothing remains. options: as in capture(). Throws: CaptureError where the program is missing or refuses; else as capture().
    """
    found = find_program(program)
    with tempfile.TemporaryDirectory(prefix="lockstep-") as temporary:
        folder = os.fspath(keep) if keep is not None else temporary
        os.makedirs(folder, exist_ok=True)
        path, run = (os.path.join(folder, name) for name in ("debug.lscap.h5", "debug.h5"))
        capture(path, model, optimizer, loader, step_fn, steps=steps, quiet=True, **options)
        verified = subprocess.run([found, "verify", path], capture_output=True, text=True)
        if verified.returncode not in (0, 1, 3):  # 1: a gate failed; 3: no step could be judged
            raise CaptureError(f"lockstep verify: {verified.stderr.strip()}")
        wanted = ["--cycle", "--steps", str(cycle)] if cycle is not None else []
        on = ["--threads", str(threads)] if threads is not None else []
        wanted += [*on, "--lanes", ",".join(["fp32", *lanes]), "-o", run, "--quiet", "--overwrite"]
        run_program(found, "replay", path, *wanted)
        report = run_program(found, "report", run, "--try", *on, "--format", "text")
        if keep is not None:
            with open(os.path.join(folder, "debug.txt"), "w", encoding="utf-8") as file:
                file.write(report)
        found_lanes = json.loads(run_program(found, "report", run, "--format", "json"))["lanes"]
    faithful = verified.returncode == 0
    text = _section(report, _VERDICT)
    text = "\n\n".join([text, _losses(found_lanes), *_watched(found_lanes)])
    if faithful:
        text += "\n\nFP32 repeats what PyTorch did: `lockstep verify` passed."
    elif verified.returncode == 3:
        why = ": PyTorch's own loss is not finite there" if "is not finite there" in verified.stdout else ""
        text += f"\n\nNot verified: `lockstep verify` had no step to judge{why}."
    else:
        text = f"NOT FAITHFUL: what follows may not be true of this model.\n{_section(report, _IMPORT)}\n\n{text}"
    if keep is None and temporary in text:  # its commands name files that are gone
        text = text.replace(temporary, "FOLDER") + '\n\nFOLDER: of debug(..., keep="FOLDER"), which keeps the files.'
    result = Debugged(text, found_lanes, faithful)
    print(result)
    return result


def _losses(lanes: list[dict[str, Any]]) -> str:
    """The first and the last loss of every lane."""

    def said(loss: float | None) -> str:
        return "not finite" if loss is None else f"{loss:.4g}"

    shown = [lane for lane in lanes if lane["kind"] in ("reference", "candidate")]
    courses = [f"{lane['name']} {said(lane['losses'][0])} to {said(lane['losses'][-1])}" for lane in shown]
    return "Loss, first to last step: " + ", ".join(courses) + "."


def _watched(lanes: list[dict[str, Any]]) -> list[str]:
    """A line for each watched value: its error in every lane, in the steps that begin with the reference's weights."""
    said: dict[str, list[str]] = {}
    for lane in lanes:
        for value in lane.get("watched", []) if lane["kind"] == "candidate" else []:
            found = value["equal_weights"]
            if found["mean_error"] is None:
                continue
            text = f"{lane['name']} {found['mean_error']:.2g} (largest {found['largest_error']:.2g}"
            text += "" if found["kl"] is None else f", KL {found['kl']:.2g}"
            said.setdefault(value["name"], []).append(text + ")")
    lines = [f"Mean error of {name} at equal weights: {', '.join(texts)}." for name, texts in said.items()]
    return ["\n".join(lines)] if lines else []


def _section(report: str, title: str) -> str:
    """The text under a heading, which is underlined with '='."""
    kept: list[str] = []
    lines, inside = report.splitlines(), False
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if after and set(after) == {"="} and len(after) == len(line):
            inside = line == title
        elif inside and set(line) != {"="}:
            kept.append(line)
    return "\n".join(kept).strip()
