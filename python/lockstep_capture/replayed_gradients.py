"""Are the loop's gradients those of step_fn's loss? Gate V0 for the backward pass, on verify steps.

Hooks on tensors, gradients changed by hand and backward passes written by hand leave the loss as it is. Same
kernels, same precision: on a CPU both sides are equal to the bit. BOUND leaves room for atomic sums on GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping

import torch

from .errors import CaptureError
from .hooks import Clipping

BOUND = 2.0**-4     # of a parameter's gradient: 16 times the unit roundoff of BF16
SMALLEST = 2.0**-6  # of the largest norm: what is smaller may be rounding and nothing else
_TINY = 1e-6        # clip_grad_norm_'s guard


@dataclass
class Replayed:
    """Scaled gradients of the replayed losses, summed as the loop's are. paths: parameters that the optimizer has."""

    paths: set[str]
    scale: float
    grads: dict[str, torch.Tensor] = field(default_factory=dict)

    def add(self, loss: torch.Tensor, params: Mapping[str, torch.Tensor], factor: float) -> None:
        wanted = {path: tensor for path, tensor in params.items() if path in self.paths and tensor.requires_grad}
        found = torch.autograd.grad(loss, list(wanted.values()), torch.full_like(loss, factor * self.scale),
                                    allow_unused=True)
        for path, grad in zip(wanted, found, strict=True):
            if grad is not None:
                self.grads[path] = self.grads[path] + grad if path in self.grads else grad

    def clipped(self, clipping: Clipping) -> dict[str, torch.Tensor]:
        """As they entered the optimizer."""
        factor = 1 / self.scale
        if clipping.max_norm >= 0:
            factor *= min(1.0, clipping.max_norm / (clipping.total_norm + _TINY))
        limit = clipping.max_value / (self.scale if clipping.stage == "scaled" else 1.0)
        grads = {path: grad.detach().cpu().double() * factor for path, grad in self.grads.items()}
        return {path: grad.clamp(-limit, limit) for path, grad in grads.items()} if limit >= 0 else grads


def check_gradients(replayed: Replayed, seen: Mapping[str, torch.Tensor], clipping: Clipping) -> None:
    """Throws: CaptureError where a parameter's gradient is another one than the replayed losses give."""
    expected = replayed.clipped(clipping)
    if not all(bool(grad.isfinite().all()) for grad in expected.values()):
        return
    largest = max((float(grad.norm()) for grad in expected.values()), default=0.0)
    nothing, far = torch.zeros(()), {}
    for path in sorted({*expected, *seen}):
        own, loops = expected.get(path, nothing), seen.get(path, nothing).double()
        difference, size = float((loops - own).norm()), float(own.norm())
        if not difference <= BOUND * (size + SMALLEST * largest):
            far[path] = f"{path} is {difference:.3g} away from that of step_fn's loss, whose norm is {size:.3g}"
    if far:
        raise CaptureError(
            f"the loop's gradient of {next(iter(far.values()))}; must be within {BOUND:.2g} of it ({len(far)} "
            "parameters are not): hooks that change gradients, gradients changed by hand and backward passes written "
            "by hand cannot be replayed")
