"""grid_sample, affine grids, and the counterpart of unfold."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..ir.graph import Value
from .context import RuleContext, pair, rule
from .products import product
from .upsampling import exact_constant

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
    """The places of a plain grid (x, y, 1), moved by each sample's matrix."""
    theta, size, corners = c.value("theta"), [int(extent) for extent in c.a["size"]], bool(c.a["align_corners"])
    space = len(size) - 2
    unit = torch.eye(space, space + 1, dtype=torch.float64)[None]
    plain = F.affine_grid(unit, [1, 1, *size[2:]], align_corners=corners).reshape(-1, space)
    base = exact_constant(c, f"grid{size[2:]}{corners}".replace(" ", ""), torch.cat([plain, torch.ones(len(plain), 1)], 1))
    return c.reshape(product(c, base, c.permute(theta, [0, 2, 1])), c.out_shape())


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
        return F.unfold(pixels, kernel, dilation, 0, stride).reshape(-1).long()

    index = c.derive(f"folds{kernel}{dilation}{stride}".replace(" ", ""), places, [height, width])
    flat = c.reshape(x, (*lead, channels, index.shape[0]))
    shape = (*lead, channels, height * width)
    total = c.node("index_add", [flat, index], shape, {"dim": flat.rank - 1, "shape": shape}).value()
    image = c.reshape(total, (*shape[:-1], height, width))
    image = c.slice(image, image.rank - 2, padding[0], height - padding[0])
    return c.slice(image, image.rank - 1, padding[1], width - padding[1])
