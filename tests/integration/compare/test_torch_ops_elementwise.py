"""Elementwise ops, reductions and softmaxes, one by one, against PyTorch: values and gradients.

Bounds: op_tool.py. Inputs hold the kinks of the functions, where PyTorch's choice
of derivative is what is asked for.
"""

import math

import numpy as np
import pytest
import torch
from cpu_kernels import AVX2_ONLY
from op_tool import OpError, compare_with_torch, distance, random_arrays, run_op

F = torch.nn.functional
INF, NAN = math.inf, math.nan


def spread(seed, shape=(6, 50)):
    """Normal numbers up to about 12, the integers -6 to 6 among them, where most functions kink."""
    (x,) = random_arrays(seed, shape)
    x *= 3
    x.flat[:13] = np.arange(-6, 7)
    return x


def positive(seed, shape=(6, 50)):
    return np.abs(spread(seed, shape)) + 0.125


def moderate(seed, shape=(6, 50)):
    return spread(seed, shape) / 4


def share(seed, shape=(6, 50)):
    return np.tanh(spread(seed, shape) / 4) * 0.9


def above_one(seed, shape=(6, 50)):
    return positive(seed, shape) + 1


UNARY = [
    ("neg", {}, torch.neg, spread),
    ("abs", {}, torch.abs, spread),
    ("sqrt", {}, torch.sqrt, positive),
    ("rsqrt", {}, torch.rsqrt, positive),
    ("reciprocal", {}, torch.reciprocal, positive),
    ("exp", {}, torch.exp, spread),
    ("log", {}, torch.log, positive),
    ("tanh", {}, torch.tanh, spread),
    ("sigmoid", {}, torch.sigmoid, spread),
    ("silu", {}, F.silu, spread),
    ("gelu", {}, F.gelu, spread),
    ("gelu", {"approximate": "tanh"}, lambda x: F.gelu(x, approximate="tanh"), spread),
    ("hardswish", {}, F.hardswish, spread),
    ("hardsigmoid", {}, F.hardsigmoid, spread),
    ("leaky_relu", {}, F.leaky_relu, spread),
    ("leaky_relu", {"negative_slope": 0.3}, lambda x: F.leaky_relu(x, 0.3), spread),
    ("elu", {}, F.elu, spread),
    ("elu", {"alpha": 1.7}, lambda x: F.elu(x, 1.7), spread),
    ("softplus", {}, F.softplus, spread),
    ("softplus", {"beta": 2.0, "threshold": 4.0}, lambda x: F.softplus(x, 2.0, 4.0), spread),
    ("clamp", {"min": -1.0, "max": 2.0}, lambda x: x.clamp(-1, 2), spread),
    ("clamp", {"min": 0.5}, lambda x: x.clamp(min=0.5), spread),
    ("clamp", {"max": -1}, lambda x: x.clamp(max=-1), spread),
    ("clamp", {"min": 2.0, "max": -1.0}, lambda x: x.clamp(2, -1), spread),
    ("detach", {}, None, spread),
    *(
        (name, {}, getattr(torch, name), spread)
        for name in ("erf", "expm1", "exp2", "sin", "cos", "atan", "asinh", "floor", "ceil", "round", "trunc")
    ),
    *((name, {}, getattr(torch, name), moderate) for name in ("sinh", "cosh")),
    *((name, {}, getattr(torch, name), positive) for name in ("log1p", "lgamma", "digamma")),
    *((name, {}, getattr(torch, name), share) for name in ("tan", "asin", "acos", "atanh")),
    ("acosh", {}, torch.acosh, above_one),
] + [
    ("pow", {"exponent": e}, lambda x, e=e: x**e, spread if float(e).is_integer() else positive)
    for e in (0, 1, 2, 3, 4, 5.0, -1, -2, -3.0, 0.5, -0.5, 1.5, 2.7)
]


@pytest.mark.parametrize("op,attrs,reference,make", UNARY, ids=lambda v: str(v)[:40])
def test_unary(op, attrs, reference, make):
    x = make(11)
    if op == "pow" and attrs["exponent"] < 0:
        x[x == 0] = 1.0
    if op == "detach":
        outputs, gradients = run_op(op, [x], attrs, np.ones_like(x))
        assert np.array_equal(outputs[0], x) and gradients == [None]
        return
    print(f"{op} {attrs}: {compare_with_torch(op, reference, [x], attrs):.2g} of the bound")


SPECIAL = pytest.mark.parametrize(
    "op,attrs,reference", [(r[0], r[1], r[2]) for r in UNARY if r[2] and r[0] != "pow"], ids=lambda v: str(v)[:40]
)


def at_values(op, attrs, reference, x):
    """(name, our y, torch's y, our dy/dx, torch's dy/dx, bound) at every value, in FP64 and FP32."""
    for dtype, kind, bound in (("fp64", torch.float64, 1e-12), ("fp32", torch.float32, 2e-6)):
        t = torch.tensor(x, dtype=kind, requires_grad=True)
        y = reference(t)
        y.backward(torch.ones_like(y))
        (ours, *_), (dx,) = run_op(op, [x], attrs, np.ones_like(x), dtype)
        for i, value in enumerate(x):
            yield f"{op}({value})", ours[i], float(y[i].detach()), dx[i], float(t.grad[i]), bound


@SPECIAL
def test_unary_special_values(op, attrs, reference):
    x = np.array([0.0, -0.0, INF, -INF, 100.0, -100.0, 1e-30, -1e-30])
    if op == "gelu":  # PyTorch's fp32 erf of an infinity depends on its vector path
        x = x[np.isfinite(x)]
    if op == "digamma":  # PyTorch's slope at a pole is what rounding leaves of sin(pi x)
        x = x[x != -100]
    for name, ours, want, dx, want_d, bound in at_values(op, attrs, reference, x):
        # Our sigmoid and silu of -100 in fp32 keep PyTorch's formula, where exp overflows.
        assert distance([ours], [want]) <= bound or abs(ours - want) < 1e-30, f"{name} = {ours}, torch {want}"
        assert distance([dx], [want_d]) <= 10 * bound or abs(dx - want_d) < 1e-30, f"{name}' = {dx}, torch {want_d}"


@SPECIAL
def test_unary_at_nan(op, attrs, reference):
    results = list(at_values(op, attrs, reference, np.array([NAN])))
    for name, ours, want, _, _, bound in results:
        assert distance([ours], [want]) <= bound, f"{name} = {ours}, torch {want}"
    if AVX2_ONLY:
        pytest.skip("PyTorch's AVX2 kernels have derivatives of NaN (elu, hardswish) that its others have not")
    for name, _, _, dx, want_d, bound in results:
        assert distance([dx], [want_d]) <= 10 * bound, f"{name}' = {dx}, torch {want_d}"


@SPECIAL
def test_unary_sign_of_zero(op, attrs, reference):
    if AVX2_ONLY and op == "gelu":
        pytest.skip("PyTorch's AVX2 kernel of gelu turns -0 into 0")
    for name, ours, want, _, _, _ in at_values(op, attrs, reference, np.array([0.0, -0.0, 1e-30, -1e-30])):
        if want == 0:
            assert math.copysign(1, ours) == math.copysign(1, want), f"{name}: sign"


SHAPES = [((4, 5), (4, 5)), ((4, 1, 3), (5, 1)), ((2, 3), ()), ((3,), (2, 3))]
BINARY = [
    ("add", {}, torch.add),
    ("add", {"alpha": 0.3}, lambda a, b: torch.add(a, b, alpha=0.3)),
    ("sub", {}, torch.sub),
    ("mul", {}, torch.mul),
    ("div", {}, torch.div),
    ("minimum", {}, torch.minimum),
    ("maximum", {}, torch.maximum),
    ("atan2", {}, torch.atan2),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("op,attrs,reference", BINARY, ids=lambda v: str(v)[:40])
def test_binary(op, attrs, reference, shapes):
    a, b = random_arrays(12, *shapes)
    b = np.where(np.abs(b) < 0.1, 0.5, b)
    a.flat[0] = b.flat[0]  # a tie
    print(f"{compare_with_torch(op, reference, [a, b], attrs):.2g} of the bound")


@pytest.mark.parametrize(
    "op,reference",
    [
        ("add", lambda x: x + 0.1),
        ("sub", lambda x: x - 0.1),
        ("mul", lambda x: x * 0.1),
        ("div", lambda x: x / 0.1),
        ("minimum", lambda x: torch.minimum(x, torch.tensor(0.1, dtype=x.dtype))),
        ("maximum", lambda x: torch.maximum(x, torch.tensor(0.1, dtype=x.dtype))),
    ],
)
def test_binary_with_a_number(op, reference):
    (x,) = random_arrays(13, (7, 9))
    compare_with_torch(op, reference, [x], {"scalar": 0.1})


def test_minimum_and_maximum_of_nan():
    a, b = np.array([1.0, NAN, 2.0, 3.0]), np.array([1.0, 1.0, NAN, 5.0])
    compare_with_torch("minimum", torch.minimum, [a, b])
    compare_with_torch("maximum", torch.maximum, [a, b])


def test_power_of_two_tensors():
    x, e = random_arrays(14, (5, 1, 4), (3, 1))
    compare_with_torch("pow", torch.pow, [np.abs(x) + 0.1, e])
    x, e = np.array([0.0, 0.0, 2.0, 5.0]), np.array([0.0, 2.0, -1.0, 0.0])
    compare_with_torch("pow", torch.pow, [x, e])


def test_where_and_masked_fill():
    a, b = random_arrays(15, (4, 1, 3), (5, 3))
    mask = np.random.default_rng(1).integers(0, 2, (4, 5, 1)).astype(np.int32)
    compare_with_torch("where", lambda m, x, y: torch.where(m != 0, x, y), [mask, a, b])
    compare_with_torch(
        "where", lambda m, x, y: torch.where(m != 0, x, y), [np.ones((2, 1), np.int32), b[0], np.array(2.0)]
    )
    (x,) = random_arrays(16, (4, 5, 3))
    for value in (-INF, 0.0, -1e4):
        compare_with_torch("masked_fill", lambda t, m: t.masked_fill(m != 0, value), [x, mask], {"value": value})


COMPARISONS = {
    "greater": torch.gt,
    "greater_equal": torch.ge,
    "less": torch.lt,
    "less_equal": torch.le,
    "equal": torch.eq,
    "not_equal": torch.ne,
}


@pytest.mark.parametrize("op", COMPARISONS)
def test_comparisons(op):
    """Masks of 0 and 1, without gradient, ties and NaN among the values."""
    a, b = random_arrays(17, (4, 1, 3), (5, 3))
    b[0], a[0, 0, 1], b[2, 2] = a[1, 0], NAN, INF
    for dtype, kind in (("fp64", torch.float64), ("fp32", torch.float32)):
        for inputs, attrs in (([a, b], {}), ([b, a], {}), ([a], {"scalar": a[1, 0, 0]}), ([b], {"scalar": 0.0})):
            first, *rest = (torch.tensor(t, dtype=kind) for t in inputs)
            expected = COMPARISONS[op](first, rest[0] if rest else attrs["scalar"]).int().numpy()
            (mask,), gradients = run_op(op, inputs, attrs, {}, dtype)
            assert mask.dtype == np.int32 and np.array_equal(mask, expected) and gradients == [None] * len(inputs)
            assert 0 < expected.sum() < expected.size or op in ("equal", "not_equal")


DIMS = [(), (0,), (1,), (2,), (-1,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_reductions(dims, keepdim):
    (x,) = random_arrays(17, (4, 6, 5))
    x += 0.5
    x[0, :3, :] = x[1, :3, :] = 3.0  # ties of the maximum in every direction
    attrs = {"keepdim": keepdim} | ({"dims": dims} if dims else {})
    every = dims or (0, 1, 2)
    for op, reference in {
        "sum": lambda t: t.sum(every, keepdim=keepdim),
        "mean": lambda t: t.mean(every, keepdim=keepdim),
        "amax": lambda t: t.amax(every, keepdim=keepdim),
        "logsumexp": lambda t: t.logsumexp(every, keepdim=keepdim),
    }.items():
        compare_with_torch(op, reference, [x], attrs)
    for correction in (0, 1, 2.5):
        compare_with_torch(
            "var_mean",
            lambda t: torch.var_mean(t, every, correction=correction, keepdim=keepdim),
            [x],
            attrs | {"correction": correction},
            float_outputs=2,
        )


@pytest.mark.parametrize("output", [0, 1])
def test_var_mean_with_one_gradient(output):
    (x,) = random_arrays(18, (4, 6))
    dy = np.linspace(1, 2, 4)
    _, (dx,) = run_op("var_mean", [x], {"dims": [1]}, {output: dy})
    t = torch.tensor(x, requires_grad=True)
    torch.var_mean(t, 1)[output].backward(torch.tensor(dy))
    assert distance(dx, t.grad.numpy()) <= 1e-12


def test_long_reductions():
    (x,) = random_arrays(19, (3, 10007))
    for op in ("sum", "mean", "logsumexp"):
        compare_with_torch(op, lambda t: getattr(t, op)(1), [x], {"dims": [1]})
    (x,) = random_arrays(20, (300, 7, 11))
    compare_with_torch("sum", lambda t: t.sum((0, 2)), [x], {"dims": [0, 2]})


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2])
def test_along_one_dimension(dim):
    (x,) = random_arrays(21, (4, 6, 5))
    attrs = {"dim": dim}
    compare_with_torch("softmax", lambda t: t.softmax(dim), [x], attrs)
    compare_with_torch("log_softmax", lambda t: t.log_softmax(dim), [x], attrs)
    compare_with_torch("cumsum", lambda t: t.cumsum(dim), [x], attrs)
    x[0, :2, :] = x[1, :2, :] = 3.0
    for keepdim in (False, True):
        compare_with_torch(
            "max_dim", lambda t: tuple(torch.max(t, dim, keepdim=keepdim)), [x], attrs | {"keepdim": keepdim}
        )


def test_special_rows():
    x = np.array([[0.0, -INF, 1.0], [-INF, -INF, -INF], [INF, 0.0, 1.0], [NAN, 1.0, 2.0], [1e4, -1e4, 0.0]])
    compare_with_torch("softmax", lambda t: t.softmax(-1), [x])
    compare_with_torch("log_softmax", lambda t: t.log_softmax(-1), [x])
    compare_with_torch("logsumexp", lambda t: t.logsumexp(-1), [x], {"dims": [-1]})
    compare_with_torch("max_dim", lambda t: tuple(torch.max(t, -1)), [x])
    compare_with_torch("amax", lambda t: t.amax(-1), [x], {"dims": [-1]})


@pytest.mark.parametrize("mask_shape", [(4, 6, 2, 2), (4, 6, 1, 1)])
def test_dropout_with_a_given_mask(mask_shape):
    (x,) = random_arrays(22, (4, 6, 2, 2))
    mask = np.random.default_rng(2).integers(0, 2, mask_shape).astype(np.int32)
    compare_with_torch("dropout", lambda t, m: t * m / (1 - 0.3), [x, mask], {"p": 0.3})
    compare_with_torch("dropout", lambda t, m: t * 1, [x, mask], {"p": 0.0})
    compare_with_torch("dropout", lambda t, m: t * 1, [x, mask], {"p": 0.3, "training": False})


def test_dropout_draws_its_own_mask():
    p, n = 0.3, 40000
    x = np.ones((n // 8, 8))
    (y, mask), (dx,) = run_op("dropout", [x], {"p": p}, np.ones_like(x))
    assert set(np.unique(mask)) == {0, 1}
    assert np.array_equal(y, mask / (1 - p)) and np.array_equal(dx, y)
    kept, sigma = mask.mean(), math.sqrt(p * (1 - p) / n)
    assert abs(kept - (1 - p)) <= 5 * sigma
    # Neighbours are independent: the share of equal neighbours is p^2 + (1-p)^2.
    equal, expected = (mask.flat[1:] == mask.flat[:-1]).mean(), p * p + (1 - p) ** 2
    assert abs(equal - expected) <= 5 * math.sqrt(expected * (1 - expected) / n)
    again = run_op("dropout", [x], {"p": p}, dtype="fp32")[0][1]
    assert np.array_equal(again, mask), "the mask is equal in all lanes"
    for other in ({"seed": 1}, {"step": 1}):
        assert not np.array_equal(run_op("dropout", [x], {"p": p}, **other)[0][1], mask)
    everything = run_op("dropout", [x], {"p": 1.0}, np.ones_like(x))
    assert not everything[0][0].any() and not everything[1][0].any()


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp8_e4m3"])
def test_cast(dtype):
    (x,) = random_arrays(23, (50,))
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp8_e4m3": torch.float8_e4m3fn}[dtype]
    (y,), (dx,) = run_op("cast", [x], {"dtype": dtype}, x, "fp32")
    assert np.array_equal(y, torch.tensor(x, dtype=torch.float32).to(kind).float().numpy())
    assert np.array_equal(dx, y), "the gradient comes from a value in the format"
    (y,), (dx,) = run_op("cast", [x], {"dtype": dtype}, x, "fp64")
    assert np.array_equal(y, x) and np.array_equal(dx, x)


@pytest.mark.parametrize(
    "op,inputs,attrs,message",
    [
        ("add", [np.ones(3)], {}, "two operands, or one and 'scalar'"),
        ("sub", [np.ones(3), np.ones(3)], {"scalar": 1.0}, "two operands, or one and 'scalar'"),
        ("div", [np.ones(3), np.ones(4)], {}, "do not broadcast"),
        ("gelu", [np.ones(3)], {"approximate": "erf"}, "must be none or tanh"),
        ("clamp", [np.ones(3)], {"min": "low"}, "'min' must be a number"),
        ("pow", [np.ones(3)], {}, "operands x and e, or x and 'exponent'"),
        ("sum", [np.ones((3, 2))], {"dims": [2]}, "must be -2 to 1"),
        ("mean", [np.ones((3, 2))], {"dims": [1, -1]}, "names dimension 1 twice"),
        ("softmax", [np.array(1.0)], {}, "is a scalar"),
        ("cumsum", [np.ones(3)], {"dim": 1}, "must be -1 to 0"),
        ("masked_fill", [np.ones(3), np.ones(3, np.int32)], {}, "'value' is missing"),
        ("masked_fill", [np.ones(3), np.ones((2, 3), np.int32)], {"value": 0.0}, "must broadcast to x"),
        ("where", [np.ones(3), np.ones(3), np.ones(3)], {}, "must be an integer tensor"),
        ("dropout", [np.ones(3)], {"p": 1.5}, "must be in [0, 1]"),
        ("dropout", [np.ones(3), np.ones((2, 3), np.int32)], {}, "must broadcast to operand 0"),
        ("cast", [np.ones(3)], {"dtype": "fp17"}, "attribute 'dtype'"),
        ("cast", [np.ones(3)], {}, "'dtype' is missing"),
        ("exp", [np.ones(3, np.int32)], {}, "must be floating"),
        ("greater", [np.ones(3)], {}, "two operands, or one and 'scalar'"),
        ("less", [np.ones(3), np.ones(3, np.int32)], {}, "must be floating"),
    ],
)
def test_refusals_say_why(op, inputs, attrs, message):
    with pytest.raises(OpError, match=".*") as error:
        run_op(op, inputs, attrs)
    assert message in str(error.value) and f"({op})" in str(error.value)
