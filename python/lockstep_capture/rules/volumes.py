"""Three-dimensional convolutions and pools, as two-dimensional ones of images whose channels hold the depth's window."""

from __future__ import annotations

from typing import Any

import torch

from ..ir.graph import Value
from .context import RuleContext, rule


def same_padding(kernel: list[int], dilation: list[int]) -> list[int]:
    """top, bottom, left, right; the odd one comes last."""
    sides = []
    for extent, step in zip(kernel, dilation, strict=True):
        total = step * (extent - 1)
        sides += [total // 2, total - total // 2]
    return sides


def triple(value: Any) -> list[int]:
    """Three integers from one, or from a list of one or three."""
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    return [int(items[min(i, len(items) - 1)]) for i in range(3)]


def _batched(c: RuleContext, x: Value, rank: int = 5) -> Value:
    return x if x.rank == rank else c.reshape(x, (1, *x.shape))


def _stacked(c: RuleContext, x: Value, places: torch.Tensor, groups: int) -> Value:
    """(N,C,D,H,W) with D indexed by places (out, window): (N out, groups window C/groups, H, W)."""
    n, channels, _, height, width = x.shape
    out, window = places.shape
    index = c.derive(
        f"depths{out}x{window}_{int(places[-1, -1])}", lambda *flat: torch.tensor(flat), places.reshape(-1).tolist()
    )
    x = c.node("index_select", [x, index], (n, channels, out * window, height, width), {"dim": 2}).value()
    x = c.reshape(x, (n, groups, channels // groups, out, window, height, width))
    return c.reshape(c.permute(x, [0, 3, 1, 4, 2, 5, 6]), (n * out, window * channels, height, width))


def _volume(c: RuleContext, images: Value, n: int) -> Value:
    """(N D, C, H, W) -> (N,C,D,H,W), or without N where PyTorch's result has none."""
    _, channels, height, width = images.shape
    volume = c.reshape(images, (n, images.shape[0] // n, channels, height, width))
    return c.reshape(c.permute(volume, [0, 2, 1, 3, 4]), c.out_shape())


def _padded(c: RuleContext, x: Value, front: int, back: int) -> Value:
    if not front and not back:
        return x
    shape = (*x.shape[:2], x.shape[2] + front + back, *x.shape[3:])
    return c.node("pad", [x], shape, {"pads": [0, 0, 0, 0, front, back], "value": 0.0}).value()


def convolution(c: RuleContext) -> Value:
    x, w, groups = _batched(c, c.value("input")), c.value("weight"), int(c.a["groups"])
    stride, dilation = triple(c.a["stride"]), triple(c.a["dilation"])
    depth, *kernel = w.shape[2:]
    padding = c.a["padding"]
    sides = (
        same_padding(list(w.shape[2:]), dilation)
        if padding == "same"
        else [side for side in triple(0 if padding == "valid" else padding) for _ in range(2)]
    )
    x = _padded(c, x, sides[0], sides[1])
    out = (x.shape[2] - dilation[0] * (depth - 1) - 1) // stride[0] + 1
    places = torch.arange(out).reshape(-1, 1) * stride[0] + torch.arange(depth) * dilation[0]
    images = _stacked(c, x, places, groups)
    flat = c.reshape(c.permute(w, [0, 2, 1, 3, 4]), (w.shape[0], depth * w.shape[1], *kernel))
    attrs = {"stride": stride[1:], "padding": sides[2:], "dilation": dilation[1:], "groups": groups}
    shape = (images.shape[0], w.shape[0], *c.out_shape()[-2:])
    y = c.node("conv2d", [images, flat, *([c.value("bias")] if c.has("bias") else [])], shape, attrs).value()
    return _volume(c, y, x.shape[0])


def transposed(c: RuleContext) -> Value:
    """Each output depth gathers from the inputs between whose copies zeros lie, its kernel mirrored."""
    x, w, groups = _batched(c, c.value("input")), c.value("weight"), int(c.a["groups"])
    stride, dilation, padding, extra = (
        triple(c.a[name]) for name in ("stride", "dilation", "padding", "output_padding")
    )
    depth, *kernel = w.shape[2:]
    out, reach = c.out_shape()[-3], dilation[0] * (depth - 1)
    x = _padded(c, x, 0, 1)  # a depth of zeros, for the places between
    zeros = x.shape[2] - 1
    before = (
        torch.arange(out).reshape(-1, 1) + padding[0] - torch.arange(depth) * dilation[0]
    )  # stride times the input's place
    inside = (before >= 0) & (before % stride[0] == 0) & (before // stride[0] < zeros)
    places = torch.where(inside, before // stride[0], zeros)
    assert reach >= 0
    images = _stacked(c, x, places, groups)
    channels, each = w.shape[0], w.shape[1]
    flat = c.reshape(w, (groups, channels // groups, each, depth, *kernel))
    flat = c.reshape(c.permute(flat, [0, 3, 1, 2, 4, 5]), (depth * channels, each, *kernel))
    attrs = {
        "stride": stride[1:],
        "padding": padding[1:],
        "dilation": dilation[1:],
        "groups": groups,
        "output_padding": extra[1:],
    }
    shape = (images.shape[0], each * groups, *c.out_shape()[-2:])
    y = c.node("conv_transpose2d", [images, flat, *([c.value("bias")] if c.has("bias") else [])], shape, attrs).value()
    return _volume(c, y, x.shape[0])


def _planes(c: RuleContext, x: Value, op: str, image: dict[str, Any], line: dict[str, Any], indices: bool) -> Value:
    """A pool of (H, W), then one of the depth; both give what one of all three does."""
    x = _batched(c, x)
    n, channels, depth, height, width = x.shape
    out = c.out_shape(0) if c.builder.is_list(c.call.name) else c.out_shape()

    def pooled(x: Value, shape: tuple[int, ...], attrs: dict[str, Any]) -> Value:
        return c.node(op, [x], [(shape, "f32")] + ([(shape, "i32")] if indices else []), attrs).value()

    x = pooled(c.reshape(x, (n, channels * depth, height, width)), (n, channels * depth, *out[-2:]), image)
    x = c.reshape(x, (n, channels, depth, out[-2] * out[-1]))
    x = pooled(x, (n, channels, out[-3], out[-2] * out[-1]), line)
    return c.reshape(x, out)


def _pool(c: RuleContext, name: str, op: str, more: dict[str, Any], dilates: bool) -> Any:
    kernel = triple(c.a["kernel_size"])
    windows = {
        "kernel": (kernel, 1),
        "stride": (triple(c.a["stride"]) if c.a["stride"] else kernel, 1),
        "padding": (triple(c.a["padding"]), 0),
    } | ({"dilation": (triple(c.a["dilation"]), 1)} if dilates else {})
    more = more | {"ceil_mode": bool(c.a["ceil_mode"])}
    image = {key: value[1:] for key, (value, _) in windows.items()} | more
    line = {key: [value[0], neutral] for key, (value, neutral) in windows.items()} | more
    return c.kernel(name, [c.value("self")], lambda x: _planes(c, x, op, image, line, dilates))


@rule("max_pool3d", "max_pool3d_with_indices")
def max_pool(c: RuleContext) -> Any:
    y = _pool(c, "max_pool3d", "max_pool2d", {}, True)
    return [y, None] if "with_indices" in c.call.op else y


@rule("avg_pool3d")
def avg_pool(c: RuleContext) -> Any:
    padded, override = any(triple(c.a["padding"])) or bool(c.a["ceil_mode"]), c.a.get("divisor_override")
    if override:
        raise c.unsupported("divisor_override")
    return _pool(
        c, "avg_pool3d", "avg_pool2d", {"count_include_pad": bool(c.a["count_include_pad"]) if padded else True}, False
    )


@rule("adaptive_avg_pool3d", "_adaptive_avg_pool3d")
def adaptive_avg_pool(c: RuleContext) -> Any:
    out = c.out_shape()
    return c.kernel(
        "adaptive_avg_pool3d",
        [c.value("self")],
        lambda x: _planes(
            c, x, "adaptive_avg_pool2d", {"size": list(out[-2:])}, {"size": [out[-3], out[-2] * out[-1]]}, False
        ),
    )
