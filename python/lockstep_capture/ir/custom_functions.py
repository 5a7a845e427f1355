"""A torch.autograd.Function in a program: its forward ops, its backward ops, and a call that joins the two.

dy = gradient_of(result, 0)             one per result; in a forward pass it is 1 everywhere
dx = mul(dy, c)                         calls of the backward pass, with Call.backward_of "custom_gradient"
out = custom_gradient([result], [x], [dx])   the results; their gradients make those of the operands
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .program import Call, Program

_LIBRARY = torch.library.Library("lockstep_capture", "DEF")
_LIBRARY.define("gradient_of(Tensor result, int slot) -> Tensor")
_LIBRARY.define("custom_gradient(Tensor[] results, Tensor[] operands, Tensor?[] gradients) -> Tensor[]")
GRADIENT_OF: Any = torch.ops.lockstep_capture.gradient_of.default
CUSTOM_GRADIENT: Any = torch.ops.lockstep_capture.custom_gradient.default


def backward_calls(program: Program, name: str) -> tuple[list[Call], list[Call]]:
    """Of the function whose call of custom_gradient has that name: gradient_of for each result, and what follows them."""
    calls = [call for call in program.calls if call.backward_of == name]
    return (
        [call for call in calls if call.target is GRADIENT_OF],
        [call for call in calls if call.target is not GRADIENT_OF],
    )


Backward = Callable[[Sequence[torch.Tensor]], list[torch.Tensor | None]]


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, backward: Backward, results: list[torch.Tensor], *operands: torch.Tensor) -> Any:
        ctx.lockstep_backward = backward
        return tuple(result.detach() for result in results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return (None, None, *ctx.lockstep_backward(gradients))


def with_backward(results: list[torch.Tensor], operands: list[torch.Tensor], backward: Backward) -> list[torch.Tensor]:
    """The results, whose gradients `backward` makes those of the operands."""
    return list(_Function.apply(backward, results, *operands))
