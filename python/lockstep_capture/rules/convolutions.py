"""Convolutions and transposed ones, of one and two dimensions."""

from __future__ import annotations

from typing import Any

from ..ir.graph import Value
from . import volumes
from .context import RuleContext, pair, rule
from .volumes import same_padding


@rule(
    "conv2d",
    "conv1d",
    "convolution",
    "_convolution",
    "conv_transpose2d",
    "conv_transpose1d",
    "conv3d",
    "conv_transpose3d",
)
def convolution(c: RuleContext) -> Value:
    """One-dimensional ones are images of one row."""
    name = c.call.op
    x, w = c.value("input"), c.value("weight")
    transposed = bool(c.a.get("transposed")) or "conv_transpose" in name
    flat = w.rank == 3
    if w.rank == 5:
        return volumes.transposed(c) if transposed else volumes.convolution(c)
    batched = x.rank == w.rank
    shape = c.out_shape()
    if not batched:
        x = c.reshape(x, (1, *x.shape))
        shape = (1, *shape)

    def both(value: Any, neutral: int) -> list[int]:
        return [neutral, pair(value)[0]] if flat else pair(value)

    stride, dilation = both(c.a["stride"], 1), both(c.a["dilation"], 1)
    if flat:
        x, w = c.reshape(x, (*x.shape[:2], 1, x.shape[2])), c.reshape(w, (*w.shape[:2], 1, w.shape[2]))
        shape = (*shape[:2], 1, shape[2])
    padding = c.a["padding"]
    if padding == "same":
        sides = same_padding(list(w.shape[2:]), dilation)
    elif padding == "valid":
        sides = [0, 0]
    else:
        sides = both(padding, 0)
    attrs = {"stride": stride, "padding": sides, "dilation": dilation, "groups": int(c.a["groups"])}
    if transposed:
        attrs["output_padding"] = both(c.a["output_padding"], 0)
    operands = [x, w] + ([c.value("bias")] if c.has("bias") else [])
    y = c.node("conv_transpose2d" if transposed else "conv2d", operands, shape, attrs).value()
    return c.reshape(y, c.out_shape())
