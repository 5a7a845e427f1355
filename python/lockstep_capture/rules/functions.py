"""Functions of one or two numbers that are less common, and those that are made of others."""

from __future__ import annotations

import math

import torch

from ..ir.graph import Value
from .context import LOG_ONE_PLUS_EXP, RuleContext, rule
from .math import _operand


def _unary(name: str) -> None:
    def same(c: RuleContext) -> Value:
        return c.same(name, c.value("self"))

    rule(name)(same)


for _name in (
    "erf",
    "expm1",
    "log1p",
    "exp2",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
    "lgamma",
    "digamma",
    "floor",
    "ceil",
    "trunc",
):
    _unary(_name)


@rule("round")
def round_(c: RuleContext) -> Value:
    """To so many decimal places."""
    x, places = c.value("self"), int(c.a.get("decimals") or 0)
    if places == 0:
        return c.same("round", x)
    factor = 10.0 ** abs(places)
    first, last = ("mul", "div") if places > 0 else ("div", "mul")
    return c.scalar(last, c.same("round", c.scalar(first, x, factor)), factor)


@rule("frac")
def frac(c: RuleContext) -> Value:
    x = c.value("self")
    return c.binary("sub", x, c.same("trunc", x))


@rule("atan2")
def atan2(c: RuleContext) -> Value:
    return c.binary("atan2", c.value("self"), c.value("other"))


@rule("hypot")
def hypot(c: RuleContext) -> Value:
    def length(x: Value, y: Value) -> Value:
        return c.same("sqrt", c.binary("add", c.binary("mul", x, x), c.binary("mul", y, y)))

    found: Value = c.kernel("hypot", [c.value("self"), c.value("other")], length)
    return found


@rule("logit")
def logit(c: RuleContext) -> Value:
    """ln(x / (1 - x)), x kept in [eps, 1 - eps]."""
    eps = c.a["eps"]

    def body(x: Value) -> Value:
        x = x if eps is None else c.same("clamp", x, {"min": float(eps), "max": 1 - float(eps)})
        return c.binary("sub", c.same("log", x), c.same("log1p", c.same("neg", x)))

    found: Value = c.kernel("logit", [c.value("self")], body)
    return found


@rule("logaddexp", "logaddexp2")
def logaddexp(c: RuleContext) -> Value:
    """The larger one + ln(1 + exp(-|x - y|)), as x + softplus(y - x)."""
    if "2" in c.call.op:
        raise c.unsupported("use torch.logaddexp")

    def body(x: Value, y: Value) -> Value:
        above = c.same("softplus", c.binary("sub", y, x), LOG_ONE_PLUS_EXP)
        below = c.same("softplus", c.binary("sub", x, y), LOG_ONE_PLUS_EXP)
        larger = c.mask("greater_equal", [x, y], above.shape)
        return c.node("where", [larger, c.binary("add", x, above), c.binary("add", y, below)], above.shape).value()

    found: Value = c.kernel("logaddexp", [c.value("self"), c.value("other")], body)
    return found


@rule("xlogy", "special_xlogy")
def xlogy(c: RuleContext) -> Value:
    """x ln y, 0 where x is 0."""
    x, y = _operand(c, "self"), _operand(c, "other")
    if not isinstance(x, Value):
        return c.scalar("mul", c.same("log", c.value("other")), x)
    if not isinstance(y, Value):
        return c.scalar("mul", x, math.log(y))

    def body(x: Value, y: Value) -> Value:
        zero = c.mask("equal", [x], x.shape, {"scalar": 0.0})
        shape = c.out_shape()
        logs = c.node("masked_fill", [c.expand(c.same("log", y), shape), zero], shape, {"value": 0.0}).value()
        return c.binary("mul", x, logs)

    found: Value = c.kernel("xlogy", [x, y], body)
    return found


@rule("fmod", "remainder")
def remainder(c: RuleContext) -> Value:
    """x - y trunc(x / y), or with floor for the divisor's sign; of fixed numbers y its slope is 1."""
    whole = "trunc" if "fmod" in c.call.op else "floor"
    x, y = c.value("self"), _operand(c, "other")
    if not isinstance(y, Value):
        return c.kernel(
            "remainder", [x], lambda x: c.binary("sub", x, c.scalar("mul", c.same(whole, c.scalar("div", x, y)), y))
        )
    found: Value = c.kernel(
        "remainder", [x, y], lambda x, y: c.binary("sub", x, c.binary("mul", c.same(whole, c.binary("div", x, y)), y))
    )
    return found


@rule("deg2rad", "rad2deg")
def degrees(c: RuleContext) -> Value:
    return c.scalar("mul", c.value("self"), math.pi / 180 if "deg2rad" in c.call.op else 180 / math.pi)


@rule("nan_to_num")
def nan_to_num(c: RuleContext) -> Value:
    """Numbers in the place of NaN and of infinities; no gradient through these."""
    x = c.value("self")
    mask = c.mask("not_equal", [x, x], x.shape)
    x = c.node("masked_fill", [x, mask], x.shape, {"value": float(c.a.get("nan") or 0.0)}).value()
    for sign, given in ((1.0, "posinf"), (-1.0, "neginf")):
        mask = c.mask("equal", [x], x.shape, {"scalar": sign * math.inf})
        if c.a.get(given) is not None:
            x = c.node("masked_fill", [x, mask], x.shape, {"value": float(c.a[given])}).value()
            continue
        one = c.derive(f"number{sign!r}", lambda n: torch.tensor(n, dtype=torch.float32), [sign])
        largest = c.node("cast_like", [one, x], (), {"limit": "max"})
        largest.stat_exempt = True
        x = c.node("where", [mask, c.expand(largest.value(), x.shape), x], x.shape).value()
    return x


@rule("copysign")
def copysign(c: RuleContext) -> Value:
    """|x| with the sign of y, which gets no gradient."""
    x, y = c.value("self"), _operand(c, "other")
    if not isinstance(y, Value):
        size = c.same("abs", x)
        return size if math.copysign(1, y) > 0 else c.same("neg", size)
    shape = c.out_shape()
    size = c.expand(c.same("abs", x), shape)
    below = c.mask("less", [y], y.shape, {"scalar": 0.0})
    return c.node("where", [below, c.same("neg", size), size], shape).value()


def multiplied(c: RuleContext, x: Value, dim: int) -> Value:
    """The product along a dimension: its halves are multiplied until one element is left."""
    while x.shape[dim] > 1:
        half = x.shape[dim] // 2
        product = c.binary("mul", c.slice(x, dim, 0, half), c.slice(x, dim, half, 2 * half))
        if x.shape[dim] % 2:
            rest = c.slice(x, dim, 2 * half, x.shape[dim])
            shape = tuple(half + 1 if i == dim else extent for i, extent in enumerate(x.shape))
            product = c.node("cat", [product, rest], shape, {"dim": dim}).value()
        x = product
    return c.reshape(x, [extent for i, extent in enumerate(x.shape) if i != dim])


@rule("prod")
def prod(c: RuleContext) -> Value:
    x = c.value("self")
    if c.a.get("dtype") not in (None, torch.float32):
        raise c.unsupported("only dtype=torch.float32")
    dims = [int(c.a["dim"]) % max(x.rank, 1)] if isinstance(c.a.get("dim"), int) else None

    def body(x: Value) -> Value:
        x = c.reshape(x, (torch.Size(x.shape).numel(),)) if dims is None else x
        return c.reshape(multiplied(c, x, dims[0] if dims else 0), c.out_shape())

    return x if x.rank == 0 else c.kernel("prod", [x], body)


@rule("cumprod")
def cumprod(c: RuleContext) -> Value:
    """Products with what lies 1, 2, 4, ... places before."""
    x = c.value("self")
    dim = int(c.a["dim"]) % max(x.rank, 1)

    def body(x: Value) -> Value:
        step = 1
        while step < x.shape[dim]:
            first = c.slice(x, dim, 0, step)
            rest = c.binary("mul", c.slice(x, dim, step, x.shape[dim]), c.slice(x, dim, 0, x.shape[dim] - step))
            x = c.node("cat", [first, rest], x.shape, {"dim": dim}).value()
            step *= 2
        return x

    return x if x.rank == 0 else c.kernel("cumprod", [x], body)


@rule("nansum")
def nansum(c: RuleContext) -> Value:
    x, dim = c.value("self"), c.a.get("dim")

    def body(x: Value) -> Value:
        missing = c.mask("not_equal", [x, x], x.shape)
        known = c.node("masked_fill", [x, missing], x.shape, {"value": 0.0}).value()
        return c.reduce(
            "sum", known, None if dim is None else ([dim] if isinstance(dim, int) else dim), bool(c.a["keepdim"])
        )

    return c.kernel("nansum", [x], body)
