"""Movement of elements: ATen's many spellings become reshape, permute, expand, slice, cat, pad, gather."""

from __future__ import annotations

from typing import Any

import torch

from ..ir.graph import FORMATS, Value
from .context import RuleContext, rule
from .padding import padded
from .writes import around_diagonal


@rule("contiguous", "clone", "alias", "lift_fresh_copy", "lift_fresh")
def same(c: RuleContext) -> Any:
    return c.any_value("self")


@rule("detach", "detach_")
def detach(c: RuleContext) -> Value:
    return c.same("detach", c.value("self"))


@rule("view", "reshape", "_unsafe_view", "view_as", "reshape_as", "flatten", "unflatten", "unsqueeze", "squeeze")
def reshape(c: RuleContext) -> Value:
    return c.reshape(c.any_value("self"), c.out_shape())


@rule("numpy_T")
def reversed_dims(c: RuleContext) -> Value:
    x = c.any_value("self")
    return c.permute(x, range(x.rank - 1, -1, -1))


@rule("mT", "mH", "adjoint", "matrix_H")
def matrix_transpose(c: RuleContext) -> Value:
    x = c.any_value("self")
    return c.permute(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])


@rule("permute")
def permute(c: RuleContext) -> Value:
    return c.permute(c.any_value("self"), c.a["dims"])


@rule("transpose", "swapaxes", "t")
def transpose(c: RuleContext) -> Value:
    x = c.any_value("self")
    first = c.a.get("dim0", c.a.get("axis0", 0))
    second = c.a.get("dim1", c.a.get("axis1", 1))
    dims = list(range(x.rank))
    if x.rank < 2:
        return x
    dims[first], dims[second] = dims[second], dims[first]
    return c.permute(x, dims)


@rule("movedim", "moveaxis")
def movedim(c: RuleContext) -> Value:
    x = c.any_value("self")

    def listed(value: Any) -> list[int]:
        return [d % x.rank for d in (value if isinstance(value, (list, tuple)) else [value])]

    source, to = listed(c.a["source"]), listed(c.a["destination"])
    left = [d for d in range(x.rank) if d not in source]
    dims = [dict(zip(to, source)).get(d, -1) for d in range(x.rank)]
    return c.permute(x, [left.pop(0) if d < 0 else d for d in dims])


@rule("expand", "expand_as", "broadcast_to")
def expand(c: RuleContext) -> Value:
    return c.expand(c.any_value("self"), c.out_shape())


@rule("broadcast_tensors")
def broadcast_tensors(c: RuleContext) -> list[Value]:
    return [c.expand(x, c.out_shape(slot)) for slot, x in enumerate(c.values("tensors"))]


@rule("repeat", "tile")
def repeat(c: RuleContext) -> Value:
    """(a, b) repeated (r, s) times: (1, a, 1, b) expanded to (r, a, s, b)."""
    x = c.any_value("self")
    times = list(c.a.get("repeats") or c.a["dims"])
    extents = (1,) * (len(times) - x.rank) + x.shape
    times = [1] * (len(extents) - len(times)) + times
    between, wide = [], []
    for extent, count in zip(extents, times, strict=True):
        between += [1, extent]
        wide += [count, extent]
    return c.reshape(c.expand(c.reshape(x, between), wide), c.out_shape())


@rule("repeat_interleave")
def repeat_interleave(c: RuleContext) -> Value:
    x, count, dim = c.any_value("self"), c.a["repeats"], c.a["dim"]
    if not isinstance(count, int):
        return _repeated_by(c, x, dim)
    if dim is None:
        x, dim = c.reshape(x, [torch.Size(x.shape).numel()]), 0
    dim %= x.rank
    wide = x.shape[: dim + 1] + (count,) + x.shape[dim + 1 :]
    narrow = x.shape[: dim + 1] + (1,) + x.shape[dim + 1 :]
    return c.reshape(c.expand(c.reshape(x, narrow), wide), c.out_shape())


def _repeated_by(c: RuleContext, x: Value, dim: int | None) -> Value:
    """Each element as often as its own number says."""
    x, dim = (c.reshape(x, [torch.Size(x.shape).numel()]), 0) if dim is None else (x, dim % x.rank)
    extent = x.shape[dim]
    index = c.derive(
        f"repeated{extent}",
        lambda repeats: torch.repeat_interleave(
            torch.arange(extent, device=repeats.device), repeats.expand(extent) if repeats.numel() == 1 else repeats
        ),
        [c.a["repeats"]],
    )
    attrs = {"dim": dim, "gradient_own_type": own_type_of_index_add(x.shape, dim)}
    return c.node("index_select", [x, index], c.out_shape(), attrs).value()


def _clamped(place: Any, extent: int, fallback: int) -> int:
    if place is None:
        return fallback
    return min(max(place + extent if place < 0 else place, 0), extent)


@rule("slice")
def slice_(c: RuleContext) -> Value:
    x = c.any_value("self")
    dim = c.a["dim"] % x.rank
    extent = x.shape[dim]
    start, end = _clamped(c.a["start"], extent, 0), _clamped(c.a["end"], extent, extent)
    return c.slice(x, dim, start, end, c.a["step"])


@rule("narrow")
def narrow(c: RuleContext) -> Value:
    x = c.any_value("self")
    dim = c.a["dim"] % x.rank
    start = c.a["start"] % x.shape[dim] if c.a["start"] < 0 else c.a["start"]
    return c.slice(x, dim, start, start + c.a["length"])


@rule("select")
def select(c: RuleContext) -> Value:
    x = c.any_value("self")
    dim = c.a["dim"] % x.rank
    index = c.a["index"] % x.shape[dim]
    return c.reshape(c.slice(x, dim, index, index + 1), c.out_shape())


@rule("split", "split_with_sizes", "chunk", "tensor_split")
def split(c: RuleContext) -> list[Value]:
    x = c.any_value("self")
    dim = c.a["dim"] % x.rank
    parts, start, slot = [], 0, 0
    while start < x.shape[dim]:
        end = start + c.out_shape(slot)[dim]
        parts.append(c.slice(x, dim, start, end))
        start, slot = end, slot + 1
    return parts


@rule("unbind")
def unbind(c: RuleContext) -> list[Value]:
    x = c.any_value("self")
    dim = c.a["dim"] % x.rank
    return [c.reshape(c.slice(x, dim, i, i + 1), c.out_shape(i)) for i in range(x.shape[dim])]


@rule("cat", "concat", "concatenate")
def cat(c: RuleContext) -> Value:
    return _cat(c, [x for x in c.values("tensors") if not x.is_empty], c.a["dim"])


def _cat(c: RuleContext, parts: list[Value], dim: int) -> Value:
    if len(parts) == 1:
        return parts[0]
    return c.node("cat", parts, c.out_shape(), {"dim": dim % parts[0].rank}).value()


@rule("stack")
def stack(c: RuleContext) -> Value:
    dim = c.a["dim"] % len(c.out_shape())
    parts = [c.reshape(x, x.shape[:dim] + (1,) + x.shape[dim:]) for x in c.values("tensors")]
    return _cat(c, parts, dim)


@rule("roll")
def roll(c: RuleContext) -> Value:
    x = c.value("self")
    shifts, dims = list(c.a["shifts"]), list(c.a["dims"])
    if not dims:
        return c.reshape(_rolled(c, c.reshape(x, (torch.Size(x.shape).numel(),)), shifts, [0]), x.shape)
    return _rolled(c, x, shifts, dims)


def _rolled(c: RuleContext, x: Value, shifts: list[int], dims: list[int]) -> Value:
    for shift, dim in zip(shifts, dims, strict=True):
        dim %= x.rank
        cut = -shift % x.shape[dim]
        if cut:
            parts = [c.slice(x, dim, cut, x.shape[dim]), c.slice(x, dim, 0, cut)]
            x = c.node("cat", parts, x.shape, {"dim": dim}).value()
    return x


@rule("flip")
def flip(c: RuleContext) -> Value:
    return _flipped(c, c.value("self"), c.a["dims"])


@rule("rot90")
def rot90(c: RuleContext) -> Value:
    """A quarter turn from the first dimension to the second, k times."""
    x, (first, second), turns = c.value("self"), c.a["dims"], int(c.a["k"]) % 4
    order = list(range(x.rank))
    order[first], order[second] = order[second], order[first]
    if turns == 2:
        return _flipped(c, x, [first, second])
    if turns == 1:
        return c.permute(_flipped(c, x, [second]), order)
    return _flipped(c, c.permute(x, order), [second]) if turns == 3 else x


def _flipped(c: RuleContext, x: Value, dims: list[int]) -> Value:
    for dim in dims:
        extent = x.shape[dim]
        index = c.derive(f"flip{extent}", lambda n: torch.arange(n - 1, -1, -1), [extent])
        x = c.node("index_select", [x, index], x.shape, {"dim": dim % x.rank}).value()
    return x


@rule("diagonal", "diag")
def diagonal(c: RuleContext) -> Value:
    """The elements on a diagonal of two dimensions, which come last."""
    x, offset = c.value("self"), int(c.a.get("offset", c.a.get("diagonal", 0)))
    if x.rank < 2:
        return around_diagonal(c, x, offset)
    first, second = (c.a.get("dim1", 0)) % x.rank, (c.a.get("dim2", 1)) % x.rank
    left = [dim for dim in range(x.rank) if dim not in (first, second)]
    rows, columns = x.shape[first], x.shape[second]
    flat = c.reshape(c.permute(x, [*left, first, second]), [*(x.shape[dim] for dim in left), rows * columns])
    places = c.derive(
        f"diagonal{rows}x{columns}_{offset}",
        lambda r, n, k: torch.arange(r * n).reshape(r, n).diagonal(k),
        [rows, columns, offset],
    )
    return c.node("index_select", [flat, places], c.out_shape(), {"dim": flat.rank - 1}).value()


@rule("constant_pad_nd", "pad")
def pad(c: RuleContext) -> Value:
    if c.a.get("mode", "constant") != "constant":
        return padded(c, c.value("self"), c.a["pad"], c.a["mode"])
    attrs = {"pads": list(c.a["pad"]), "value": float(c.a["value"] or 0)}
    return c.node("pad", [c.value("self")], c.out_shape(), attrs).value()


@rule("zero_pad2d")
def zero_pad(c: RuleContext) -> Value:
    return c.node("pad", [c.value("self")], c.out_shape(), {"pads": list(c.a["padding"])}).value()


@rule("gather")
def gather(c: RuleContext) -> Value:
    x = c.value("self")
    return c.node("gather", [x, c.integer("index")], c.out_shape(), {"dim": c.a["dim"] % x.rank}).value()


@rule("index_select")
def index_select(c: RuleContext) -> Value:
    x = c.value("self")
    dim = c.a["dim"] % x.rank
    attrs = {"dim": dim, "gradient_own_type": own_type_of_index_add(x.shape, dim)}
    return c.node("index_select", [x, c.integer("index")], c.out_shape(), attrs).value()


def own_type_of_index_add(shape: tuple[int, ...], dim: int) -> str:
    """Where index_add, which also forms the gradient of index_select, adds 16-bit numbers in 16 bits.

    Everywhere on a GPU (Indexing.cu: ReduceAdd); on a CPU where it does not call scatter_add.
    """
    return "cuda" if len(shape) > 1 and dim in (0, len(shape) - 1) else "both"


@rule("index")
def index(c: RuleContext) -> Value:
    """x[i, j, mask]: one index into the indexed dimensions flattened."""
    x = c.value("self")
    given = list(c.a["indices"])
    dims, masks = _indexed(c, given)
    indexed = [dim for dim, item in enumerate(dims) if item]
    first, last = indexed[0], indexed[-1]
    together = indexed == list(range(first, last + 1))
    if not together:  # their common shape comes first
        left = [dim for dim in range(x.rank) if dim not in indexed]
        x, first, last = c.permute(x, [*indexed, *left]), 0, len(indexed) - 1
    extents = x.shape[first : last + 1]

    def flat(*indices: torch.Tensor) -> torch.Tensor:
        found: list[torch.Tensor] = []
        for one, is_mask in zip(indices, masks, strict=True):
            found += one.nonzero(as_tuple=True) if is_mask else [one.long()]
        total: Any = 0
        for one, extent in zip(found, extents, strict=True):
            total = total * extent + torch.where(one < 0, one + extent, one)
        return total.reshape(-1)

    joined = c.derive(f"index{tuple(extents)}", flat, [item for item in given if item is not None])
    rows = torch.Size(extents).numel()
    x = c.reshape(x, x.shape[:first] + (rows,) + x.shape[last + 1 :])
    shape = x.shape[:first] + joined.shape + x.shape[first + 1 :]
    attrs = {"dim": first, "gradient_own_type": own_type_of_index_put(c, c.shape_of("self"), given)}
    picked = c.node("index_select", [x, joined], shape, attrs).value()
    return c.reshape(picked, c.out_shape())


def own_type_of_index_put(c: RuleContext, shape: tuple[int, ...], given: list[Any]) -> str:
    """Where index_put, which also forms the gradient of x[i], adds 16-bit numbers in 16 bits.

    Indexing.cu sums slices of up to 32 numbers in FP32 (indexing_backward_kernel_small_stride) and rounds every sum of
    wider ones (indexing_backward_kernel).
    """
    dims, _ = _indexed(c, given)
    indexed = [dim for dim, item in enumerate(dims) if item]
    together = indexed == list(range(indexed[0], indexed[-1] + 1))
    named = shape[indexed[-1] + 1 :] if together else [n for dim, n in enumerate(shape) if dim not in indexed]
    return "cpu" if torch.Size(named).numel() <= 32 else "both"


def _indexed(c: RuleContext, given: list[Any]) -> tuple[list[bool], list[bool]]:
    """Which dimensions are indexed, and which of the indices are masks, of several dimensions at once."""
    dims, masks = [], []
    for item in given:
        if item is None:
            dims.append(False)
            continue
        is_mask = c.dtype_of_index(item) in (torch.bool, torch.uint8)
        dims += [True] * (len(c.builder.type_of(item.name)[0]) if is_mask else 1)
        masks.append(is_mask)
    if not masks:
        raise c.unsupported("no index")
    return dims, masks


@rule("masked_select")
def masked_select(c: RuleContext) -> Value:
    x = c.value("self")
    shape = tuple(torch.broadcast_shapes(x.shape, c.shape_of("mask")))
    x = c.reshape(c.expand(x, shape), [torch.Size(shape).numel()])
    places = c.derive(f"places{shape}", lambda mask: mask.expand(shape).reshape(-1).nonzero().squeeze(1), [c.a["mask"]])
    return c.node("index_select", [x, places], places.shape, {"dim": 0}).value()


@rule("to", "_to_copy", "type_as")
def to(c: RuleContext) -> Value:
    """By name, x.to(torch.float32), or by example, x.type_as(y): in every lane the format that y has there."""
    if not c.is_tensor("other"):
        return _cast(c, c.a.get("dtype"))
    like = c.like("other") if c.tensor_is_float("other") else None
    if like is not None:
        limit = c.call.limit
        if limit is None:
            x = c.value("self")
            return c.node("cast_like", [x, like], x.shape).value()
        shares = c.derive(f"of_{limit.name}", limit.shares, [c.a["self"]])
        node = c.node("cast_like", [shares, like], shares.shape, {"limit": limit.name})
        node.stat_exempt = limit.name == "max"
        return node.value()
    return _cast(c, c.dtype_of("other"))


def _cast(c: RuleContext, dtype: torch.dtype | None) -> Value:
    x = c.any_value("self")
    if dtype is None:
        return x
    return cast_to(c, x, dtype) if x.is_float or dtype not in FORMATS else c.value("self")


def cast_to(c: RuleContext, x: Value, dtype: torch.dtype) -> Value:
    """x in a format that the call names."""
    if dtype not in FORMATS:
        raise c.unsupported(f"a cast to {dtype} of a value that is computed from weights")
    return c.same("cast", x, {"dtype": FORMATS[dtype]})


@rule("float")
def to_float(c: RuleContext) -> Value:
    return c.same("cast", c.value("self"), {"dtype": "fp32"})


@rule("copy")
def copy(c: RuleContext) -> Value:
    """x.copy_(y): y, in x's shape."""
    return c.expand(c.value("src") if c.tensor_is_float("self") else c.integer("src"), c.out_shape())


@rule("fill", "zero")
def fill(c: RuleContext) -> Value:
    """One number in all places."""
    if c.is_tensor("value"):
        return c.expand(c.reshape(c.value("value"), ()), c.out_shape())
    number = float(c.a.get("value") or 0)
    one = c.derive(f"number{number!r}", lambda n: torch.tensor(n, dtype=torch.float32), [number])
    like = c.node("cast_like", [one, c.value("self")], ()).value()
    return c.expand(like, c.out_shape())


@rule("fill_diagonal")
def fill_diagonal(c: RuleContext) -> Value:
    shape, wrap = c.out_shape(), bool(c.a["wrap"])

    def diagonal(*extents: int) -> torch.Tensor:
        return torch.zeros(extents, dtype=torch.int64).fill_diagonal_(1, wrap)

    mask = c.derive("wrapped_diagonal" if wrap else "diagonal", diagonal, list(shape))
    return c.node("masked_fill", [c.value("self"), mask], shape, {"value": float(c.a["fill_value"])}).value()


@rule("zeros_like", "ones_like")
def filled_like(c: RuleContext) -> Value:
    raise c.unsupported("filling a value in place; make a new tensor")
