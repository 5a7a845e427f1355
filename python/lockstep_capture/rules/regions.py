"""torchvision's ops: features read at places that the network computes."""

from __future__ import annotations

import torch

from ..ir.graph import Value
from .context import HINTS, RULES, RuleContext
from .products import product


def roi_align(c: RuleContext) -> Value:
    """Each lane reads at its own boxes; they get no gradient, as in torchvision."""
    attrs = {
        "size": [int(c.a["pooled_height"]), int(c.a["pooled_width"])],
        "scale": float(c.a["spatial_scale"]),
        "sampling": max(int(c.a["sampling_ratio"]), 0),
        "aligned": bool(c.a["aligned"]),
    }
    return c.node("roi_align", [c.value("input"), c.value("rois")], c.out_shape(), attrs).value()


RULES["torchvision.roi_align"] = roi_align
for _name in ("roi_pool", "ps_roi_align", "ps_roi_pool"):
    HINTS[f"torchvision.{_name}"] = "torchvision.ops.roi_align is replayed"


def deform_conv2d(c: RuleContext) -> Value:
    """The operand read at each tap's own places, as grid_sample reads, then one product with the weight."""
    x, w, offset = c.value("input"), c.value("weight"), c.value("offset")
    groups, offsets = int(c.a["groups"]), int(c.a["offset_groups"])
    more = [c.value(name) for name, is_used in (("mask", c.a["use_mask"]), ("bias", True)) if is_used]
    n, channels = x.shape[:2]
    out, taps, (height, width) = w.shape[0], w.shape[2] * w.shape[3], c.out_shape()[2:]
    steps = [int(c.a[f"{name}_{d}"]) for name in ("stride", "pad", "dilation") for d in "hw"]
    base = c.derive("taps", _places, [*w.shape[2:], *steps, height, width])

    def body(x: Value, w: Value, offset: Value, *more: Value) -> Value:
        moved = c.reshape(offset, (n * offsets, taps, 2, height, width))
        moved = c.permute(moved, [0, 1, 3, 4, 2])  # rows and columns, in pixels
        turned = c.derive("x_and_y", lambda: torch.tensor([1, 0]), [])
        places = c.node("index_select", [c.binary("add", moved, base), turned], moved.shape, {"dim": 4}).value()
        images = c.reshape(x, (n * offsets, channels // offsets, *x.shape[2:]))
        read = c.node(
            "grid_sample",
            [images, c.reshape(places, (n * offsets, taps * height, width, 2))],
            (*images.shape[:2], taps * height, width),
            {"in_pixels": True},
        ).value()
        if c.a["use_mask"]:
            read = c.reshape(read, (n, offsets, channels // offsets, taps, height, width))
            read = c.binary("mul", read, c.reshape(more[0], (n, offsets, 1, taps, height, width)))
        read = c.reshape(read, (n, groups, channels // groups * taps, height * width))
        y = product(c, c.reshape(w, (groups, out // groups, channels // groups * taps)), read)
        return c.binary("add", c.reshape(y, c.out_shape()), c.reshape(more[-1], (out, 1, 1)))

    found: Value = c.kernel("deform_conv2d", [x], body, [w, offset, *more])
    return found


def _places(*numbers: int) -> torch.Tensor:
    """(taps, height, width, 2): the row and the column that a tap without offset reads.

    numbers: extents of the kernel, stride, padding, dilation and the result's extents, two of each.
    """
    kernel, extents, lines = numbers[:2], numbers[8:], []
    for d in range(2):
        stride, pad, dilation, extent = numbers[2 + d :: 2]
        lines.append(torch.arange(kernel[d])[:, None] * dilation + torch.arange(extent) * stride - pad)
    shape = (*kernel, *extents)
    both = [lines[0][:, None, :, None].expand(shape), lines[1][None, :, None, :].expand(shape)]
    return torch.stack(both, -1).reshape(-1, *extents, 2).float()


RULES["torchvision.deform_conv2d"] = deform_conv2d
