"""Runs that end early or cannot be stepped, from PyTorch's loop to verify and replay."""

import re
import subprocess

import pytest
import torch
import torch.nn.functional as F
from capture_loops import UnknownOptimizer
from lockstep_capture import Capture, CaptureError
from lockstep_capture.loss_factor import loss_factor
from lockstep_capture.read_run import read_run

torch.set_num_threads(1)
STEPS = 4


def captured(path, make_optimizer):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(),
                                torch.nn.Linear(16, 3))
    optimizer = make_optimizer(model.parameters())
    cap = Capture(str(path), model, optimizer, lambda m, b: F.cross_entropy(m(b[0]), b[1]), steps=STEPS)
    for _ in range(STEPS):
        batch = torch.randn(12, 8), torch.randint(3, (12,))
        with cap.step(batch):
            F.cross_entropy(model(batch[0]), batch[1]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return path


@pytest.fixture
def program(binary_dir):
    def run(*arguments):
        return subprocess.run([str(binary_dir / "lockstep"), *map(str, arguments)], capture_output=True, text=True)
    return run


@pytest.mark.parametrize("make", [lambda p: torch.optim.RMSprop(p, 1e-3), lambda p: UnknownOptimizer(p, 1e-3)],
                         ids=["rmsprop", "unknown"])
def test_an_optimizer_that_is_not_modelled(program, tmp_path, make):
    path = captured(tmp_path / "a.lscap.h5", make)
    verified = program("verify", path)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    for gate, status in {"V1": "PASS", "V3": "PASS", "V4": "PASS", "V5": "n/a"}.items():
        assert re.search(rf"(?m)^{gate}\s+{status}", verified.stdout), verified.stdout
    replayed = program("replay", path, "-o", tmp_path / "run.h5")
    assert replayed.returncode == 2 and "gradients" in replayed.stderr and not (tmp_path / "run.h5").exists()


def test_a_run_that_becomes_nan(program, tmp_path):
    """The steps up to there are judged, and the replay shows the same end."""
    path = captured(tmp_path / "a.lscap.h5", lambda p: torch.optim.SGD(p, 1e38))
    verified = program("verify", path)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "not judged: PyTorch's own loss is not finite there" in verified.stdout
    done = program("replay", path, "--lanes", "fp32", "-o", tmp_path / "run.h5")
    assert done.returncode == 0, done.stderr
    losses = read_run(tmp_path / "run.h5").steps["loss"].unstack("lane")
    assert losses["fp32"].isna().tolist() == losses["captured"].isna().tolist()
    assert losses["fp32"].isna().any() and not losses["fp32"].isna().all()


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan, 0.0])
def test_the_factor_of_a_loss_whose_bits_do_not_tell_it(value):
    """An overflowing step is averaged like the others: by what the loop wrote, or as the micro-batch before."""
    loss = torch.tensor(value, requires_grad=True)
    assert loss_factor(loss * 1, loss / 4) == 0.25
    assert loss_factor(loss * 1, loss * 0.5) == 0.5
    assert loss_factor(loss * 1, loss / 4, earlier=0.125) == 0.125
    assert loss_factor(loss * 1, loss) == 1
    assert loss_factor(loss * 1, loss, earlier=0.5) == 0.5
    with pytest.raises(CaptureError, match="gate V0"):
        loss_factor(loss * 1, torch.tensor(3.0))
    assert loss_factor(torch.tensor(3.0), torch.tensor(3.0), earlier=0.5) == 1
