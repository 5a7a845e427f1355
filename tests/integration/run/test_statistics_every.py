"""`replay --statistics` and `--statistics-every`: which rows the run file has, that a killed run resumes to the same file,
and what the report, the check and --save-values make of steps that were not measured."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import h5py
import numpy as np
from conftest import assert_same_run
from unsealed import unseal

# The scale overflows until it has fallen, and again when it has grown.
SCALER = 'extends = "torch-autocast-fp16"\n[loss_scale]\ninit_scale = 67108864\ngrowth_interval = 4\n'
STEPS = 30


def arguments(folder):
    policy = folder / "scaler.toml"
    policy.write_text(SCALER)
    return [
        "replay",
        "lenet",
        "--data",
        "synthetic:400",
        "--steps",
        STEPS,
        "--batch",
        16,
        "--lanes",
        f"fp32,{policy}",
        "--twins",
        1,
        "--eval-every",
        10,
        "--sums-every",
        7,
        "--histogram-every",
        8,
        "--checkpoint-every",
        4,
    ]


def measured_of(path):
    with h5py.File(path) as file:
        return ~np.isnan(file["lanes/fp32/scale"][:]).all(axis=1)


def test_rows_of_measured_steps_are_those_of_a_full_run(lockstep, tmp_path):
    some, whole = tmp_path / "some.h5", tmp_path / "whole.h5"
    lockstep(*arguments(tmp_path), "-o", whole)
    lockstep(*arguments(tmp_path), "-o", some, "--statistics-every", 5)
    measured = measured_of(some)
    with h5py.File(some) as a, h5py.File(whole) as b:
        broken = np.zeros(STEPS, bool)
        for lane in b["lanes"].values():
            broken |= (lane["loss_scale/found_inf"][:] > 0).any(axis=1)
        due = np.arange(STEPS) % 5 == 0
        assert (broken & ~due).sum() > 3 and (~broken & ~due).sum() > 3
        assert (measured == (due | broken)).all()
        compared = 0
        for lane, group in a["lanes"].items():
            other = b["lanes"][lane]
            for kind in (
                "loss",
                "lr",
                "attempts",
                "loss_scale/scale",
                "loss_scale/skipped",
                "loss_scale/culprit_site",
                "eval/loss",
            ):
                assert (group[kind][:] == other[kind][:]).all(), kind
            for folder in ("counts", "moments", "updates"):
                for name in group[folder]:
                    mine, theirs = group[folder][name][:], other[folder][name][:]
                    same = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
                    assert same[measured].all(), (lane, name)
                    # Not measured is not zero: a count of 0 says that there is nothing.
                    rest = mine[~measured]
                    assert (rest == 0).all() if mine.dtype.kind == "u" else np.isnan(rest).all(), (lane, name)
                    compared += 1
            # The first measured step at or after 0, 7, 14, ...
            assert list(group["sums/step"][:]) == [0, 10, 15, 25]
            kept = list(group["exponent_histogram_step"][:])
            assert all(measured[kept]) and {0, 10, 20, 25} <= set(kept)
        assert compared > 40


def test_health_counts_in_every_step(lockstep, tmp_path):
    some, whole = tmp_path / "some.h5", tmp_path / "whole.h5"
    lockstep(*arguments(tmp_path), "-o", whole)
    lockstep(*arguments(tmp_path), "-o", some, "--statistics", "health")
    measured = measured_of(some)
    assert 3 < measured.sum() < STEPS - 10  # the first step, and those that break
    counted = 0
    with h5py.File(some) as a, h5py.File(whole) as b:
        for lane, group in a["lanes"].items():
            other = b["lanes"][lane]
            assert (group["loss"][:] == other["loss"][:]).all()
            elements = group["counts/count"][:][~measured]
            assert (elements.any(axis=1) == (lane not in ("fp32", "twin"))).all(), lane
            for name in group["counts"]:
                mine, theirs = group["counts"][name][:], other["counts"][name][:]
                assert (mine[measured] == theirs[measured]).all(), name
                if name == "compared":
                    assert (mine[~measured] == 0).all()
                    continue
                assert (mine[~measured] == np.where(elements > 0, theirs[~measured], 0)).all(), (lane, name)
                counted += int(mine[~measured].sum())
            for name in group["moments"]:
                assert np.isnan(group["moments"][name][:][~measured]).all(), name
    assert counted > 0
    found = json.loads(lockstep("report", some, "--format", "json").stdout)
    assert found["measured_steps"] == int(measured.sum())
    expected = json.loads(lockstep("report", whole, "--format", "json").stdout)
    outcomes = [[(lane["name"], lane["outcome"], lane["gap"]) for lane in r["lanes"]] for r in (found, expected)]
    assert outcomes[0] == outcomes[1]
    said = " ".join(lockstep("report", some).stdout.split())
    assert f"({measured.sum()} measured, the others counted)" in said
    assert f"over all steps ({STEPS - measured.sum()} of them counted only what roundings did)" in said
    lockstep("verify", some)
    done = lockstep("check", some, "--baseline", whole, "--exact", code=3)
    assert "statistics-every: 0 here, 1 in the baseline" in done.stdout
    every = tmp_path / "every.h5"
    lockstep(*arguments(tmp_path), "-o", every, "--statistics", "none")
    assert (
        "statistics: health here, not in the baseline"
        in lockstep("check", some, "--baseline", every, "--exact", code=3).stdout
    )
    assert "PASS" in lockstep("check", some, "--baseline", some, "--exact").stdout
    shutil.copy(some, every)
    with h5py.File(every, "r+") as file:
        lane = next(lane for name, lane in file["lanes"].items() if name not in ("fp32", "twin"))
        step = np.flatnonzero(~measured)[-1]
        site = np.flatnonzero(lane["counts/count"][step])[0]
        lane["counts/to_zero"][step, site] += 1
        unseal(file)
    assert "to_zero" in lockstep("check", every, "--baseline", some, "--exact", code=1).stdout


def test_a_baseline_compares_counts(lockstep, tmp_path):
    run, baseline = tmp_path / "run.h5", tmp_path / "baseline.json"
    small = [
        "mlp",
        "--data",
        "synthetic:100",
        "--steps",
        4,
        "--batch",
        8,
        "--lanes",
        "fp32,pure-fp16",
        "--statistics",
        "health",
    ]
    lockstep("baseline", "record", *small, "--members", 5, "-o", baseline)
    lockstep("replay", *small, "-o", run)
    assert "IDENTICAL" in lockstep("check", run, "--baseline", baseline).stdout
    with h5py.File(run, "r+") as file:
        counts = file["lanes/pure-fp16/counts"]
        counts["to_subnormal"][3, np.flatnonzero(counts["count"][3])[0]] += 1
        unseal(file)
    assert "IDENTICAL" not in lockstep("check", run, "--baseline", baseline).stdout


def test_the_largest_loss_that_was_only_counted_is_told(lockstep, tmp_path):
    run = tmp_path / "run.h5"
    lockstep(
        "replay",
        "lenet",
        "--data",
        "synthetic:400",
        "--steps",
        12,
        "--batch",
        16,
        "--lanes",
        "fp32,pure-fp16",
        "-o",
        run,
        "--statistics",
        "health",
    )
    with h5py.File(run) as file:
        counts = {name: rows[1:] for name, rows in file["lanes/pure-fp16/counts"].items()}
    lost = sum(counts[name].astype(float) for name in ("to_zero", "to_infinity", "saturated", "nan"))
    nonzero = counts["count"] - counts["source_zero"].astype(float)
    shares = np.divide(lost, nonzero, out=np.zeros_like(lost), where=nonzero > 0)
    step, _ = np.unravel_index(shares.argmax(), shares.shape)
    assert shares.max() > 0.01
    said = " ".join(lockstep("report", run).stdout.split())
    told = said[said.index("pure-fp16:", said.index("Findings")) :]
    assert f"{100 * shares.max():.3g}% of the nonzero values of" in told
    assert f"were lost in step {step + 1}, which has no other statistics" in told


def test_levels_of_statistics(lockstep, tmp_path):
    small = ["replay", "mlp", "--data", "synthetic:100", "--steps", 6, "--batch", 8, "--twins", 0]
    for words, every in (
        (["none"], 0),
        (["full"], 1),
        (["full", "--statistics-every", 2], 2),
        (["health"], 0),
        (["health", "--statistics-every", 3], 3),
    ):
        run = tmp_path / "run.h5"
        lockstep(*small, "--overwrite", "-o", run, "--statistics", *words)
        due = np.arange(6) % every == 0 if every else np.arange(6) == 0
        assert (measured_of(run) == due).all(), words
    none = lockstep(*small, "-o", tmp_path / "x.h5", "--statistics", "none", "--statistics-every", 2, code=2).stderr
    assert "--statistics none: contradicts --statistics-every 2" in none
    other = lockstep(*small, "-o", tmp_path / "x.h5", "--statistics", "counts", code=2).stderr
    assert "counts" in other and "health" in other


def test_a_killed_run_resumes_to_the_same_file(lockstep, binary_dir, tmp_path):
    whole, killed = tmp_path / "whole.h5", tmp_path / "killed.h5"
    run = [*arguments(tmp_path), "--statistics", "health", "--statistics-every", 5]
    lockstep(*run, "-o", whole)
    # After the first checkpoint, at step 4. The snapshot in .progress.json is too rare: twice a second.
    process = subprocess.Popen(
        [str(binary_dir / "lockstep"), *map(str, run), "-o", str(killed)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None and not killed.with_suffix(".h5.state").exists():
        time.sleep(0.002)
    process.kill()
    process.wait()
    with h5py.File(killed) as file:
        done = int(file.attrs["steps_complete"])
    assert 0 < done < STEPS
    lockstep("replay", "--resume", killed)
    assert assert_same_run(whole, killed) > 50
    lockstep("verify", killed)


def test_reports_say_how_many_steps_were_measured(lockstep, tmp_path):
    run = tmp_path / "run.h5"
    lockstep(*arguments(tmp_path), "-o", run, "--statistics-every", 0)
    count = int(measured_of(run).sum())
    assert 1 < count < STEPS
    found = json.loads(lockstep("report", run, "--format", "json").stdout)
    assert found["measured_steps"] == count and found["steps"] == STEPS
    page = tmp_path / "run.html"
    lockstep("report", run, "--format", "html", "-o", page)
    assert f"{STEPS} steps ({count} measured)" in page.read_text()
    said = " ".join(lockstep("report", run).stdout.split())
    assert f"{STEPS} steps of batch 16 ({count} measured)" in said
    small = tmp_path / "small.h5"
    lockstep(
        "replay", "mlp", "--data", "synthetic:100", "--steps", 5, "--batch", 8, "--statistics-every", 3, "-o", small
    )
    assert "after the last step that was measured (3)" in " ".join(lockstep("report", small).stdout.split())


def test_values_of_measured_steps_are_saved_and_others_refused(lockstep, tmp_path):
    npy, run, whole = tmp_path / "v.npy", tmp_path / "run.h5", tmp_path / "whole.h5"
    lockstep(*arguments(tmp_path), "-o", whole, "--statistics-every", 0)
    measured = measured_of(whole)
    broken, other = int(np.flatnonzero(measured)[1]), int(np.flatnonzero(~measured)[0])
    lane = f"{tmp_path}/scaler.toml"
    lockstep(
        *arguments(tmp_path), "-o", run, "--statistics-every", 0, "--save-values", npy, "--at", f"{broken} {lane} #40"
    )
    assert np.load(npy).size > 0
    npy.unlink()
    done = lockstep(
        *arguments(tmp_path),
        "-o",
        tmp_path / "more.h5",
        "--statistics-every",
        0,
        "--save-values",
        npy,
        "--at",
        f"{other} {lane} #40",
        code=2,
    )
    assert f"step {other} was not measured" in done.stderr and not npy.exists()


def test_runs_with_other_measured_steps_are_not_compared(lockstep, tmp_path):
    one, two = tmp_path / "one.h5", tmp_path / "two.h5"
    small = ["mlp", "--data", "synthetic:100", "--steps", 4, "--batch", 8, "--lanes", "fp32", "--twins", 0]
    lockstep("replay", *small, "-o", one)
    lockstep("replay", *small, "-o", two, "--statistics-every", 2)
    done = lockstep("check", two, "--baseline", one, "--exact", code=3)
    assert "statistics-every: 2 here, 1 in the baseline" in done.stdout
    lockstep("check", two, "--baseline", two, "--exact")
    assert "0 <= N" in lockstep("replay", *small, "-o", one, "--statistics-every", -1, code=2).stderr
    baseline = tmp_path / "baseline.json"
    lockstep("baseline", "record", *small[:-2], "--members", 5, "-o", baseline)
    assert (
        "statistics-every: 2 here, 1 in the baseline" in lockstep("check", two, "--baseline", baseline, code=3).stdout
    )
    # A baseline recorded by an earlier version does not name the option.
    settings = json.loads(baseline.read_text())["identity"]["settings"]
    assert settings and "statistics-every" not in json.dumps(settings)
    assert "IDENTICAL" in lockstep("check", one, "--baseline", baseline).stdout


CAPTURED = """
import torch, lockstep_capture

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(8, 8), torch.nn.Linear(8, 3)
        self.register_buffer("hidden", torch.triu(torch.full((8, 8), float("-inf")), 1))

    def forward(self, x):
        weights = torch.softmax(self.inner(x) @ x.transpose(1, 2) + self.hidden, -1)
        return self.outer(weights @ x).mean(1)

def loss_of(net, batch):
    return torch.nn.functional.cross_entropy(net(batch[0]), batch[1])

torch.manual_seed(1)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
with lockstep_capture.Capture("net.lscap.h5", net, optimizer, loss_of, steps=6) as capture:
    for _ in range(6):
        batch = (torch.randn(4, 8, 8), torch.randint(0, 3, (4,)))
        with capture.step(batch):
            loss_of(net, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
"""


def test_a_buffer_of_meant_infinities_breaks_no_step(lockstep, tmp_path):
    script = tmp_path / "net.py"
    script.write_text(CAPTURED)
    root = pathlib.Path(__file__).parents[3]
    subprocess.run(
        [sys.executable, script], cwd=tmp_path, check=True, env=os.environ | {"PYTHONPATH": str(root / "python")}
    )
    run = tmp_path / "run.h5"
    lockstep(
        "replay",
        "net.lscap.h5",
        "--lanes",
        "fp32,torch-autocast-bf16",
        "--statistics-every",
        0,
        "-o",
        run,
        cwd=tmp_path,
    )
    assert list(np.flatnonzero(measured_of(run))) == [0]


def test_a_cast_of_the_model_counts_in_the_reference_too(lockstep, tmp_path):
    script = tmp_path / "net.py"
    script.write_text(
        CAPTURED.replace("self.outer(weights @ x)", "self.outer((weights @ x).to(torch.bfloat16).float())")
    )
    root = pathlib.Path(__file__).parents[3]
    subprocess.run(
        [sys.executable, script], cwd=tmp_path, check=True, env=os.environ | {"PYTHONPATH": str(root / "python")}
    )
    run = tmp_path / "run.h5"
    lockstep(
        "replay",
        "net.lscap.h5",
        "--lanes",
        "fp32,torch-autocast-bf16",
        "--statistics",
        "health",
        "-o",
        run,
        cwd=tmp_path,
    )
    with h5py.File(run) as file:
        assert (file["lanes/fp32/counts/count"][:] > 0).any(axis=1).all()
    assert list(np.flatnonzero(measured_of(run))) == [0]
    assert json.loads(lockstep("report", run, "--format", "json").stdout)["measured_steps"] == 1
