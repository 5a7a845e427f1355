"""Checks that the loop's gradients are those of step_fn's loss: gate V0 for the backward pass, on verify steps.

Hooks that change gradients and backward passes written by hand leave the loss as it is. Checked right after
backward(), before anything unscales or clips: same kernels, same precision, same order of sums, so that both sides
have the same bits (4300 gradients of the tests' models, under FP32, BF16 and FP16: no difference). Two things end
that: sums with atomics, in any order, and a loss multiplied twice by numbers (a scale that is no power of two among
them), whose product is known to an ulp only. There ROOM is left. From here on continuity.py watches the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from ..errors import CaptureError
from ..ir.program import Program
from ..ir.random_ops import base_name
from ..model_state import as_real, dense

ROOM = 2.0**-4  # of a parameter's gradient, where bits may differ: 16 times the unit roundoff of BF16
SMALLEST = 2.0**-6  # of the largest norm: anything smaller may be rounding only
_ATOMIC_ON_CPUS = "aten.index"  # x[i, j]; its backward pass adds up with atomics in several threads


def is_repeatable(program: Program, device: torch.device) -> bool:
    """Whether a backward pass has the same bits every time."""
    return device.type == "cpu" and (
        torch.get_num_threads() == 1
        or all(call.is_getitem or base_name(call) != _ATOMIC_ON_CPUS for call in program.calls)
    )


@dataclass
class Replayed:
    """Scaled gradients of the replayed losses, summed as the loop's are. paths: parameters that the optimizer has;
    exact: they must have the bits of the loop's."""

    paths: set[str]
    scale: float
    grads: dict[str, torch.Tensor] = field(default_factory=dict)
    exact: bool = True

    def add(self, loss: torch.Tensor, params: Mapping[str, torch.Tensor], factor: float, repeatable: bool) -> None:
        wanted = {path: tensor for path, tensor in params.items() if path in self.paths and tensor.requires_grad}
        found = torch.autograd.grad(
            loss, list(wanted.values()), torch.full_like(loss, factor * self.scale), allow_unused=True
        )
        for path, grad in zip(wanted, found, strict=True):
            if grad is not None:
                grad = as_real(dense(grad))
                self.grads[path] = self.grads[path] + grad if path in self.grads else grad
        is_power = math.frexp(self.scale)[0] == 0.5
        self.exact = self.exact and repeatable and (is_power or factor == 1)

    def room(self) -> float:
        """Units: of a parameter's gradient's norm."""
        return 0.0 if self.exact else ROOM


def check_gradients(replayed: Replayed, seen: Mapping[str, torch.Tensor]) -> None:
    """seen: as backward() left them. Throws: CaptureError if they differ from those of the replayed losses."""
    room, expected = replayed.room(), replayed.grads
    if room and not all(bool(grad.isfinite().all()) for grad in expected.values()):
        return
    largest = max((float(grad.double().norm()) for grad in expected.values()), default=0.0)
    far = {}
    for path in sorted({*expected, *seen}):
        own, loops = expected.get(path), seen.get(path)
        own = torch.zeros_like(loops) if own is None and loops is not None else own
        loops = torch.zeros_like(own) if loops is None and own is not None else loops
        assert own is not None and loops is not None
        if bool(((own == loops) | (own.isnan() & loops.isnan())).all()):
            continue
        difference, size = float((loops.double() - own.double()).norm()), float(own.double().norm())
        if not difference <= room * (size + SMALLEST * largest):
            far[path] = f"{path} is {difference:.3g} away from that of step_fn's loss, whose norm is {size:.3g}"
    if far:
        limit = f"be within {room:.2g} of it" if room else "have its bits"
        raise CaptureError(
            f"the loop's gradient of {next(iter(far.values()))}; must {limit} ({len(far)} parameters do not): hooks that "
            "change gradients and backward passes written by hand cannot be replayed"
        )
