"""What `recommend` says of built-in models and captures, whether its policies pass their own proofs, and what they cost.

Every row is one command: `lockstep recommend NAME --prove --json` with the options below. Sizes and batches are smaller
than the models' defaults, so that 5 to 12 seeds of each fit into hours on two cores.
"""

import dataclasses
import json
import pathlib
import subprocess
import sys
import time

import numpy as np
import planted_layers
import torch

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples" / "pytorch"
FORMATS = "bf16,fp16,fp8"

ADAMW = ["--optimizer", "adamw", "--optimizer-args", "lr=1e-3"]
# Built-in models: their options. The first three must pass.
MODELS = {
    "mlp": [],
    "lenet": [],
    "gpt": ["--size", "layers=2,width=64,context=32", "--batch", 16, *ADAMW],
    "resnet20": ["--size", "width=8", "--batch", 32],
    "unet": ["--size", "width=8", "--batch", 16],
    "lstm": ["--size", "hidden=64,embedding=32,context=32", "--batch", 32, *ADAMW],
    "vit": ["--size", "layers=2,width=64", "--batch", 32, *ADAMW],
}
MUST_PASS = ("mlp", "lenet", "gpt")
CAPTURES = ["cnn", "encoder", "gpt", "lstm", "unet"]  # examples/pytorch
CAPTURED_STEPS = 16
# Captures of small networks in which a layer was planted that 16 bits or FP8 spoil (planted_layers): the search at work.
PLANTED = {"large": "fp16", "cancels": "fp16", "narrow": "bf16,fp8"}
PASSES_AT_LEAST = 5  # of resnet20, unet, lstm, vit and the captures


@dataclasses.dataclass
class Row:
    name: str
    advice: dict
    seconds: float
    code: int


def capture(name, folder):
    """The capture of an example of examples/pytorch, in FP32."""
    path = pathlib.Path(folder) / f"{name}.lscap.h5"
    program = (
        "import sys, torch; sys.path.insert(0, sys.argv[1]); torch.manual_seed(0); torch.set_num_threads(1)\n"
        f"import {name} as task, training_loop\n"
        f"training_loop.train(task.TASK, task.make_model(), {CAPTURED_STEPS}, amp='none', capture=sys.argv[2], "
        f"captured_steps={CAPTURED_STEPS})\n"
    )
    subprocess.run([sys.executable, "-c", program, str(EXAMPLES), str(path)], check=True, stdout=subprocess.DEVNULL)
    return path


def recommend(program, what, name, folder, *options):
    start = time.monotonic()
    done = subprocess.run(
        [program, "recommend", what, *map(str, options), "--json"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode in (0, 1, 3), done.stderr
    return Row(name, json.loads(done.stdout), time.monotonic() - start, done.returncode)


def planted(program, name, formats, folder):
    """The search at work: a layer that plain autocast, or FP8, cannot take."""
    path = pathlib.Path(folder) / f"{name}.lscap.h5"
    torch.set_num_threads(1)
    planted_layers.captured(path, planted_layers.KINDS[name], steps=CAPTURED_STEPS)
    return recommend(program, path.name, f"planted: {name}", folder, "--formats", formats, "--prove")


def chosen(advice):
    return advice["tried"][advice["chosen"]] if "chosen" in advice else None


def ddmin(count, needed):
    """Runs that delta debugging (Zeller & Hildebrandt 2002) takes to find the layers that must be kept, of `count`, if a
    set passes exactly when it holds `needed`."""
    runs, kept, parts = 1, list(range(count)), 2  # the first run: none is kept
    if not needed:
        return runs
    while len(kept) > 1:
        size = -(-len(kept) // parts)
        chunks = [kept[i : i + size] for i in range(0, len(kept), size)]
        smaller = None
        for chunk in chunks:
            runs += 1
            if needed <= set(chunk):
                smaller, parts = chunk, 2
                break
        if smaller is None and len(chunks) > 2:
            for chunk in chunks:
                rest = [x for x in kept if x not in chunk]
                runs += 1
                if needed <= set(rest):
                    smaller, parts = rest, max(parts - 1, 2)
                    break
        if smaller is not None:
            kept = smaller
        elif parts >= len(kept):
            return runs
        else:
            parts = min(2 * parts, len(kept))
    return runs


def others(advice):
    """(one at a time, delta debugging): candidates for the question that the search answered. Both stop where all layers
    may be low; delta debugging is given sets that pass exactly when they hold what the search kept."""
    one, layers, linear = chosen(advice), advice["layers"], advice["linear_layers"]
    kept = {"": (layers, len(one["fp32"]) if one else layers)}
    for row in advice.get("narrow", []):
        if "lane" in row:
            trial = next(t for t in advice["tried"] if t["lane"] == row["lane"])
            kept[row["format"]] = (
                linear,
                sum(k["measured"] or "frontier" in k["reason"] for k in trial.get("not_narrow", [])),
            )
    return (
        sum(1 + (count if needed else 0) for count, needed in kept.values()),
        sum(ddmin(count, set(range(needed))) for count, needed in kept.values()),
    )


def words(row):
    advice, one = row.advice, chosen(row.advice)
    if one is None:
        return advice["answer"], "-", "-", "-"
    kept = f"{len(one['fp32'])} of {advice['layers']} in fp32" if one["fp32"] else ""
    narrow = one.get("narrow", "")
    what = ", ".join(
        part
        for part in (f"plain {one['format']}" if advice["answer"] == "plain" else one["format"], narrow, kept)
        if part
    )
    plain = next(t for t in advice["tried"] if t["lane"].startswith("torch-autocast") and t["format"] == one["format"])
    time_of = f"{one['relative_time']:.2f} / {plain['relative_time']:.2f}"
    return (
        what,
        time_of,
        f"{one['gap']:+.2g} / " + ("-" if plain["gap"] is None else f"{plain['gap']:+.2g}"),
        why(advice),
    )


def why(advice):
    """Why the policy costs no less than autocast's default, or what its gap means."""
    one = chosen(advice)
    plain = next(t for t in advice["tried"] if t["lane"].startswith("torch-autocast") and t["format"] == one["format"])
    if one["relative_time"] < plain["relative_time"] and plain["passes"]:
        return (
            f"it costs less; the gap is within the run's noise, {one['noise']:.2g}" if one["gap"] > plain["gap"] else ""
        )
    if advice["answer"] != "plain" or one.get("narrow"):
        return ""
    return "; ".join(
        f"{row['format']}: " + (row["why_not"] if not row["passes"] else "no faster at these sizes")
        for row in advice.get("narrow", [])
    )


def page(rows):
    lines = [
        "# Recommendations: their proofs and their costs",
        "",
        "Written by `./dev study recommendations`. Every row is `lockstep recommend` with `--formats "
        + FORMATS
        + " --prove "
        "--json`; built-in models with smaller sizes than their defaults "
        "(`tests/integration/study/recommendations.py`), captures of `examples/pytorch` with "
        f"{CAPTURED_STEPS} steps in FP32, and small captures with a planted layer ("
        + "; ".join(f"{name}: {formats}" for name, formats in PLANTED.items())
        + "). Time: of FP32's step on an H100, an estimate: the policy's / plain autocast's. Gap: loss "
        "minus FP32's on the search's seed, the policy's / plain autocast's. Runs: candidates of the search, then those that one "
        "layer at a time and delta debugging take for the same question (computed, not run).",
        "",
        "| network | policy | time | gap | proof | mean gap, at most, tolerated | seeds | runs | one at a time | delta debugging | "
        "rank correlation | note | seconds |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        proof = row.advice.get("proof", {})
        what, time_of, gap, reason = words(row)
        singly, delta = others(row.advice)
        numbers = (
            ", ".join(
                f"{proof[key]:.2g}" if proof.get(key) is not None else "-"
                for key in ("mean_gap", "upper_bound", "tolerance")
            )
            if proof
            else "-"
        )
        lines.append(
            f"| {row.name} | {what} | {time_of} | {gap} | {proof.get('result', '-')} | {numbers} | "
            f"{proof.get('seeds', '-')} | {row.advice['candidates_run']} | {singly} | {delta} | "
            f"{correlation(row.advice)} | {reason} | "
            f"{row.seconds:.0f} |"
        )
    return "\n".join(lines) + "\n"


def correlation(advice):
    rho = advice.get("sensitivity", {}).get("rank_correlation")
    return (
        "-"
        if rho is None
        else f"{rho:.2f}" + (", top third measured" if advice["sensitivity"]["measured_top_third"] else "")
    )


def result(row):
    return row.advice.get("proof", {}).get("result", "none")


# --- loss scales: where a growing scale settles ---
GROWING = 'extends = "torch-autocast-fp16:2.12"\n[loss_scale]\ngrowth_interval = 20\n'
SCALE_STEPS = 300


@dataclasses.dataclass
class Settled:
    name: str
    no_overflow: list  # exponents of the scales at which no step of the whole run overflows; None: open
    predicted: dict  # of the second half, from the FP32 lane's gradients
    recorded: dict  # of the lane itself

    @property
    def low(self):
        return -np.inf if self.no_overflow[0] is None else self.no_overflow[0]

    @property
    def high(self):
        return np.inf if self.no_overflow[1] is None else self.no_overflow[1]

    @property
    def settles(self):
        return self.recorded["skipped_steps"] >= 2

    @property
    def inside(self):
        return self.predicted["lo_exponent"] <= self.recorded["mode_exponent"] <= self.predicted["hi_exponent"]


def settle(program, name, options, folder):
    """Trains under a scale that doubles every 20 steps; where it settles against what the FP32 lane's gradients predict."""
    folder = pathlib.Path(folder)
    (folder / "growing.toml").write_text(GROWING)
    run = f"{name}-scale.h5"
    subprocess.run(
        [
            program,
            "replay",
            name,
            *map(str, options),
            "--steps",
            str(SCALE_STEPS),
            "--lanes",
            "fp32,growing.toml",
            "--twins",
            "0",
            "--sums-every",
            "0",
            "--quiet",
            "-o",
            run,
        ],
        cwd=folder,
        check=True,
    )
    found = json.loads(
        subprocess.run(
            [program, "recommend", run, "--formats", "fp16", "--json"],
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    )
    ranges, (lane,) = found["loss_scales"]["fp16"], found["lanes"]
    high = ranges["hi_exponent"]
    return Settled(
        name,
        [ranges["lo_exponent"], None if high is None else high + ranges["headroom_octaves"]],
        lane["predicted"],
        lane["recorded"],
    )


def scale_page(rows):
    lines = [
        "",
        "## Where a growing loss scale settles",
        "",
        f"`growth_interval` 20, {SCALE_STEPS} steps from 2^16, as `lockstep recommend RUN` shows it. Predicted: the scaler run on the "
        "gradients of the FP32 lane; both over the second half of the run. A growing scale settles above the scales at which no "
        "step overflows, because it grows until one does.",
        "",
        f"- most frequent scale within the interval in which no step overflows, without headroom: "
        f"**{sum(r.low <= r.recorded['mode_exponent'] <= r.high for r in rows)} of {len(rows)}**: a prediction by that interval "
        "alone fails",
        f"- most frequent scale within the predicted range: **{sum(r.inside for r in rows)} of {len(rows)}**; equal to the predicted "
        f"one: {sum(r.predicted['mode_exponent'] == r.recorded['mode_exponent'] for r in rows)}",
        "",
        "| network | no step overflows | predicted, mostly | recorded, mostly | skipped, predicted | skipped |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        low, high = ("" if e is None else f"2^{e}" for e in row.no_overflow)
        spans = [
            f"2^{c['lo_exponent']} to 2^{c['hi_exponent']}, 2^{c['mode_exponent']}"
            for c in (row.predicted, row.recorded)
        ]
        lines.append(
            f"| {row.name} | {low} to {high} | {spans[0]} | {spans[1]} | {row.predicted['skipped_steps']} | "
            f"{row.recorded['skipped_steps']} |"
        )
    return "\n".join(lines) + "\n"
