"""Recipes of FP8 and FP4 training beside BF16 on a small GPT of several blocks, with twins.

Presets of recipes.py that scale factors or keep parts wide, and NVFP4 in fprop or in the gradients alone: published
runs say that fprop carries most of its gap. Outcomes are the program's own; recipes.py names the claims. Writes
recipes-2026.md into the folder that LOCKSTEP_STUDY_DIR names. LOCKSTEP_STUDY_STEPS: fewer steps, for a trial.
"""

import os
import pathlib
import re

import recipes

STEPS = int(os.environ.get("LOCKSTEP_STUDY_STEPS", 500))
SEEDS = 2
MODEL = "gpt-deep"  # in recipes.py
OPTIONS = ["--size", "layers=4,width=64,heads=2,context=32,dropout=0", "--steps", STEPS, "--batch", 8]
OPTIONS += ["--optimizer", "adamw", "--lr", 1e-3, "--beta2", 0.95, "--seeds", SEEDS]
QUIET = ["--threads", 1, "--histogram-every", 10**6, "--checkpoint-every", 10**6, "--quiet"]
BF16 = "torch-autocast-bf16:2.12"
PRESETS = re.compile(r"(fp8|mxfp8|nvfp4|deepseek|bf16-|fp16-rl)")

# NVFP4 in some products only; the others as BF16 autocast computes them.
PARTS = {
    "nvfp4-fprop": 'extends = "nvfp4-hadamard"\n[scaling.dgrad]\nkind = "none"\n[scaling.wgrad]\nkind = "none"\n',
    "nvfp4-gradients": 'extends = "nvfp4-hadamard"\n[scaling.fprop]\nkind = "none"\n',
}

INTRO = """# Recipes of 2026: FP8 and FP4 beside BF16

Written by `./dev study recipes-2026`: `lockstep replay gpt --data text:input.txt {options}`, every lane against the same
`fp32`. The outcome is that of `lockstep report` ([findings.md](../findings.md#outcomes)). Losses are means over the last tenth of the steps and over {seeds}
seeds. `one ulp` is the bound from the twins (FP32 with every weight moved by one ulp). `nvfp4-fprop` and `nvfp4-gradients` are `nvfp4-hadamard` in fprop or in
both gradient products alone. A small model and a short run: equal losses here prove nothing for large ones.
"""


def lanes_of(folder):
    names = [BF16] + [name for name in recipes.lanes_of(MODEL)[1:] if PRESETS.match(name)]
    for name, text in PARTS.items():
        (folder / f"{name}.toml").write_text(text)
    return ["fp32", *names, *(str(folder / f"{name}.toml") for name in PARTS)]


def short(name):
    return pathlib.Path(name).stem if name.endswith(".toml") else name


def rows(lanes, names):
    shown = lambda value, sign="": "-" if value is None else f"{value:{sign}.2g}"
    bf16 = lanes[BF16]
    found = [
        f"fp32: loss {lanes['fp32']['loss']:.4f}; batch noise {lanes['fp32']['batch_noise']:.2g}.",
        "",
        "| lane | outcome | loss | gap to fp32 | gap to BF16 | one ulp | seeds | finding |",
        "|---" * 8 + "|",
    ]
    for name in ["twin", *names]:
        lane = lanes[name]
        has_loss = lane["gap"] is not None
        to_bf16 = lane["gap"] - bf16["gap"] if has_loss and bf16["gap"] is not None else None
        finding = lane["findings"][0]["kind"] if lane["findings"] else ""
        cells = [short(name), lane["outcome"], f"{lane['loss']:.4f}" if has_loss else "-", shown(lane["gap"], "+")]
        cells += [shown(to_bf16, "+"), shown(lane["chaos_bound"]), shown(lane["seed_bound"]), finding]
        found.append("| " + " | ".join(cells) + " |")
    return found


def order(lanes):
    """What the runs say of the published order: the sentence, from the gaps of NVFP4's parts."""
    gap = {short(name): lane["gap"] for name, lane in lanes.items()}
    fprop, gradients, both = (gap[name] for name in ("nvfp4-fprop", "nvfp4-gradients", "nvfp4-hadamard:1"))
    carries = "fprop" if fprop > gradients else "the gradient products"
    return (
        f"Published: most of NVFP4's gap comes from fprop. Here {carries} carry more of it: {fprop:+.2g} with fprop alone, "
        f"{gradients:+.2g} with the gradient products alone, {both:+.2g} with all three."
    )


def test_recipes_of_2026(lockstep, corpus, tmp_path):
    names = lanes_of(tmp_path)
    options = [*OPTIONS, *QUIET, "--data", f"text:{corpus}"]
    lanes = recipes.measure(lockstep, "gpt", options, names, tmp_path / "gpt.h5")
    options = " ".join(map(str, OPTIONS))
    text = "\n".join([INTRO.format(options=options, seeds=SEEDS), *rows(lanes, names[1:]), "", order(lanes), ""])
    print("\n" + text)
    folder = os.environ.get("LOCKSTEP_STUDY_DIR")
    if folder:
        pathlib.Path(folder, "recipes-2026.md").write_text(text)
    assert all(lane["seeds"] == SEEDS for lane in lanes.values())
    assert lanes[BF16]["outcome"] in recipes.GOOD
    # None of them breaks; NVFP4 with all three products is no better than BF16.
    assert all(lanes[name]["outcome"] not in ("broke", "stalled") for name in names)
    gaps = {short(name): lane["gap"] for name, lane in lanes.items()}
    assert gaps["nvfp4:1"] > gaps[BF16]
