"""Layers and functions that ATen has as one op and Lockstep as a few."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from .builder import RuleContext, rule
from .ir import Value


@rule("glu")
def glu(c: RuleContext) -> Value:
    """First half of a dimension times sigmoid of the second."""
    x = c.value("self")
    dim = c.a["dim"] % x.rank
    half = x.shape[dim] // 2
    gate = c.same("sigmoid", c.slice(x, dim, half, 2 * half))
    return c.binary("mul", c.slice(x, dim, 0, half), gate)


@rule("log2", "log10")
def logarithm(c: RuleContext) -> Value:
    return c.scalar("mul", c.same("log", c.value("self")), 1 / math.log(2 if "log2" in c.call.op else 10))


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


_BAGS = {0: "sum", 1: "mean", 2: "max"}


@rule("embedding_bag", "_embedding_bag")
def embedding_bag(c: RuleContext) -> list[Any]:
    """Bags of one size, as of indices (B,L): an embedding and a reduction over L."""
    if c.a["sparse"]:
        raise c.unsupported("sparse gradients; nn.EmbeddingBag(sparse=False)")
    if c.a["scale_grad_by_freq"]:
        raise c.unsupported("scale_grad_by_freq is not replayed")
    length, mode, row = _bag_length(c), _BAGS[int(c.a["mode"])], int(c.a["padding_idx"] or 0)
    if c.a["padding_idx"] is None:
        row = -1
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


def _gates(c: RuleContext, x: Value, weight: Value, bias: Value | None) -> Value:
    operands = [x, weight] + ([bias] if bias is not None else [])
    return c.node("linear", operands, (*x.shape[:-1], weight.shape[0])).value()


def _optional(c: RuleContext, name: str) -> Value | None:
    return c.value(name) if c.has(name) else None


@rule("gru_cell")
def gru_cell(c: RuleContext) -> Value:
    """r, z = sigmoid, n = tanh(W_in x + b_in + r (W_hn h + b_hn)), h = (h - n) z + n."""
    h = c.value("hx")
    size = h.shape[-1]
    own = _gates(c, c.value("input"), c.value("w_ih"), _optional(c, "b_ih"))
    last = _gates(c, h, c.value("w_hh"), _optional(c, "b_hh"))

    def part(value: Value, k: int) -> Value:
        return c.slice(value, value.rank - 1, k * size, (k + 1) * size)

    r, z = (c.same("sigmoid", c.binary("add", part(own, k), part(last, k))) for k in (0, 1))
    n = c.same("tanh", c.binary("add", part(own, 2), c.binary("mul", r, part(last, 2))))
    return c.binary("add", c.binary("mul", c.binary("sub", h, n), z), n)


@rule("rnn_tanh_cell", "rnn_relu_cell")
def rnn_cell(c: RuleContext) -> Value:
    own = _gates(c, c.value("input"), c.value("w_ih"), _optional(c, "b_ih"))
    last = _gates(c, c.value("hx"), c.value("w_hh"), _optional(c, "b_hh"))
    return c.same("tanh" if "tanh" in c.call.op else "relu", c.binary("add", own, last))


@rule("rnn_tanh", "rnn_relu")
def rnn(c: RuleContext) -> list[Value]:
    """Step by step: h = f(W_ih x + b_ih + W_hh h + b_hh); the products with x stand before the loop."""
    if "batch_first" not in c.a:
        raise c.unsupported("packed sequences; pad, and mask the loss")
    layers, directions = int(c.a["num_layers"]), 2 if c.a["bidirectional"] else 1
    if c.a["train"] and float(c.a["dropout"]) > 0 and layers > 1:
        raise c.unsupported("dropout between the layers of nn.RNN; nn.GRU and nn.LSTM are replayed with it")
    x, starts, weights = c.value("input"), c.value("hx"), c.values("params")
    if x.rank != 3:
        raise c.unsupported("give the input a batch dimension")
    x = c.permute(x, [1, 0, 2]) if c.a["batch_first"] else x
    per_cell = 4 if c.a["has_biases"] else 2
    ends = []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            cell = layer * directions + direction
            w_ih, w_hh, *biases = weights[cell * per_cell:(cell + 1) * per_cell]
            h = c.reshape(c.slice(starts, 0, cell, cell + 1), starts.shape[1:])
            steps = _rnn_steps(c, x, h, (w_ih, w_hh), biases or [None, None], bool(direction))
            ends.append(steps[0] if direction else steps[-1])
            outputs.append(_joined(c, [_leading(c, step) for step in steps], 0))
        x = _joined(c, outputs, 2)
    y = c.permute(x, [1, 0, 2]) if c.a["batch_first"] else x
    return [y, _joined(c, [_leading(c, end) for end in ends], 0)]


def _rnn_steps(c: RuleContext, x: Value, h: Value, weights: tuple[Value, Value], biases: Any,
               backwards: bool) -> list[Value]:
    """The hidden states in the order of time. x (T,N,C), h (N,H)."""
    own = _gates(c, x, weights[0], biases[0])
    time = x.shape[0]
    found: dict[int, Value] = {}
    for step in reversed(range(time)) if backwards else range(time):
        total = c.binary("add", c.reshape(c.slice(own, 0, step, step + 1), own.shape[1:]),
                         _gates(c, h, weights[1], biases[1]))
        found[step] = h = c.same("tanh" if "tanh" in c.call.op else "relu", total)
    return [found[step] for step in range(time)]


def _leading(c: RuleContext, x: Value) -> Value:
    return c.reshape(x, (1, *x.shape))


def _joined(c: RuleContext, parts: list[Value], dim: int) -> Value:
    if len(parts) == 1:
        return parts[0]
    extent = sum(part.shape[dim] for part in parts)
    shape = parts[0].shape[:dim] + (extent,) + parts[0].shape[dim + 1:]
    return c.node("cat", parts, shape, {"dim": dim}).value()


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
