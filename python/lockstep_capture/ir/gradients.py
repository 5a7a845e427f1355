"""torch.autograd.grad in a program: one call, and the values that it differentiates by.

found = gradient([loss], [x], [ones], True)   loss, x and ones are values of the program
dx = getitem(found, 0)                        with a graph of its own, if create_graph was set
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .program import Program

_LIBRARY = torch.library.Library("lockstep_capture", "FRAGMENT")
_LIBRARY.define("gradient(Tensor[] outputs, Tensor[] inputs, Tensor?[] seeds, bool create_graph) -> Tensor[]")
GRADIENT: Any = torch.ops.lockstep_capture.gradient.default


def differentiated(program: Program) -> set[str]:
    """Names of the values that some call of the program differentiates by."""
    return {ref.name for call in program.calls if call.target is GRADIENT for ref in call.args[1]}


def gradients(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    seeds: Sequence[torch.Tensor | None],
    create_graph: bool,
) -> list[torch.Tensor | None]:
    """None for inputs that no output depends on. The graph of the outputs is kept: the loss may need it as well."""
    typed = [None if seed is None else seed.to(output.dtype) for seed, output in zip(seeds, outputs, strict=True)]
    found = torch.autograd.grad(outputs, inputs, typed, retain_graph=True, create_graph=create_graph, allow_unused=True)
    return list(found)
