"""torch.autograd.grad in the traced pass: one call of the program, whatever PyTorch's engine runs for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .. import torch_api
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
    (engine, runs), (transforms, differentiates) = torch_api.ENGINE.place(), torch_api.GRAD_AND_VALUE.place()
    run_original, func_original = getattr(engine, runs), getattr(transforms, differentiates)

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
        setattr(engine, runs, run)
        setattr(transforms, differentiates, of_function)
        yield
    finally:
        setattr(engine, runs, run_original)
        setattr(transforms, differentiates, func_original)


def is_batched(value: Any) -> bool:
    """A tensor of torch.func.vmap and the like: what leaves them is a tensor like any other."""
    return any(
        isinstance(item, torch.Tensor) and (torch_api.IS_OF_FUNCTORCH(item) or torch_api.IS_BATCHED(item))
        for item in torch_api.LEAVES(value)
    )


def _depends_on_others(results: list[Any], leaves: list[torch.Tensor]) -> bool:
    """Whether autograd leads from the results to a leaf that is none of these."""
    seen: set[Any] = set()
    nodes = [result.grad_fn for result in results if isinstance(result, torch.Tensor)]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and all(variable is not leaf for leaf in leaves):
            return True
        nodes += [following for following, _ in node.next_functions]
    return False


def _gradient_and_value(func: Any, argnums: Any, has_aux: bool, args: list[Any], kwargs: Any) -> Any:
    """torch.func.grad_and_value by torch.autograd.grad, which runs the same kernels, on tensors that are not wrapped."""

    fresh: list[torch.Tensor] = []

    def own(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.requires_grad:
            return tensor.view_as(tensor)
        fresh.append(tensor.detach().requires_grad_())
        return fresh[-1]

    outside = torch.is_grad_enabled()
    with torch.enable_grad():
        places = [argnums] if isinstance(argnums, int) else list(argnums)
        for place in places:
            args[place] = torch_api.MAP_ONLY(torch.Tensor, own, args[place])
        chosen = args[argnums] if isinstance(argnums, int) else tuple(args[place] for place in places)
        result = func(*args, **kwargs)
        output = result[0] if has_aux else result
        leaves, spec = torch_api.FLATTEN(chosen)
        found = torch.autograd.grad(output, leaves, create_graph=True, allow_unused=True, materialize_grads=True)
    gradients = torch_api.UNFLATTEN(list(found), spec)
    if outside and _depends_on_others(torch_api.LEAVES((gradients, result)), fresh):
        return gradients, result
    return torch_api.MAP_ONLY(torch.Tensor, torch.Tensor.detach, (gradients, result))
