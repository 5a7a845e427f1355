"""By which number did the loop multiply the step function's loss before backward?

Gate V0 at once: the replayed loss times that number must have the bits of the loop's.
"""

from __future__ import annotations

import torch

from .errors import CaptureError

MOST_MICRO_BATCHES = 4096


def loss_factor(replayed: torch.Tensor, seen: torch.Tensor, earlier: float | None = None) -> float:
    """1, or 1/k for k micro-batches averaged by hand, or the number that stands at the end of seen's graph.

    replayed, seen: scalars of one dtype. earlier: the factor of the micro-batch before, which is taken where the
    bits cannot tell (a loss that is infinite, NaN or 0). Throws: CaptureError where no such number gives seen's bits.
    """
    replayed, value = replayed.detach().reshape(()), seen.detach().reshape(())
    if replayed.dtype == value.dtype and not (bool(replayed.isfinite()) and bool(replayed != 0)):
        factor = earlier if earlier is not None else _written_factor(seen) or 1.0
        if _same(replayed * factor, value):
            return factor
    elif _same(replayed, value):
        return 1.0
    if replayed.dtype == value.dtype and bool(replayed.isfinite()):
        counts = torch.arange(1, MOST_MICRO_BATCHES + 1, device=value.device)
        for quotients in (replayed / counts, replayed * (1.0 / counts.double()).to(torch.float64).float()):
            hits = (quotients.to(value.dtype) == value).nonzero()
            if len(hits):
                return 1.0 / (int(hits[0]) + 1)
        factor = _written_factor(seen)
        if factor is not None and _same(replayed * factor, value):
            return factor
    raise CaptureError(
        f"gate V0: the traced graph gives the loss {float(replayed):.9g}, the loop called backward on "
        f"{float(value):.9g}; step_fn(model, batch) must compute the loop's loss bit for bit. Does the loop open "
        "torch.autocast (autocast=...)? Is its batch the block's? Does the forward pass depend on values, or on state "
        "outside of the model?")


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and (bool(a == b) or bool(a.isnan() & b.isnan()))


def _written_factor(seen: torch.Tensor) -> float | None:
    """s of `loss * s`, 1/s of `loss / s`, read from the autograd graph."""
    node = seen.grad_fn
    if node is None or node.name() not in ("MulBackward0", "DivBackward0"):
        return None
    other = getattr(node, "_saved_other", None)
    if not isinstance(other, torch.Tensor) or other.numel() != 1 or not bool(other != 0):
        return None
    return float(other) if node.name() == "MulBackward0" else 1 / float(other)
