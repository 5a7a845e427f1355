"""Finds the number by which the loop multiplied the step function's loss before backward.

This is also gate V0: the replayed loss times that number must have the bits of the loop's.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..errors import CaptureError

MOST_MICRO_BATCHES = 4096
MOST_NUMBERS = 8  # of a chain such as loss * n / total


def loss_factor(replayed: torch.Tensor, seen: torch.Tensor, earlier: float | None = None) -> float:
    """1, or the product of the numbers that end seen's graph, or 1/k for k micro-batches averaged by hand.

    replayed, seen: scalars of one dtype. earlier: the factor of the previous micro-batch, used where the
    bits do not decide (a loss that is infinite, NaN or 0). Throws: CaptureError where no such number gives seen's bits.
    """
    replayed, value = replayed.detach().reshape(()), seen.detach().reshape(())
    if replayed.dtype == value.dtype and not (bool(replayed.isfinite()) and bool(replayed != 0)):
        factor = earlier if earlier is not None else (written_factors(seen, replayed) or [1.0])[-1]
        if _same(replayed * factor, value):
            return factor
    elif _same(replayed, value):
        return 1.0
    if replayed.dtype == value.dtype and bool(replayed.isfinite()):
        written = written_factors(seen, replayed)
        if written:
            return written[-1]
        counts = torch.arange(1, MOST_MICRO_BATCHES + 1, device=value.device)
        for quotients in (replayed / counts, replayed * (1.0 / counts.double()).to(torch.float64).float()):
            hits = (quotients.to(value.dtype) == value).nonzero()
            if len(hits):
                return 1.0 / (int(hits[0]) + 1)
    raise CaptureError(
        f"gate V0: the traced graph gives the loss {float(replayed):.9g}, the loop called backward on "
        f"{float(value):.9g}; step_fn(model, batch) must compute the loop's loss bit for bit. Does the loop open "
        "torch.autocast (autocast=...)? Is its batch the block's? Does the forward pass depend on values, or on state "
        "outside of the model?"
    )


def check_result(replayed: torch.Tensor, seen: torch.Tensor) -> None:
    """Gate V0 of inference. Throws: CaptureError unless both have the same bits."""
    replayed = replayed.detach().reshape(())
    if not _same(replayed, seen.reshape(())):
        raise CaptureError(
            f"gate V0: the traced graph gives {float(replayed):.9g}, step_fn {float(seen):.9g}: must have the same bits. Does "
            "the loop open torch.autocast (autocast=...)? Did the block run the forward pass of step_fn, once? Does it "
            "depend on values, or on state outside of the model?"
        )


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and (bool(a == b) or bool(a.isnan() & b.isnan()))


def written_factors(seen: torch.Tensor, replayed: torch.Tensor) -> list[float]:
    """[c] of `loss * c`, [n, n / d] of `loss * n / d` and the like, where these numbers make seen's bits of replayed's."""
    steps: list[tuple[float, bool]] = []
    for step in _numbers_behind(seen):
        steps.insert(0, step)
        value, products = replayed.detach().reshape(()), [1.0]
        for number, divides in steps:
            value = value / number if divides else value * number
            products.append(products[-1] / number if divides else products[-1] * number)
        if _same(value, seen.detach().reshape(())):
            return products[1:]
    return []


def _numbers_behind(seen: torch.Tensor) -> Iterator[tuple[float, bool]]:
    """The numbers that a loss was multiplied with or divided by, the last one first, read from the autograd graph."""
    node = seen.grad_fn
    for _ in range(MOST_NUMBERS):
        if node is None or node.name() not in ("MulBackward0", "DivBackward0"):
            return
        is_first = node.next_functions[0][0] is not None  # the loss; `number * loss` has it second
        number = getattr(node, "_saved_other" if is_first else "_saved_self", None)
        divides = node.name() == "DivBackward0"
        if not isinstance(number, torch.Tensor) or number.numel() != 1 or not bool(number != 0):
            return
        if divides and not is_first:
            return
        if float(number) != 1:  # Accelerate divides by 1
            yield float(number), divides
        node = node.next_functions[0 if is_first else 1][0]
