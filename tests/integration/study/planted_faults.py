"""A seeded generator of training runs with one planted numeric fault each, and of the same models without it.

    python tests/integration/study/planted_faults.py --seed 17 [--clean]   repeats a case and prints it

A kind is drawn uniformly, then a model, a layer and the numbers. A case whose fault does not fire, judged from the run
file's raw counts, is drawn again from the next sub-seed; the redraws are counted. Written without knowledge of the
rules by which the report judges.
"""

import argparse
import dataclasses
import pathlib
import shlex
import sys
import tempfile

import numpy as np
import planted_backward as backward
import planted_builtin as builtin
import planted_forward as forward
import planted_names as names
import planted_runner as runner
import planted_update as update
import torch
from planted_case import Redraw, Scene, replay

# Kind: builders, one of which is drawn.
KINDS = {
    "forward overflow": [forward.forward_overflow, forward.overflow_in_one_batch, builtin.forward_overflow],
    "sum overflow": [forward.sum_overflow],
    "storage overflow": [forward.storage_overflow, forward.storage_overflow, builtin.storage_overflow],
    "storage underflow": [forward.storage_underflow],
    "invalid operation": [forward.invalid],
    "forward underflow": [forward.forward_underflow],
    "gradient underflow": [backward.gradient_underflow, backward.gradient_underflow, builtin.gradient_underflow],
    "gradient vanished": [backward.gradient_vanished, backward.small_everywhere, builtin.gradient_vanished],
    "no GradScaler": [backward.no_grad_scaler],
    "lost updates": [update.lost_updates, update.lost_updates, builtin.lost_updates],
    "optimizer state vanished": [update.state_vanished, update.state_vanished, builtin.state_vanished],
    "optimizer state overflow": [update.state_overflow],
    "beta2 is 1": [update.beta2, builtin.beta2],
    "swamping in a sum": [forward.swamping_sum],
    "swamping in an add": [forward.swamping_add],
    "every step skipped": [forward.all_skipped, builtin.all_skipped],
    "scale collapse": [backward.scale_collapse, builtin.scale_collapse],
    "scale below one": [backward.scale_below_one],
    "saturation in FP8": [forward.fp8_saturation],
}
ATTEMPTS = 60
CLEAN_LANES = ["torch-autocast-fp16", "torch-autocast-bf16", "tf32"]


@dataclasses.dataclass
class Outcome:
    """The outcome of a seed."""

    seed: int
    kind: str
    model: str
    about: str
    layers: list | None
    named: str | None
    named_layer: str | None
    sentence: str
    others: list  # kinds of the findings after the first
    right: bool
    right_kind: bool
    redraws: int
    reasons: list  # why cases were drawn again
    command: str = ""


def attempt(kind, seed, number, folder):
    rng = np.random.default_rng([seed, number])
    scene = Scene(rng, folder)
    plant = scene.pick(KINDS[kind])(scene)
    run = scene.folder / "run.h5"
    runner.lockstep(scene.folder, *plant.command, *runner.CHEAP, "-o", run.name)
    return plant, run


def planted(seed, folder, kind=None):
    """The case of this seed: (Plant, run file, redraws with their reasons)."""
    kind = kind or list(KINDS)[int(np.random.default_rng([seed]).integers(len(KINDS)))]
    reasons = []
    for number in range(ATTEMPTS):
        try:
            plant, run = attempt(kind, seed, number, pathlib.Path(folder) / f"attempt{number}")
            why = plant.fires(runner.Raw(run, plant.lane))
        except (Redraw, runner.Refused) as error:
            why = f"{type(error).__name__}: {error}"
        if not why:
            return plant, run, reasons
        reasons.append(why)
    raise RuntimeError(f"seed {seed}: {kind} did not fire in {ATTEMPTS} attempts: {reasons}")


def shown(run, command):
    return f"cd {run.parent} && " + shlex.join(map(str, ["lockstep", *command, "-o", run.name]))


def judge(plant, finding_kind, finding_layer, sentence):
    """(kind is right, layer is right)."""
    accepted = names.ACCEPTED[plant.kinds or plant.kind]
    layer = (
        plant.layers is None
        or finding_layer in plant.layers
        or (finding_layer is None and plant.kind in names.OF_THE_LANE)
    )
    return finding_kind in accepted and plant.says in sentence, layer


def run_planted(seed, folder, kind=None):
    plant, run, reasons = planted(seed, folder, kind)
    found = runner.report(run, plant.lane)
    finding, layer, sentence = runner.named(found)
    kind_right, layer_right = judge(plant, finding, layer, sentence)
    return Outcome(
        seed,
        plant.kind,
        plant.model,
        plant.about,
        sorted(plant.layers) if plant.layers else None,
        finding,
        layer,
        sentence,
        [f["kind"] for f in found["findings"][1:]],
        kind_right and layer_right,
        kind_right,
        len(reasons),
        reasons,
        shown(run, plant.command),
    )


def run_clean(seed, folder):
    """(model in words, [(lane, kind, layer, sentence)]) of a healthy model in the recommended lanes."""
    scene = Scene(np.random.default_rng([seed, 10**6]), folder)
    if scene.chance(0.25):
        words, command = builtin.healthy(scene, CLEAN_LANES)
    else:
        drawn = scene.draw(count=12)
        optimizer = scene.optimizer(*scene.pick([("sgd", 0.02), ("adam", 1e-3), ("adamw", 1e-3)]))
        loop = {}
        if "GRU" not in drawn.about and scene.chance():  # PyTorch's CPU build has no GRU in FP16
            loop = {"amp": "fp16", "scaler": torch.amp.GradScaler("cpu")}
        command = replay(scene.capture(optimizer, **loop), CLEAN_LANES, scene.pick([None, 24, 40]))
        words = f"{drawn.name}: {drawn.about}, {type(optimizer).__name__}{', FP16 loop with a scaler' * bool(loop)}"
    run = scene.folder / "run.h5"
    runner.lockstep(scene.folder, *command, *runner.CHEAP, "-o", run.name)
    found = []
    for lane in CLEAN_LANES:
        for finding in runner.report(run, lane)["findings"]:
            found.append((lane, finding["kind"], (finding.get("site") or {}).get("layer"), finding["sentence"]))
    return words, found, shown(run, command)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--kind", choices=list(KINDS))
    parser.add_argument("--clean", action="store_true", help="the model without a fault")
    parser.add_argument("--folder", help="where the files stay; default: a new folder")
    args = parser.parse_args()
    folder = args.folder or tempfile.mkdtemp(prefix="planted-")
    if args.clean:
        words, found, command = run_clean(args.seed, folder)
        print(f"clean   {words}\ncommand {command}")
        for row in found:
            print("finding", *row)
        return 0 if not found else 1
    outcome = run_planted(args.seed, folder, args.kind)
    for field in dataclasses.fields(outcome):
        print(f"{field.name:12} {getattr(outcome, field.name)}")
    return 0 if outcome.right else 1


if __name__ == "__main__":
    sys.exit(main())
