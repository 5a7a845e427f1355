"""Maximum and average pools, of one and two dimensions."""

from __future__ import annotations

from typing import Any

import torch

from .context import WINNERS, Attributes, RuleContext, pair, rule


def _pooled(c: RuleContext, op: str, attrs: dict[str, Any], indices: bool) -> Any:
    """Two- and one-dimensional pools, with or without a batch dimension."""
    x = c.value("self")
    spatial = 1 if "1d" in c.call.op else 2
    shape = c.out_shape(0) if "with_indices" in c.call.op else c.out_shape()
    lead = x.shape[:-spatial]
    lead = (1,) * (2 - len(lead)) + lead
    image = c.reshape(x, lead + ((1,) if spatial == 1 else ()) + x.shape[-spatial:])
    wide = lead + ((1,) if spatial == 1 else ()) + shape[-spatial:]
    outputs = [(wide, "f32")] + ([(wide, "i32")] if indices else [])
    y = c.reshape(c.node(op, [image], outputs, attrs).value(), shape)
    return [y, None] if "with_indices" in c.call.op else y


def _window(c: RuleContext, name: str, neutral: int) -> list[int]:
    value = c.a[name]
    return [neutral, pair(value)[0]] if "1d" in c.call.op else pair(value)


@rule("max_pool2d", "max_pool2d_with_indices", "max_pool1d", "max_pool1d_with_indices")
def max_pool(c: RuleContext) -> Any:
    kernel = _window(c, "kernel_size", 1)
    attrs = {
        "kernel": kernel,
        "stride": _window(c, "stride", 1) if c.a["stride"] else kernel,
        "padding": _window(c, "padding", 0),
        "dilation": _window(c, "dilation", 1),
        "ceil_mode": bool(c.a["ceil_mode"]),
    }
    return _pooled(c, "max_pool2d", attrs, True)


def _max_pool_places(attrs: Attributes, image: torch.Tensor) -> torch.Tensor:
    """PyTorch gives them by a second op."""
    _, places = torch.ops.aten.max_pool2d_with_indices(
        image, attrs["kernel"], attrs["stride"], attrs["padding"], attrs["dilation"], attrs["ceil_mode"]
    )
    return places


WINNERS["max_pool2d"] = _max_pool_places


@rule("avg_pool2d", "avg_pool1d")
def avg_pool(c: RuleContext) -> Any:
    kernel = _window(c, "kernel_size", 1)
    attrs = {
        "kernel": kernel,
        "stride": _window(c, "stride", 1) if c.a["stride"] else kernel,
        "padding": _window(c, "padding", 0),
        "ceil_mode": bool(c.a["ceil_mode"]),
        "count_include_pad": bool(c.a["count_include_pad"]),
    }
    if c.a.get("divisor_override"):
        attrs["divisor_override"] = int(c.a["divisor_override"])
    return _pooled(c, "avg_pool2d", attrs, False)


@rule("adaptive_avg_pool2d", "adaptive_avg_pool1d", "_adaptive_avg_pool2d")
def adaptive_avg_pool(c: RuleContext) -> Any:
    return _pooled(c, "adaptive_avg_pool2d", {"size": _window(c, "output_size", 1)}, False)
