"""nn.EmbeddingBag: an embedding, and a reduction over bags."""

from __future__ import annotations

from typing import Any

import torch

from ..ir.graph import Value
from .context import RuleContext, rule

_BAGS = {0: "sum", 1: "mean", 2: "max"}


@rule("embedding_bag", "_embedding_bag")
def embedding_bag(c: RuleContext) -> list[Any]:
    """Bags of one size, as of indices (B,L): an embedding and a reduction over L."""
    if c.a["scale_grad_by_freq"]:
        raise c.unsupported("scale_grad_by_freq is not replayed")
    length, mode = _bag_length(c), _BAGS[int(c.a["mode"])]
    row = -1 if c.a.get("padding_idx") is None else int(c.a["padding_idx"])
    if length is None or (mode == "max" and row >= 0):
        return _ragged(c, mode, row)
    weight, flat = c.value("weight"), c.a["indices"]
    indices = c.derive(f"bags{length}", lambda i: i.reshape(-1, length), [flat])
    x = c.node(
        "embedding", [weight, indices], (*indices.shape, weight.shape[1]), {"padding_idx": row} if row >= 0 else {}
    ).value()
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
    count = c.derive(
        f"counts{length}_{row}",
        lambda i: (i.reshape(-1, length) != row).sum(1, keepdim=True).clamp(min=1).float(),
        [flat],
    )
    return [c.binary("div", total, count)]


def _ragged(c: RuleContext, mode: str, row: int) -> list[Any]:
    """Bags of any lengths, which offsets may give anew for each batch: the rows, added up into their bags."""
    weight, bags, last = c.value("weight"), c.out_shape(0)[0], bool(c.a["include_last_offset"])
    refs = [c.a["indices"], c.a["offsets"]]

    def bag_of(indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        starts = (offsets[:-1] if last else offsets).contiguous()
        return torch.bucketize(torch.arange(len(indices), device=indices.device), starts, right=True) - 1

    def counts(indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        kept = bag_of(indices, offsets)[indices != row]
        return torch.bincount(kept, minlength=bags).clamp(min=1).float().reshape(bags, 1)

    x = c.node(
        "embedding",
        [weight, c.integer("indices")],
        (*c.shape_of("indices"), weight.shape[1]),
        {"padding_idx": row} if row >= 0 else {},
    ).value()
    if mode == "max":
        return [_largest(c, x, bags, row, bag_of, refs)]
    if row >= 0:
        x = c.binary("mul", x, c.derive(f"kept{row}", lambda i: (i.reshape(-1, 1) != row).float(), [c.a["indices"]]))
    if c.has("per_sample_weights"):
        x = c.binary("mul", x, c.reshape(c.value("per_sample_weights"), (x.shape[0], 1)))
    shape = (bags, weight.shape[1])
    attrs = {"dim": 0, "shape": shape, "own_type": "none"}  # EmbeddingBag.cu, EmbeddingBag.cpp
    total = c.node("index_add", [x, c.derive("bag_of", bag_of, refs)], shape, attrs).value()
    return [total if mode == "sum" else c.binary("div", total, c.derive("counts", counts, refs))]


def _largest(c: RuleContext, x: Value, bags: int, row: int, bag_of: Any, refs: list[Any]) -> Value:
    """Of bags; padding goes to a bag of its own, which is cut off."""
    width = x.shape[1]

    def places(indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        found = torch.where(indices == row, bags, bag_of(indices, offsets))
        return found.reshape(-1, 1).expand(-1, width)

    shape = (bags + 1, width)
    found = c.node(
        "scatter_amax", [x, c.derive(f"bags_for_max{row}", places, refs)], shape, {"dim": 0, "shape": shape}
    ).value()
    return c.slice(found, 0, 0, bags)


def _bag_length(c: RuleContext) -> int | None:
    """Of all bags, None where the bags' borders depend on the batch, or differ."""
    offsets = c.constant("offsets")
    if offsets is None:
        return None
    count = c.shape_of("indices")[0]
    borders = offsets.tolist() + ([] if c.a["include_last_offset"] else [count])
    lengths = {b - a for a, b in zip(borders, borders[1:], strict=False)}
    if len(lengths) != 1 or 0 in lengths or borders[0] != 0 or borders[-1] != count:
        return None
    return int(lengths.pop())
