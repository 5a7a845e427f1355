"""Masks that are computed from activations: comparisons, their logic, and functions that choose by them.

A mask is an integer tensor of 0 and 1; no gradient flows through it. The graph has no integer arithmetic, so masks
are joined as numbers. Where two lanes' activations lie on both sides of a border, their masks differ.
"""

from __future__ import annotations

import torch

from ..ir.decisions import COMPARISONS
from ..ir.graph import Value
from ..ir.program import Ref
from .context import RuleContext, rule


@rule(*COMPARISONS)
def comparison(c: RuleContext) -> Value:
    op = COMPARISONS[c.call.op.split(".")[1].rstrip("_")]
    x = c.value("self")
    if not isinstance(c.a["other"], Ref):
        return c.mask(op, [x], x.shape, {"scalar": float(c.a["other"])})
    y = c.value("other")
    return c.mask(op, [x, y], tuple(torch.broadcast_shapes(x.shape, y.shape)))


@rule("isnan")
def isnan(c: RuleContext) -> Value:
    x = c.value("self")
    return c.mask("not_equal", [x, x], x.shape)


def _truth(c: RuleContext, name: str) -> Value:
    """1.0 where the operand is not 0, else 0.0."""
    if c.dtype_of(name) == torch.bool:
        return c.value(name)
    x = c.value(name)
    return c.mask_as_number(c.mask("not_equal", [x], x.shape, {"scalar": 0.0}))


def _only_masks(c: RuleContext) -> None:
    if "logical" not in c.call.op and any(
        c.dtype_of(name) != torch.bool for name in ("self", "other") if c.is_tensor(name)
    ):
        raise c.unsupported("bits of integers; only masks are joined")


@rule(
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "__and__",
    "__or__",
    "__xor__",
)
def joined(c: RuleContext) -> Value:
    _only_masks(c)
    if not c.is_tensor("other"):
        raise c.unsupported("a number together with a mask")
    a, b = _truth(c, "self"), _truth(c, "other")
    if "xor" in c.call.op:
        return c.mask("not_equal", [a, b], c.out_shape())
    both = c.binary("minimum" if "and" in c.call.op else "maximum", a, b)
    return c.mask("not_equal", [both], both.shape, {"scalar": 0.0})


@rule("logical_not", "bitwise_not")
def negated(c: RuleContext) -> Value:
    _only_masks(c)
    x = _truth(c, "self")
    return c.mask("equal", [x], x.shape, {"scalar": 0.0})


def _number(c: RuleContext, number: float) -> Value:
    return c.derive(f"number{number!r}", lambda n: torch.tensor(n, dtype=torch.float32), [number])


@rule("sign", "sgn")
def sign(c: RuleContext) -> Value:
    """1, -1 or 0, in x's format."""
    x = c.value("self")
    above = c.mask("greater", [x], x.shape, {"scalar": 0.0})
    below = c.mask("less", [x], x.shape, {"scalar": 0.0})
    lower = c.node("where", [below, _number(c, -1.0), _number(c, 0.0)], x.shape).value()
    y = c.node("where", [above, _number(c, 1.0), lower], x.shape).value()
    return c.node("cast_like", [y, x], x.shape).value()


@rule("threshold")
def threshold(c: RuleContext) -> Value:
    x = c.value("self")
    low = c.mask("less_equal", [x], x.shape, {"scalar": float(c.a["threshold"])})
    return c.node("masked_fill", [x, low], x.shape, {"value": float(c.a["value"])}).value()


@rule("hardshrink", "softshrink")
def shrink(c: RuleContext) -> Value:
    """0 in [-lambd, lambd]; outside x, or x moved towards 0 by lambd: x - clamp(x, -lambd, lambd)."""
    x, limit = c.value("self"), float(c.a["lambd"])
    if "soft" in c.call.op:
        return c.binary("sub", x, c.same("clamp", x, {"min": -limit, "max": limit}))
    inside = c.mask("less_equal", [c.same("abs", x)], x.shape, {"scalar": limit})
    return c.node("masked_fill", [x, inside], x.shape, {"value": 0.0}).value()


@rule("tril", "triu")
def triangle(c: RuleContext) -> Value:
    x, lower = c.value("self"), "tril" in c.call.op

    def outside(rows: int, columns: int, diagonal: int) -> torch.Tensor:
        full = torch.ones(rows, columns, dtype=torch.bool)
        return ~(full.tril(diagonal) if lower else full.triu(diagonal))

    mask = c.derive("above" if lower else "below", outside, [*x.shape[-2:], int(c.a["diagonal"])])
    return c.node("masked_fill", [x, mask], x.shape, {"value": 0.0}).value()
