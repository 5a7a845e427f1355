"""Complex numbers and Fourier transforms: pairs of real values, loss and gradients as PyTorch's in FP64."""

import json

import h5py
import pytest
import torch
from lockstep_capture import capture, check
from test_capture_ops import Weights, compare, x

torch.set_num_threads(1)


def z_of(w):
    return torch.view_as_complex(w.reshape(*w.shape[:-1], -1, 2))


def loss_of(y):
    """Of all elements of a real or complex result, each with another weight."""
    y = torch.view_as_real(y.resolve_conj()) if y.is_complex() else y
    return (y * torch.linspace(0.5, 1.5, y.numel()).reshape(y.shape)).square().sum()


# Two complex operands of 4 x 3.
OPS = {
    "add": lambda z, w: z + w,
    "sub_alpha": lambda z, w: torch.sub(z, w, alpha=0.5),
    "add_real": lambda z, w: z + w.real,
    "add_number": lambda z, w: z + (1 - 2j) + 3.0,
    "rsub": lambda z, w: 1.5 - z,
    "mul": lambda z, w: z * w,
    "mul_real": lambda z, w: w.imag * z,
    "mul_number": lambda z, w: 2.5 * z * 1j,
    "real_by_number": lambda z, w: z.real * (0.5 + 2j),
    "square": lambda z, w: z * z,
    "div": lambda z, w: z / w,
    "div_real": lambda z, w: z / (1 + w.real.square()),
    "number_by": lambda z, w: 2.0 / z,
    "reciprocal": lambda z, w: z.reciprocal(),
    "conj": lambda z, w: z.conj() * w,
    "conj_imag": lambda z, w: z.conj().imag * w.real,
    "resolve_conj": lambda z, w: z.conj().resolve_conj() + w,
    "abs": lambda z, w: z.abs(),
    "abs_at_0": lambda z, w: (z * (w.real > 0)).abs() + z.real,
    "angle": lambda z, w: z.angle(),
    "sgn": lambda z, w: torch.sgn(z),
    "exp": lambda z, w: torch.exp(z),
    "log": lambda z, w: torch.log(z),
    "sqrt": lambda z, w: torch.sqrt(z),
    "pow": lambda z, w: z**3 + w**2,
    "pow_fraction": lambda z, w: z**0.7,
    "polar": lambda z, w: torch.polar(z.real.exp(), w.imag) * z,
    "complex": lambda z, w: torch.complex(z.real, w.imag),
    "matmul": lambda z, w: z @ w.mT,
    "adjoint": lambda z, w: z @ w.mH,
    "bmm": lambda z, w: torch.bmm(z[None], w[None].transpose(1, 2)),
    "einsum": lambda z, w: torch.einsum("ab,cb,a->ac", z, w, w[:, 0]),
    "einsum_real": lambda z, w: torch.einsum("ab,cb->ac", z, w.to(torch.complex64)),
    "linear": lambda z, w: torch.nn.functional.linear(z, w, w[:, 0]),
    "conv1d": lambda z, w: torch.nn.functional.conv1d(z[None], w[:, None][:4].expand(4, 4, 3), w[:, 0]),
    "dot": lambda z, w: torch.dot(z[0], w[1]),
    "vdot": lambda z, w: torch.vdot(z[0], w[1]),
    "tensordot": lambda z, w: torch.tensordot(z, w, dims=([0], [0])),
    "outer": lambda z, w: torch.outer(z[0], w[1]),
    "sum": lambda z, w: z.sum(0) + w.mean(0),
    "cumsum": lambda z, w: z.cumsum(1),
    "norm": lambda z, w: z.norm() + torch.linalg.vector_norm(w, dim=1),
    "shapes": lambda z, w: torch.cat([z.reshape(2, 6).t().flip(0), w.view(6, 2)], 1)[1:, ::2].roll(1, 0),
    "stack_split": lambda z, w: torch.stack(torch.stack([z, w]).split(1, 2)[1:], -1).squeeze(),
    "index": lambda z, w: z[[0, 2, 0]] + w[:3].expand(2, 3, 3)[1],
    "where": lambda z, w: torch.where(w.real > 0, z, w) + torch.where(w.imag > 0, z, 0.0),
    "masked_fill": lambda z, w: z.masked_fill(w.real > 0, 0.5) * w,
    "view_as_real": lambda z, w: torch.view_as_real(z)[..., 1] * w,
    "to_complex": lambda z, w: z.real.to(torch.complex64) * w + w.real.cfloat(),
    "to_complex128": lambda z, w: (z.to(torch.complex128) * w).to(torch.complex64),
    "in_place": lambda z, w: (z * 1).mul_(w).add_(1),
    "constants": lambda z, w: z * torch.polar(torch.ones(3), torch.arange(3.0)) + torch.view_as_complex(x(4, 3, 2)),
    "detach": lambda z, w: z.detach() * w,
}


@pytest.mark.parametrize("name", OPS)
def test_an_op(name):
    model = Weights((4, 6), (4, 6))
    compare(model, lambda m, b: loss_of(OPS[name](z_of(m.w0), z_of(m.w1))), x(1))


# Signals of 6 x 10 complex points.
TRANSFORMS = {
    "fft": torch.fft.fft,
    "fft_real": lambda z: torch.fft.fft(z.real),
    "fft_ortho": lambda z: torch.fft.fft(z, norm="ortho"),
    "fft_forward": lambda z: torch.fft.fft(z, norm="forward"),
    "fft_long": lambda z: torch.fft.fft(z, n=16, dim=0),
    "fft_short": lambda z: torch.fft.fft(z, n=7),
    "fft_factors": lambda z: torch.fft.fft(z.reshape(-1), n=360),
    "fft_prime": lambda z: torch.fft.fft(z.reshape(-1), n=67),
    "ifft": torch.fft.ifft,
    "ifft_forward": lambda z: torch.fft.ifft(z, norm="forward"),
    "rfft": lambda z: torch.fft.rfft(z.real),
    "rfft_odd": lambda z: torch.fft.rfft(z.real, n=9, norm="ortho"),
    "rfft_dim": lambda z: torch.fft.rfft(z.real, dim=0),
    "rfft_factors": lambda z: torch.fft.rfft(z.real.reshape(-1), n=256),
    "irfft": torch.fft.irfft,
    "irfft_n": lambda z: torch.fft.irfft(z, n=13, norm="forward"),
    "irfft_cut": lambda z: torch.fft.irfft(z, n=8, dim=-1),
    "irfft_factors": lambda z: torch.fft.irfft(z.reshape(-1), n=130),
    "hfft": lambda z: torch.fft.hfft(z, n=12),
    "ihfft": lambda z: torch.fft.ihfft(z.real, norm="ortho"),
    "fft2": torch.fft.fft2,
    "ifft2_sizes": lambda z: torch.fft.ifft2(z, s=(4, 12)),
    "rfft2": lambda z: torch.fft.rfft2(z.real, norm="ortho"),
    "irfft2": lambda z: torch.fft.irfft2(z, s=(6, 9)),
    "fftn": lambda z: torch.fft.fftn(z.reshape(3, 2, 10)),
    "fftn_dims": lambda z: torch.fft.fftn(z.reshape(3, 2, 10), dim=(0, 2)),
    "rfftn": lambda z: torch.fft.rfftn(z.real.reshape(3, 2, 10), dim=(1, 2, 0)),
    "irfftn": lambda z: torch.fft.irfftn(z.reshape(3, 2, 10), s=(2, 8)),
    "hfft2": lambda z: torch.fft.hfft2(z),
    "shift": lambda z: torch.fft.ifftshift(torch.fft.fftshift(z, dim=1) * torch.fft.fftfreq(10)),
    "stft": lambda z: torch.stft(z.real, 4, return_complex=True),
    "stft_window": lambda z: torch.stft(
        z.real, 8, 2, 6, torch.hann_window(6), normalized=True, pad_mode="constant", return_complex=True
    ),
    "stft_two_sided": lambda z: torch.stft(z, 4, 1, center=False, onesided=False, return_complex=True),
    "stft_pairs": lambda z: torch.view_as_real(torch.stft(z.real[0], 4, 2, return_complex=True)),
    "istft": lambda z: torch.istft(z.reshape(2, 5, 6), 8, 2, window=torch.hann_window(8)),
    "istft_length": lambda z: torch.istft(
        z.reshape(5, 12), 8, 3, 7, torch.hamming_window(7), normalized=True, length=30
    ),
    "istft_two_sided": lambda z: torch.istft(
        z.reshape(2, 5, 6), 5, 2, window=torch.ones(5), onesided=False, center=False
    ),
    "convolution": lambda z: torch.fft.irfft(torch.fft.rfft(z.real, n=32) * torch.fft.rfft(z.imag, n=32), n=32)[:, :10],
    "written_part": lambda z: written_part(z),
}


def written_part(z):
    """As Fourier neural operators do: a few modes in a spectrum of zeros."""
    out = torch.zeros(6, 10, dtype=torch.cfloat)
    out[:, :3] = z[:, :3] * z[:, 3:6]
    out[2:4, -2:] = z[2:4, -2:]
    return torch.fft.irfft(out, n=18)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform(name):
    compare(Weights((6, 20)), lambda m, b: loss_of(TRANSFORMS[name](z_of(m.w0))), x(1))


class Spectral(torch.nn.Module):
    """A layer in the frequency domain, with complex weights and a complex average that the forward pass updates."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 12), torch.nn.Linear(12, 3)
        self.w = torch.nn.Parameter(torch.randn(7, 7, dtype=torch.cfloat) / 7)
        self.register_buffer("mean", torch.zeros(7, dtype=torch.cfloat))

    def forward(self, x):
        z = torch.fft.rfft(self.first(x)) @ self.w
        with torch.no_grad():
            self.mean.mul_(0.9).add_(z.mean(0), alpha=0.1)
        return self.last(torch.fft.irfft(z * torch.exp(1j * z.abs()) - self.mean, n=12))


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_a_model_with_complex_weights(lockstep, tmp_path, autocast):
    """All gates pass, and autocast leaves complex numbers in FP32."""
    torch.manual_seed(0)
    model, path = Spectral(), tmp_path / "a.lscap.h5"
    batches = [torch.randn(5, 6) for _ in range(3)]
    capture(
        str(path),
        model,
        torch.optim.AdamW(model.parameters(), 0.01),
        batches,
        lambda m, b: m(b).float().square().mean(),
        steps=3,
        clip_grad_norm=0.5,
        autocast=autocast,
    )
    with h5py.File(path) as file:
        assert file["params/w"].shape == (7, 7, 2) and file["buffers/mean"].shape == (7, 2)
        assert file["optimizer"].attrs["class"] == "AdamW" and file["final/params/w"].shape == (7, 7, 2)
    lockstep("verify", path)
    for policy, low in (("torch-autocast-fp16", "fp16"), ("torch-autocast-bf16-cpu", "bf16")):
        ops = json.loads(lockstep("explain", path, "--policy", policy, "--json").stdout)["ops"]
        formats = {
            kind: {op["outputs"][0]["format"] for op in ops if op["op"] == kind and not op["backward"]}
            for kind in ("linear", "matmul", "composed_result")
        }
        assert formats == {"linear": {low}, "matmul": {"fp32"}, "composed_result": {"fp32"}}


@pytest.mark.parametrize(
    "body,what,hint",
    [
        (lambda z: torch.tanh(z), "aten.tanh.default", "real and the imaginary part"),
        (lambda z: z ** (1 + 1j), "aten.pow.Tensor_Scalar", "exp(y * log(x))"),
        (lambda z: torch.fft.fft(z, n=2053), "aten.fft_fft.default", "prime factor above 2048"),
    ],
)
def test_what_has_no_form_is_refused_with_the_way_out(body, what, hint):
    support = check(Weights((4, 6)), lambda m, b: loss_of(body(z_of(m.w0))), x(1))
    assert [problem.what for problem in support.problems] == [what]
    assert hint in support.problems[0].hint


class ShowsParts(torch.nn.Module):
    """Writes to a complex tensor after others of its numbers are shown."""

    def __init__(self, write):
        super().__init__()
        self.w, self.write = torch.nn.Parameter(torch.randn(4, 3, dtype=torch.complex64)), write

    def forward(self, x):
        z = self.w * x
        return self.write(z).abs().sum()


def _half(z):
    z.real.mul_(2)
    return z


def _pairs(z):
    torch.view_as_real(z).mul_(2)
    return z


def _conjugate(z):
    w = z.conj()
    z.mul_(2)
    return w


def _shown_later(z):
    z.mul_(2)
    return torch.view_as_complex(torch.view_as_real(z))


@pytest.mark.parametrize("write", [_half, _pairs, _conjugate])
def test_writes_that_complex_views_would_miss(write):
    problems = check(ShowsParts(write), lambda m, b: m(b), torch.randn(4, 3)).problems
    assert problems and problems[0].what.startswith("in-place on a complex tensor that shares its numbers"), problems
    assert "test_capture_complex.py" in problems[0].source


def test_a_view_after_the_write():
    assert check(ShowsParts(_shown_later), lambda m, b: m(b), torch.randn(4, 3)).ok


def test_sums_with_a_complex_factor():
    model = ShowsParts(lambda z: torch.add(z, z, alpha=2j))
    assert "write the sum as x + alpha * y" in str(check(model, lambda m, b: m(b), torch.randn(4, 3)))


class Memory(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(3))
        self.register_buffer("k", torch.zeros(4, 3, dtype=torch.complex64))

    def forward(self, x):
        v = torch.complex(self.w * x, x)
        loss = (self.k + v).abs().sum()
        self.k[:2] = v[:2].detach()
        return loss


def test_a_part_of_a_complex_buffer(lockstep, tmp_path):
    model, path = Memory(), tmp_path / "a.lscap.h5"
    batches = [torch.randn(4, 3) for _ in range(2)]
    capture(path, model, torch.optim.SGD(model.parameters(), 0.1), batches, lambda m, b: m(b), steps=2, verify=range(2))
    said = lockstep("verify", path).stdout
    assert "V1  PASS" in said and "V4  PASS" in said, said


class Transformed(torch.nn.Module):
    """The error of a transform and its inverse, a thousandfold."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        x = (x * self.w).float()
        return (torch.fft.irfft(torch.fft.rfft(x), n=x.shape[-1]) - x) * 1000 + x


def enlarged(model, x):
    y = torch.nn.functional.interpolate(x[:, None] * model.w, scale_factor=3.3, mode="bicubic")
    return y.square().mean()


@pytest.mark.parametrize("kind", ["fft", "upsample"])
def test_constants_of_a_kernel_are_in_fp32_in_every_lane(lockstep, tmp_path, kind):
    torch.manual_seed(0)
    model, path, run = Transformed(), tmp_path / "a.h5", tmp_path / "run.h5"
    loss_of = enlarged if kind == "upsample" else lambda m, x: m(x).square().mean()
    batch = torch.randint(-8, 9, (4, 24, 24) if kind == "upsample" else (4, 24)).float()
    capture(path, model, torch.optim.SGD(model.parameters(), 0.0), [batch], loss_of, steps=1)
    explained = json.loads(lockstep("explain", path, "--policy", "pure-bf16", "--json").stdout)
    read = [value["as"] for op in explained["ops"] for value in op["inputs"] if value["value"].startswith("c:")]
    assert set(read) - {"int"} == {"fp32"}, read
    lockstep("replay", path, "--lanes", "fp32,pure-bf16", "--twins", "0", "-o", run, "--quiet")
    with h5py.File(run) as file:
        losses = [file[f"lanes/{lane}/loss"][0] for lane in ("fp32", "pure-bf16")]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
