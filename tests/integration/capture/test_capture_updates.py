"""Optimizers without a rule in the replay: their updates are recorded, and every lane adds them to its own weights."""

import json
import re

import h5py
import numpy as np
import pytest
import torch
from capture_loops import Images, Text, UnknownOptimizer, image_batches, image_loss, text_batches, text_loss, train
from lockstep_capture import Capture, CaptureError, capture, check


def weights_of(run, lane):
    """The lane's weights after the run, by path; lanes count from 0, the FP32 one."""
    with h5py.File(f"{run}.state") as file:
        tensors = file[f"lanes/{lane}/tensors"]
        names = [name.removeprefix("weight%2F") for name in tensors if name.startswith("weight%2F")]
        return {name: tensors[f"weight%2F{name}"][()] for name in names}


def assert_same_bits(lane, capture_path, place="final/params"):
    with h5py.File(capture_path) as file:
        for name, weight in lane.items():
            assert np.array_equal(weight.view(np.int32), file[f"{place}/{name}"][()].view(np.int32)), name
    assert lane


class Turns(torch.optim.Optimizer):
    """Turns the sign of weights and shrinks some to almost nothing: w + (new - w) in FP32 is often not the new one."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for number, p in enumerate(group["params"]):
                if number % 3 != 2:  # some stay as they are
                    p.mul_(-0.3).add_(p.grad, alpha=-group["lr"])
                    p.view(-1)[0] = 1e-12


@pytest.mark.parametrize("optimizer", [UnknownOptimizer, Turns, torch.optim.Adamax, torch.optim.NAdam])
def test_fp32_weights_follow_pytorch_bit_for_bit(lockstep, tmp_path, capsys, optimizer):
    path, run = tmp_path / "a.h5", tmp_path / "run.h5"
    torch.manual_seed(0)
    model = Text()
    made = optimizer(model.parameters(), 0.01)
    capture(path, model, made, text_batches(4), text_loss, steps=4, verify=[0, 2])
    name = optimizer.__name__
    assert f"The updates of {name} are recorded" in capsys.readouterr().err
    verified = lockstep("verify", path).stdout
    assert f"recorded updates of {name}: " in verified and "bit-exact" in verified
    assert f"note: the updates of {name} are recorded" in verified
    lanes = ["fp32", "torch-autocast-bf16", "pure-bf16"]
    replayed = lockstep("replay", path, "--lanes", ",".join(lanes), "--twins", "0", "-o", run)
    assert f"updates of {name} are recorded" in replayed.stdout + replayed.stderr
    assert f"the updates of {name} are recorded" in " ".join(lockstep("report", run, "--format", "text").stdout.split())
    for lane in (0, 1):
        assert_same_bits(weights_of(run, lane), path)
    with h5py.File(run) as file, h5py.File(path) as captured:
        assert np.allclose(file["lanes/fp32/loss"], file["lanes/captured/loss"], rtol=1e-5)
        start = captured["params/embed.weight"][()]
    bf16 = weights_of(run, 2)
    assert all(np.array_equal(w.view(np.int32) & 0xFFFF, np.zeros(w.shape, np.int32)) for w in bf16.values())
    assert not np.array_equal(bf16["embed.weight"], start)
    synced = tmp_path / "synced.h5"
    lockstep(
        "replay",
        path,
        "--mode",
        "synced",
        "--lanes",
        "fp32,pure-fp16",
        "-o",
        synced,
        "--quiet",
    )


def test_steps_that_one_side_skips(lockstep, tmp_path):
    """PyTorch skips step 0: no lane has an update there. A lane that skips step 1 leaves out PyTorch's."""
    path, run = tmp_path / "a.h5", tmp_path / "run.h5"
    torch.manual_seed(0)
    model = Images()
    made = torch.optim.Adamax(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", 2.0**40, backoff_factor=2.0**-30)
    cap = Capture(path, model, made, image_loss, scaler=scaler, autocast="float16", steps=3, verify=[0, 2])
    train(model, made, image_loss, image_batches(3), cap, scaler=scaler, dtype=torch.float16)
    with h5py.File(path) as file:
        assert [bool(file[f"steps/{s:06d}"].attrs["stepped"]) for s in range(3)] == [False, True, True]
        assert ["params" in file[f"steps/{s:06d}"] for s in range(3)] == [False, True, True]
    assert "V5" in lockstep("verify", path).stdout
    lockstep("replay", path, "--lanes", "fp32", "--twins", "0", "-o", run, "--quiet")
    assert_same_bits(weights_of(run, 0), path)
    policy = tmp_path / "skips.toml"
    policy.write_text(
        'extends = "torch-autocast-fp16"\nname = "skips"\n[loss_scale]\nkind = "torch-dynamic"\ninit_scale = 1.0e30\n'
    )
    lanes = ("--lanes", f"fp32,{policy}", "--twins", "0")
    lockstep("replay", path, "--steps", "2", *lanes, "-o", run, "--quiet", "--overwrite")
    assert_same_bits(weights_of(run, 0), path, "steps/000001/params")
    assert_same_bits(weights_of(run, 1), path, "params")


def test_a_known_rule_that_maximizes_is_recorded(lockstep, tmp_path):
    path, run = tmp_path / "a.h5", tmp_path / "run.h5"
    model = Images()
    made = torch.optim.Adam(model.parameters(), 1e-3, maximize=True)
    capture(path, model, made, image_batches(3), image_loss, steps=3, quiet=True)
    with h5py.File(path) as file:
        assert file.attrs["replay_mode"] == "recorded" and file["optimizer"].attrs["class"] == "Adam"
        assert "state" not in file["optimizer"] and "final/params" in file
    lockstep("verify", path)
    lockstep("replay", path, "--lanes", "fp32", "-o", run, "--quiet")
    assert_same_bits(weights_of(run, 0), path)
    refused = lockstep("replay", path, "--change", "lr=0.5", "-o", run, "--overwrite", code=2)
    assert "--change lr=0.5: the updates of its optimizer, Adam, are recorded" in refused.stderr
    own = lockstep("replay", "lenet", "--optimizer", "recorded", "--steps", "1", "-o", run, "--overwrite", code=2)
    assert "only a capture has recorded updates" in own.stderr


def test_masters_take_the_recorded_updates(lockstep, tmp_path):
    path, run = tmp_path / "a.h5", tmp_path / "run.h5"
    torch.manual_seed(0)
    model = Images().bfloat16()
    masters = [p.detach().clone().float() for p in model.parameters()]
    made = torch.optim.Adamax(masters, 1e-3)

    def loss_of(model, batch):
        return image_loss(model, (batch[0].bfloat16(), batch[1]))

    cap = Capture(path, model, made, loss_of, steps=3, verify=[0, 2])
    for batch in image_batches(3):
        with cap.step(batch):
            loss_of(model, batch).backward()
            for p, master in zip(model.parameters(), masters, strict=True):
                master.grad = p.grad.float()
            made.step()
            with torch.no_grad():
                for p, master in zip(model.parameters(), masters, strict=True):
                    p.copy_(master)
            model.zero_grad()
    lockstep("verify", path)
    lockstep("replay", path, "--lanes", "fp32,as-captured-bf16-master-cpu", "--twins", "0", "-o", run, "--quiet")
    assert_same_bits(weights_of(run, 0), path)
    with h5py.File(f"{run}.state") as file, h5py.File(path) as captured:
        own = file["lanes/1/tensors/master%2Ffc.weight"][()]
        assert np.array_equal(own, captured["final/params/fc.weight"][()])


def test_weights_that_a_gradient_of_zeros_moves(lockstep, tmp_path):
    """A known rule's decay of such a weight is refused; a recorded one is an update like any other."""

    class Idle(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.used(x) + self.idle(x).detach()

    path, run = tmp_path / "a.h5", tmp_path / "run.h5"
    torch.manual_seed(0)
    model = Idle()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    made = torch.optim.Adamax(model.parameters(), 1e-2, weight_decay=0.5)

    def loss_of(model, batch):
        return model(batch).square().mean()

    cap = Capture(path, model, made, loss_of, steps=3)
    for batch in torch.randn(3, 5, 4):
        with cap.step(batch):
            made.zero_grad(set_to_none=False)
            loss_of(model, batch).backward()
            made.step()
    with h5py.File(path) as file:
        assert not np.array_equal(file["final/params/idle.weight"][()], file["params/idle.weight"][()])
    lockstep("verify", path)
    lockstep("replay", path, "--lanes", "fp32,pure-bf16", "-o", run, "--quiet")
    assert_same_bits(weights_of(run, 0), path)


# ---- Inference: no optimizer, forward passes alone


def mean_square(model, batch):
    return model(batch[0]).square().mean()


class Decoder(torch.nn.Module):
    """Its activations leave FP16's range, as those of image decoders do."""

    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
        with torch.no_grad():
            self.up.weight.mul_(1e6)
            self.down.weight.mul_(1e-6)

    def forward(self, z):
        return self.down(torch.relu(self.up(z)))


def test_inference_has_lanes_without_gradients(lockstep, tmp_path):
    path, run = tmp_path / "a.h5", tmp_path / "run.h5"
    torch.manual_seed(0)
    model = Decoder().eval().requires_grad_(False)
    cap = Capture(path, model, None, mean_square, steps=3, verify=[0, 2])
    with torch.no_grad():
        for _ in range(3):
            z = torch.randn(5, 8)
            with cap.step((z,)):
                model(z)
    with h5py.File(path) as file:
        assert file["optimizer"].attrs["class"] == "none" and not file["steps/000000"].attrs["stepped"]
        assert not len(file["verify/000000/ref32/grads"])
    verified = lockstep("verify", path).stdout
    assert "note: inference: forward passes alone" in verified and "no gradients" in verified
    lanes = ["fp32", "fp64", "pure-fp16", "torch-autocast-fp16", "torch-autocast-bf16"]
    lockstep("replay", path, "--lanes", ",".join(lanes), "-o", run, "--quiet")
    text = " ".join(lockstep("report", run, "--format", "text").stdout.split())
    assert "Note: inference: forward passes alone" in text and "pure-fp16" in text
    lanes = {lane["name"]: lane for lane in json.loads(lockstep("report", run, "--format", "json").stdout)["lanes"]}
    for lane in ("pure-fp16", "torch-autocast-fp16"):
        assert any("up" in finding["sentence"] for finding in lanes[lane]["findings"]), lanes[lane]["findings"]
    with h5py.File(run) as file:
        assert np.allclose(file["lanes/fp32/loss"], file["lanes/captured/loss"], rtol=1e-6)
        assert not np.isfinite(file["lanes/pure-fp16/loss"]).any()
    lockstep("explain", path, "--policy", "pure-fp16")


def test_inference_in_one_call_and_in_training_mode(lockstep, tmp_path):
    """Dropout's masks and batch norm's statistics are those of the block."""
    path = tmp_path / "a.h5"
    torch.manual_seed(0)
    model = Images()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    capture(path, model, None, image_batches(2), image_loss, steps=2, autocast="bfloat16", verify=[0, 1])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert "V7" in lockstep("verify", path).stdout
    lockstep("replay", path, "--lanes", "fp32,torch-autocast-bf16-cpu", "-o", tmp_path / "run.h5", "--quiet")


def test_validation_between_training_steps(lockstep, tmp_path):
    """Weights change between the passes: lanes add the changes."""
    path, run = tmp_path / "a.h5", tmp_path / "run.h5"
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    cap = Capture(path, model, None, lambda m, x: m(x).square().mean(), steps=3, verify=[0, 2])
    for x in torch.randn(3, 5, 4):
        with cap.step(x), torch.no_grad():
            model(x)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    lockstep("verify", path)
    lockstep("replay", path, "--lanes", "fp32,pure-bf16", "-o", run, "--quiet")
    with h5py.File(path) as file, h5py.File(run) as ran:
        assert_same_bits(weights_of(run, 0), path, "verify/000002/pre/params")
        assert np.allclose(ran["lanes/fp32/loss"], ran["lanes/captured/loss"], rtol=1e-6)
        assert not np.array_equal(file["verify/000002/pre/params/weight"][()], file["params/weight"][()])


def test_what_inference_cannot_have(tmp_path):
    path, model, batch = tmp_path / "a.h5", Images().eval(), image_batches(1)[0]
    with pytest.raises(CaptureError, match="scaler: without an optimizer, which is inference"):
        Capture(path, model, None, image_loss, scaler=torch.amp.GradScaler("cpu"))
    with pytest.raises(CaptureError, match="accumulate, clip_grad_norm: without an optimizer"):
        capture(path, model, None, [batch], image_loss, accumulate=2)
    with (
        pytest.raises(CaptureError, match="called backward.*, pass the optimizer"),
        Capture(path, model, None, image_loss).step(batch),
    ):
        image_loss(model, batch).backward()
    with pytest.raises(CaptureError, match=r"a result of shape \[6, 5\], must be one number"):
        capture(path, model, None, [batch], lambda m, b: m(b[0]))
    with (
        pytest.raises(CaptureError, match="weights.* changed in the block"),
        Capture(path, model, None, image_loss).step(batch),
    ):
        image_loss(model, batch)
        model.fc.weight.data.mul_(2)
    assert not path.exists()
    frozen = Images().requires_grad_(False)
    assert check(frozen, image_loss, batch, inference=True).ok


@pytest.mark.parametrize("trains", [True, False])
def test_lanes_that_do_not_train_by_their_gradients_are_not_judged(lockstep, tmp_path, trains):
    """No verdict from losses, no advice to repeat steps, no search: all would speak of a training that nobody did."""
    torch.manual_seed(0)
    path, run = tmp_path / "a.h5", tmp_path / "run.h5"
    model = Text()
    optimizer = UnknownOptimizer(model.parameters(), 0.01) if trains else None
    capture(path, model, optimizer, text_batches(4), text_loss, steps=4)
    lockstep("replay", path, "--lanes", "fp32,torch-autocast-fp16", "-o", run)
    said = " ".join(lockstep("report", run, "--format", "text").stdout.split())
    why = "every lane takes PyTorch's recorded updates" if trains else "these are forward passes alone"
    assert f"Outcomes are not judged: {why}" in said, said
    assert "--cycle" not in said and "converges" not in said and "To have them judged" not in said, said
    assert re.search(r"captured \(recorded\) [\d.]+ [+-]0\.0000 .* mean over the last 2 steps", said), said
    refused = lockstep("recommend", path, code=2).stderr
    assert ("the updates of UnknownOptimizer are recorded" if trains else "a capture of inference") in refused
    assert "lockstep recommend RUN.h5" in refused
    repeats = lockstep("replay", path, "--steps", "8", "--cycle", "-o", tmp_path / "more.h5", code=2).stderr
    assert "--cycle: " in repeats and "record more steps" in repeats
