"""Windows and pixels of an image, picked by places that the capture computes: pooling, unfolding, upsampling."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from ..ir.graph import Value
from .context import RuleContext, pair, rule
from .upsampling import interpolated


@rule("adaptive_max_pool3d", "adaptive_max_pool2d", "adaptive_max_pool1d")
def adaptive_max_pool(c: RuleContext) -> list[Any]:
    """Windows of one size, where the extents are multiples of the output's; else of the largest size."""
    x, shape = c.value("self"), c.out_shape(0)
    spatial = next(n for n in (1, 2, 3) if f"{n}d" in c.call.op)
    if spatial == 3 or any(extent % out for extent, out in zip(x.shape[-spatial:], shape[-spatial:], strict=True)):
        return [_largest_of_windows(c, x, shape, spatial), None]
    image = (1,) * (4 - x.rank - (spatial == 1)) + x.shape[:-spatial] + (1,) * (spatial == 1) + x.shape[-spatial:]
    wide = image[:2] + (1,) * (spatial == 1) + shape[-spatial:]
    kernel = [extent // out for extent, out in zip(image[2:], wide[2:], strict=True)]
    attrs = {"kernel": kernel, "stride": kernel, "padding": [0, 0], "dilation": [1, 1], "ceil_mode": False}
    node = c.node("max_pool2d", [c.reshape(x, image)], [(wide, "f32"), (wide, "i32")], attrs)
    return [c.reshape(node.value(), shape), c.reshape(node.value(1), shape)]


def _largest_of_windows(c: RuleContext, x: Value, shape: tuple[int, ...], spatial: int) -> Value:
    """From floor(i n / out) to ceil((i + 1) n / out), short ones with their first element several times."""
    lead = x.rank - spatial

    def places(extent: int, out: int) -> torch.Tensor:
        lines = torch.arange(out).reshape(-1, 1)
        start, end = lines * extent // out, -(-(lines + 1) * extent // out)
        found = start + torch.arange(int((end - start).max()))
        return torch.where(found < end, found, start).reshape(-1)

    sizes = []
    for dim in range(lead, x.rank):
        index = c.derive(f"adaptive{x.shape[dim]}_{shape[dim]}", places, [x.shape[dim], shape[dim]])
        sizes.append(index.shape[0] // shape[dim])
        taken = x.shape[:dim] + index.shape + x.shape[dim + 1 :]
        x = c.node("index_select", [x, index], taken, {"dim": dim}).value()
    split = [extent for dim, size in enumerate(sizes, lead) for extent in (shape[dim], size)]
    x = c.reshape(x, (*x.shape[:lead], *split))
    x = c.permute(x, [*range(lead), *range(lead, x.rank, 2), *range(lead + 1, x.rank, 2)])
    x = c.reshape(x, (*shape, math.prod(sizes)))
    return c.node("max_dim", [x], [(shape, "f32"), (shape, "i32")], {"dim": x.rank - 1}).value()


@rule("unfold")
def unfold(c: RuleContext) -> Value:
    """Windows of `size` along a dimension, every `step`; the window is the last dimension."""
    x, out = c.value("self"), c.out_shape()
    dim, size, step = c.a["dimension"] % x.rank, int(c.a["size"]), int(c.a["step"])

    def places(count: int, size: int, step: int) -> torch.Tensor:
        return (torch.arange(count).reshape(-1, 1) * step + torch.arange(size)).reshape(-1)

    index = c.derive(f"windows{out[dim]}_{size}_{step}", places, [out[dim], size, step])
    shape = x.shape[:dim] + index.shape + x.shape[dim + 1 :]
    taken = c.node("index_select", [x, index], shape, {"dim": dim}).value()
    taken = c.reshape(taken, x.shape[:dim] + (out[dim], size) + x.shape[dim + 1 :])
    return c.permute(taken, [*range(dim + 1), *range(dim + 2, taken.rank), dim + 1])


@rule("im2col")
def image_windows(c: RuleContext) -> Value:
    """F.unfold: per channel and place in the kernel, the pixels that it meets."""
    x = c.value("self")
    kernel, dilation, padding, stride = (pair(c.a[name]) for name in ("kernel_size", "dilation", "padding", "stride"))
    if any(padding):
        pads = [padding[1], padding[1], padding[0], padding[0]]
        shape = (*x.shape[:-2], x.shape[-2] + 2 * padding[0], x.shape[-1] + 2 * padding[1])
        x = c.node("pad", [x], shape, {"pads": pads, "value": 0.0}).value()

    def places(height: int, width: int) -> torch.Tensor:
        pixels = torch.arange(height * width, dtype=torch.float64).reshape(1, 1, height, width)
        return F.unfold(pixels, tuple(kernel), tuple(dilation), 0, tuple(stride)).reshape(-1).long()

    index = c.derive(f"pixels{kernel}{dilation}{stride}".replace(" ", ""), places, list(x.shape[-2:]))
    flat = c.reshape(x, (*x.shape[:-2], x.shape[-2] * x.shape[-1]))
    taken = c.node("index_select", [flat, index], flat.shape[:-1] + index.shape, {"dim": flat.rank - 1}).value()
    return c.reshape(taken, c.out_shape())


@rule(
    "upsample_nearest1d",
    "upsample_nearest3d",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
)
def nearest(c: RuleContext) -> Value:
    """The places that PyTorch takes: its own result for an image of the places 0, 1, ..."""
    x, out = c.value("input" if "input" in c.a else "self"), c.out_shape()
    mode = "nearest-exact" if "exact" in c.call.op else "nearest"
    dims = range(2, x.rank)
    factors = list(c.a.get("scale_factors") or [])
    if not factors and any(c.a.get(name) for name in ("scales", "scales_h", "scales_w")):
        raise c.unsupported("call torch.nn.functional.interpolate")
    for i, dim in enumerate(dims):

        def places(extent: int, size: int, factor: Any) -> torch.Tensor:
            line = torch.arange(extent, dtype=torch.float64).reshape(1, 1, -1)
            taken = (
                F.interpolate(line, scale_factor=factor, mode=mode) if factor else F.interpolate(line, size, mode=mode)
            )
            return taken.reshape(-1).long()

        operands = [x.shape[dim], out[dim], float(factors[i]) if factors else None]
        index = c.derive("_".join(map(str, ["nearest", *operands])), places, operands)
        shape = x.shape[:dim] + index.shape + x.shape[dim + 1 :]
        x = c.node("index_select", [x, index], shape, {"dim": dim}).value()
    return x


@rule("upsample_linear1d")
def linear_upsampling(c: RuleContext) -> Value:
    """An image of one row."""
    x, shape = c.value("input" if "input" in c.a else "self"), c.out_shape()
    factors = list(c.a.get("scale_factors") or []) or ([c.a["scales"]] if c.a.get("scales") else [])
    if factors and not float(factors[0]).is_integer():
        return interpolated(c, x, "linear")
    attrs: dict[str, Any] = {"scale": [1, int(factors[0])]} if factors else {"size": [1, shape[2]]}
    attrs["align_corners"] = bool(c.a["align_corners"])
    image = c.reshape(x, (*x.shape[:2], 1, x.shape[2]))
    return c.reshape(c.node("upsample_bilinear2d", [image], (*shape[:2], 1, shape[2]), attrs).value(), shape)
