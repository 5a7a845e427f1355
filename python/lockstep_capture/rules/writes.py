"""New tensors with a part replaced, out of place; matrices around a diagonal; elements by their place in memory."""

from __future__ import annotations

import torch

from ..ir.graph import Value
from ..ir.program import Call, Ref
from .context import RuleContext, rule
from .view_writes import written_to

_SHOWN_BY = {
    "select_scatter": torch.ops.aten.select.int,
    "slice_scatter": torch.ops.aten.slice.Tensor,
    "diagonal_scatter": torch.ops.aten.diagonal.default,
}


@rule(*_SHOWN_BY)
def scattered(c: RuleContext) -> Value:
    name = c.call.op.split(".")[1]
    given = [value for key, value in c.a.items() if key not in ("self", "src")]
    view = Call(c.call.name, _SHOWN_BY[name], (Ref(""), *given), {})
    src = c.value("src")
    return written_to(c, c.value("self"), src, src.shape, [view])


@rule("index_fill", "index_copy")
def index_fill(c: RuleContext) -> Value:
    """Of all elements with these places along a dimension."""
    shape, extent = c.out_shape(), c.out_shape()[c.a["dim"]]
    dim = c.a["dim"] % len(shape)
    if c.integer("index").is_empty:
        return c.value("self")

    def mask(index: torch.Tensor) -> torch.Tensor:
        line = torch.zeros(extent, dtype=torch.bool).index_fill(0, index.cpu().reshape(-1), True)
        return line.reshape([-1 if d == dim else 1 for d in range(len(shape))])

    at = c.derive(f"filled{dim}", mask, [c.a["index"]])
    if "index_copy" in c.call.op:
        attrs = {"dim": dim, "shape": shape}
        total = c.node("index_add", [c.value("source"), c.integer("index")], shape, attrs).value()
        return c.node("where", [at, total, c.value("self")], shape).value()
    if c.is_tensor("value") and c.constant_number("value") is None:
        value = c.expand(c.reshape(c.value("value"), ()), shape)
        return c.node("where", [at, value, c.value("self")], shape).value()
    return c.node("masked_fill", [c.value("self"), at], shape, {"value": c.number("value")}).value()


@rule("diag_embed")
def diag_embed(c: RuleContext) -> Value:
    """Zeros but for one diagonal."""
    return around_diagonal(c, c.value("self"), int(c.a["offset"]), int(c.a["dim1"]), int(c.a["dim2"]))


def around_diagonal(c: RuleContext, x: Value, offset: int, dim1: int = -2, dim2: int = -1) -> Value:
    extent = x.shape[-1] + abs(offset)
    first, second = dim1 % (x.rank + 1), dim2 % (x.rank + 1)
    shape = (*x.shape[:-1], extent * extent)

    def places(extent: int, offset: int) -> torch.Tensor:
        return torch.arange(extent * extent).reshape(extent, extent).diagonal(offset)

    at = c.derive(f"diagonal{extent}_{offset}", places, [extent, offset])
    y = c.node("index_add", [x, at], shape, {"dim": x.rank - 1, "shape": shape}).value()
    y = c.reshape(y, (*x.shape[:-1], extent, extent))
    left = [d for d in range(x.rank + 1) if d not in (first, second)]
    order = [left.index(d) if d in left else (x.rank - 1 if d == first else x.rank) for d in range(x.rank + 1)]
    return c.permute(y, order)


@rule("block_diag")
def block_diag(c: RuleContext) -> Value:
    parts = [x if x.rank == 2 else c.reshape(x, (1, torch.Size(x.shape).numel())) for x in c.values("tensors")]
    rows, column, total = [], 0, c.out_shape()[1]
    for part in parts:
        shape = (part.shape[0], total)
        pads = [column, total - column - part.shape[1]]
        rows.append(c.node("pad", [part], shape, {"pads": pads, "value": 0.0}).value() if any(pads) else part)
        column += part.shape[1]
    return rows[0] if len(rows) == 1 else c.node("cat", rows, c.out_shape(), {"dim": 0}).value()


@rule("take")
def take(c: RuleContext) -> Value:
    x = c.value("self")
    rows = torch.Size(x.shape).numel()
    index = c.derive("flat", lambda i: torch.where(i < 0, i + rows, i).reshape(-1), [c.a["index"]])
    taken = c.node(
        "index_select", [c.reshape(x, (rows,)), index], index.shape, {"dim": 0, "gradient_own_type": "both"}
    ).value()
    return c.reshape(taken, c.out_shape())


@rule("as_strided")
def as_strided(c: RuleContext) -> Value:
    """Elements by their place in the operand's memory, which it must fill from its start, row by row."""
    x, size, stride = c.value("self"), list(c.a["size"]), list(c.a["stride"])
    offset = int(c.a.get("storage_offset") or 0)
    places = c.memory_of("self")
    if places is None:
        raise c.unsupported("of a value that shows only a part of its memory; call contiguous() first")
    if offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) >= places.numel():
        raise c.unsupported("beyond the operand's elements")
    found = places.as_strided(size, stride, offset).reshape(-1)
    name = f"strided{size}{stride}{offset}".replace(" ", "")
    index = c.derive(f"{name}_of_{'x'.join(map(str, x.shape))}_{int(places[-1])}", lambda *_: found, [])
    flat = c.reshape(x, (torch.Size(x.shape).numel(),))
    return c.reshape(c.node("index_select", [flat, index], index.shape, {"dim": 0}).value(), c.out_shape())
