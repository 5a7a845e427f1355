"""Layers and functions that ATen has as one op and Lockstep as a few."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from .builder import RuleContext, pair, rule
from .ir import Value


@rule("glu")
def glu(c: RuleContext) -> Value:
    """First half of a dimension times sigmoid of the second."""
    x = c.value("self")
    dim = c.a["dim"] % x.rank
    half = x.shape[dim] // 2
    return c.kernel("glu", [x], lambda x: c.binary("mul", c.slice(x, dim, 0, half),
                                                   c.same("sigmoid", c.slice(x, dim, half, 2 * half))))


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


@rule("adaptive_max_pool2d", "adaptive_max_pool1d")
def adaptive_max_pool(c: RuleContext) -> list[Any]:
    """Windows of one size, where the extents are multiples of the output's."""
    x, shape = c.value("self"), c.out_shape(0)
    spatial = 1 if "1d" in c.call.op else 2
    if any(extent % out for extent, out in zip(x.shape[-spatial:], shape[-spatial:], strict=True)):
        raise c.unsupported(f"an output of {list(shape[-spatial:])} from {list(x.shape[-spatial:])} has windows of "
                            "different sizes; extents must be multiples of the output's")
    image = (1,) * (4 - x.rank - (spatial == 1)) + x.shape[:-spatial] + (1,) * (spatial == 1) + x.shape[-spatial:]
    wide = image[:2] + (1,) * (spatial == 1) + shape[-spatial:]
    kernel = [extent // out for extent, out in zip(image[2:], wide[2:], strict=True)]
    attrs = {"kernel": kernel, "stride": kernel, "padding": [0, 0], "dilation": [1, 1], "ceil_mode": False}
    node = c.node("max_pool2d", [c.reshape(x, image)], [(wide, "f32"), (wide, "i32")], attrs)
    return [c.reshape(node.value(), shape), c.reshape(node.value(1), shape)]


@rule("upsample_nearest1d", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d")
def nearest(c: RuleContext) -> Value:
    """The places that PyTorch takes are PyTorch's own answer for the places 0, 1, ..."""
    x, out = c.value("input" if "input" in c.a else "self"), c.out_shape()
    mode = "nearest-exact" if "exact" in c.call.op else "nearest"
    dims = range(2, x.rank)
    factors = list(c.a.get("scale_factors") or [])
    if not factors and any(c.a.get(name) for name in ("scales", "scales_h", "scales_w")):
        raise c.unsupported("call torch.nn.functional.interpolate")
    for i, dim in enumerate(dims):
        def places(extent: int, size: int, factor: Any) -> torch.Tensor:
            line = torch.arange(extent, dtype=torch.float64).reshape(1, 1, -1)
            taken = F.interpolate(line, scale_factor=factor, mode=mode) if factor \
                else F.interpolate(line, size, mode=mode)
            return taken.reshape(-1).long()

        operands = [x.shape[dim], out[dim], float(factors[i]) if factors else None]
        index = c.derive("_".join(map(str, ["nearest", *operands])), places, operands)
        shape = x.shape[:dim] + index.shape + x.shape[dim + 1:]
        x = c.node("index_select", [x, index], shape, {"dim": dim}).value()
    return x


@rule("upsample_linear1d")
def linear_upsampling(c: RuleContext) -> Value:
    """An image of one row."""
    x, shape = c.value("input" if "input" in c.a else "self"), c.out_shape()
    factors = list(c.a.get("scale_factors") or []) or ([c.a["scales"]] if c.a.get("scales") else [])
    if factors and not float(factors[0]).is_integer():
        raise c.unsupported("a fractional scale; give size=")
    attrs: dict[str, Any] = {"scale": [1, int(factors[0])]} if factors else {"size": [1, shape[2]]}
    attrs["align_corners"] = bool(c.a["align_corners"])
    image = c.reshape(x, (*x.shape[:2], 1, x.shape[2]))
    return c.reshape(c.node("upsample_bilinear2d", [image], (*shape[:2], 1, shape[2]), attrs).value(), shape)


@rule("unfold")
def unfold(c: RuleContext) -> Value:
    """Windows of `size` along a dimension, every `step`; the window is the last dimension."""
    x, out = c.value("self"), c.out_shape()
    dim, size, step = c.a["dimension"] % x.rank, int(c.a["size"]), int(c.a["step"])

    def places(count: int, size: int, step: int) -> torch.Tensor:
        return (torch.arange(count).reshape(-1, 1) * step + torch.arange(size)).reshape(-1)

    index = c.derive(f"windows{out[dim]}_{size}_{step}", places, [out[dim], size, step])
    shape = x.shape[:dim] + index.shape + x.shape[dim + 1:]
    taken = c.node("index_select", [x, index], shape, {"dim": dim}).value()
    taken = c.reshape(taken, x.shape[:dim] + (out[dim], size) + x.shape[dim + 1:])
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
        return F.unfold(pixels, kernel, dilation, 0, stride).reshape(-1).long()

    index = c.derive(f"pixels{kernel}{dilation}{stride}".replace(" ", ""), places, list(x.shape[-2:]))
    flat = c.reshape(x, (*x.shape[:-2], x.shape[-2] * x.shape[-1]))
    taken = c.node("index_select", [flat, index], flat.shape[:-1] + index.shape, {"dim": flat.rank - 1}).value()
    return c.reshape(taken, c.out_shape())


@rule("_weight_norm")
def weight_norm(c: RuleContext) -> Value:
    """g v / |v|, a length per slice of dimension dim (-1: one length of all)."""
    v, g, dim = c.value("v"), c.value("g"), int(c.a["dim"])
    others = [d for d in range(v.rank) if dim == -1 or d != dim]

    def scaled(v: Value, g: Value) -> Value:
        length = c.same("sqrt", c.reduce("sum", c.binary("mul", v, v), others, keepdim=dim != -1))
        return c.binary("mul", v, c.binary("div", g, length))

    return c.kernel("weight_norm", [v, g], scaled)


_BAGS = {0: "sum", 1: "mean", 2: "max"}


@rule("embedding_bag", "_embedding_bag")
def embedding_bag(c: RuleContext) -> list[Any]:
    """Bags of one size, as of indices (B,L): an embedding and a reduction over L."""
    if c.a["sparse"]:
        raise c.unsupported("sparse gradients; nn.EmbeddingBag(sparse=False)")
    if c.a["scale_grad_by_freq"]:
        raise c.unsupported("scale_grad_by_freq is not replayed")
    length, mode = _bag_length(c), _BAGS[int(c.a["mode"])]
    row = -1 if c.a.get("padding_idx") is None else int(c.a["padding_idx"])
    weight, flat = c.value("weight"), c.a["indices"]
    indices = c.derive(f"bags{length}", lambda i: i.reshape(-1, length), [flat])
    if row >= 0 and mode == "max":
        raise c.unsupported("padding_idx with mode='max'")
    x = c.node("embedding", [weight, indices], (*indices.shape, weight.shape[1]),
               {"padding_idx": row} if row >= 0 else {}).value()
    if row >= 0:
        keep = c.derive(f"kept{length}_{row}", lambda i: (i.reshape(-1, length, 1) != row).float(), [flat])
        x = c.binary("mul", x, keep)
    if c.has("per_sample_weights"):
        x = c.binary("mul", x, c.reshape(c.value("per_sample_weights"), (*indices.shape, 1)))
    if mode == "max":
        return [c.node("max_dim", [x], [(c.out_shape(0), "f32"), (c.out_shape(0), "i32")], {"dim": 1}).value()]
    if row < 0:
        return [c.reduce(mode, x, [1])]
    total = c.reduce("sum", x, [1])
    if mode == "sum":
        return [total]
    count = c.derive(f"counts{length}_{row}",
                     lambda i: (i.reshape(-1, length) != row).sum(1, keepdim=True).clamp(min=1).float(), [flat])
    return [c.binary("div", total, count)]


def _bag_length(c: RuleContext) -> int:
    """Of all bags. Throws: Unsupported where the bags' borders depend on the batch, or differ."""
    hint = "bags of different lengths; give indices of shape (bags, length) and pad with padding_idx"
    offsets = c._normaliser.constant(c.a["offsets"])
    if offsets is None:
        raise c.unsupported(hint)
    count = c._normaliser.type_of(c.a["indices"].name)[0][0]
    borders = offsets.tolist() + ([] if c.a["include_last_offset"] else [count])
    lengths = {b - a for a, b in zip(borders, borders[1:], strict=False)}
    if len(lengths) != 1 or 0 in lengths or borders[0] != 0 or borders[-1] != count:
        raise c.unsupported(hint)
    return int(lengths.pop())


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
