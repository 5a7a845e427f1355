"""F.pad's modes that repeat elements of x, as one index per dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..ir.graph import Value

# Which of n elements is at place p, which may lie outside of 0 .. n - 1.
_PLACES: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "reflect": lambda p, n: (n - 1) - ((n - 1) - p.abs()).abs(),
    "replicate": lambda p, n: p.clamp(0, n - 1),
    "circular": lambda p, n: p % n,
}


def padded(c: Any, x: Value, pads: Sequence[int], mode: str) -> Value:
    """pads: before and after the last dimension, then the one before it, ..."""
    if mode not in _PLACES:
        raise c.unsupported(f"mode {mode!r}; " + ", ".join(["constant", *_PLACES]) + " are replayed")

    def places(extent: int, before: int, after: int) -> torch.Tensor:
        return _PLACES[mode](torch.arange(-before, extent + after), extent)

    for pair, dim in zip(range(0, len(pads), 2), range(x.rank - 1, -1, -1), strict=False):
        before, after = int(pads[pair]), int(pads[pair + 1])
        if (before, after) != (0, 0):
            extent = x.shape[dim]
            index = c.derive(f"pad_{mode}_{extent}_{before}_{after}", places, [extent, before, after])
            shape = x.shape[:dim] + index.shape + x.shape[dim + 1 :]
            x = c.node("index_select", [x, index], shape, {"dim": dim, "gradient_own_type": "both"}).value()
    return x
