"""Random draws from the forward pass to the end of the step: masks in one bit an element, in host memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class PackedMask:
    """A mask of zeros and ones, and the tensor that it was."""

    bits: np.ndarray
    shape: torch.Size
    dtype: torch.dtype


Kept = PackedMask | torch.Tensor


def kept(draw: torch.Tensor, kind: str) -> Kept:
    """kind: of the site (random_ops.py). Noise is unchanged."""
    if kind == "noise":
        return draw
    return PackedMask(packed(draw), draw.shape, draw.dtype)


def unpacked(draw: Kept) -> torch.Tensor:
    """The draw again; a mask in host memory."""
    if isinstance(draw, torch.Tensor):
        return draw
    bits = np.unpackbits(draw.bits, count=draw.shape.numel())
    return torch.from_numpy(bits).reshape(draw.shape).to(draw.dtype)


def packed(mask: torch.Tensor) -> np.ndarray:
    """numpy.packbits of what is not zero."""
    return np.packbits(mask.detach().ne(0).cpu().reshape(-1).numpy())
