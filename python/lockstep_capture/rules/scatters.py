"""Writes and sums into indexed places, where the indices come from the batch or are recorded with the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..ir.graph import Value
from ..ir.program import Ref
from .context import RuleContext, rule
from .shape import own_type_of_index_add, own_type_of_index_put


def _added(c: RuleContext, total: Value) -> Value:
    """self + total; a new tensor of zeros adds nothing."""
    start = c.constant("self")
    if start is not None and not bool(start.any()):
        return total
    return c.binary("add", c.value("self"), total)


@rule("index_add")
def index_add(c: RuleContext) -> Value:
    src, shape = c.value("source"), c.out_shape()
    if src.is_empty:
        return c.value("self")
    if float(c.a["alpha"]) != 1:
        src = c.scalar("mul", src, float(c.a["alpha"]))
    dim = c.a["dim"] % max(len(shape), 1)
    attrs = {"dim": dim, "shape": shape, "own_type": own_type_of_index_add(shape, dim)}
    return _added(c, c.node("index_add", [src, c.integer("index")], shape, attrs).value())


@rule("scatter_add")
def scatter_add(c: RuleContext) -> Value:
    return _added(c, _scattered(c, _src(c))) if not c.integer("index").is_empty else c.value("self")


def _src(c: RuleContext) -> Value:
    """src where the index reaches."""
    src = c.value("src")
    for dim, extent in enumerate(c.shape_of("index")):
        src = c.slice(src, dim, 0, extent)
    return src


def _scattered(c: RuleContext, src: Value) -> Value:
    shape = c.out_shape()
    attrs = {"dim": c.a["dim"] % len(shape), "shape": shape, "own_type": "cuda"}
    return c.node("scatter_add", [src, c.integer("index")], shape, attrs).value()


@rule("scatter")
def scatter(c: RuleContext) -> Value:
    """self, with src (or a number) in the places of the index; no place twice."""
    if c.integer("index").is_empty:
        return c.value("self")
    if c.a.get("reduce") == "add" and c.is_tensor("src"):
        return _added(c, _scattered(c, _src(c)))
    if c.a.get("reduce") is not None:
        raise c.unsupported("scatter with reduce='multiply', or of a number")
    shape, dim = c.out_shape(), c.a["dim"]

    def written(index: torch.Tensor) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int64).scatter_add_(dim, index.cpu(), torch.ones_like(index.cpu()))

    mask = _mask(c, "written", written, [c.a["index"]], twice=c.is_tensor("src"))
    if not c.is_tensor("src"):
        return c.node("masked_fill", [c.value("self"), mask], shape, {"value": float(c.a["value"])}).value()
    return c.node("where", [mask, _scattered(c, _src(c)), c.value("self")], shape).value()


def _mask(c: RuleContext, name: str, count: Callable[..., torch.Tensor], operands: list[Any], *, twice: bool) -> Value:
    """Where something is written. twice: it matters whether that happens twice."""

    def mask(*values: torch.Tensor) -> torch.Tensor:
        found = count(*values)
        if twice and bool((found > 1).any()):
            raise c.unsupported("one place written twice: which value stays is not defined")
        return found > 0

    return c.derive(name, mask, operands)


@rule("index_put")
def index_put(c: RuleContext) -> Value:
    """x[i, mask] = v, or += v with accumulate: written as rows of x flattened."""
    shape = c.out_shape()
    given = list(c.a["indices"])
    refs = [item for item in given if item is not None]
    if (
        len(refs) == len(given) == 1
        and c.dtype_of_index(refs[0]) == torch.bool
        and not c.a["accumulate"]
        and torch.Size(c.shape_of("values")).numel() == 1
    ):
        return _filled(c, refs[0], shape)
    rows = torch.Size(shape).numel()

    def places(*values: torch.Tensor) -> torch.Tensor:
        left = list(values)
        return torch.arange(rows).reshape(shape)[
            tuple(slice(None) if item is None else left.pop(0).cpu() for item in given)
        ]

    def count(*values: torch.Tensor) -> torch.Tensor:
        return torch.bincount(places(*values).reshape(-1), minlength=rows).reshape(shape)

    at = c.derive("places", lambda *values: places(*values).reshape(-1), refs)
    if at.is_empty:
        return c.value("self")
    values = c.value("values")
    if not c.is_computed("values"):  # the 1.0 of `targets[i, j] = 1.0` has the dtype of targets
        values = c.node("cast_like", [values, c.value("self")], values.shape).value()
    values = c.expand(values, places(*c.examples(refs)).shape)
    attrs: dict[str, Any] = {"dim": 0, "shape": (rows,)}
    if c.a["accumulate"]:
        attrs["own_type"] = own_type_of_index_put(c, shape, given)
    total = c.node("index_add", [c.reshape(values, at.shape), at], (rows,), attrs).value()
    if c.a["accumulate"]:
        return _added(c, c.reshape(total, shape))
    mask = _mask(c, "written", count, refs, twice=True)
    return c.node("where", [mask, c.reshape(total, shape), c.value("self")], shape).value()


def _filled(c: RuleContext, mask: Ref, shape: tuple[int, ...]) -> Value:
    """x[mask] = v with one value."""

    def whole(mask: torch.Tensor) -> torch.Tensor:
        return mask.reshape(*mask.shape, *[1] * (len(shape) - mask.dim())).expand(shape)

    at = c.derive("whole", whole, [mask])
    fill = c.constant("values")
    if fill is not None:
        return c.node("masked_fill", [c.value("self"), at], shape, {"value": float(fill)}).value()
    return c.node(
        "where", [at, c.expand(c.reshape(c.value("values"), [1] * len(shape)), shape), c.value("self")], shape
    ).value()


@rule("masked_scatter")
def masked_scatter(c: RuleContext) -> Value:
    """The mask's places get the first elements of the source."""
    shape = c.out_shape()
    rows = torch.Size(shape).numel()
    at = c.derive("places", lambda mask: mask.cpu().expand(shape).reshape(-1).nonzero().squeeze(1), [c.a["mask"]])
    if at.is_empty:
        return c.value("self")
    source = c.value("source")
    flat = c.slice(c.reshape(source, [torch.Size(source.shape).numel()]), 0, 0, at.shape[0])
    total = c.reshape(c.node("index_add", [flat, at], (rows,), {"dim": 0, "shape": (rows,)}).value(), shape)
    mask = c.derive("whole", lambda mask: mask.expand(shape), [c.a["mask"]])
    return c.node("where", [mask, total, c.value("self")], shape).value()
