"""Study: the recipes that claim to match FP32 do so within the seed noise, the ones that do not are seen not to.

Every preset side by side on three models: 5 seeds on lenet and resnet20, 3 on gpt. recipes.py names who claims
what and the bound. Writes docs/study/recipes.md when LOCKSTEP_STUDY_DIR is set (`./dev study recipes`). What a
(model, seed) gave is kept in build/release/study/ and taken again while program and options are the same.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import re

import h5py
import numpy as np
import recipes

LANES = ["twin"] + [recipe.preset for recipe in recipes.RECIPES]
# One thread and few records: what is kept changes no number of the training.
QUIET = ["--threads", 1, "--sums-every", 0, "--histogram-every", 10**6, "--checkpoint-every", 10**6, "--quiet"]


@dataclasses.dataclass
class Run:
    model: str
    seeds: int
    data: str  # {mnist}, {corpus}: the files of the tests' data
    options: list

    def shown(self):
        data = self.data.format(mnist="DIR", corpus="input.txt")
        return f"lockstep replay {self.model} --data {data} " + " ".join(map(str, self.options))


RUNS = [
    Run("lenet", 5, "mnist:{mnist}", ["--steps", 150, "--batch", 64, "--lr", 0.05, "--schedule", "cosine"]),
    Run("resnet20", 5, "shapes:2500",
        ["--size", "width=4", "--steps", 100, "--batch", 16, "--lr", 0.05, "--schedule", "cosine"]),
    Run("gpt", 3, "text:{corpus}",
        ["--size", "layers=1,width=32,heads=2,context=32,dropout=0", "--steps", 500, "--batch", 8,
         "--optimizer", "adamw", "--lr", 1e-3, "--beta2", 0.95]),
]

# What came out against its claim, and why, found after the runs: preset: the reason.
AGAINST = {
}


def first_cause(lockstep, path, lanes):
    """{lane: what the report names as its first non-finite value}."""
    report = lockstep("report", path, "--format", "text").stdout
    paragraphs = [" ".join(p.split()) for p in report.split("\n\n")]
    found = {}
    for lane in lanes:
        start = f"{lane}. First non-finite values: "
        found |= {lane: p[len(start):] for p in paragraphs if p.startswith(start)}
    return found


def measure(lockstep, run, seed, files, path):
    """{lane: {figure: value, ...}} of one run; the run file is deleted."""
    lockstep("replay", run.model, "--data", run.data.format(**files), *run.options, "--seed", seed,
             "--lanes", ",".join(["fp32", *LANES]), *QUIET, "-o", path)
    found = {}
    with h5py.File(path, "r") as file:
        for lane in ["fp32", *LANES]:
            group = file["lanes"][lane.split(":")[0] if lane not in file["lanes"] else lane]
            loss = np.array(group["loss"])
            updates = np.sum(group["updates/count"])
            found[lane] = {
                "loss": float(np.mean(loss[-(len(loss) // 10):])),
                "held-out": float(group["eval/loss"][-1]),
                "accuracy": float(group["eval/accuracy"][-1]),
                "died_at": int(group.attrs["died_at"]),
                "skipped": int(np.sum(group["loss_scale/skipped"])),
                "stagnant": float(np.sum(group["updates/stagnant"]) / updates) if updates else 0.0,
            }
    for lane, cause in first_cause(lockstep, path, LANES).items():
        found[lane]["cause"] = cause
    pathlib.Path(path).unlink()
    return found


def kept(lockstep, binary_dir, run, seed, files, tmp_path):
    """measure(), from the file of an earlier call if program and options were these."""
    program = hashlib.sha256((binary_dir / "lockstep").read_bytes()).hexdigest()
    key = json.dumps([program, LANES, dataclasses.asdict(run) | {"seeds": seed}, QUIET])
    path = binary_dir / "study" / f"recipes-{run.model}-{seed}.json"
    if path.exists():
        earlier = json.loads(path.read_text())
        if earlier["key"] == key:
            return earlier["found"]
    found = measure(lockstep, run, seed, files, tmp_path / f"{run.model}-{seed}.h5")
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"key": key, "found": found}, indent=1))
    return found


def over_seeds(records):
    """{lane: {figure: [one per seed]}} of measure()'s answers."""
    return {lane: {figure: [record[lane].get(figure) for record in records]
                   for figure in [*recipes.FIGURES, "accuracy", "died_at", "skipped", "stagnant", "cause"]}
            for lane in ["fp32", *LANES]}


def verdict(lane, fp32, twin):
    if any(step >= 0 for step in lane["died_at"]):
        return f"stopped, {sum(step >= 0 for step in lane['died_at'])} of {len(lane['died_at'])} seeds"
    missed = [f for f in recipes.FIGURES if not recipes.within(lane[f], fp32[f], twin[f])]
    return f"outside: {', '.join(missed)}" if missed else "within"


def model_rows(run, lanes):
    """The table of one model. Differences are printed in units in which the bound is readable: as they are."""
    fp32, twin = lanes["fp32"], lanes["twin"]
    bounds = {f: recipes.SIGMAS * recipes.noise(fp32[f], twin[f]) for f in recipes.FIGURES}
    count = len(fp32["loss"])
    of = "" if count == run.seeds else f" of {run.seeds}: the table is not complete"
    rows = [f"## {run.model}, seeds: {count}{of}", "", f"`{run.shown()}`", "",
            "fp32: " + "; ".join(f"{f} {np.mean(fp32[f]):.4f}, over seeds ± {np.std(fp32[f], ddof=1):.4f}, "
                                 f"bound {bounds[f]:.4f}" for f in recipes.FIGURES)
            + f"; held-out accuracy {100 * np.mean(fp32['accuracy']):.1f} %.", "",
            "| lane | claims | loss, mean d | ± | held-out, mean d | ± | accuracy | skipped | vanishing updates "
            "| verdict |", "|---" * 10 + "|"]
    claims = {r.preset: recipes.WORDS[r.matches] for r in recipes.RECIPES}
    for name in LANES:
        lane = lanes[name]
        cells = [name, claims.get(name, "(one ulp)")]
        for figure in recipes.FIGURES:
            d = np.subtract(lane[figure], fp32[figure])
            cells += [f"{d.mean():+.4f}", f"{d.std(ddof=1):.4f}"] if np.isfinite(d).all() else ["-", "-"]
        accuracy = np.mean(lane["accuracy"])
        cells += [f"{100 * accuracy:.1f} %" if np.isfinite(accuracy) else "-", f"{np.mean(lane['skipped']):.1f}",
                  f"{100 * np.mean(lane['stagnant']):.1f} %", verdict(lane, fp32, twin)]
        rows.append("| " + " | ".join(cells) + " |")
    causes = {name: next((c for c in lanes[name]["cause"] if c), None) for name in LANES}
    said = [f"- {name}: {cause}" for name, cause in causes.items() if cause]
    return rows + (["", "First non-finite values (`lockstep report`), of the first seed that has some:", "", *said]
                   if said else [])


def judge(all_lanes):
    """{preset: {model: matches}}"""
    return {r.preset: {model: recipes.matches(lanes[r.preset], lanes["fp32"], lanes["twin"])
                       for model, lanes in all_lanes.items()} for r in recipes.RECIPES}


def summary_rows(judged):
    models = [run.model for run in RUNS]
    rows = ["## Summary", "", "| preset | claims | " + " | ".join(models) + " | as claimed | whose word |",
            "|---" * (4 + len(models)) + "|"]
    for recipe in recipes.RECIPES:
        found = judged[recipe.preset]
        word = {True: "yes", False: "**no**", None: ""}[recipes.as_claimed(recipe, found)]
        rows.append(f"| {recipe.preset} | {recipes.WORDS[recipe.matches]} | "
                    + " | ".join("within" if found[m] else "**misses**" for m in models)
                    + f" | {word} | {recipe.source} |")
    return rows


def page(all_lanes):
    judged = judge(all_lanes)
    rows = [
        "# Recipes: which match FP32, compared with the seed noise", "",
        "Written by `./dev study recipes`. Every preset runs freely and is compared with the `fp32` lane of the same "
        "run. Claims, sources, figures and the bound", "were named before these runs "
        "(`tests/integration/study/recipes.py`). The options were chosen after pilots of `fp32`, `twin`, `pure-bf16` and `nvfp4`: short",
        "enough for one CPU core, long enough that `pure-bf16` is worse on `gpt`. Three things were changed after a "
        "trial of ten steps. `mxnet-multi-precision` went", "from \"does not\" to \"neither\": its source advises, and "
        "denies nothing. `lenet` got other options. `resnet20` got 100 steps in place of 150, to save time.", "Sources "
        "are cited as known; they were not read again for this table.", "",
        "d is lane minus `fp32`, seed by seed; ± is its standard deviation over seeds. A recipe matches on a model "
        f"when no lane stopped and |mean d| ≤ {recipes.SIGMAS} √((s² of", "`fp32` + s² of `twin`) / n), for the training loss (mean over "
        "the last tenth of the steps) and for the held-out loss; s is taken over the n seeds.",
        "A recipe that claims to match must match on every model; one that does not must miss on at least one. "
        "`twin` is FP32 with every weight moved by one ulp: it", "shows the effect of chaos alone. `vanishing updates` is the share "
        "of weight updates that left the weight as it was.", "",
        "What this does not show: that a recipe works for large models or long training. The runs are short, the "
        "models are small, and a difference below the", "bound is not seen. The choice of optimizer matters most for "
        "recipes that keep its state in 16 bits.", "", *summary_rows(judged)]
    if AGAINST:
        rows += ["", "Against their claims, and why:", ""]
        rows += [f"- {preset}: {reason}" for preset, reason in AGAINST.items()]
    for run in RUNS:
        rows += ["", *model_rows(run, all_lanes[run.model])]
    return "\n".join(rows) + "\n"


def test_recipes_do_what_they_claim(lockstep, binary_dir, mnist, corpus, tmp_path):
    files = {"mnist": mnist, "corpus": corpus}
    all_lanes = {run.model: over_seeds([kept(lockstep, binary_dir, run, seed, files, tmp_path)
                                        for seed in range(1, run.seeds + 1)]) for run in RUNS}
    text = page(all_lanes)
    print("\n" + re.sub(r"^.*?(?=## Summary)", "", text, flags=re.S))
    folder = os.environ.get("LOCKSTEP_STUDY_DIR")
    if folder:
        pathlib.Path(folder, "recipes.md").write_text(text)
    judged = judge(all_lanes)
    for model, lanes in all_lanes.items():
        assert lanes["apex-o0:1"]["loss"] == lanes["fp32"]["loss"], f"{model}: O0 is FP32 itself"
    surprises = {r.preset for r in recipes.RECIPES if recipes.as_claimed(r, judged[r.preset]) is False}
    assert surprises == set(AGAINST)
