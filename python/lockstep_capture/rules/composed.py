"""Functions that ATen has as one op and Lockstep as a few."""

from __future__ import annotations

import math

from ..ir.graph import Value
from .context import RuleContext, rule


@rule("glu")
def glu(c: RuleContext) -> Value:
    """First half of a dimension times sigmoid of the second."""
    x = c.value("self")
    dim = c.a["dim"] % x.rank
    half = x.shape[dim] // 2
    return c.kernel(
        "glu",
        [x],
        lambda x: c.binary("mul", c.slice(x, dim, 0, half), c.same("sigmoid", c.slice(x, dim, half, 2 * half))),
    )


@rule("log2", "log10")
def logarithm(c: RuleContext) -> Value:
    base = 2 if "log2" in c.call.op else 10
    return c.kernel(f"log{base}", [c.value("self")], lambda x: c.scalar("mul", c.same("log", x), 1 / math.log(base)))


@rule("outer", "ger")
def outer(c: RuleContext) -> Value:
    x, y = c.value("self"), c.value("vec2")
    return c.binary("mul", c.reshape(x, (*x.shape, 1)), y)


@rule("channel_shuffle")
def channel_shuffle(c: RuleContext) -> Value:
    x, groups = c.value("self"), int(c.a["groups"])
    n, channels, *image = x.shape
    grouped = c.reshape(x, (n, groups, channels // groups, *image))
    return c.reshape(c.permute(grouped, [0, 2, 1, *range(3, grouped.rank)]), x.shape)


@rule("_weight_norm")
def weight_norm(c: RuleContext) -> Value:
    """g v / |v|, a length per slice of dimension dim (-1: one length of all)."""
    v, g, dim = c.value("v"), c.value("g"), int(c.a["dim"])
    others = [d for d in range(v.rank) if dim == -1 or d != dim]

    def scaled(v: Value, g: Value) -> Value:
        length = c.same("sqrt", c.reduce("sum", c.binary("mul", v, v), others, keepdim=dim != -1))
        return c.binary("mul", v, c.binary("div", g, length))

    return c.kernel("weight_norm", [v, g], scaled)


@rule("bilinear")
def bilinear(c: RuleContext) -> Value:
    """y_o = sum over i, j of a_i W_oij b_j, + bias: one product with a, one with b.

    CUDA autocast runs the op in the widest type of its operands, the two products here in low precision.
    """
    a, b, w = c.value("input1"), c.value("input2"), c.value("weight")
    out, left, right = w.shape
    rows = math.prod(a.shape[:-1])
    spread = c.reshape(c.permute(w, [1, 0, 2]), (left, out * right))
    first = c.node("matmul", [c.reshape(a, (rows, left)), spread], (rows, out * right)).value()
    y = c.node("matmul", [c.reshape(first, (rows, out, right)), c.reshape(b, (rows, right, 1))], (rows, out, 1)).value()
    y = c.reshape(y, c.out_shape())
    return c.binary("add", y, c.value("bias")) if c.has("bias") else y
