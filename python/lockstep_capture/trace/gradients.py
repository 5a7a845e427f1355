"""torch.autograd.grad in the traced pass: one call of the program, whatever PyTorch's engine runs for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.utils._pytree as pytree
from torch._functorch import eager_transforms

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
    """grad(), autograd.functional, torch.func.grad and backward() all end in PyTorch's function.

    Throws: CaptureError for backward().
    """
    engine: Any = torch.autograd
    run_original, func_original = engine._engine_run_backward, eager_transforms.grad_and_value_impl

    def run(outputs: Any, seeds: Any, retain: Any, create_graph: bool, inputs: Any, *args: Any, **more: Any) -> Any:
        if more.get("accumulate_grad"):  # it would change .grad
            raise calls_backward(user_line())
        with observing.aside():
            results = run_original(outputs, seeds, retain, create_graph, inputs, *args, **more)
        observing.take_gradient(Given(outputs, inputs, seeds, create_graph), results)
        return results

    def of_function(func: Any, argnums: Any, has_aux: bool, args: Any, kwargs: Any) -> Any:
        if is_batched((args, kwargs)):
            return func_original(func, argnums, has_aux, args, kwargs)
        return _gradient_and_value(func, argnums, has_aux, list(args), kwargs)

    try:
        engine._engine_run_backward, eager_transforms.grad_and_value_impl = run, of_function
        yield
    finally:
        engine._engine_run_backward, eager_transforms.grad_and_value_impl = run_original, func_original


def is_batched(value: Any) -> bool:
    """A tensor of torch.func.vmap and the like: what leaves them is a tensor like any other."""
    functorch = torch._C._functorch
    return any(
        isinstance(item, torch.Tensor)
        and (functorch.is_functorch_wrapped_tensor(item) or functorch.is_legacy_batchedtensor(item))
        for item in pytree.tree_leaves(value)
    )


def _gradient_and_value(func: Any, argnums: Any, has_aux: bool, args: list[Any], kwargs: Any) -> Any:
    """torch.func.grad_and_value by torch.autograd.grad, which runs the same kernels, on tensors that are not wrapped."""

    def own(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor) if tensor.requires_grad else tensor.detach().requires_grad_()

    with torch.enable_grad():
        places = [argnums] if isinstance(argnums, int) else list(argnums)
        for place in places:
            args[place] = pytree.tree_map_only(torch.Tensor, own, args[place])
        chosen = args[argnums] if isinstance(argnums, int) else tuple(args[place] for place in places)
        result = func(*args, **kwargs)
        output = result[0] if has_aux else result
        leaves, spec = pytree.tree_flatten(chosen)
        found = torch.autograd.grad(output, leaves, create_graph=True, allow_unused=True, materialize_grads=True)
        return pytree.tree_unflatten(list(found), spec), result
