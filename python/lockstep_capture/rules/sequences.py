"""CTC loss."""

from __future__ import annotations

from typing import Any

import torch

from ..ir.graph import Value
from ..ir.program import Ref
from .context import RuleContext, rule
from .losses import reduction_of


@rule("ctc_loss")
def ctc_loss(c: RuleContext) -> Value:
    """The mean is over the samples, each divided by its number of labels."""
    x = c.value("log_probs")
    if x.rank == 2:
        x = c.reshape(x, (x.shape[0], 1, x.shape[1]))
    samples = x.shape[1]
    times, counts = (_lengths(c, name) for name in ("input_lengths", "target_lengths"))
    inputs = [
        c.derive(f"{name}{key}", made, refs) for name, (refs, made, key) in (("times", times), ("labels", counts))
    ]
    lines = c.a["targets"]

    def padded(targets: torch.Tensor, *lengths: torch.Tensor) -> torch.Tensor:
        """(N,S), of targets one after the other, too."""
        if targets.dim() == 2:
            return targets
        found = torch.zeros(samples, max(targets.numel(), 1), dtype=torch.int64)
        for row, part in enumerate(targets.cpu().split(counts[1](*lengths).tolist())):
            found[row, : len(part)] = part
        return found

    refs = [lines, *counts[0]]
    targets = c.derive(f"targets{samples}{counts[2]}", padded, refs)
    attrs = {"blank": int(c.a["blank"]), "zero_infinity": bool(c.a["zero_infinity"])}
    terms = c.node("ctc_loss", [x, targets, *inputs], (samples,), attrs).value()
    reduction = reduction_of(c)["reduction"]
    if reduction == "none":
        return c.reshape(terms, c.out_shape())
    if reduction == "mean":
        divisor = c.derive(f"label_counts{counts[2]}", lambda *value: counts[1](*value).clamp(min=1).float(), counts[0])
        terms = c.binary("div", terms, divisor)
    return c.reduce(reduction, terms, None)


def _lengths(c: RuleContext, name: str) -> tuple[list[Any], Any, str]:
    """As tensors of the batch, or as numbers of the call."""
    given = c.a[name]
    if isinstance(given, Ref):
        return [given], lambda value: value.reshape(-1).long().cpu(), ""
    numbers = [int(item) for item in (given if isinstance(given, (list, tuple)) else [given])]
    return [], lambda: torch.tensor(numbers), "_".join(map(str, ["", *numbers]))
