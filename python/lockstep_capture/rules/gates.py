"""What recurrent cells are made of: products of all gates at once, and states put together."""

from __future__ import annotations

from ..ir.graph import Value
from .context import RuleContext


def gates(c: RuleContext, x: Value, weight: Value, bias: Value | None, *, separate_bias: bool = False) -> Value:
    operands = [x, weight] + ([bias] if bias is not None else [])
    attrs = {"separate_bias": True} if separate_bias and bias is not None else {}
    return c.node("linear", operands, (*x.shape[:-1], weight.shape[0]), attrs).value()


def leading(c: RuleContext, x: Value) -> Value:
    return c.reshape(x, (1, *x.shape))


def joined(c: RuleContext, parts: list[Value], dim: int) -> Value:
    if len(parts) == 1:
        return parts[0]
    extent = sum(part.shape[dim] for part in parts)
    shape = parts[0].shape[:dim] + (extent,) + parts[0].shape[dim + 1 :]
    return c.node("cat", parts, shape, {"dim": dim}).value()
