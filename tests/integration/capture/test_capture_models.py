"""Thirteen PyTorch models, captured and replayed: the gates of `lockstep verify`, free runs, overflows.

capture_models.py has the models. Every capture is made once and shared by the tests.
"""

import re
import subprocess

import capture_models
import h5py
import numpy as np
import pytest
import torch
from capture_models import TASKS
from cpu_kernels import MODELLED_BF16, need_low_precision_lstm
from lockstep_capture.read_run import read_run

STEPS = 8
FLOOR = 1e-6  # of the loss: distances below are FP32's last digits
TWIN_TIMES = 3  # a free run may be so many twin distances away
OVERFLOWING = 2.0**24  # of FP16: gradients beyond 2^16 / 2^24 = 0.004 are infinite
HAS_RUNNING_STATISTICS = {"cnn", "unet", "mobile"}
# Gradients of these jump when one activation rounds the other way; V7's floor (analysis/faithful/gates_amp.cc) is one
# realisation of that, so a miss by less than CHAOS_SPREAD is skipped, and counted.
CHAOTIC, CHAOS_SPREAD = {"unet"}, 2
KINDS = [("none", 0.1), ("none", 0.0), ("bf16", 0.1), ("bf16", 0.0)]

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def captured(tmp_path_factory):
    """captured(name, amp, dropout, ...) -> (path, PyTorch's losses)."""
    folder, made = tmp_path_factory.mktemp("captures"), {}

    def get(name, amp="none", dropout=0.1, **options):
        if name == "lstm" and amp != "none":
            need_low_precision_lstm()
        key = (name, amp, dropout, *sorted(options.items()))
        if key not in made:
            path = folder / f"{name}-{amp}-{dropout}-{len(made)}.lscap.h5"
            losses = capture_models.train(TASKS[name], STEPS, amp, dropout, capture=path, **options)
            made[key] = path, losses
        return made[key]

    return get


@pytest.fixture(scope="session")
def verify(binary_dir):
    """What `lockstep verify` prints; its exit code says whether a gate failed."""

    def run(path):
        done = subprocess.run([str(binary_dir / "lockstep"), "verify", str(path)], capture_output=True, text=True)
        assert done.returncode == (1 if " FAIL" in done.stdout else 0), done.stdout + done.stderr
        return done.stdout

    return run


def gates_of(text):
    """{gate: its line} of `lockstep verify`."""
    return {found[1]: found[0] for found in re.finditer(r"(?m)^\s*(V\d)\b.*$", text)}


def jumps(name, line):
    """Is this V7 a miss that chaos explains?"""
    loss, limit, gradients = re.search(r"loss (\S+) \(at most ([^;]+);.* gradients (\S+) of their bound", line).groups()
    return name in CHAOTIC and float(loss) <= float(limit) and float(gradients) < CHAOS_SPREAD


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("amp, dropout", KINDS)
def test_gates_pass(verify, captured, name, amp, dropout):
    path, losses = captured(name, amp, dropout)
    assert all(np.isfinite(losses))
    gates = gates_of(verify(path))
    wanted = {"V0", "V1", "V3", "V5"} | ({"V6", "V7"} if amp == "bf16" else set())
    failed = [line for line in gates.values() if " FAIL" in line]
    only_v7 = all(line.startswith("V7") for line in failed)
    assert failed == [] or only_v7 and (not MODELLED_BF16 or jumps(name, failed[0])), failed
    assert wanted <= {gate for gate, line in gates.items() if "n/a" not in line}, gates
    assert ("n/a" in gates["V4"]) == (name not in HAS_RUNNING_STATISTICS), gates["V4"]
    if failed:
        why = "is chaotic" if MODELLED_BF16 else "on a CPU whose kernels are not modelled"
        pytest.skip(f"V7 of {name} {why}: {failed[0]}")
    print("\n".join(f"{name} {amp} {dropout}: {line}" for line in gates.values()))


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("amp, dropout", KINDS)
def test_capturing_changes_nothing(captured, name, amp, dropout):
    _, losses = captured(name, amp, dropout)
    assert losses == capture_models.train(TASKS[name], STEPS, amp, dropout)


@pytest.mark.parametrize("name", TASKS)
def test_free_run_stays_with_pytorch(lockstep, captured, tmp_path, name):
    path, losses = captured(name)
    twin = capture_models.train(TASKS[name], STEPS, twin=True)
    lockstep("replay", path, "--lanes", "fp32", "-o", tmp_path / "run.h5")
    replayed = read_run(tmp_path / "run.h5").steps.loc["fp32"]["loss"].to_numpy()
    assert len(replayed) == STEPS and len(set(losses)) == STEPS
    distance = np.mean(np.abs(replayed - losses))
    bound = max(TWIN_TIMES * np.mean(np.abs(np.subtract(twin, losses))), FLOOR * np.mean(losses))
    print(f"{name}: distance {distance:.3g}, bound {bound:.3g}")
    assert distance <= bound


@pytest.mark.parametrize("name", ["cnn", "gpt", "mobile"])
def test_skipped_steps(lockstep, verify, captured, tmp_path, name):
    path, _ = captured(name, "fp16", scale=OVERFLOWING)
    with h5py.File(path) as file:
        steps = [file[f"steps/{i:06d}"].attrs for i in range(STEPS)]
        found = np.array([bool(step["found_inf"]) for step in steps])
        stepped = np.array([bool(step["stepped"]) for step in steps])
        before = np.array([step["scale_before"] for step in steps])
    assert found[0] and not found[-1], "the scale is meant to overflow at first, and to recover"
    assert (stepped == ~found).all() and before[0] == OVERFLOWING
    assert "PASS" in gates_of(verify(path))["V6"]
    lockstep("replay", path, "--lanes", "fp32", "-o", tmp_path / "run.h5")
    lane = read_run(tmp_path / "run.h5").steps.loc["captured"]
    assert (lane["found_inf"].to_numpy(bool) == found).all()
    assert (lane["scale"] == before).all()
