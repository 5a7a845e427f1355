"""Does the lane that does what PyTorch did stay with the captured run, in every step, and is it told where not?

The captures are tiny_capture's; one is then given another loss in step 3, as a loop that does something else has.
"""

import copy

import h5py
import pytest
import tiny_capture as tiny
import torch

STEPS, ALTERED = 5, 3
FLOOR = 1e-3  # of the loss: analysis/faithful/captured_run.h
LOW = "torch-autocast-bf16-cpu"


@pytest.fixture(scope="module")
def trees():
    return {"fp32": tiny.make(steps=STEPS), LOW: tiny.make(steps=STEPS, amp=torch.bfloat16)}


@pytest.fixture
def told(lockstep, tmp_path, trees):
    """told(tree of, factor, lanes) -> the summary that `replay` prints."""

    def run(of, factor=1.0, lanes="fp32", *options):
        tree = copy.deepcopy(trees[of])
        step = tree["steps"][f"{ALTERED:06d}"]
        for place in (step, step["micro"]["000"]):
            place[""]["loss"] *= factor
        capture = tiny.write(tmp_path / "net.h5", tree)
        out = lockstep("replay", capture, "--lanes", lanes, "-o", tmp_path / "run.h5", "--overwrite", *options)
        return " ".join(out.stdout.split())

    return run


def test_an_honest_capture_is_said_to_agree(told):
    assert "fp32 does what PyTorch did: losses agree in 5 steps" in told("fp32")
    low = told(LOW, lanes=f"fp32,twin,{LOW}")
    assert f"{LOW} does what PyTorch did: losses agree in 5 steps" in low and "fp32 does what" not in low


@pytest.mark.parametrize("lanes", ["fp32,twin", "fp32"])
def test_another_loss_is_told_with_its_step(told, lanes):
    text = told("fp32", 1 + 2 * FLOOR, lanes)
    assert f"fp32 does what PyTorch did, but departs from it in step {ALTERED}: loss" in text and "agree in" not in text


def test_another_loss_under_autocast_is_told(told, tmp_path):
    text = told(LOW, 1.1, f"fp32,{LOW}")
    assert f"{LOW} does what PyTorch did, but departs from it in step {ALTERED}: loss" in text
    with h5py.File(tmp_path / "run.h5") as run:
        captured, lane = (run[f"lanes/{name}/loss"][ALTERED] for name in ("captured", LOW))
    assert f"loss {lane:.6g}, captured {captured:.6g}" in text


def test_lanes_that_do_something_else_are_not_compared(told):
    assert "does what PyTorch did" not in told(LOW, 1.1, "fp32,torch-autocast-fp16")
    synced = told(LOW, 1.1, f"fp32,{LOW}", "--mode", "synced")
    assert "does what PyTorch did" not in synced
