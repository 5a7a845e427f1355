"""Products that are summed block by block: torchao's blockwise FP8 and DeepSeek-V3's promotion, bit for bit.

torchao's quantisers are its own plain functions; their module needs Triton, so they are taken from its source. The
products are formed here as the policy declares them: each block of 128 by itself, times both scales, added in FP32.
Also here: NVFP4 with Hadamard transforms as a whole layer, with torchao's quantiser and matrix.
"""

import ast
import importlib.util
import pathlib

import numpy as np
import pytest
import torch
from op_tool import OpError, run_op
from plain_sums import bf16, chain

pytest.importorskip("torchao", reason="torchao is not installed")
from torchao.prototype.moe_training.nvfp4_training.hadamard_utils import get_rht_matrix
from torchao.prototype.mx_formats.kernels import f4_unpacked_to_f32, f32_to_f4_unpacked, unpack_uint4
from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")
F32 = np.float32
BLOCK = 128
QUANTISERS = (
    "torch_blockwise_scale_act_quant_lhs",
    "torch_blockwise_scale_act_quant_rhs",
    "torch_blockwise_scale_weight_quant",
)
RARE = 0.02  # of the values: numbers of BF16 are ties more often than others
SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)


@pytest.fixture(scope="module")
def torchao():
    """{name: function} of torchao's plain quantisers."""
    package = pathlib.Path(importlib.util.find_spec("torchao").origin).parent
    tree = ast.parse((package / "prototype/blockwise_fp8_training/kernels.py").read_text())
    kept = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in QUANTISERS]
    epsilon = [n for n in tree.body if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "EPS"]
    assert len(kept) == len(QUANTISERS) and len(epsilon) == 1
    names = {
        "torch": torch,
        "Tuple": tuple,
        "e4m3_dtype": torch.float8_e4m3fn,
        "FP8_E4M3_DTYPES": {torch.float8_e4m3fn},
    }
    exec(compile(ast.Module(epsilon + kept, []), "kernels.py", "exec"), names)
    return {name: names[name] for name in QUANTISERS}


def quantised(function, x, **more):
    """(elements, r of every element) of torchao."""
    q, r = function(torch.tensor(np.ascontiguousarray(x)), **more)
    q, r = q.float().numpy(), r.float().numpy()
    down, across = x.shape[0] // r.shape[0], x.shape[1] // r.shape[1]
    return q, np.repeat(np.repeat(r, down, 0), across, 1)


def by_blocks(a, b, part=chain):
    """a and b: (elements, r) as (M,K) and (K,N)."""
    (qa, ra), (qb, rb) = a, b
    sums = np.zeros((qa.shape[0], qb.shape[1]), F32)
    for k in range(0, qa.shape[1], BLOCK):
        along = slice(k, k + BLOCK)
        block = part(qa[:, along], qb[along])
        sums = sums + block * ra[:, k : k + 1] * rb[k : k + 1]
    return sums


def transposed(factor):
    return factor[0].T, factor[1].T


def layer(policy, operands):
    """y, dx, dw of Lockstep; dx from a run in which x is a parameter, too."""
    x, w, dy = operands
    run = lambda constants: run_op(
        "linear", [x, w], cotangents=dy, dtype="fp32", policy=str(policy), constants=constants
    )
    (y,), (_, dw) = run((0,))
    _, (dx, _) = run(())
    return [a.astype(F32) for a in (y, dx, dw)]


@pytest.fixture
def operands():
    generator = np.random.default_rng(11)
    spread = lambda *shape: np.exp2(generator.integers(-12, 4, shape))
    x = bf16(generator.standard_normal((256, 384)) * spread(256, 1))
    w = bf16(generator.standard_normal((128, 384)) * spread(128, 1))
    dy = bf16(generator.standard_normal((256, 128)) * spread(256, 1) * 2.0**-10)
    x[3, :128] = 0  # an amax below 1e-12
    x[4, :128] *= F32(2.0**-60)
    return x, w, dy


def test_a_layer_under_torchaos_scales(torchao, operands):
    x, w, dy = operands
    lhs, rhs, weight = (torchao[name] for name in QUANTISERS)
    y, dx, dw = layer("fp8-blockwise-torchao", operands)
    qw = quantised(weight, w)
    assert np.array_equal(y, bf16(by_blocks(quantised(lhs, x), transposed(qw))))
    assert np.array_equal(dx, bf16(by_blocks(quantised(lhs, dy), qw)))
    assert np.array_equal(dw, bf16(by_blocks(quantised(lhs, dy.T), quantised(rhs, x))))
    # Powers of two are another recipe.
    for ours, other in zip((y, dx, dw), layer("fp8-blockwise", operands)):
        assert not np.array_equal(ours, other)


def million(seed=3):
    """2^20 numbers in rows of 128: rows of all sizes, zeros, ties of E4M3, subnormal floats, an amax below 1e-12."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((8192, BLOCK)).astype(F32)
    x *= np.exp2(generator.integers(-12, 13, x.shape)).astype(F32)
    x *= np.exp2(generator.integers(-30, 31, (8192, 1))).astype(F32)
    x[5:9] = 0
    x[:, 7] = -0.0
    x[16:48] = (generator.integers(16, 32, (32, BLOCK)) + F32(0.5)) * F32(0.125)
    x[16:48, 0] = 448
    x[60] *= F32(2.0**-100)
    x[61] = np.arange(BLOCK) * F32(2.0**-149)
    x[62:64] = np.nextafter(F32(448), F32(500))
    return x


# A row of 128 is a block of 128, and a line of torchao's row-wise scales.
@pytest.mark.parametrize("blocks", ["block", "line"])
@pytest.mark.parametrize("scale", ["fp32", "power_of_two"])
def test_a_million_values_under_torchaos_scales(torchao, tmp_path, scale, blocks):
    x = million()
    # A weight of 448 times the identity has the elements 448 and the scale 1: y = fp32(fp32(448 q) r).
    w = np.eye(BLOCK, dtype=F32) * 448
    policy = tmp_path / "blocks.toml"
    policy.write_text(
        f'[scaling]\nkind = "block"\noperand = "fp8_e4m3_{blocks}"\ngrad_operand = "fp8_e4m3_{blocks}"\n'
        'weight_blocks = "square"\namax_epsilon = 1e-12\n' + ('block_scale = "fp32"\n' if scale == "fp32" else "")
    )
    (y,), _ = run_op("linear", [x, w], dtype="fp32", policy=str(policy), constants=(0, 1))
    if scale == "fp32":
        q, r = quantised(torchao[QUANTISERS[0]], x)
    else:  # torchao cuts the fraction bits of that scale: float8_utils.py, amax_to_scale
        amax = np.maximum(np.abs(x).max(1, keepdims=True), F32(1e-12)).astype(np.float64)
        s = ((448 / amax).astype(F32).view(np.uint32) & np.uint32(0xFF800000)).view(F32)
        q = torch.tensor(np.clip(x * s, -448, 448)).to(torch.float8_e4m3fn).float().numpy()
        r = np.broadcast_to(F32(1) / s, x.shape)
    expected = q * F32(448) * r
    assert np.array_equal(y.astype(F32).view(np.uint32), (expected + F32(0)).view(np.uint32))
    assert len(np.unique(q)) > 200 and (q == 0).sum() > 8192  # the test sees most numbers of E4M3


# Hopper's sums of one block: 32 products and the running sum aligned to the largest exponent, 13 fraction bits kept.
def hopper(a, b):
    sums = np.zeros((a.shape[0], b.shape[1]), np.float64)
    for k in range(0, a.shape[1], 32):
        terms = a[:, k : k + 32, None].astype(np.float64) * b[None, k : k + 32].astype(np.float64)
        terms = np.concatenate([terms, sums[:, None]], 1)
        # The exponent of a product is the sum of its factors' exponents, subnormals of E4M3 at 2^-6.
        ea = np.where(a[:, k : k + 32] == 0, -999, np.maximum(np.frexp(a[:, k : k + 32])[1] - 1, -6))
        eb = np.where(b[k : k + 32] == 0, -999, np.maximum(np.frexp(b[k : k + 32])[1] - 1, -6))
        products = ea[:, :, None] + eb[None]
        running = np.where(sums == 0, -999, np.frexp(sums)[1] - 1)
        largest = np.maximum(products.max(1), running)
        unit = np.exp2(np.maximum(largest, -200).astype(np.float64) - 13)
        total = np.trunc(terms / unit[:, None]).sum(1) * unit
        exponent = np.frexp(total)[1] - 1
        step = np.exp2(exponent.astype(np.float64) - 13)
        sums = np.where(total == 0, 0, np.trunc(total / step) * step)
    return sums.astype(F32)


def on_hopper(preset, path):
    """The preset with each of its products summed by Hopper's unit."""
    products = ("fprop", "dgrad", "wgrad")
    rules = "".join(f'[scaling.{p}]\naccumulator = "hopper_fp8"\n' for p in products)
    path.write_text(f'extends = "{preset}"\n{rules}')
    return path


def test_deepseeks_promotion(operands, tmp_path):
    x, w, dy = operands
    # The preset keeps the head in BF16, and a model of one layer is its head.
    promoted = layer(on_hopper("fp8-blockwise", tmp_path / "promoted.toml"), operands)
    qw = power_of_two(w, (BLOCK, BLOCK))
    expected = (
        by_blocks(power_of_two(x, (1, BLOCK)), transposed(qw), hopper),
        by_blocks(power_of_two(dy, (1, BLOCK)), qw, hopper),
        by_blocks(transposed(power_of_two(dy, (BLOCK, 1))), power_of_two(x, (BLOCK, 1)), hopper),
    )
    for ours, other, plain in zip(promoted, expected, layer("fp8-blockwise", operands)):
        assert np.array_equal(ours, bf16(other))
        assert not np.array_equal(ours, plain)


def test_rows_on_hopper(operands, tmp_path):
    """Whole lines of codes are summed by the tensor core, then take both scales."""
    x, w, dy = operands
    policy = on_hopper("fp8-rowwise", tmp_path / "rows.toml")
    row, column = (lambda a: power_of_two(a, (1, a.shape[1]))), (lambda a: power_of_two(a, (a.shape[0], 1)))

    def product(a, b):
        return hopper(a[0], b[0]) * a[1][:, :1] * b[1][:1]

    expected = (
        product(row(x), transposed(row(w))),
        product(row(dy), column(w)),
        product(transposed(column(dy)), column(x)),
    )
    for ours, other in zip(layer(policy, operands), expected, strict=True):
        assert np.array_equal(ours, bf16(other))


def power_of_two(x, tile):
    """(elements, r): s = 448 / amax with its fraction bits cut."""
    q, r = np.empty_like(x), np.empty_like(x)
    for i in range(0, x.shape[0], tile[0]):
        for j in range(0, x.shape[1], tile[1]):
            at = (slice(i, i + tile[0]), slice(j, j + tile[1]))
            amax = np.abs(x[at]).max()
            s = F32(2.0 ** np.floor(np.log2(448 / float(amax)))) if amax > 0 else F32(1)
            q[at] = torch.tensor(np.clip(x[at] * s, -448, 448)).to(torch.float8_e4m3fn).float().numpy()
            r[at] = F32(1) / s
    return q, r


def test_blocks_of_scaled_and_plain_factors_do_not_mix(operands, tmp_path):
    policy = tmp_path / "mixed.toml"
    policy.write_text(
        'extends = "fp8-blockwise"\n[scaling.wgrad]\noperand = "mxfp8_e4m3+rceil"\naccumulator = "hopper_fp8"\n'
    )
    with pytest.raises(OpError, match="blocks of one size"):
        layer(policy, operands)


# ---- NVFP4 with a Hadamard transform, a whole layer


def by_formula(blocks, s):
    """(elements in E2M1, scales in E4M3) of lines of 16 under the scale s."""
    scaled = blocks * s
    scales = torch.tensor(np.minimum(np.abs(scaled).max(1, keepdims=True) / F32(6), 448)).to(torch.float8_e4m3fn)
    scales = scales.float().numpy()
    assert (scales > 0).all()
    return f4_unpacked_to_f32(f32_to_f4_unpacked(torch.tensor(scaled / scales))).numpy(), scales


def by_torchao(blocks, amax):
    scales, packed = nvfp4_quantize(torch.tensor(blocks), 16, torch.tensor(amax / F32(448 * 6)))
    return f4_unpacked_to_f32(unpack_uint4(packed)).numpy().reshape(blocks.shape), scales.float().numpy()


def checked(blocks, amax):
    """The values of lines of 16, and s. torchao's agree but for ties: it multiplies by a reciprocal where the recipe divides."""
    s = F32(2688) / amax
    (elements, scales), (their_elements, their_scales) = by_formula(blocks, s), by_torchao(blocks, amax)
    at_tie = lambda x, a, b: np.isclose(x, (a + b) / 2, rtol=2.0**-21, atol=0)
    wanted = np.abs(blocks * s).max(1, keepdims=True) / F32(6)
    other = scales != their_scales
    assert at_tie(wanted, scales, their_scales)[other].all() and other.mean() <= RARE
    differ = (elements != their_elements) & ~other
    assert at_tie(blocks * s / scales, elements, their_elements)[differ].all() and differ.mean() <= RARE
    return elements * scales, s


def nvfp4(x):
    """(values, s) in blocks along rows."""
    values, s = checked(np.ascontiguousarray(x).reshape(-1, 16), np.abs(x).max())
    return values.reshape(x.shape), s


def squares(w):
    """The same in squares of 16x16: lines of 15 numbers of the square and its largest one."""
    lines, places = [], []
    for i in range(0, w.shape[0], 16):
        for j in range(0, w.shape[1], 16):
            tile = w[i : i + 16, j : j + 16]
            part = np.append(tile.ravel(), np.zeros(-tile.size % 15, F32)).reshape(-1, 15)
            lines.append(np.concatenate([part, np.full((len(part), 1), np.abs(tile).max(), F32)], 1))
            places.append((slice(i, i + 16), slice(j, j + 16)))
    values, s = checked(np.concatenate(lines), np.abs(w).max())
    y = np.empty_like(w)
    for at, part in zip(places, np.split(values, len(places))):
        y[at] = part[:, :15].ravel()[: y[at].size].reshape(y[at].shape)
    return y, s


def scaled_product(a, b):
    (qa, sa), (qb, sb) = a, b
    inverse = np.float64(F32(1) / sa) * np.float64(F32(1) / sb)
    return bf16((chain(qa, qb).astype(np.float64) * inverse).astype(F32))


def turned(x, signs=SIGNS):
    """Columns of x in groups of 16 through torchao's matrix, as a product of BF16 matrices."""
    matrix = get_rht_matrix(signs, "cpu", torch.float32, 16).numpy()
    return bf16(np.concatenate([chain(matrix.T, x[i : i + 16]) for i in range(0, len(x), 16)]))


@pytest.fixture
def narrow():
    """Operands whose blocks have scales above torchao's least one, 2^-6 of E4M3."""
    generator = np.random.default_rng(5)
    x, w, dy = (bf16(generator.standard_normal(shape)) for shape in ((64, 96), (128, 96), (64, 128)))
    return x, w, dy * F32(2.0**-10)


@pytest.mark.parametrize("preset", ["nvfp4-hadamard", "nvfp4-hadamard-drawn"])
def test_a_layer_of_nvfp4_is_torchaos(narrow, tmp_path, preset):
    x, w, dy = narrow
    policy = tmp_path / "nearest.toml"
    policy.write_text(f'extends = "{preset}"\n[scaling]\ngrad_rounding = "nearest_even"\n')
    y, dx, dw = layer(policy, narrow)
    qw, sw = squares(w)
    assert np.array_equal(y, scaled_product(nvfp4(x), (qw.T, sw)))
    assert np.array_equal(dx, scaled_product(nvfp4(dy), (qw, sw)))
    expected = {}
    for name, signs in (("fixed", SIGNS), ("none", (1,) * 16)):
        (qdy, sdy), (qx, sx) = nvfp4(turned(dy, signs).T), nvfp4(turned(x, signs).T)
        expected[name] = scaled_product((qdy, sdy), (qx.T, sx))
    # The other preset has other signs.
    assert np.array_equal(dw, expected["fixed"]) == (preset == "nvfp4-hadamard")
    assert not np.array_equal(dw, expected["none"])


def test_drawn_signs_follow_the_seed(narrow, tmp_path):
    def dw(seed):
        policy = tmp_path / f"{seed}.toml"
        policy.write_text(
            f'extends = "nvfp4-hadamard-drawn"\n[scaling]\ngrad_rounding = "nearest_even"\nhadamard_seed = {seed}\n'
        )
        return layer(policy, narrow)[2]

    first = dw(0)
    assert np.array_equal(first, dw(0))
    assert sum(not np.array_equal(first, dw(seed)) for seed in range(1, 5)) == 4
    # Both factors have the same signs: the product stays near that without a transform.
    x, _, dy = narrow
    exact = dy.T.astype(np.float64) @ x
    assert np.linalg.norm(first - exact) < 0.2 * np.linalg.norm(exact)
