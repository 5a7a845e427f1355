"""Loops of every make are captured as they are, and train exactly as without a capture."""

import json
import time

import h5py
import numpy as np
import pytest
import torch
from capture_loops import Images, Text, UnknownOptimizer, image_batches, image_loss, text_batches, text_loss, train
from lockstep_capture import Capture, CaptureError, capture

nn = torch.nn


@pytest.mark.parametrize(
    "loop",
    [
        {},
        {"dtype": torch.bfloat16},
        {"accumulate": 2, "clip": 0.5},
        {"scale": 2.0**10, "dtype": torch.bfloat16, "clip": 1.0},
        {"scale": 2.0**127, "accumulate": 2},
    ],
)
@pytest.mark.parametrize("kind", ["images", "text"])
def test_training_is_the_same_with_and_without(tmp_path, loop, kind):
    """Losses, weights, buffers, optimizer state, scale and random state, bit for bit, during and after the window."""

    def trained(watched):
        torch.manual_seed(3)
        options = dict(loop)
        scale = options.pop("scale", None)
        model, loss_fn, batches = (
            (Images(), image_loss, image_batches(8)) if kind == "images" else (Text(), text_loss, text_batches(8))
        )
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        scaler = None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)
        cap = (
            Capture(tmp_path / "a.h5", model, optimizer, loss_fn, scaler=scaler, autocast=options.get("dtype"), steps=2)
            if watched
            else None
        )
        losses = train(model, optimizer, loss_fn, batches, cap, scaler=scaler, **options)
        state = [t for s in optimizer.state.values() for t in s.values()]
        return (
            losses,
            [*model.state_dict().values(), *state],
            torch.random.get_rng_state(),
            scaler.get_scale() if scaler else None,
        )

    watched, alone = trained(True), trained(False)
    assert watched[0] == alone[0] and watched[3] == alone[3]
    assert all(torch.equal(a, b) for a, b in zip(watched[1], alone[1], strict=True))
    assert torch.equal(watched[2], alone[2])
    with h5py.File(tmp_path / "a.h5") as file:
        assert file.attrs["n_steps"] == 2


@pytest.mark.parametrize("product", [lambda x: x.prod(-1), lambda x: torch.cumprod(x, -1)], ids=["prod", "cumprod"])
def test_gradients_that_a_mode_changes(tmp_path, product):
    """PyTorch takes another formula for them while a dispatch mode is in force (cumprod: before 2.13)."""

    def trained(watched):
        torch.manual_seed(3)
        model, batches = nn.Linear(6, 8), [torch.rand(6, 6) for _ in range(3)]
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)

        def loss_of(model, batch):
            return product(model(batch).sigmoid()).square().sum()

        cap = Capture(tmp_path / "a.h5", model, optimizer, loss_of, steps=3) if watched else None
        train(model, optimizer, loss_of, batches, cap)
        return [parameter.clone() for parameter in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(trained(True), trained(False), strict=True))
    assert (tmp_path / "a.h5").exists()


def test_an_unknown_optimizer_gives_its_updates(tmp_path):
    model = Images()
    optimizer = UnknownOptimizer(model.parameters(), 1e-3)
    cap = Capture(tmp_path / "a.h5", model, optimizer, image_loss, steps=2, verify=[0, 1])
    train(model, optimizer, image_loss, image_batches(3), cap)
    with h5py.File(tmp_path / "a.h5") as file:
        assert file.attrs["replay_mode"] == "recorded" and file["optimizer"].attrs["class"] == "UnknownOptimizer"
        assert "post/params" not in file["verify/000000/ref32"] and "grads/fc.weight" in file["verify/000000/ref32"]
        assert "state" not in file["optimizer"]
        for name in file["final/params"]:
            assert np.array_equal(file["steps/000001/params"][name][()], file["final/params"][name][()])
        assert not np.array_equal(file["verify/000001/pre/params/fc.weight"][()], file["params/fc.weight"][()])


class DistributedDataParallel(nn.Module):
    """Stands for torch's on one rank: same attribute, same forward."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *args):
        return self.module(*args)


def test_distributed_data_parallel_is_unwrapped(tmp_path):
    wrapped = DistributedDataParallel(Images())
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    cap = Capture(tmp_path / "a.h5", wrapped, optimizer, image_loss, steps=1)
    train(wrapped, optimizer, image_loss, image_batches(2), cap)
    with h5py.File(tmp_path / "a.h5") as file:
        assert "fc.weight" in file["params"] and "module.fc.weight" not in file["params"]


def test_the_offline_call_leaves_the_model_alone(tmp_path):
    torch.manual_seed(0)
    model = Text()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    capture(
        tmp_path / "a.h5",
        model,
        optimizer,
        text_batches(6),
        text_loss,
        steps=2,
        accumulate=2,
        autocast="bfloat16",
        clip_grad_norm=1.0,
        scaler=torch.amp.GradScaler("cpu", init_scale=1024.0),
    )
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items()) and not optimizer.state
    with h5py.File(tmp_path / "a.h5") as file:
        assert file.attrs["n_steps"] == 2 and file["steps/000001"].attrs["clip_max_norm"] == 1.0
        assert file["amp"].attrs["dtype"] == "bfloat16"
    with pytest.raises(CaptureError, match="ended before the first optimizer step"):
        capture(tmp_path / "b.h5", model, optimizer, text_batches(1), text_loss, accumulate=2)


def test_a_loop_that_ends_early(tmp_path):
    model = Images()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Capture(tmp_path / "a.h5", model, optimizer, image_loss, steps=8) as cap:
        train(model, optimizer, image_loss, image_batches(2), cap)
    with h5py.File(tmp_path / "a.h5") as file:
        assert file.attrs["n_steps"] == 2 and file.attrs["complete"] == 1


@pytest.mark.parametrize("norm_type", [2.0, "inf", 1, 2.5])
def test_clipping_is_seen_however_it_was_imported(tmp_path, norm_type):
    from torch.nn.utils import clip_grad_norm_

    model = Images()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batch = image_batches(1)[0]
    cap = Capture(tmp_path / "a.h5", model, optimizer, image_loss, steps=1)
    with cap.step(batch):
        image_loss(model, batch).backward()
        total = clip_grad_norm_(model.parameters(), 0.25, norm_type)
        optimizer.step()
    with h5py.File(tmp_path / "a.h5") as file:
        a = file["steps/000000"].attrs
        assert (a["clip_max_norm"], a["clip_norm_type"], a["clip_total_norm"]) == (0.25, float(norm_type), float(total))


def test_clipping_of_scaled_gradients_is_said(tmp_path):
    model = Images()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    batch = image_batches(1)[0]
    cap = Capture(tmp_path / "a.h5", model, optimizer, image_loss, steps=1, scaler=scaler)
    with pytest.warns(UserWarning, match="before scaler.unscale_"):
        with cap.step(batch):
            scaler.scale(image_loss(model, batch)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["steps/000000"].attrs["clip_stage"] == "scaled"


def test_frozen_parameters_and_parameter_groups(tmp_path):
    model = Images()
    model.conv.weight.requires_grad_(False)
    optimizer = torch.optim.AdamW(
        [
            {"params": [model.fc.weight], "lr": 0.1},
            {"params": [model.fc.bias, *model.bn.parameters()], "weight_decay": 0.0},
        ],
        lr=1e-3,
    )
    cap = Capture(tmp_path / "a.h5", model, optimizer, image_loss, steps=1)
    train(model, optimizer, image_loss, image_batches(1), cap)
    with h5py.File(tmp_path / "a.h5") as file:
        groups = {name: data.attrs["opt_group"] for name, data in file["params"].items()}
        assert groups == {
            "conv.weight": -1,
            "conv.bias": -1,
            "bn.weight": 1,
            "bn.bias": 1,
            "fc.weight": 0,
            "fc.bias": 1,
        }
        assert file["params/conv.weight"].attrs["requires_grad"] == 0
        hyper = json.loads(file["steps/000000"].attrs["hyper"])
        assert [group["lr"] for group in hyper] == [0.1, 1e-3] and hyper[1]["weight_decay"] == 0.0
        norms = file["steps/000000/grad_norms"][()]
        graph = json.loads(bytes(file["graphs/0/json"][()]))
        nothing = [p["name"] for p, norm in zip(graph["params"], norms) if np.isnan(norm)]
        assert nothing == ["conv.weight", "conv.bias"], "nothing steps them: what stands in .grad is not looked at"


def test_a_block_after_the_window_costs_nothing(tmp_path):
    """The same shared context every time: no tap, no hook, no copy."""
    model = Images()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    cap = Capture(tmp_path / "a.h5", model, optimizer, image_loss, steps=1)
    train(model, optimizer, image_loss, image_batches(2), cap)
    assert cap.finished and cap.step(None) is cap.step(image_batches(1)[0])
    start = time.perf_counter()
    for _ in range(10_000):
        with cap.step(None):
            pass
    each = (time.perf_counter() - start) / 10_000
    print(f"a block outside of the window: {each * 1e6:.2f} us")
    assert each < 1e-4


@pytest.mark.parametrize("steps", [8, 2])
def test_the_first_step_that_a_scaler_takes_is_verified(lockstep, tmp_path, steps):
    """Its usual first scale, 2^16, makes the first steps overflow: the default verify step is one that moved weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
    loader = [(torch.randn(64, 12), torch.randint(0, 4, (64,))) for _ in range(steps)]
    path = tmp_path / "a.lscap.h5"
    capture(
        str(path),
        model,
        torch.optim.SGD(model.parameters(), 1e-3),
        loader,
        lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1], reduction="sum"),
        steps=steps,
        autocast="float16",
        scaler=torch.amp.GradScaler("cpu"),
    )
    with h5py.File(path) as file:
        taken = [number for number in range(steps) if file[f"steps/{number:06d}"].attrs["stepped"]]
        verified = [int(name) for name in file["verify"]]
    said = lockstep("verify", path).stdout
    if steps == 8:
        assert taken and taken[0] > 0 and verified == [0, taken[0]]
        assert "V7  PASS" in said and "Faithful: every gate that applies has passed." in said
    else:
        assert not taken and verified == [0, 1]
        assert "V7  not recorded" in said and "Every recorded gate has passed; not recorded: V7." in said
