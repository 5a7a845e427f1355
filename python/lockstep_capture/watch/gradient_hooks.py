"""Hooks that change gradients or weights during backward(): a replay has none, so they are refused where they do.

Hooks that only look are no obstacle. They are watched in every captured step, on all devices: those of parameters and
modules, and those that the forward pass gives to its activations.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..errors import Problem

_INSTEAD = (
    "clip_grad_norm_ and clip_grad_value_ are replayed; for anything else pass the tensor through a torch.autograd.Function "
    "with that backward(), a weight as a parametrization (torch.nn.utils.parametrize)"
)
_STEPS = "capture steps in which the optimizer's step() follows backward()"


@contextlib.contextmanager
def gradient_hooks(model: torch.nn.Module, refuse: Callable[[Problem], None]) -> Iterator[None]:
    """Around a forward pass and its backward(), whose hooks are called through others that compare."""

    def registering(tensor: torch.Tensor, hook: Any) -> Any:
        return original(tensor, _on_gradient(hook, "", refuse))

    original = torch.Tensor.register_hook
    wrapped: list[tuple[Any, Any, Any]] = []
    for path, module in model.named_modules():
        _wrap(wrapped, module._backward_hooks, _on_module, path, refuse)
        _wrap(wrapped, module._backward_pre_hooks, _on_module, path, refuse)
    for path, parameter in model.named_parameters():
        _wrap(wrapped, parameter._backward_hooks, _on_gradient, path, refuse)
        _wrap(wrapped, getattr(parameter, "_post_accumulate_grad_hooks", None), _on_parameter, path, refuse)
    torch.Tensor.register_hook = registering  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.register_hook = original  # type: ignore[method-assign]
        for hooks, key, hook in wrapped:
            if key in hooks:
                hooks[key] = hook


def _wrap(wrapped: list[tuple[Any, Any, Any]], hooks: Any, wrap: Any, path: str, refuse: Any) -> None:
    for key, hook in list((hooks or {}).items()):
        wrapped.append((hooks, key, hook))
        hooks[key] = wrap(hook, path, refuse)


def _on_module(hook: Any, path: str, refuse: Callable[[Problem], None]) -> Any:
    """grads[0] is what the result replaces: of the module's operands, or, before it, of its results."""

    @functools.wraps(hook)
    def watched(module: torch.nn.Module, *grads: Any) -> Any:
        before = [x.clone() for x in _listed(grads[0]) if x is not None]
        found = hook(module, *grads)
        after = [x for x in _listed(grads[0] if found is None else found) if x is not None]
        if not all(map(_same, before, after)):
            refuse(_problem("a hook of a module that changes gradients", hook, path, _INSTEAD))
        return found

    return watched


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _on_gradient(hook: Any, path: str, refuse: Callable[[Problem], None]) -> Any:
    @functools.wraps(hook)
    def watched(grad: torch.Tensor) -> Any:
        before = grad.detach().clone()
        found = hook(grad)
        if not _same(before, grad if found is None else found):
            what = "a hook of a parameter that changes its gradient" if path else "a hook that changes a gradient"
            refuse(_problem(what, hook, path, _INSTEAD))
        return found

    return watched


def _on_parameter(hook: Any, path: str, refuse: Callable[[Problem], None]) -> Any:
    @functools.wraps(hook)
    def watched(parameter: torch.Tensor) -> Any:
        weight, grad = parameter.detach().clone(), parameter.grad
        before = None if grad is None else grad.detach().clone()
        found = hook(parameter)
        if not _same(weight, parameter) or (before is not None and parameter.grad is None):
            refuse(_problem("a hook of a parameter that updates it in backward()", hook, path, _STEPS))
        elif before is not None and not _same(before, parameter.grad):
            refuse(_problem("a hook of a parameter that changes its gradient", hook, path, _INSTEAD))
        return found

    return watched


def _same(before: torch.Tensor, after: Any) -> bool:
    if after.shape != before.shape or after.dtype != before.dtype or after.layout != before.layout:
        return False
    if before.layout != torch.strided:
        before, after = before.to_dense(), after.to_dense()
    return bool(((before == after) | (before.isnan() & after.isnan())).all())


def _problem(what: str, hook: Any, path: str, hint: str) -> Problem:
    """path: of the parameter or module. The line is that of the hook, where it is written in Python."""
    plain = inspect.unwrap(getattr(hook, "func", hook))
    code = getattr(plain, "__code__", None)
    source = "" if code is None else f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"
    return Problem(what, path, source, hint)
