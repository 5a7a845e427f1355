"""How often does `lockstep check` fail a run that is as good as its baseline?

200 runs that no ensemble holds are checked against one baseline: from weights moved by one ulp, and from other seeds.
The red ones may be no more than the 99.9 % quantile of the binomial distribution of 200 trials at rate alpha.
"""

import collections
import math
import os
import pathlib
import re
import subprocess

RUNS, ALPHA, QUANTILE = 200, 0.01, 0.999
MEMBERS, SEEDS = 12, 12  # as `baseline record` makes them
FIRST_HELD_OUT = 1001  # far beyond the numbers that the ensembles take
MLP = ["mlp", "--size", "hidden1=16,hidden2=16", "--steps", 6, "--batch", 32]
LENET = ["lenet", "--steps", 4, "--batch", 16]
LANES = ["--lanes", "fp32,torch-autocast-fp16,torch-autocast-bf16", "--twins", 0]
QUIET = ["--threads", 1, "--quiet"]


def binomial_quantile(trials, rate, level):
    """The smallest number of hits that at least `level` of all experiments stay within."""
    below = 0.0
    for hits in range(trials + 1):
        below += math.comb(trials, hits) * rate**hits * (1 - rate) ** (trials - hits)
        if below >= level:
            return hits
    return trials


CASES = [
    ("mlp", "ulps", MLP, ["--members", MEMBERS], "--nudge"),
    ("mlp", "seeds", MLP, ["--members", 3, "--seeds", SEEDS], "--seed"),
    ("lenet", "ulps", LENET, ["--members", MEMBERS], "--nudge"),
    ("lenet", "seeds", LENET, ["--members", 3, "--seeds", SEEDS], "--seed"),
]


def held_out(lockstep, binary_dir, folder, model, ensemble, option):
    """The exit codes of the held-out runs, and the first lines of those that are not 0."""
    baseline, run = folder / "b.json", folder / "held-out.h5"
    baseline.unlink(missing_ok=True)
    lockstep("baseline", "record", *model, *LANES, *ensemble, "-o", baseline, *QUIET)
    codes, first_lines = collections.Counter(), collections.Counter()
    for number in range(FIRST_HELD_OUT, FIRST_HELD_OUT + RUNS):
        lockstep("replay", *model, *LANES, option, number, "-o", run, "--overwrite", *QUIET)
        done = subprocess.run(
            [binary_dir / "lockstep", "check", run, "--baseline", baseline, "--alpha", str(ALPHA)],
            capture_output=True,
            text=True,
        )
        codes[done.returncode] += 1
        if done.returncode != 0:
            first_lines[" ".join(re.search(r"^[A-Z ]+: [\s\S]*?(?=\n\n)", done.stdout, re.M).group(0).split())] += 1
    return codes, first_lines


def page(most, outcomes):
    rows = [f"| {model} | {ensemble} | {codes[1]} of {RUNS} | {codes[3]} |" for model, ensemble, codes, _ in outcomes]
    lines = [
        f"- {model}, {ensemble}: {count} x {sentence}"
        for model, ensemble, _, first in outcomes
        for sentence, count in first.most_common()
    ]
    return "\n".join(
        [
            "# Study: clean runs that a check fails",
            "",
            "Written by `./dev study check`.",
            "",
            f"{RUNS} runs that the ensemble does not hold, as good as its own, are checked at alpha {ALPHA}. At most {most} may be red: the "
            f"{QUANTILE:.1%} quantile of the binomial distribution.",
            "",
            f"- mlp: `{' '.join(map(str, MLP))}`; lenet: `{' '.join(map(str, LENET))}`; lanes {LANES[1]}",
            f"- ulps: {MEMBERS} runs from weights moved by one ulp; seeds: {SEEDS} other seeds",
            "",
            "| model | ensemble | red | incomplete or inconclusive |",
            "|---|---|---|---|",
            *rows,
            "",
            "First lines of those that failed:",
            "",
            *(lines or ["- none"]),
            "",
        ]
    )


def test_held_out_clean_runs(lockstep, binary_dir, tmp_path):
    most = binomial_quantile(RUNS, ALPHA, QUANTILE)
    outcomes = []
    for model, ensemble, words, members, option in CASES:
        outcomes.append((model, ensemble, *held_out(lockstep, binary_dir, tmp_path, words, members, option)))
    text = page(most, outcomes)
    print("\n" + text)
    folder = os.environ.get("LOCKSTEP_STUDY_DIR")
    if folder:
        pathlib.Path(folder, "check.md").write_text(text)
    for model, ensemble, codes, _ in outcomes:
        assert codes[0] + codes[1] == RUNS, f"{model}, {ensemble}: a clean run is complete"
        assert codes[1] <= most, f"{model}, {ensemble}"
