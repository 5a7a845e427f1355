"""Fake quantisation: values, gradients and what observers keep, replayed and verified by the C++ program."""

import contextlib
import warnings

import h5py
import pytest
import torch
import torch.nn.functional as F
from lockstep_capture import Capture, CaptureError
from torch.ao import quantization

nn = torch.nn
torch.set_num_threads(1)


class Rounded(nn.Module):
    """Weights and activations rounded by `body(layer's weight, activations)`."""

    def __init__(self, body):
        super().__init__()
        self.a, self.b, self.body = nn.Linear(6, 16), nn.Linear(16, 5), body

    def forward(self, x):
        w, h = self.body(self.a.weight, F.linear(x, self.a.weight, self.a.bias))
        return self.b(F.linear(x, w).relu() + h)


per_tensor, per_channel = torch.fake_quantize_per_tensor_affine, torch.fake_quantize_per_channel_affine
SCALES, ZEROS = torch.linspace(0.01, 0.2, 16), torch.arange(16, dtype=torch.int32) - 8
BODIES = {  # the limits cut some elements off
    "numbers": lambda w, h: (per_tensor(w, 0.05, 1, -4, 5), per_tensor(h, 1 / 3, 0, -3, 2)),
    "tensors": lambda w, h: (per_tensor(w, torch.tensor([0.05]), ZEROS[9:10], -4, 5), h),
    "computed_scale": lambda w, h: (per_tensor(w, w.detach().abs().max() / 7, ZEROS[8:9], -5, 7), h),
    "channels": lambda w, h: (per_channel(w, SCALES, ZEROS, 0, -10, 9), per_channel(h, SCALES, ZEROS, 1, -10, 9)),
    "channels_float_zero": lambda w, h: (per_channel(w, SCALES, ZEROS * 0.3, 0, -10, 9), h),
    "cachemask": lambda w, h: (torch.ops.aten.fake_quantize_per_tensor_affine_cachemask(w, 0.05, 1, -4, 5)[0], h),
}


def observed(qconfig, seen=True):
    layers = nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5)
    model = nn.Sequential(quantization.QuantStub(), *layers, quantization.DeQuantStub())
    model.qconfig = qconfig
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = quantization.prepare_qat(model.train())
    if seen:
        model(torch.randn(8, 6))
    return model


CHANNELS, TENSOR = (quantization.get_default_qat_qconfig(name) for name in ("fbgemm", "qnnpack"))
UNFUSED = quantization.QConfig(quantization.default_fake_quant, quantization.default_per_channel_weight_fake_quant)
MODULES = {
    "fused_channels": lambda: observed(CHANNELS),
    "fused_tensor": lambda: observed(TENSOR),
    "fused_tensor_unseen": lambda: observed(TENSOR, seen=False),
    "modules": lambda: observed(UNFUSED),
    "observers_off": lambda: observed(CHANNELS).apply(quantization.disable_observer),
    "rounding_off": lambda: observed(CHANNELS).apply(quantization.disable_fake_quant),
}


def train(model, batches, path=None, autocast=None):
    """Three steps; the model's state afterwards."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss_of(m, b):
        return F.cross_entropy(m(b[0]), b[1])

    capture = Capture(str(path), model, optimizer, loss_of, steps=3, autocast=autocast) if path else None
    for batch in batches:
        with capture.step(batch) if capture else contextlib.nullcontext():
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast is not None):
                loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
    return model.state_dict()


def captured(lockstep, tmp_path, make, autocast=None):
    """Captures, verifies; the training is the same as without. Returns verify's words and the file."""
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(make())
    batches = [(torch.randn(8, 6), torch.randint(5, (8,))) for _ in range(3)]
    path = tmp_path / "quantized.lscap.h5"
    with_capture, without = train(models[0], batches, path, autocast), train(models[1], batches, None, autocast)
    assert all(torch.equal(with_capture[name], without[name]) for name in without)
    said = lockstep("verify", path).stdout
    assert "FAIL" not in said and all(f"{gate}  PASS" in said for gate in ("V1", "V3")), said
    assert autocast is None or "V7  PASS" in said, said
    return said, path


@pytest.mark.parametrize("autocast", [None, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", BODIES)
def test_fake_quantize(lockstep, tmp_path, name, autocast):
    captured(lockstep, tmp_path, lambda: Rounded(BODIES[name]), autocast)


@pytest.mark.parametrize("name", MODULES)
def test_observers(lockstep, tmp_path, name):
    """Averages, scales and zero points are buffers that the forward pass updates."""
    said, path = captured(lockstep, tmp_path, MODULES[name])
    assert "V4  PASS" in said or name == "observers_off", said
    with h5py.File(path) as file:  # the first interval is taken as it is: another path
        assert len(file["graphs"]) == (2 if name == "fused_tensor_unseen" else 1)


def test_modules_under_autocast(lockstep, tmp_path):
    """PyTorch's fused kernel with an observer has no BF16; these modules have."""
    captured(lockstep, tmp_path, MODULES["modules"], torch.bfloat16)


def test_observers_without_a_size_are_refused(tmp_path):
    model = observed(CHANNELS, seen=False)
    with pytest.raises(CaptureError, match="run the model once before the capture"):
        train(model, [(torch.randn(8, 6), torch.randint(5, (8,)))], tmp_path / "unseen.lscap.h5")


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(
    "low,high",
    [(-1.5, 2.5), (-3.0, 1.0), (0.5, 2.0), (-2.0, -0.5), (0.0, 0.0), (-1e-7, 3e-7), (0.0, 1e-6), (-1e-42, 0.0)],
)
def test_scale_of_an_interval(low, high, symmetric):
    """The FP64 formula against PyTorch's own, and the graph's bounds."""
    from lockstep_capture.ir.observers import OBSERVED_SCALE

    ends = [torch.tensor([low]), torch.tensor([high])]
    single = OBSERVED_SCALE(*ends, 0, 127, symmetric)
    double = OBSERVED_SCALE(*(end.double() for end in ends), 0, 127, symmetric)
    assert abs(float(single) / float(double) - 1) < 2.0**-23
