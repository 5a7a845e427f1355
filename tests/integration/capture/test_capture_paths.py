"""Runs that end early or cannot be stepped, from PyTorch's loop to verify and replay."""

import re
import subprocess

import pytest
import torch
import torch.nn.functional as F
from capture_loops import Images, UnknownOptimizer, image_batches, image_loss
from lockstep_capture import Capture, CaptureError
from lockstep_capture.read_run import read_run
from lockstep_capture.watch.loss_factor import loss_factor

torch.set_num_threads(1)
STEPS = 4


def captured(path, make_optimizer):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 3)
    )
    optimizer = make_optimizer(model.parameters())
    cap = Capture(
        str(path), model, optimizer, lambda m, b: F.cross_entropy(m(b[0]), b[1]), steps=STEPS, verify=[0, STEPS - 1]
    )
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


@pytest.mark.parametrize(
    "make", [lambda p: torch.optim.Adamax(p, 1e-3), lambda p: UnknownOptimizer(p, 1e-3)], ids=["adamax", "unknown"]
)
def test_an_optimizer_that_is_not_modelled(program, tmp_path, make):
    path = captured(tmp_path / "a.lscap.h5", make)
    verified = program("verify", path)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    for gate, status in {"V1": "PASS", "V3": "PASS", "V4": "PASS", "V5": "PASS"}.items():
        assert re.search(rf"(?m)^{gate}\s+{status}", verified.stdout), verified.stdout
    assert "are recorded: each lane adds them to its own weights" in verified.stdout
    replayed = program("replay", path, "--lanes", "fp32", "-o", tmp_path / "run.h5")
    assert replayed.returncode == 0, replayed.stderr


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


def masked_mean(model, batch):
    x, y, mask, weight = batch
    return weight * (F.cross_entropy(model(x), y, reduction="none") * mask).sum() / mask.sum()


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_numbers_in_a_batch(program, tmp_path, dtype):
    """Tensors without dimensions: one that the batch holds (an annealed weight), one that is made of it (mask.sum())."""
    torch.manual_seed(0)
    model, path = torch.nn.Linear(6, 4), tmp_path / "a.h5"
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    cap = Capture(path, model, optimizer, masked_mean, autocast=dtype, steps=3, verify=range(3))
    losses = []
    for k in range(3):
        batch = torch.randn(5, 6), torch.randint(4, (5,)), (torch.rand(5) < 0.7).float(), torch.tensor(0.1 * (k + 1))
        with cap.step(batch):
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype is not None):
                loss = masked_mean(model, batch)
            losses.append(float(loss.detach()))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    verified = program("verify", path)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert program("replay", path, "--lanes", "fp32", "-o", tmp_path / "run.h5").returncode == 0
    assert read_run(tmp_path / "run.h5").steps["loss"].unstack("lane")["fp32"].tolist() == pytest.approx(
        losses, rel=1e-3
    )


WEIGHTED = {
    "n / total": lambda loss, n, total: loss * n / total,
    "number first": lambda loss, n, total: n * loss / total,
    "tensors": lambda loss, n, total: loss * torch.tensor(n) / torch.tensor(total),
    "ratio": lambda loss, n, total: loss * (n / total),
    "two divisions": lambda loss, n, total: loss / 3 / 5,
}


@pytest.mark.parametrize("name", WEIGHTED)
def test_micro_batches_of_uneven_weight(program, tmp_path, name):
    """As losses are averaged over tokens; the number of 1/k with the same bits is not taken for what the loop wrote."""
    loss = torch.tensor(1.2345678, requires_grad=True)
    factor = 1 / 15 if name == "two divisions" else 7 / 24
    assert loss_factor(loss * 1, WEIGHTED[name](loss * 1, 7, 24)) == pytest.approx(factor, rel=2.0**-52)
    assert loss_factor(loss.bfloat16(), loss.bfloat16() / 300) == 1 / 300
    torch.manual_seed(0)
    model, path = Images(), tmp_path / "a.h5"
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    cap = Capture(path, model, optimizer, image_loss, steps=2, verify=range(2))
    for k, batch in enumerate(image_batches(4)):
        with cap.step(batch):
            WEIGHTED[name](image_loss(model, batch), (3, 9, 5, 7)[k], 24.0).backward()
            if k % 2 == 1:
                optimizer.step()
                optimizer.zero_grad()
    verified = program("verify", path)
    assert verified.returncode == 0, verified.stdout + verified.stderr


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


def test_a_capture_without_verify_steps_is_not_called_faithful(program, tmp_path):
    """What nothing was compared with has not passed."""
    path = tmp_path / "a.h5"
    torch.manual_seed(0)
    model = Images()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    cap = Capture(path, model, optimizer, image_loss, steps=2, verify=[])
    for batch in image_batches(2):
        with cap.step(batch):
            image_loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    verified = program("verify", path)
    assert verified.returncode == 3, verified.stdout + verified.stderr
    assert "Inconclusive" in verified.stdout and "V1  PASS" not in verified.stdout
    status = {line[:2]: line[4:16].strip() for line in verified.stdout.splitlines() if line[:1] == "V"}
    assert status == {
        "V0": "PASS",
        "V1": "not recorded",
        "V3": "not recorded",
        "V4": "not recorded",
        "V5": "not recorded",
        "V6": "n/a",
        "V7": "n/a",
    }


def test_v7_of_steps_that_were_all_skipped(program, tmp_path):
    path, model = tmp_path / "a.h5", torch.nn.Linear(6, 4)
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=2.0**120)
    step_fn = lambda m, b: F.cross_entropy(m(b[0]), b[1])
    cap = Capture(path, model, optimizer, step_fn, scaler=scaler, autocast=torch.float16, steps=2, verify=range(2))
    for _ in range(2):
        batch = torch.randn(5, 6), torch.randint(4, (5,))
        with cap.step(batch):
            with torch.autocast("cpu", torch.float16):
                loss = step_fn(model, batch)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    verified = program("verify", path)
    assert "V7  not recorded" in verified.stdout, verified.stdout + verified.stderr


@pytest.mark.parametrize("max_norm", [None, 0.1])
def test_values_clipped_under_autocast(program, tmp_path, max_norm):
    """A bound on values turns gradients, in the emulated run as in PyTorch's."""
    path = tmp_path / "a.h5"
    torch.manual_seed(0)
    model = Images()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    cap = Capture(path, model, optimizer, image_loss, autocast=torch.bfloat16, steps=2, verify=range(2))
    for batch in image_batches(2):
        with cap.step(batch):
            with torch.autocast("cpu", torch.bfloat16):
                loss = image_loss(model, batch)
            loss.backward()
            if max_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.002)
            optimizer.step()
            optimizer.zero_grad()
    verified = program("verify", path)
    assert verified.returncode == 0 and "V7  PASS" in verified.stdout, verified.stdout + verified.stderr


class Experts(torch.nn.Module):
    """The batch's first number chooses the expert."""

    def __init__(self):
        super().__init__()
        self.experts = torch.nn.ModuleList(torch.nn.Linear(8, 3) for _ in range(2))

    def forward(self, x, which):
        return self.experts[which](x)


def test_a_weight_that_only_an_early_micro_batch_uses(program, tmp_path):
    torch.manual_seed(0)
    model = Experts()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loss_of = lambda m, b: F.cross_entropy(m(b[0], b[2]), b[1])
    path = tmp_path / "a.lscap.h5"
    cap = Capture(str(path), model, optimizer, loss_of, steps=2)
    for _ in range(2):
        for which in range(2):
            batch = torch.randn(12, 8), torch.randint(3, (12,)), which
            with cap.step(batch):
                (loss_of(model, batch) / 2).backward()
                if which == 1:
                    optimizer.step()
                    optimizer.zero_grad()
    verified = program("verify", path)
    assert verified.returncode == 0, verified.stdout + verified.stderr
