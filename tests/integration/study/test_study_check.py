"""How often does `lockstep check` fail a run that is as good as its baseline?

200 runs that no ensemble holds are checked against one baseline: from weights moved by one ulp, and from other seeds.
The red ones may be no more than the 99.9 % quantile of the binomial distribution of 200 trials at rate alpha.
"""

import collections
import math
import re
import subprocess

import pytest

RUNS, ALPHA, QUANTILE = 200, 0.01, 0.999
MEMBERS, SEEDS = 24, 24
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


@pytest.mark.parametrize("name, model, ensemble, option", [
    ("mlp, ulps", MLP, ["--members", MEMBERS], "--nudge"),
    ("mlp, seeds", MLP, ["--members", 3, "--seeds", SEEDS], "--seed"),
    ("lenet, ulps", LENET, ["--members", MEMBERS], "--nudge"),
    ("lenet, seeds", LENET, ["--members", 3, "--seeds", SEEDS], "--seed"),
])
def test_held_out_clean_runs(lockstep, binary_dir, tmp_path, capsys, name, model, ensemble, option):
    baseline, run = tmp_path / "b.json", tmp_path / "held-out.h5"
    lockstep("baseline", "record", *model, *LANES, *ensemble, "-o", baseline, *QUIET)
    codes, first_lines = collections.Counter(), collections.Counter()
    for number in range(FIRST_HELD_OUT, FIRST_HELD_OUT + RUNS):
        lockstep("replay", *model, *LANES, option, number, "-o", run, "--overwrite", *QUIET)
        done = subprocess.run([binary_dir / "lockstep", "check", run, "--baseline", baseline, "--alpha", str(ALPHA)],
                              capture_output=True, text=True)
        codes[done.returncode] += 1
        if done.returncode != 0:
            first_lines[" ".join(re.search(r"^[A-Z ]+: [\s\S]*?(?=\n\n)", done.stdout, re.M).group(0).split())] += 1
    most = binomial_quantile(RUNS, ALPHA, QUANTILE)
    with capsys.disabled():
        print(f"\n{name}: {codes[1]} of {RUNS} clean runs red, at most {most} allowed at alpha {ALPHA}; exit codes {dict(codes)}")
        for sentence, count in first_lines.most_common(20):
            print(f"  {count} x {sentence}")
    assert codes[0] + codes[1] == RUNS, "a clean run is complete"
    assert codes[1] <= most
