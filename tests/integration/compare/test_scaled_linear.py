"""FP8, MXFP8 and NVFP4 linear layers against a model in NumPy and ml_dtypes, bit for bit.

The model quantizes as Transformer Engine's recipes say, sums in FP32 in ascending order of k, divides
the scales out and rounds to BF16. Delayed scaling is followed over a whole run.
"""

import h5py
import ml_dtypes
import numpy as np
import pytest
from op_tool import run_op

F32 = np.float32
E4M3, E5M2, E2M1 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn
LARGEST = {E4M3: 448.0, E5M2: 57344.0, E2M1: 6.0}


def bf16(x):
    return x.astype(F32).astype(ml_dtypes.bfloat16).astype(F32)


def saturated(x, kind):
    """x (float32) in an 8- or 4-bit format, saturating, as float32."""
    largest = F32(LARGEST[kind])
    return np.clip(x.astype(F32), -largest, largest).astype(kind).astype(F32)


def per_tensor(x, kind):
    """(q, s): s = max / amax in FP32."""
    s = F32(LARGEST[kind]) / F32(np.abs(x).max())
    return saturated(x.astype(F32) * s, kind), s


def blocks_of(x, axis, size):
    """Slices of `size` neighbours along an axis of a matrix, one line each."""
    for line in range(x.shape[1 - axis]):
        for begin in range(0, x.shape[axis], size):
            along = slice(begin, begin + size)
            yield (line, along) if axis == 1 else (along, line)


def mxfp8(x, axis):
    """Powers of two that just hold every block, by exact comparison."""
    y = np.zeros_like(x, F32)
    for at in blocks_of(x, axis, 32):
        amax = float(np.abs(x[at]).max())
        exponent = -127
        while amax > 448 * 2.0**exponent:
            exponent += 1
        y[at] = saturated(x[at] / F32(2.0**exponent), E4M3) * F32(2.0**exponent)
    return y, F32(1)


def nvfp4(x, axis, square=False):
    """(element * block scale, s): s = 448 * 6 / amax, block scales E4M3, 16 elements each."""
    s = F32(2688) / F32(np.abs(x).max())
    scaled = x.astype(F32) * s
    y = np.zeros_like(scaled)
    if square:
        places = [
            (slice(i, i + 16), slice(j, j + 16)) for i in range(0, x.shape[0], 16) for j in range(0, x.shape[1], 16)
        ]
    else:
        places = blocks_of(scaled, axis, 16)
    for at in places:
        block = saturated(np.abs(scaled[at]).max() / F32(6), E4M3)
        if block != 0:
            y[at] = saturated(scaled[at] / block, E2M1) * block
    return y, s


def product(a, b, scale_a, scale_b):
    """A (M,K) B (K,N): FP32 sums, k ascending (one rounding per step), scales divided out, BF16."""
    sums = np.zeros((a.shape[0], b.shape[1]), F32)
    for k in range(a.shape[1]):
        exact = np.outer(a[:, k].astype(np.float64), b[k].astype(np.float64))
        sums = (sums.astype(np.float64) + exact).astype(F32)
    inverse = np.float64(F32(1) / scale_a) * np.float64(F32(1) / scale_b)
    return bf16((sums.astype(np.float64) * inverse).astype(F32))


@pytest.fixture
def operands():
    generator = np.random.default_rng(5)
    spread = lambda *shape: np.exp2(generator.integers(-14, 3, shape))
    x = bf16(generator.standard_normal((37, 70)) * spread(37, 1))
    w = (generator.standard_normal((21, 70)) * spread(21, 1)).astype(F32)
    dy = bf16(generator.standard_normal((37, 21)) * spread(37, 1) * 2.0**-10)
    return x, w, dy


def run_linear(policy, operands):
    """y and dw of Lockstep."""
    x, w, dy = operands
    (y,), (_, dw) = run_op("linear", [x, w], cotangents=dy, dtype="fp32", policy=str(policy), constants=(0,))
    return y.astype(F32), dw.astype(F32)


def test_current_scaling(operands):
    x, w, dy = operands
    y, dw = run_linear("fp8-current", operands)
    (qx, sx), (qw, sw), (qdy, sdy) = per_tensor(x, E4M3), per_tensor(w, E4M3), per_tensor(dy, E5M2)
    assert np.array_equal(y, product(qx, qw.T, sx, sw))
    assert np.array_equal(dw, product(qdy.T, qx, sdy, sx))
    # The comparison can fail, and FP8 is not exact.
    assert not np.array_equal(y, product(x, w.T, F32(1), F32(1)))


def test_mxfp8(operands):
    x, w, dy = operands
    y, dw = run_linear("mxfp8", operands)
    assert np.array_equal(y, product(*np_pair(mxfp8(x, 1), mxfp8(w, 1))))
    (qdy, _), (qx, _) = mxfp8(dy, 0), mxfp8(x, 0)
    assert np.array_equal(dw, product(qdy.T, qx, F32(1), F32(1)))
    # Cut along the other axis x gives other numbers.
    assert not np.array_equal(dw, product(qdy.T, mxfp8(x, 1)[0], F32(1), F32(1)))


def np_pair(x, w):
    """Arguments of product for x w^T."""
    return x[0], w[0].T, x[1], w[1]


def test_nvfp4(operands, tmp_path):
    x, w, dy = operands
    policy = tmp_path / "nearest.toml"
    policy.write_text('extends = "nvfp4"\n[scaling]\ngrad_rounding = "nearest_even"\n')
    y, dw = run_linear(policy, operands)
    assert np.array_equal(y, product(*np_pair(nvfp4(x, 1), nvfp4(w, 1, square=True))))
    (qdy, sdy), (qx, sx) = nvfp4(dy, 0), nvfp4(x, 0)
    assert np.array_equal(dw, product(qdy.T, qx, sdy, sx))
    # The preset rounds dy stochastically: another dw, the same y.
    y_random, dw_random = run_linear("nvfp4", operands)
    assert np.array_equal(y, y_random)
    assert not np.array_equal(dw, dw_random)


class TransformerEngineHistory:
    """The ring of amax_history_len amaxes: slot 0 takes the step's, a step rolls the rest."""

    def __init__(self, length, compute, margin, largest):
        self.ring = np.zeros(length, F32)
        self.compute, self.margin, self.largest, self.scale = compute, margin, largest, F32(1)

    def after_step(self, amax):
        self.ring[0] = amax
        chosen = self.ring.max() if self.compute == "max" else self.ring[0]
        if chosen > 0 and np.isfinite(chosen):
            self.scale = F32(self.largest / F32(chosen) / F32(2.0**self.margin))
        self.ring = np.roll(self.ring, -1)
        self.ring[0] = 0


@pytest.mark.parametrize("length,compute,margin", [(3, "max", 0), (16, "max", 1), (16, "most_recent", 0)])
def test_delayed_scaling_over_a_run(lockstep, tmp_path, length, compute, margin):
    policy = tmp_path / "delayed.toml"
    policy.write_text(
        f'extends = "fp8-delayed"\n[scaling]\namax_history = {length}\namax_compute = "{compute}"\nmargin = {margin}\n'
    )
    steps = 12
    lockstep(
        "replay",
        "mlp",
        "--data",
        "synthetic:200",
        "--batch",
        16,
        "--steps",
        steps,
        "--lr",
        0.2,
        "--lanes",
        f"fp32,{policy}",
        "-o",
        tmp_path / "run.h5",
    )
    with h5py.File(tmp_path / "run.h5") as run:
        column = lambda name: [v.decode() if isinstance(v, bytes) else v for v in run[f"sites/{name}"][()]]
        sites = list(zip(column("op"), column("point"), column("index"), column("role")))
        lane = next(g for name, g in run["lanes"].items() if name != "fp32")
        scale, abs_max = lane["scale"][()], lane["moments/abs_max"][()]
    # abs_max is of x s, rounded to FP32, and so are quotient and margin: three roundings.
    tolerance = 4 * 2.0**-24
    followed, moved = 0, 0
    for s, (op, point, index, _) in enumerate(sites):
        if point != "operand" or op not in ("linear", "linear_backward_weight") or index > 1:
            continue
        is_gradient = op == "linear_backward_weight" and index == 1
        if not is_gradient and op != "linear":
            continue
        model = TransformerEngineHistory(length, compute, margin, 57344 if is_gradient else 448)
        for t in range(steps):
            assert scale[t, s] == pytest.approx(model.scale, rel=tolerance), (t, op, index)
            model.after_step(abs_max[t, s] / scale[t, s])
        followed += 1
        moved += len(set(scale[1:, s])) > 1
    assert followed >= 6 and moved >= 3


@pytest.mark.parametrize("lane", ["fp8-delayed", "fp8-current", "mxfp8", "nvfp4"])
def test_gpt_learns(lockstep, tmp_path, lane):
    lockstep(
        "replay",
        "gpt",
        "--data",
        "grammar:20000",
        "--size",
        "layers=1,width=32,context=32",
        "--batch",
        8,
        "--steps",
        60,
        "--optimizer",
        "adamw",
        "--lr",
        0.005,
        "--lanes",
        f"fp32,{lane}",
        "-o",
        tmp_path / "run.h5",
    )
    with h5py.File(tmp_path / "run.h5") as run:
        loss = {name: run[f"lanes/{name}/loss"][()] for name in ("fp32", lane)}
    start, end = (lambda x: x[:5].mean()), (lambda x: x[-5:].mean())
    learned = start(loss["fp32"]) - end(loss["fp32"])
    assert learned > 0.5
    assert start(loss[lane]) - end(loss[lane]) > 0.8 * learned
    assert not np.array_equal(loss[lane], loss["fp32"])
