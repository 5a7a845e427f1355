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


@rule("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sample(c: RuleContext) -> Value:
    x, grid = c.value("input"), c.value("grid")
    mode = _MODES.get(int(c.a["interpolation_mode"]))
    if mode is None:
        raise c.unsupported("grid_sample with mode='bilinear' or 'nearest' is replayed")
    if x.rank == 5:
        found: Value = c.kernel("grid_sample3d", [x, grid], lambda x, grid: _from_volume(c, x, grid, mode == "nearest"))
        return found
    attrs = {"mode": mode, "padding": _PADDINGS[int(c.a["padding_mode"])], "align_corners": bool(c.a["align_corners"])}
    return c.node("grid_sample", [x, grid], c.out_shape(), attrs).value()


def _from_volume(c: RuleContext, x: Value, grid: Value, nearest: bool) -> Value:
    """The numbers at the eight corners around each place, or at the nearest one, times their weights.

    Each is read from an image of the volume's slices, one below the other, at whole numbers of pixels.
    """
    (n, channels, *extents), places = x.shape, grid.shape[1:4]
    depth, height, width = extents
    image = c.reshape(x, (n, channels, depth * height, width))
    at = []  # z, y, x, each of shape (n, places)
    for axis, extent in zip((2, 1, 0), extents, strict=True):
        number = c.reshape(c.slice(grid, 4, axis, axis + 1), (n, *places))
        at.append(_in_pixels(c, number, extent))
    low = [c.same("round" if nearest else "floor", line) for line in at]
    parts = [c.binary("sub", line, whole) for line, whole in zip(at, low, strict=True)]
    total: Value | None = None
    for corner in range(1 if nearest else 8):
        steps = [corner >> 2 & 1, corner >> 1 & 1, corner & 1]
        whole = [c.scalar("add", line, 1.0) if step else line for line, step in zip(low, steps, strict=True)]
        inside: Value | None = None
        for line, extent in zip(whole, extents, strict=True):
            for op, bound in (("greater_equal", 0.0), ("less_equal", extent - 1.0)):
                side = c.mask_as_number(c.mask(op, [line], line.shape, {"scalar": bound}))
                inside = side if inside is None else c.binary("mul", inside, side)
        assert inside is not None
        row = c.binary("add", c.scalar("mul", whole[0], float(height)), whole[1])
        pixel = [c.reshape(line, (n, math.prod(places), 1, 1)) for line in (whole[2], row)]
        where = c.node("cat", pixel, (n, math.prod(places), 1, 2), {"dim": 3}).value()
        beyond = c.mask(
            "less",
            [c.expand(c.reshape(inside, (n, math.prod(places), 1, 1)), where.shape)],
            where.shape,
            {"scalar": 1.0},
        )
        where = c.node("masked_fill", [where, beyond], where.shape, {"value": -1.0}).value()
        attrs = {"mode": "nearest", "in_pixels": True}
        read = c.node("grid_sample", [image, where], (n, channels, math.prod(places), 1), attrs).value()
        read = c.reshape(read, (n, channels, *places))
        if not nearest:
            weight: Value | None = None
            for part, step in zip(reversed(parts), reversed(steps), strict=True):
                share = part if step else c.scalar("add", c.same("neg", part), 1.0)
                weight = share if weight is None else c.binary("mul", weight, share)
            assert weight is not None
            read = c.binary("mul", read, c.reshape(weight, (n, 1, *places)))
        total = read if total is None else c.binary("add", total, read)
    assert total is not None
    return total


def _in_pixels(c: RuleContext, number: Value, extent: int) -> Value:
    """A line of places in [-1, 1], padded; without a gradient where they are moved to a border."""
    corners, padding = bool(c.a["align_corners"]), _PADDINGS[int(c.a["padding_mode"])]
    line = c.scalar("add", number, 1.0)
    if corners:
        line = c.scalar("mul", c.scalar("mul", line, 0.5), extent - 1.0)
    else:
        line = c.scalar("mul", c.scalar("sub", c.scalar("mul", line, float(extent)), 1.0), 0.5)
    if padding == "zeros":
        return line
    if padding == "reflection":
        start, span = (0.0, extent - 1.0) if corners else (-0.5, float(extent))
        line = c.scalar("mul", line, 0.0) if span == 0 else _reflected(c, line, start, span)
    fixed = c.same("detach", c.same("clamp", line, {"min": 0.0, "max": extent - 1.0}))
    above, below = (
        c.mask_as_number(c.mask(op, [line], line.shape, {"scalar": bound}))
        for op, bound in (("greater", 0.0), ("less", extent - 1.0))
    )
    moves = c.mask("greater", [c.binary("mul", above, below)], line.shape, {"scalar": 0.0})
    return c.node("where", [moves, line, fixed], line.shape).value()


def _reflected(c: RuleContext, line: Value, start: float, span: float) -> Value:
    """start + |line - start|, folded into [start, start + span]."""
    line = c.same("abs", c.scalar("sub", line, start))
    turns = c.same("floor", c.scalar("div", line, span))
    rest = c.binary("sub", line, c.scalar("mul", turns, span))
    half = c.scalar("mul", turns, 0.5)
    back = c.mask("greater", [half, c.same("floor", half)], half.shape)
    other = c.scalar("add", c.same("neg", rest), span)
    return c.scalar("add", c.node("where", [back, other, rest], line.shape).value(), start)


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
    attrs = {"dim": flat.rank - 1, "shape": shape, "own_type": "cpu"}  # im2col.cuh sums in FP32
    total = c.node("index_add", [flat, index], shape, attrs).value()
    image = c.reshape(total, (*shape[:-1], height, width))
    image = c.slice(image, image.rank - 2, padding[0], height - padding[0])
    return c.slice(image, image.rank - 1, padding[1], width - padding[1])
