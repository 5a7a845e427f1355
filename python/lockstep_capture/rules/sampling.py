"""grid_sample, affine grids, and the counterpart of unfold."""

from __future__ import annotations

import hashlib
import math

import torch
import torch.nn.functional as F

from ..ir.graph import Value
from .context import RuleContext, pair, rule
from .products import product

_MODES, _PADDINGS = {0: "bilinear", 1: "nearest"}, {0: "zeros", 1: "border", 2: "reflection"}


@rule("grid_sampler", "grid_sampler_2d")
def grid_sample(c: RuleContext) -> Value:
    x, grid = c.value("input"), c.value("grid")
    mode = _MODES.get(int(c.a["interpolation_mode"]))
    if x.rank != 4 or mode is None:
        raise c.unsupported("grid_sample of images, mode='bilinear' or 'nearest', is replayed")
    attrs = {"mode": mode, "padding": _PADDINGS[int(c.a["padding_mode"])], "align_corners": bool(c.a["align_corners"])}
    return c.node("grid_sample", [x, grid], c.out_shape(), attrs).value()


@rule("affine_grid_generator")
def affine_grid(c: RuleContext) -> Value:
    """The places of a plain grid (x, y, 1), made in theta's format, moved by each sample's matrix."""
    theta, image = c.value("theta"), [int(extent) for extent in c.a["size"]][2:]
    places = math.prod(image)

    def column(values: Value, dim: int) -> Value:
        along = c.reshape(values, [extent if i == dim else 1 for i, extent in enumerate(image)])
        return c.reshape(c.expand(along, image), (places, 1))

    columns = [column(_from_minus_one(c, theta, image[dim]), dim) for dim in reversed(range(len(image)))]
    columns.append(_like(c, theta, torch.ones(places, 1)))
    base = c.node("cat", columns, (places, len(columns)), {"dim": 1}).value()
    return c.reshape(product(c, base, c.permute(theta, [0, 2, 1])), c.out_shape())


def _from_minus_one(c: RuleContext, theta: Value, count: int) -> Value:
    """at::linspace(-1, 1), from both ends towards the middle; every operation rounds to theta's format."""
    if count == 1:
        return _like(c, theta, torch.zeros(1))
    step = c.binary("div", _like(c, theta, torch.full((1,), 2.0)), _like(c, theta, torch.full((1,), count - 1.0)))
    places = torch.arange(count, dtype=torch.float32)
    left = places < count // 2
    steps = _like(c, theta, torch.where(left, places, places - (count - 1)))
    line = c.binary("add", _like(c, theta, torch.where(left, -1.0, 1.0)), c.binary("mul", steps, step))
    return line if c.a["align_corners"] else c.scalar("div", c.scalar("mul", line, count - 1), count)


def _like(c: RuleContext, theta: Value, numbers: torch.Tensor) -> Value:
    known = hashlib.sha256(numbers.numpy().tobytes()).hexdigest()[:8]
    value = c.derive(f"grid{list(numbers.shape)}{known}".replace(" ", ""), lambda: numbers, [])
    return c.node("cast_like", [value, theta], value.shape).value()


@rule("col2im")
def fold(c: RuleContext) -> Value:
    """F.fold: windows added up where they overlap."""
    x = c.value("self")
    kernel, dilation, padding, stride = (pair(c.a[name]) for name in ("kernel_size", "dilation", "padding", "stride"))
    height, width = (int(extent) + 2 * side for extent, side in zip(c.a["output_size"], padding, strict=True))
    lead, size = x.shape[:-2], kernel[0] * kernel[1]
    channels = x.shape[-2] // size

    def places(height: int, width: int) -> torch.Tensor:
        pixels = torch.arange(height * width, dtype=torch.float64).reshape(1, 1, height, width)
        return F.unfold(pixels, tuple(kernel), tuple(dilation), 0, tuple(stride)).reshape(-1).long()

    index = c.derive(f"folds{kernel}{dilation}{stride}".replace(" ", ""), places, [height, width])
    flat = c.reshape(x, (*lead, channels, index.shape[0]))
    shape = (*lead, channels, height * width)
    total = c.node("index_add", [flat, index], shape, {"dim": flat.rank - 1, "shape": shape}).value()
    image = c.reshape(total, (*shape[:-1], height, width))
    image = c.slice(image, image.rank - 2, padding[0], height - padding[0])
    return c.slice(image, image.rank - 1, padding[1], width - padding[1])
