"""How far the results of a part's copy are from the run's."""

from __future__ import annotations

import torch


def distance(own: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """0.0: the same bits; else the norm of the difference over the norm, without numbers that are not finite in both alike.
    Infinite where names or shapes differ, or one has a finite number where the other has none."""
    if own.keys() != theirs.keys() or any(own[name].shape != theirs[name].shape for name in own):
        return float("inf")
    off = norm = 0.0
    for name, tensor in own.items():
        other = theirs[name].to(tensor.device)
        if tensor.dtype == other.dtype and torch.equal(_bits(tensor), _bits(other)):
            norm += float(other.detach().abs().double().nan_to_num(0, 0, 0).square().sum())
            continue
        a, b = tensor.detach().double(), other.detach().double()
        differ = ~((a == b) | (a.isnan() & b.isnan()))
        if not bool((a - b)[differ].isfinite().all()):
            return float("inf")
        off += float((a - b)[differ].square().sum())
        norm += float(b.nan_to_num(0, 0, 0).square().sum())
    return 0.0 if off == 0 else (off / norm) ** 0.5 if norm > 0 else float("inf")


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    widths = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    plain = tensor.detach().contiguous()
    return plain.view(widths[plain.element_size()]) if plain.dtype in _FLOATS else plain


_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
