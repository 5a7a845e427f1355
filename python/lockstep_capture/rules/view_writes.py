"""A write to a view as a new value: the old one with the elements replaced that the view shows."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Sequence

import torch

from ..ir.graph import Shape, Value
from ..ir.program import Call, map_refs
from .context import RuleContext


def written_to(c: RuleContext, old: Value, part: Value, shape: Shape, path: Sequence[Call]) -> Value:
    """path: the calls that made the view, of that shape, of a value of old's shape."""
    places = _places(old.shape, shape, path)
    part = c.expand(part, shape)
    flat = places.reshape(-1)
    if flat.numel() == 0:
        return old
    rows = torch.Size(old.shape).numel()
    if flat.numel() == rows:
        return _rearranged(c, part, places, old.shape)
    for dim, extent in enumerate(old.shape):
        below = torch.Size(old.shape[dim + 1 :]).numel()
        start, count = int(flat[0]) // below % extent, flat.numel() * extent // rows
        box = torch.arange(rows).reshape(old.shape).narrow(dim, start, min(count, extent - start))
        if torch.equal(box.reshape(-1), flat):
            return _in_box(c, old, c.reshape(part, box.shape), dim, start)
    name = hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:8]
    at = c.derive(f"places_{name}", lambda rows: flat, [rows])
    mask = c.derive(
        f"written_{name}",
        lambda rows: torch.zeros(rows, dtype=torch.bool).index_fill(0, flat, True).reshape(old.shape),
        [rows],
    )
    total = c.node("index_add", [c.reshape(part, at.shape), at], (rows,), {"dim": 0, "shape": (rows,)}).value()
    return c.node("where", [mask, c.reshape(total, old.shape), old], old.shape).value()


def _places(base: Shape, shape: Shape, path: Sequence[Call]) -> torch.Tensor:
    """Which element of the base, in the order of its dimensions, each element of the view is."""
    found = torch.arange(torch.Size(base).numel()).reshape(base)
    for call in path:
        if call.is_getitem:
            found = operator.getitem(found, call.args[1])
            continue
        args, kwargs = map_refs((call.args[1:], call.kwargs), lambda ref: torch.empty(shape))
        found = call.target(found, *args, **kwargs)
    return found


def _rearranged(c: RuleContext, part: Value, places: torch.Tensor, shape: Shape) -> Value:
    """The view shows all: its elements in the base's order."""
    strides = places.stride()
    order = sorted(range(places.dim()), key=lambda dim: -strides[dim])
    rows = places.numel()
    if torch.equal(places.permute(order).reshape(-1), torch.arange(rows)):
        return c.reshape(c.permute(part, order), shape)
    flat = places.reshape(-1)
    name = hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:8]
    back = c.derive(f"order_{name}", lambda rows: flat.argsort(), [rows])
    return c.reshape(c.node("index_select", [c.reshape(part, (rows,)), back], (rows,), {"dim": 0}).value(), shape)


def _in_box(c: RuleContext, old: Value, part: Value, dim: int, start: int) -> Value:
    end = start + part.shape[dim]
    pieces = (
        [c.slice(old, dim, 0, start)] * (start > 0)
        + [part]
        + ([c.slice(old, dim, end, old.shape[dim])] if end < old.shape[dim] else [])
    )
    return c.node("cat", pieces, old.shape, {"dim": dim}).value()
