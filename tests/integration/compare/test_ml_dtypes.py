"""Formats against ml_dtypes and PyTorch: every code, every tie, every pair product, and blocks.

ml_dtypes' rule beyond the largest number is that of the plain format name in every row below;
PyTorch's for float8_e4m3fn is `fp8_e4m3+saturate` since 2.13. A NaN becomes -0 or 0 in ml_dtypes' six-
and four-bit types, which have none; Lockstep keeps and counts it, so NaN is left out there.
"""

import subprocess

import ml_dtypes
import numpy as np
import pytest
import torch

# Lockstep's name: the type, and the storage bits.
TYPES = {
    "fp16": (np.float16, 16),
    "bf16": (ml_dtypes.bfloat16, 16),
    "fp8_e4m3": (ml_dtypes.float8_e4m3fn, 8),
    "fp8_e5m2": (ml_dtypes.float8_e5m2, 8),
    "fp8_e4m3fnuz": (ml_dtypes.float8_e4m3fnuz, 8),
    "fp8_e5m2fnuz": (ml_dtypes.float8_e5m2fnuz, 8),
    "fp6_e3m2": (ml_dtypes.float6_e3m2fn, 6),
    "fp6_e2m3": (ml_dtypes.float6_e2m3fn, 6),
    "fp4_e2m1": (ml_dtypes.float4_e2m1fn, 4),
    "e3m4": (ml_dtypes.float8_e3m4, 8),
    "e4m3": (ml_dtypes.float8_e4m3, 8),
}
WITHOUT_NAN = {"fp6_e3m2", "fp6_e2m3", "fp4_e2m1"}


@pytest.fixture(scope="module")
def tool(binary_dir, tmp_path_factory):
    """Runs lockstep_format_tool on arrays."""
    folder = tmp_path_factory.mktemp("formats")

    class Tool:
        def call(self, *args):
            done = subprocess.run(
                [str(binary_dir / "lockstep_format_tool"), *map(str, args)], capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr

        def decode(self, name, verb="decode"):
            self.call(verb, name, folder / "codes")
            return np.fromfile(folder / "codes", "<f8")

        def round(self, name, values):
            values.astype("<f4").tofile(folder / "in")
            self.call("round", name, folder / "in", folder / "out")
            return np.fromfile(folder / "out", "<f4")

        def block(self, name, values, axis):
            values.astype("<f4").tofile(folder / "in")
            self.call("block", name, *values.shape, axis, folder / "in", folder / "out", folder / "scales")
            return (np.fromfile(folder / "out", "<f4").reshape(values.shape), np.fromfile(folder / "scales", "u1"))

    return Tool()


def all_values(kind, bits):
    """The values of every code, as float64."""
    codes = np.arange(1 << bits, dtype=np.uint16 if bits == 16 else np.uint8)
    with np.errstate(all="ignore"):
        return codes.view(kind).astype(np.float64)


def assert_same(ours, theirs, inputs=None):
    """Equal numbers, signs of zeros included; NaN as NaN."""
    with np.errstate(all="ignore"):
        ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    equal = (ours == theirs) & (np.signbit(ours) == np.signbit(theirs))
    wrong = ~(equal | (np.isnan(ours) & np.isnan(theirs)))
    if wrong.any():
        first = np.flatnonzero(wrong)[:5]
        raise AssertionError(
            f"{wrong.sum()} of {wrong.size} differ: inputs "
            f"{None if inputs is None else inputs[first].tolist()}, ours "
            f"{ours[first].tolist()}, theirs {theirs[first].tolist()}"
        )


def cast(values, kind):
    with np.errstate(all="ignore"):
        return values.astype(np.float32).astype(kind).astype(np.float32)


def rounding_points(kind, bits):
    """Every finite value, every midpoint, the places beyond the largest, specials; and neighbours."""
    values = all_values(kind, bits)
    values = np.unique(np.abs(values[np.isfinite(values)]))
    step = values[-1] - values[-2]
    beyond = values[-1] + step * np.array([0.25, 0.5, 0.75, 1, 1.5, 2, 4])
    points = np.concatenate(
        [
            values,
            (values[1:] + values[:-1]) / 2,
            values[1:2] / 4,
            beyond,
            [2.0**-149, 2.0**-126, 2.0**100, 3.4028234663852886e38],
        ]
    )
    infinity = np.float32(np.inf)
    with np.errstate(all="ignore"):
        points = points.astype(np.float32)
        points = np.concatenate([points, np.nextafter(points, infinity), np.nextafter(points, -infinity), [infinity]])
    # Every value and every midpoint, each with two neighbours, of two signs.
    assert points.size >= 3 * (2 * values.size - 1)
    return np.concatenate([points, -points])


@pytest.mark.parametrize("name", TYPES)
def test_every_code(tool, name):
    kind, bits = TYPES[name]
    values = all_values(kind, bits)
    assert values.size == 1 << bits
    assert_same(tool.decode(name), values)


@pytest.mark.parametrize("name", TYPES)
def test_every_tie_and_its_neighbours(tool, name):
    kind, bits = TYPES[name]
    points = rounding_points(kind, bits)
    if name not in WITHOUT_NAN:
        points = np.append(points, np.float32(np.nan))
    assert_same(tool.round(name, points), cast(points, kind), points)


@pytest.mark.parametrize("name", [name for name, (_, bits) in TYPES.items() if bits <= 8])
def test_every_pair_product(tool, name):
    """ml_dtypes' own multiplication against that of the C++ scalar type."""
    kind, bits = TYPES[name]
    codes = np.arange(1 << bits, dtype=np.uint8).view(kind)
    with np.errstate(all="ignore"):
        products = np.multiply.outer(codes, codes).ravel()
    assert products.dtype == kind
    assert products.size == 1 << 2 * bits
    if name in WITHOUT_NAN:
        assert not np.isnan(products.astype(np.float64)).any()
    assert_same(tool.decode(name, "products"), products)


@pytest.mark.parametrize(
    "name,kind",
    [
        ("fp8_e4m3+saturate", "float8_e4m3fn"),
        ("fp8_e5m2", "float8_e5m2"),
        ("fp8_e4m3fnuz", "float8_e4m3fnuz"),
        ("fp8_e5m2fnuz", "float8_e5m2fnuz"),
    ],
)
def test_torch_casts(tool, name, kind):
    points = np.append(rounding_points(getattr(ml_dtypes, kind), 8), np.float32(np.nan))
    theirs = torch.from_numpy(points).to(getattr(torch, kind)).float().numpy()
    assert_same(tool.round(name, points), theirs, points)


def test_power_of_two_scales(tool):
    ours = tool.decode("mxfp8_e4m3", "scales")
    codes = np.arange(256, dtype=np.uint8)
    assert_same(ours, codes.view(ml_dtypes.float8_e8m0fnu).astype(np.float64))
    theirs = torch.from_numpy(codes.copy()).view(torch.float8_e8m0fnu).to(torch.float64).numpy()
    assert_same(ours, theirs)


def blocks_of(values, axis, size):
    """(blocks, size): the blocks along an axis, whole ones only, in the order of their codes."""
    rows, cols = values.shape
    if axis == 1:
        return values.reshape(rows * cols // size, size)
    return values.reshape(rows // size, size, cols).swapaxes(1, 2).reshape(-1, size)


def block_inputs():
    random = np.random.default_rng(8)
    values = random.standard_normal((64, 96)) * 2.0 ** random.integers(-40, 40, (64, 96))
    values[0:32] = random.standard_normal((32, 96)) * 3
    values[40, 32:64] = 0
    return values.astype(np.float32)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    "name,element,largest,emax",
    [
        ("mxfp8_e4m3", "fp8_e4m3", 448, 8),
        ("mxfp8_e5m2", "fp8_e5m2", 57344, 15),
        ("mxfp6_e3m2", "fp6_e3m2", 28, 4),
        ("mxfp6_e2m3", "fp6_e2m3", 7.5, 2),
        ("mxfp4", "fp4_e2m1", 6, 2),
    ],
)
def test_mx_blocks(tool, name, element, largest, emax, axis):
    values = block_inputs()
    ours, codes = tool.block(name, values, axis)
    blocks = blocks_of(values.astype(np.float64), axis, 32)
    _, exponent = np.frexp(np.abs(blocks).max(axis=1))  # amax in [2^(exponent-1), 2^exponent)
    exponent = np.clip(np.where(blocks.any(axis=1), exponent - 1 - emax, -127), -127, 127)
    assert codes.tolist() == (exponent + 127).tolist()
    scale = np.ldexp(1.0, exponent)[:, None]
    expected = cast(np.clip(blocks / scale, -largest, largest), TYPES[element][0]) * scale
    assert_same(blocks_of(ours, axis, 32).ravel(), expected.ravel(), blocks.ravel())


@pytest.mark.parametrize("axis", [0, 1])
def test_nvfp4_blocks(tool, axis):
    values = block_inputs()
    ours, codes = tool.block("nvfp4", values, axis)
    blocks = blocks_of(values, axis, 16)
    tensor_scale = np.abs(values).max() / np.float32(448 * 6)
    wanted = np.abs(blocks).max(axis=1) / np.float32(6) / tensor_scale
    assert wanted.dtype == np.float32
    e4m3 = np.minimum(wanted, np.float32(448)).astype(ml_dtypes.float8_e4m3fn)
    assert codes.tolist() == e4m3.view(np.uint8).tolist()
    scale = (e4m3.astype(np.float32) * tensor_scale)[:, None]
    with np.errstate(all="ignore"):
        quotient = np.clip(blocks / scale, np.float32(-6), np.float32(6))
    elements = cast(np.where(scale == 0, np.copysign(0, blocks), quotient), ml_dtypes.float4_e2m1fn)
    assert_same(blocks_of(ours, axis, 16).ravel(), (elements * scale).ravel(), blocks.ravel())
