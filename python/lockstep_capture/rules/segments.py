"""scatter_reduce: one number for all elements that an index sends to the same place."""

from __future__ import annotations

import torch

from ..ir.graph import Value
from .context import RuleContext, rule


@rule("scatter_reduce")
def scatter_reduce(c: RuleContext) -> Value:
    kind = {"add": "sum", "sum": "sum", "mean": "mean", "amax": "amax", "amin": "amin"}.get(str(c.a["reduce"]))
    if kind is None:
        raise c.unsupported("scatter_reduce with 'prod'; sum the logarithms")
    if c.integer("index").is_empty:
        return c.value("self")
    shape, keeps = c.out_shape(), bool(c.a["include_self"])
    dim = int(c.a["dim"]) % max(len(shape), 1)
    found = (
        _extreme(c, shape, dim, kind == "amin", keeps)
        if kind in ("amax", "amin")
        else _total(c, shape, dim, kind == "mean", keeps)
    )
    if keeps:
        return found
    untouched = c.derive(f"untouched{dim}", lambda index: _counts(shape, dim, index) == 0, [c.a["index"]])
    start = c.constant("self")
    if start is not None and not bool(start.any()):
        return c.node("masked_fill", [found, untouched], shape, {"value": 0.0}).value()
    return c.node("where", [untouched, c.value("self"), found], shape).value()


def _counts(shape: tuple[int, ...], dim: int, index: torch.Tensor) -> torch.Tensor:
    index = index.cpu()
    return torch.zeros(shape).scatter_add_(dim, index, torch.ones(index.shape))


def _src(c: RuleContext) -> Value:
    """src where the index reaches."""
    src = c.value("src")
    for dim, extent in enumerate(c.shape_of("index")):
        src = c.slice(src, dim, 0, extent)
    return src


def _total(c: RuleContext, shape: tuple[int, ...], dim: int, mean: bool, keeps: bool) -> Value:
    attrs = {"dim": dim, "shape": shape, "own_type": "cuda"}
    total = c.node("scatter_add", [_src(c), c.integer("index")], shape, attrs).value()
    start = c.constant("self")
    if keeps and (start is None or bool(start.any())):
        total = c.binary("add", c.value("self"), total)
    if not mean:
        return total
    divisor = c.derive(
        f"counts{dim}_{keeps}", lambda index: (_counts(shape, dim, index) + keeps).clamp(min=1.0), [c.a["index"]]
    )
    return c.binary("div", total, divisor)


def _extreme(c: RuleContext, shape: tuple[int, ...], dim: int, low: bool, keeps: bool) -> Value:
    """Equal ones share the gradient, those of self included."""
    src, index = _src(c), c.integer("index")
    if keeps:
        own = c.value("self")
        for d, extent in enumerate(src.shape):
            if d != dim and extent != shape[d]:
                raise c.unsupported("an index that does not reach all of self; give include_self=False")

        def with_own(index: torch.Tensor) -> torch.Tensor:
            line = torch.arange(shape[dim], device=index.device).reshape(
                [-1 if d == dim else 1 for d in range(len(shape))]
            )
            return torch.cat([index, line.expand(shape)], dim)

        index = c.derive(f"with_self{dim}", with_own, [c.a["index"]])
        src = c.node("cat", [src, own], index.shape, {"dim": dim}).value()
    src = c.same("neg", src) if low else src
    found = c.node("scatter_amax", [src, index], shape, {"dim": dim, "shape": shape}).value()
    return c.same("neg", found) if low else found
