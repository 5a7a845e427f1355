"""torch.autograd.grad in the traced pass: one call of the program, whatever PyTorch's engine runs for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .step_function import calls_backward
from .user_code import user_line


@dataclass
class Given:
    """What the engine was given. seeds: a gradient for each output, None: ones."""

    outputs: Sequence[torch.Tensor]
    inputs: Sequence[torch.Tensor]
    seeds: Sequence[torch.Tensor | None]
    create_graph: bool


class Observing(Protocol):
    """What a mode offers that runs step_fn."""

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """Nothing within is recorded."""

    def take_gradient(self, given: Given, results: Sequence[torch.Tensor | None]) -> None:
        """Records one call of the engine."""


@contextlib.contextmanager
def inner_gradients(observing: Observing) -> Iterator[None]:
    """grad(), autograd.functional and backward() all end in PyTorch's function. Throws: CaptureError for backward()."""
    engine: Any = torch.autograd
    run_original = engine._engine_run_backward

    def run(
        outputs: Any, seeds: Any, retain: Any, create_graph: bool, inputs: Any, *args: Any, accumulate_grad: bool
    ) -> Any:
        if accumulate_grad:  # it would change .grad
            raise calls_backward(user_line())
        with observing.aside():
            results = run_original(outputs, seeds, retain, create_graph, inputs, *args, accumulate_grad=False)
        observing.take_gradient(Given(outputs, inputs, seeds, create_graph), results)
        return results

    try:
        engine._engine_run_backward = run
        yield
    finally:
        engine._engine_run_backward = run_original
