"""A part of a batch: the first rows, and the first tokens of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..errors import CaptureError
from .calls import is_float


@dataclass(frozen=True)
class Extents:
    """Of the tensor that the module works on: batch, tokens (1: it has no such dimension)."""

    rows: int
    tokens: int
    has_tokens: bool


def extents_of(leaves: dict[str, Any], name: str) -> Extents:
    """From the first floating tensor among the arguments."""
    for leaf in leaves.values():
        if isinstance(leaf, torch.Tensor) and leaf.dtype.is_floating_point and leaf.dim() >= 2:
            return Extents(leaf.shape[0], leaf.shape[1], True) if leaf.dim() >= 3 else Extents(leaf.shape[0], 1, False)
    raise CaptureError(
        f"{name}: has no tensor of two dimensions or more that could be cut: leave tokens= and rows= out"
    )


@dataclass(frozen=True)
class Slice:
    """How much of the extents is kept."""

    whole: Extents
    rows: int
    tokens: int

    @property
    def cuts(self) -> bool:
        return self.rows < self.whole.rows or self.tokens < self.whole.tokens

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Rows where the first extent is the batch's, tokens along every dimension but the last of as many, or the last two
        where both have as many: an attention mask."""
        cut = tensor
        if cut.dim() and self.rows < self.whole.rows and cut.shape[0] == self.whole.rows:
            cut = cut[: self.rows]
        if self.whole.has_tokens and self.tokens < self.whole.tokens:
            for dimension in self._token_dimensions(cut):
                cut = cut.narrow(dimension, 0, self.tokens)
        return cut.contiguous()

    def _token_dimensions(self, tensor: torch.Tensor) -> list[int]:
        as_many = [d for d, extent in enumerate(tensor.shape) if extent == self.whole.tokens]
        first = 1 if tensor.dim() > 1 and tensor.shape[0] in (self.whole.rows, self.rows) else 0
        last = tensor.dim() - 1
        if self._is_activation(tensor):
            return [1]
        found = [d for d in as_many if first <= d < last]
        if last in as_many and (tensor.dim() == 1 or last - 1 in found or (not found and not is_float(tensor))):
            found.append(last)  # a row of positions, a mask of tokens by tokens, ids
        return found

    def _is_activation(self, tensor: torch.Tensor) -> bool:
        """Batch, tokens, width: the width may be as many."""
        rows = tensor.dim() == 3 and is_float(tensor) and tensor.shape[0] in (self.whole.rows, self.rows)
        return rows and tensor.shape[1] == self.whole.tokens


def slice_of(extents: Extents, tokens: int | None, rows: int | None) -> Slice:
    """tokens: of all rows together."""
    kept_rows = min(rows or extents.rows, extents.rows)
    kept = extents.tokens
    if tokens is not None:
        if extents.has_tokens:
            kept_rows = min(kept_rows, max(1, tokens // extents.tokens))
            kept = min(kept, max(1, tokens // kept_rows))
        else:
            kept_rows = min(kept_rows, tokens)
    return Slice(extents, kept_rows, kept)
