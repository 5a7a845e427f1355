"""Loops that are right, though unusual: the file holds what they did."""

import json
import random

import h5py
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from capture_loops import (
    Images,
    Loop,
    Text,
    gradients_of,
    image_batches,
    image_loss,
    steps_in,
    text_batches,
    text_loss,
    train,
)
from lockstep_capture import Capture, CaptureError, capture, check
from lockstep_capture.watch.precision import full_fp32
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

nn = torch.nn
BATCHES = image_batches(6)


def gradients(path, step, name):
    with h5py.File(path) as file:
        return gradients_of(file, step)[name][()]


def test_a_closures_gradients_are_those_of_its_step(tmp_path):
    """Lightning's way: optimizer.step(closure) with zero_grad and backward inside."""
    loop = Loop(tmp_path / "a.h5", verify=range(2))
    expected = []
    for batch in BATCHES[:2]:

        def closure():
            loop.optimizer.zero_grad()
            return loop.backward(batch)

        with loop.block(batch):
            loop.optimizer.step(closure)
        expected.append(loop.model.fc.weight.grad.numpy().copy())
    for step in range(2):
        assert np.array_equal(gradients(tmp_path / "a.h5", step, "fc.weight"), expected[step])
    assert not np.array_equal(*expected)


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}, {"foreach": False}], ids=str)
def test_implementations_of_an_optimizer(tmp_path, options):
    def adam(parameters, lr):
        return torch.optim.AdamW(parameters, lr, **options)

    path = tmp_path / "a.h5"
    loop = Loop(
        path,
        optimizer=adam,
        scaler=(scaler := torch.amp.GradScaler("cpu", init_scale=2.0**127)),
        steps=4,
        verify=range(4),
    )
    for batch in BATCHES[:4]:
        with loop.block(batch):
            scaler.scale(image_loss(loop.model, batch)).backward()
            scaler.step(loop.optimizer)
            scaler.update()
            loop.optimizer.zero_grad()
    with h5py.File(path) as file:
        found = [int(step.attrs["found_inf"]) for step in file["steps"].values()]
        assert 0 < sum(found) < 4 and [int(s.attrs["stepped"]) for s in file["steps"].values()] == [
            1 - f for f in found
        ]
        name = next(iter(options)) if options.get("foreach", True) else "for-loop"
        assert file["optimizer"].attrs["impl"] == name
        for step in range(4):
            seen = gradients_of(file, step)["fc.weight"][()]
            if not found[step]:
                assert np.allclose(seen, file[f"verify/{step:06d}/ref32/grads/fc.weight"][()], rtol=1e-5, atol=1e-7)


def test_a_disabled_scaler_is_none(tmp_path):
    loop = Loop(tmp_path / "a.h5", scaler=(scaler := torch.amp.GradScaler("cpu", enabled=False)))
    for batch in BATCHES[:2]:
        with loop.block(batch):
            scaler.scale(image_loss(loop.model, batch)).backward()
            scaler.step(loop.optimizer)
            scaler.update()
            loop.optimizer.zero_grad()
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["amp/scaler"].attrs["enabled"] == 0 and file["steps/000001"].attrs["scale_before"] == 1
        assert file["steps/000001"].attrs["stepped"] == 1


def test_layers_that_are_frozen_on_the_way_are_a_second_graph(tmp_path):
    loop = Loop(tmp_path / "a.h5", steps=4)
    loop(BATCHES[0])
    loop.model.bn.eval()
    loop(BATCHES[1])
    loop.model.conv.weight.requires_grad_(False)
    loop(BATCHES[2])
    loop.model.conv.weight.requires_grad_(True), loop.model.bn.train()
    loop(BATCHES[3])
    with h5py.File(tmp_path / "a.h5") as file:
        assert [int(step["micro/000"].attrs["graph"]) for step in file["steps"].values()] == [0, 1, 2, 0]
        graphs = [json.loads(bytes(file[f"graphs/{k}/json"][()])) for k in range(3)]
    assert [next(n for n in g["nodes"] if n["op"] == "batch_norm")["attrs"]["training"] for g in graphs] == [1, 0, 0]
    assert [next(p for p in g["params"] if p["name"] == "conv.weight")["requires_grad"] for g in graphs] == [1, 1, 0]


def test_memory_formats_and_shared_weights(tmp_path):
    class Shared(Images):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
            self.second.weight = self.first.weight
            self.alias = self.first

        def forward(self, images):
            x = torch.relu(self.bn(self.conv(images)))
            x = nn.functional.max_pool2d(x, 2).flatten(1)
            return self.fc(self.second(self.alias(self.drop(x))))

    path = tmp_path / "a.h5"
    loop = Loop(path, Shared().to(memory_format=torch.channels_last))
    loop.model.fc.weight.data = loop.model.fc.weight.data.t().contiguous().t()
    assert not loop.model.fc.weight.is_contiguous()
    before = loop.model.fc.weight.detach().numpy().copy()
    for batch in BATCHES[:2]:
        loop((batch[0].to(memory_format=torch.channels_last), batch[1]))
    with h5py.File(path) as file:
        assert np.array_equal(file["params/fc.weight"][()], before)
        assert set(file["params/first.weight"].attrs["aliases"]) == {"second.weight", "alias.weight"}
        modules = {m["fqn"]: m["calls"] for m in json.loads(bytes(file["modules"][()]))}
        assert modules["first"] == 1 and modules["second"] == 1 and modules[""] == 1


def test_a_generator_is_asked_for_no_more_than_is_captured(tmp_path):
    taken = []
    model = Images()

    def loader():
        for batch in BATCHES:
            taken.append(len(taken))
            yield batch

    capture(tmp_path / "a.h5", model, torch.optim.SGD(model.parameters(), 0.1), loader(), image_loss, steps=2)
    assert steps_in(tmp_path / "a.h5")[0] == 2 and len(taken) == 2


@pytest.mark.parametrize("scale", [2.0**10, 333.3], ids=["power", "decimal"])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["fp32", "bf16"])
def test_gradients_that_nothing_but_known_calls_changed(tmp_path, dtype, scale):
    """Zeros kept between steps, micro-batches of different weight, two clippings, and eyes on everything."""
    loop = Loop(
        tmp_path / "a.h5",
        scaler=(scaler := torch.amp.GradScaler("cpu", init_scale=scale)),
        autocast=dtype,
        steps=3,
        verify=[0, 2],
    )
    weights, norms = torch.tensor([0.1, 0.2, 0.7]), []
    for i in range(9):
        batch = BATCHES[i % 6]
        with loop.block(batch):
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                loss = image_loss(loop.model, batch)
            scaler.scale(loss * weights[i % 3]).backward()
            norms.append(float(loop.model.fc.weight.grad.norm()))
            torch.nan_to_num_(loop.model.fc.weight.grad)
            if i % 3 == 2:
                scaler.unscale_(loop.optimizer)
                clip_grad_norm_(loop.model.parameters(), 1.0)
                clip_grad_value_(loop.model.parameters(), 0.03)
                norms.append(max(float(p.grad.abs().max()) for p in loop.model.parameters()))
                scaler.step(loop.optimizer)
                scaler.update()
                loop.optimizer.zero_grad(set_to_none=False)
    assert norms[3] == np.float32(0.03) and steps_in(tmp_path / "a.h5") == (3, 3, True)
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["steps/000000"].attrs["scale_before"] == np.float32(scale), "GradScaler computes in FP32"


def test_gradients_summed_with_atomics_have_room(tmp_path):
    """x[i] adds up its gradient in several threads in any order: another one at every call."""

    class Picking(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.fc = nn.Parameter(torch.randn(8, 512)), nn.Linear(512, 5)

        def forward(self, places):
            return self.fc(self.table[places])

    places = torch.randint(0, 8, (512,), generator=torch.Generator().manual_seed(1))
    batch = places, torch.randint(0, 5, (512,), generator=torch.Generator().manual_seed(2))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        loop = Loop(tmp_path / "a.h5", Picking(), steps=4, verify=[0, 1, 2, 3])
        for _ in range(4):
            loop(batch)
    finally:
        torch.set_num_threads(threads)
    assert steps_in(tmp_path / "a.h5") == (4, 4, True)


def test_a_batch_of_other_things_is_named():
    with pytest.raises(CaptureError, match=r"batch\['meta'\] is a object; must be tensors"):
        check(Images(), lambda m, b: image_loss(m, b["data"]), {"data": BATCHES[0], "meta": object()})


class Remembering(Images):
    """Python state that a forward pass changes, and random numbers of Python's and NumPy's own."""

    def __init__(self):
        super().__init__()
        self.calls, self.last = 0, None
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, images):
        self.calls += 1
        self.last = images.mean()
        self.seen = self.seen + 0.0
        random.random(), np.random.rand()
        return super().forward(images)


def test_tracing_leaves_the_model_and_all_random_numbers_alone(tmp_path):
    def trained(path):
        random.seed(1), np.random.seed(2), torch.manual_seed(3)
        loop = Loop(path, Remembering(), on_unsupported="report")
        losses = [loop(batch) for batch in BATCHES[:3]]
        return (
            losses,
            loop.model.calls,
            float(loop.model.last),
            random.random(),
            np.random.rand(),
            type(loop.model.seen),
            torch.random.get_rng_state().tolist(),
        )

    assert trained(tmp_path / "a.h5") == trained(None)


def test_batch_norm_that_averages_over_all_batches(tmp_path):
    def averaging():
        model = Images()
        model.bn = nn.BatchNorm2d(4, momentum=None)
        return model

    path = tmp_path / "a.h5"
    loop = Loop(path, averaging(), steps=3, verify=range(3))
    for batch in BATCHES[:3]:
        loop(batch)
    assert loop.model.bn.momentum is None
    with h5py.File(path) as file:
        norm = next(n for n in json.loads(bytes(file["graphs/0/json"][()]))["nodes"] if n["op"] == "batch_norm")
        assert norm["attrs"]["cumulative"] is True and "momentum" not in norm["attrs"]
        for step in ("000000", "000001"):
            after = file[f"verify/{step}/ref32/post/buffers/bn.running_mean"][()]
            follows = file[f"verify/{int(step) + 1:06d}/pre/buffers/bn.running_mean"][()]
            assert np.array_equal(after, follows), "1 / num_batches_tracked"


def test_clip_grad_value_however_it_was_imported(tmp_path):
    loop = Loop(tmp_path / "a.h5", verify=range(2))
    for batch in BATCHES[:2]:
        with loop.block(batch):
            loop.backward(batch)
            clip_grad_norm_(loop.model.parameters(), 1.0)
            clip_grad_value_(loop.model.parameters(), 0.03)
            loop.step()
    with h5py.File(tmp_path / "a.h5") as file:
        a = file["steps/000001"].attrs
        assert (a["clip_max_norm"], a["clip_max_value"], a["clip_stage"]) == (1.0, 0.03, "unscaled")
    assert np.abs(gradients(tmp_path / "a.h5", 1, "fc.weight")).max() == np.float32(0.03)


@pytest.mark.parametrize("cached", [True, False])
def test_what_autocast_and_attention_did_is_recorded(tmp_path, cached):
    path = tmp_path / "a.h5"
    for dropout, kernels in ((0.0, "flash_attention_for_cpu"), (0.1, "math")):
        torch.manual_seed(0)
        model = Text(dropout=dropout)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        cap = Capture(path, model, optimizer, text_loss, steps=1, autocast="bfloat16")
        batch = text_batches(1)[0]
        with cap.step(batch):
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=cached):
                loss = text_loss(model, batch)
            loss.backward()
            optimizer.step()
        with h5py.File(path) as file:
            amp = file["amp"].attrs
            assert amp["cache_enabled"] == cached and amp["sdpa_ran"] == kernels
            assert "math" in amp["sdpa_backends"] and "flash" in amp["sdpa_backends"]
            nodes = json.loads(bytes(file["graphs/0/json"][()]))["nodes"]
            assert next(n for n in nodes if n["op"] == "sdpa")["attrs"]["model"] == kernels.split("_")[0]


def test_attention_in_the_math_backend_without_dropout(tmp_path):
    model = Text(dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    cap = Capture(tmp_path / "a.h5", model, optimizer, text_loss, steps=1)
    batch = text_batches(1)[0]
    with cap.step(batch):
        with sdpa_kernel(SDPBackend.MATH):
            loss = text_loss(model, batch)
        loss.backward()
        optimizer.step()
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["amp"].attrs["sdpa_backends"] == "math" and file["amp"].attrs["sdpa_ran"] == "math"
        nodes = json.loads(bytes(file["graphs/0/json"][()]))["nodes"]
        assert next(n for n in nodes if n["op"] == "sdpa")["attrs"]["model"] == "math"


class Heads(nn.Module):
    """Attention whose values are wider than its queries, which only the math backend has, after one that is fused."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 24), nn.Linear(8, 32), nn.Linear(16, 4)

    def forward(self, x):
        q, k, v = self.first(x).reshape(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, 8)
        q, k, v = (part.reshape(2, 5, 2, -1).transpose(1, 2) for part in self.second(x).split([8, 8, 16], -1))
        return self.last(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, 16))


def test_attention_in_two_backends(lockstep, tmp_path):
    """The gradients have the loop's bits: each call is repeated in the kernel that it had."""
    torch.manual_seed(0)
    model, path = Heads(), tmp_path / "a.h5"
    capture(
        path,
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        torch.randn(3, 2, 5, 8),
        lambda m, b: m(b).square().mean(),
        steps=3,
        verify=range(3),
    )
    with h5py.File(path) as file:
        assert file["amp"].attrs["sdpa_ran"] == "flash_attention_for_cpu,math"
    lockstep("verify", path)


class MixedHeads(Heads):
    """Attention with dropout, which a CPU computes in the math backend, and without, which it fuses."""

    def forward(self, x):
        q, k, v = self.first(x).reshape(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v, dropout_p=0.3) + F.scaled_dot_product_attention(k, q, v)
        return self.last(x.transpose(1, 2).reshape(2, 5, 8).repeat(1, 1, 2))


def test_attention_with_and_without_dropout(lockstep, tmp_path):
    """Training keeps its bits: only the calls with dropout run in the math backend, as without a capture."""
    path = tmp_path / "a.h5"

    def trained(watched):
        torch.manual_seed(0)
        model = MixedHeads()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loss_of = lambda m, b: m(b).square().mean()
        cap = Capture(path, model, optimizer, loss_of, steps=3, verify=range(3)) if watched else None
        return train(model, optimizer, loss_of, list(torch.randn(3, 2, 5, 8)), cap)

    assert trained(True) == trained(False)
    with h5py.File(path) as file:
        assert file["amp"].attrs["sdpa_ran"] == "flash_attention_for_cpu,math"
    lockstep("verify", path)


def test_a_view_of_all_has_its_part_in_the_order_of_gradients(tmp_path):
    """x[...] is a node of autograd's, in which gradients are added up before they join others."""

    def loss(model, batch):
        y = model(batch)
        z = y[...]
        return (z.sin() + y.exp() + z.square() * 3).sum()

    torch.manual_seed(0)
    model = nn.Linear(8, 32)
    capture(
        tmp_path / "a.h5",
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        torch.randn(3, 16, 8),
        loss,
        steps=3,
        verify=range(3),
    )
    assert (tmp_path / "a.h5").exists()


def test_the_newer_switches_of_tf32(tmp_path):
    """Mixed with the older ones they make PyTorch raise; references are FP32 whatever they say."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = "tf32"
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        with full_fp32():
            assert matmul.fp32_precision == torch.backends.mkldnn.matmul.fp32_precision == "ieee"
        loop = Loop(tmp_path / "a.h5")
        loop(BATCHES[0]), loop(BATCHES[1])
        assert matmul.fp32_precision == "tf32" and torch.backends.mkldnn.matmul.fp32_precision == "bf16"
    finally:
        matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision = before, "none"
    with h5py.File(tmp_path / "a.h5") as file:
        amp = file["amp"].attrs
        assert amp["allow_tf32_matmul"] == 1 and amp["cpu_products"] == "bf16"


def test_a_weight_without_elements(lockstep, tmp_path):
    """As a layer of width 0 has one, in addition to the loss: it has a fingerprint like any other."""
    model, path = Images(), tmp_path / "a.h5"
    model.empty = torch.nn.Parameter(torch.zeros(0, 3))
    loop = Loop(path, model)
    for batch in image_batches(2):
        loop(batch)
    lockstep("verify", path)


def test_a_weight_without_elements_that_the_loss_depends_on(lockstep, tmp_path):
    """MobileBERT's, where embeddings are as wide as the layers."""

    def loss(model, batch):
        return image_loss(model, batch) + torch.cat([model.fc.weight, model.empty]).square().mean()

    model, path = Images(), tmp_path / "a.h5"
    model.empty = torch.nn.Parameter(torch.zeros(0, model.fc.weight.shape[1]))
    capture(path, model, torch.optim.AdamW(model.parameters()), image_batches(2), loss, steps=2)
    lockstep("verify", path)
