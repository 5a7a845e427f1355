"""Arithmetic, functions of one number, reductions, choices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ..ir.decisions import picks
from ..ir.graph import FORMATS, Value
from ..ir.program import Ref
from .choices import picked
from .context import KINKS, LOG_ONE_PLUS_EXP, Attributes, RuleContext, positive_side, reduced, reduced_shape, rule
from .custom_functions import with_gradient
from .shape import cast_to


def _operand(c: RuleContext, name: str) -> Value | float:
    """A tensor, or a number; a tensor without dimensions that is constant counts as a number."""
    item = c.a[name]
    return c.value(name) if isinstance(item, Ref) else float(item)


@rule("add", "sub", "subtract")
def add(c: RuleContext) -> Value:
    x, y, alpha = _operand(c, "self"), _operand(c, "other"), float(c.a.get("alpha", 1) or 0)
    if "add." not in c.call.op and "add_." not in c.call.op:
        if alpha == 1 and isinstance(x, Value):
            return c.binary("sub", x, y) if isinstance(y, Value) else c.scalar("sub", x, y)
        alpha = -alpha
    more = {} if alpha == 1 else {"alpha": alpha}
    if not isinstance(x, Value):
        raise c.unsupported("a number first")
    return c.binary("add", x, y, more) if isinstance(y, Value) else c.scalar("add", x, alpha * y)


@rule("rsub")
def rsub(c: RuleContext) -> Value:
    """other - alpha self."""
    x, y, alpha = c.value("self"), _operand(c, "other"), float(c.a["alpha"])
    if isinstance(y, Value):
        return c.binary("sub", y, x) if alpha == 1 else c.binary("add", y, x, {"alpha": -alpha})
    negated = c.same("neg", x) if alpha == 1 else c.scalar("mul", x, -alpha)
    return c.scalar("add", negated, y)


@rule("mul", "multiply")
def mul(c: RuleContext) -> Value:
    x, y = _operand(c, "self"), _operand(c, "other")
    if not isinstance(x, Value):
        raise c.unsupported("a number first")
    return c.binary("mul", x, y) if isinstance(y, Value) else c.scalar("mul", x, y)


@rule("div", "divide", "true_divide", "floor_divide")
def div(c: RuleContext) -> Value:
    x, y = c.value("self"), _operand(c, "other")
    quotient = c.binary("div", x, y) if isinstance(y, Value) else c.scalar("div", x, y)
    mode = c.a.get("rounding_mode") or ("floor" if "floor_divide" in c.call.op else None)
    return quotient if mode is None else c.same(mode, quotient)


@rule("maximum", "minimum", "fmax", "fmin")
def extreme(c: RuleContext) -> Value:
    op = "maximum" if "max" in c.call.op else "minimum"
    return c.binary(op, c.value("self"), c.value("other"))


def _unary(name: str) -> None:
    def same(c: RuleContext) -> Value:
        return c.same(name, c.value("self"))

    rule(name)(same)


for _name in (
    "relu",
    "neg",
    "abs",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "exp",
    "log",
    "tanh",
    "sigmoid",
    "silu",
    "hardswish",
    "hardsigmoid",
):
    _unary(_name)


KINKS["relu"] = positive_side


@rule("negative")
def negative(c: RuleContext) -> Value:
    return c.same("neg", c.value("self"))


@rule("gelu")
def gelu(c: RuleContext) -> Value:
    return c.same("gelu", c.value("self"), {"approximate": c.a["approximate"]})


@rule("leaky_relu")
def leaky_relu(c: RuleContext) -> Value:
    return c.same("leaky_relu", c.value("self"), {"negative_slope": float(c.a["negative_slope"])})


KINKS["leaky_relu"] = positive_side


@rule("elu", "selu", "celu")
def elu(c: RuleContext) -> Value:
    """selu is scale * elu(x, alpha), celu max(x, 0) + alpha (exp(min(x, 0) / alpha) - 1)."""
    x = c.value("self")
    if "selu" in c.call.op:
        alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    else:
        alpha, scale = float(c.a["alpha"]), float(c.a.get("scale", 1) or 1)
        if "celu" in c.call.op and alpha != 1:
            return c.kernel("celu", [x], lambda x: c.scalar("mul", c.same("elu", c.scalar("div", x, alpha)), alpha))
        if float(c.a.get("input_scale", 1) or 1) != 1:
            raise c.unsupported("only elu(x, alpha)")
    if scale == 1:
        return c.same("elu", x, {"alpha": alpha})
    return c.kernel("selu", [x], lambda x: c.scalar("mul", c.same("elu", x, {"alpha": alpha}), scale))


@rule("softplus")
def softplus(c: RuleContext) -> Value:
    return c.same("softplus", c.value("self"), {"beta": float(c.a["beta"]), "threshold": float(c.a["threshold"])})


@rule("log_sigmoid")
def log_sigmoid(c: RuleContext) -> Value:
    """ln sigma(x) = -softplus(-x)."""
    return c.kernel(
        "log_sigmoid",
        [c.value("self")],
        lambda x: c.same("neg", c.same("softplus", c.same("neg", x), LOG_ONE_PLUS_EXP)),
    )


@rule("mish")
def mish(c: RuleContext) -> Value:
    attrs = {"beta": 1.0, "threshold": 20.0}
    return c.kernel(
        "mish", [c.value("self")], lambda x: c.binary("mul", x, c.same("tanh", c.same("softplus", x, attrs)))
    )


@rule("clamp", "clip", "hardtanh", "relu6", "clamp_min", "clamp_max")
def clamp(c: RuleContext) -> Value:
    name = c.call.op
    if "relu6" in name:
        low, high = 0.0, 6.0
    elif "hardtanh" in name:
        low, high = float(c.a["min_val"]), float(c.a["max_val"])
    else:
        if any(c.is_tensor(bound) and c.constant_number(bound) is None for bound in ("min", "max")):
            return _between_tensors(c)
        low = c.number("min") if c.a.get("min") is not None else -math.inf
        high = c.number("max") if c.a.get("max") is not None else math.inf
    attrs = {} if low == -math.inf else {"min": low}
    if high != math.inf:
        attrs["max"] = high
    return c.same("clamp", c.value("self"), attrs)


def _between_tensors(c: RuleContext) -> Value:
    """Bounds that are computed; where x is on a bound, both get half of the gradient, x all of torch's."""
    x = c.value("self")
    for bound, op in (("min", "less"), ("max", "greater")):
        if c.a.get(bound) is None:
            continue
        limit = _operand(c, bound)
        if not isinstance(limit, Value):
            x = c.same("clamp", x, {bound: limit})
            continue
        shape = tuple(torch.broadcast_shapes(x.shape, limit.shape))
        beyond = c.mask(op, [x, limit], shape)
        x = c.node("where", [beyond, c.expand(limit, shape), c.expand(x, shape)], shape).value()
    return x


def _inside(attrs: Attributes, x: torch.Tensor) -> torch.Tensor:
    inside = torch.ones_like(x, dtype=torch.bool)
    for name, holds in (("min", torch.ge), ("max", torch.le)):
        if name in attrs:
            inside &= holds(x, attrs[name])
    return inside


KINKS["clamp"] = _inside


@rule("pow", "square")
def power(c: RuleContext) -> Value:
    if "square" in c.call.op:
        return c.same("pow", c.value("self"), {"exponent": 2.0})
    if not isinstance(c.a["self"], Ref):
        one = c.derive("number1.0", lambda n: torch.tensor(n, dtype=torch.float32), [1.0])
        return c.binary("pow", c.scalar("mul", one, float(c.a["self"])), c.value("exponent"))
    exponent = _operand(c, "exponent")
    if isinstance(exponent, Value):
        return c.binary("pow", c.value("self"), exponent)
    return c.same("pow", c.value("self"), {"exponent": exponent})


@rule("where")
def where(c: RuleContext) -> Value:
    condition = c.integer("condition")
    x, y = _operand(c, "self"), _operand(c, "other")
    parts = [_constant_like(c, part) for part in (x, y)]
    return c.node("where", [condition, *parts], c.out_shape()).value()


def _constant_like(c: RuleContext, part: Value | float) -> Value:
    if isinstance(part, Value):
        return part
    return c.derive(f"number{part!r}", lambda number: torch.tensor(number, dtype=torch.float32), [part])


@rule("masked_fill")
def masked_fill(c: RuleContext) -> Value:
    if c.is_tensor("value") and c.constant_number("value") is None:
        shape = c.out_shape()
        parts = [c.expand(c.value(name), shape) for name in ("value", "self")]
        return c.node("where", [c.integer("mask"), *parts], shape).value()
    return c.node(
        "masked_fill",
        [c.expand(c.value("self"), c.out_shape()), c.integer("mask")],
        c.out_shape(),
        {"value": c.number("value")},
    ).value()


@rule("softmax", "log_softmax", "special_softmax", "special_log_softmax", "_softmax", "_log_softmax")
def softmax(c: RuleContext) -> Value:
    """dtype=...: of the operand before the op, and of the result."""
    x, dtype = c.value("self"), c.a.get("dtype")
    if dtype not in (None, *FORMATS):
        raise c.unsupported("only floating dtypes of 16 bits or more")
    if dtype is not None:
        x = cast_to(c, x, dtype)
    y = c.same("log_softmax" if "log" in c.call.op else "softmax", x, {"dim": c.a["dim"] % max(x.rank, 1)})
    return y if dtype in (None, torch.float32) else cast_to(c, y, dtype)


def _dims(c: RuleContext) -> list[int] | None:
    dim = c.a.get("dim")
    if dim is None:
        return None
    return [dim] if isinstance(dim, int) else list(dim)


def _wide(c: RuleContext) -> Value:
    x = c.value("self")
    if c.a.get("dtype") is None:
        return x
    if c.a["dtype"] not in (torch.float32, torch.float64):
        raise c.unsupported("only dtype=torch.float32 and torch.float64")
    return cast_to(c, x, c.a["dtype"])


@rule("sum", "mean")
def sum_(c: RuleContext) -> Value:
    x = _wide(c)
    op = "sum" if ".sum" in c.call.op else "mean"
    if x.is_empty and op == "sum":
        return c.derive(f"zeros{c.out_shape()}", lambda: torch.zeros(c.out_shape()), [])
    if x.rank == 0:
        return x
    return c.reduce(op, x, _dims(c), bool(c.a.get("keepdim")))


@rule("amax", "amin", "max", "min")
def extremes(c: RuleContext) -> Any:
    """max.dim: value and place; max.other: element by element; max: all."""
    name = c.call.op
    if picks(c.call):
        return picked(c)
    low = ".amin" in name or ".min" in name
    if name.endswith(".other"):
        return c.binary("minimum" if low else "maximum", c.value("self"), c.value("other"))
    x = c.value("self")
    x = c.same("neg", x) if low else x
    if name.endswith((".dim", ".dim_max", ".dim_min")):
        dim, keepdim = c.a["dim"] % x.rank, bool(c.a["keepdim"])
        shape = reduced_shape(x.shape, [dim], keepdim)
        attrs = {"dim": dim} | ({"keepdim": True} if keepdim else {})
        node = c.node("max_dim", [x], [(shape, "f32"), (shape, "i32")], attrs)
        value = node.value(0)
        return [c.same("neg", value) if low else value, node.value(1)]
    y = c.reduce("amax", x, _dims(c), bool(c.a.get("keepdim")))
    return c.same("neg", y) if low else y


@rule("aminmax")
def both_extremes(c: RuleContext) -> list[Value]:
    x, keepdim = c.value("self"), bool(c.a.get("keepdim"))
    return [
        c.same("neg", c.reduce("amax", c.same("neg", x), _dims(c), keepdim)),
        c.reduce("amax", x, _dims(c), keepdim),
    ]


@rule("var", "std", "var_mean", "std_mean")
def variance(c: RuleContext) -> Any:
    x = c.value("self")
    if "correction" in c.a:
        correction = 1.0 if c.a["correction"] is None else float(c.a["correction"])
    else:
        correction = 1.0 if c.a.get("unbiased", True) else 0.0
    dims, keepdim = _dims(c), bool(c.a.get("keepdim"))
    places = reduced(x.rank, dims)
    shape = reduced_shape(x.shape, places, keepdim)
    attrs: dict[str, Any] = {"correction": correction} | ({"dims": places} if dims else {})
    if keepdim:
        attrs["keepdim"] = True

    def both(x: Value) -> list[Value]:
        node = c.node("var_mean", [x], [(shape, "f32"), (shape, "f32")], attrs)
        return [node.value(0), node.value(1)]

    if "std" not in c.call.op:
        return both(x) if "_mean" in c.call.op else both(x)[0]
    if "_mean" not in c.call.op:
        return c.kernel("std", [x], lambda x: c.same("sqrt", both(x)[0]))

    def deviation_and_mean(x: Value) -> list[Value]:
        spread, mean = both(x)
        return [c.same("sqrt", spread), mean]

    return c.kernel("std", [x], deviation_and_mean)


@rule("logsumexp")
def logsumexp(c: RuleContext) -> Value:
    return c.reduce("logsumexp", c.value("self"), _dims(c), bool(c.a["keepdim"]))


@rule("cumsum")
def cumsum(c: RuleContext) -> Value:
    x = _wide(c)
    return c.same("cumsum", x, {"dim": c.a["dim"] % x.rank})


@rule("norm", "linalg_vector_norm", "frobenius_norm")
def norm(c: RuleContext) -> Value:
    """The 2-norm as sqrt(sum x^2): its gradient at x = 0 is not finite, where torch's is 0."""
    order = c.a.get("ord", c.a.get("p", 2))
    order = 2.0 if order is None else float(order)
    x, dims, keepdim = _wide(c), _dims(c), bool(c.a.get("keepdim"))
    return norm_of(c, x, order, dims, keepdim)


def norm_of(c: RuleContext, x: Value, order: float, dims: Sequence[int] | None, keepdim: bool) -> Value:
    if order == 2:
        return euclidean(c, x, dims, keepdim)
    found: Value = c.kernel("norm", [x], lambda x: length_of(c, x, order, dims, keepdim))
    return found


def length_of(c: RuleContext, x: Value, order: float, dims: Sequence[int] | None, keepdim: bool) -> Value:
    """The norm inside a kernel; of order 0 the number of elements that are not 0."""
    size = c.same("abs", x)
    if order == 0:
        return c.reduce("sum", c.mask_as_number(c.mask("not_equal", [x], x.shape, {"scalar": 0.0})), dims, keepdim)
    if order == 1:
        return c.reduce("sum", size, dims, keepdim)
    if order == 2:
        return root(c, c.reduce("sum", c.binary("mul", x, x), dims, keepdim))
    if order == math.inf:
        return c.reduce("amax", size, dims, keepdim)
    if order == -math.inf:
        return c.same("neg", c.reduce("amax", c.same("neg", size), dims, keepdim))
    return root(c, c.reduce("sum", c.same("pow", size, {"exponent": order}), dims, keepdim), order)


def euclidean(c: RuleContext, x: Value, dims: Sequence[int] | None, keepdim: bool, least: float = 0.0) -> Value:
    """max(|x|, least). Its gradient is dy (x / |x|) everywhere, 0 at x = 0, in two kernels."""
    (x,) = c.listed("norm", x)
    length = c.kernel("norm", [x], lambda x: c.same("sqrt", c.reduce("sum", c.binary("mul", x, x), dims, keepdim)))
    kept = reduced_shape(x.shape, reduced(x.rank, dims), True)

    def gradient(c: RuleContext, dy: Value) -> list[Value]:
        long = c.reshape(length, kept)
        zero = c.mask("equal", [c.expand(long, x.shape)], x.shape, {"scalar": 0.0})
        direction = c.node("masked_fill", [c.binary("div", x, long), zero], x.shape, {"value": 0.0}).value()
        return [c.binary("mul", c.expand(c.reshape(dy, kept), x.shape), direction)]

    return with_gradient(c, c.same("clamp", length, {"min": least}) if least else length, [x], gradient)


def root(c: RuleContext, total: Value, order: float = 2.0) -> Value:
    """total^(1/order), whose slope is 0 at 0, as it is in PyTorch's norms and distances; that of sqrt() is infinite."""
    zero = c.mask("equal", [total], total.shape, {"scalar": 0.0})

    def filled(value: Value, number: float) -> Value:
        return c.node("masked_fill", [value, zero], value.shape, {"value": number}).value()

    positive = filled(total, 1.0)
    return filled(c.same("sqrt", positive) if order == 2 else c.same("pow", positive, {"exponent": 1 / order}), 0.0)


@rule("addcmul", "addcdiv")
def addcmul(c: RuleContext) -> Value:
    op = "mul" if "addcmul" in c.call.op else "div"
    value = float(c.a["value"])
    attrs = {} if value == 1 else {"alpha": value}
    return c.kernel(
        f"addc{op}",
        [c.value(name) for name in ("self", "tensor1", "tensor2")],
        lambda x, y, z: c.binary("add", x, c.binary(op, y, z), attrs),
    )


@rule("lerp")
def lerp(c: RuleContext) -> Value:
    """start + weight (end - start)."""
    weight = _operand(c, "weight")
    operands = [c.value("self"), c.value("end")] + ([weight] if isinstance(weight, Value) else [])

    def between(start: Value, end: Value, share: Value | float = weight) -> Value:
        span = c.binary("sub", end, start)
        part = c.binary("mul", span, share) if isinstance(share, Value) else c.scalar("mul", span, share)
        return c.binary("add", start, part)

    return c.kernel("lerp", operands, between)
