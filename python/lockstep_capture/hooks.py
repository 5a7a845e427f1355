"""What a training loop does in one block: backward, clipping, unscaling, the optimizer's step.

Functions are replaced while a block runs and put back whatever happens; none does anything but look.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator

import torch
from torch.nn.utils import clip_grad

from .errors import Problem
from .model_state import Subject


@dataclass
class Clipping:
    max_norm: float = -1.0
    norm_type: float = 2.0
    total_norm: float = float("nan")
    error_if_nonfinite: bool = False
    stage: str = "none"  # "unscaled", "scaled"


@dataclass
class Events:
    """What was seen. loss: what backward was called on, loss scale taken off; ended: the optimizer was asked to step."""

    backward_count: int = 0
    loss: torch.Tensor | None = None
    clipping: Clipping = field(default_factory=Clipping)
    unscaled: bool = False
    stepped: bool = False
    ended: bool = False
    found_inf: bool = False
    problems: list[Problem] = field(default_factory=list)


@contextlib.contextmanager
def watch(subject: Subject, events: Events, on_backward: Callable[[torch.Tensor], None],
          on_gradients: Callable[[], None]) -> Iterator[None]:
    """Calls on_backward(loss) before each backward, on_gradients() when the gradients of the step are final."""
    with contextlib.ExitStack() as stack:
        _watch_backward(stack, subject, events, on_backward)
        _watch_clipping(stack, subject, events)
        if subject.scales:
            _watch_scaler(stack, subject, events, on_gradients)
        if subject.optimizer is not None:
            _watch_optimizer(stack, subject, events, on_gradients)
        yield


def _replace(stack: contextlib.ExitStack, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    """owner.name = wrap(original) until the stack closes."""
    is_own = name in vars(owner)
    original = getattr(owner, name)
    setattr(owner, name, wrap(original))
    stack.callback(lambda: setattr(owner, name, original) if is_own else delattr(owner, name))


def _watch_backward(stack: contextlib.ExitStack, subject: Subject, events: Events,
                    on_backward: Callable[[torch.Tensor], None]) -> None:
    def wrap(original: Any) -> Any:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            root = tensors[0] if isinstance(tensors, (list, tuple)) else tensors
            events.backward_count += 1
            if events.backward_count == 1:
                on_backward(events.loss if events.loss is not None else root)
            return original(tensors, *args, **kwargs)
        return backward

    _replace(stack, torch.autograd, "backward", wrap)
    if subject.scales:
        def wrap_scale(original: Any) -> Any:
            def scale(outputs: Any) -> Any:
                if isinstance(outputs, torch.Tensor):
                    events.loss = outputs
                return original(outputs)
            return scale

        _replace(stack, subject.scaler, "scale", wrap_scale)


def _watch_clipping(stack: contextlib.ExitStack, subject: Subject, events: Events) -> None:
    """At the two halves of clip_grad_norm_, which are found however it was imported."""
    def wrap_total(original: Any) -> Any:
        def total(tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, *rest: Any, **more: Any) -> Any:
            events.clipping.norm_type = float(norm_type)
            events.clipping.error_if_nonfinite = bool(error_if_nonfinite)
            return original(tensors, norm_type, error_if_nonfinite, *rest, **more)
        return total

    def wrap_clip(original: Any) -> Any:
        def clip(parameters: Any, max_norm: float, total_norm: torch.Tensor, *rest: Any, **more: Any) -> Any:
            seen = events.clipping
            seen.max_norm, seen.total_norm = float(max_norm), float(total_norm)
            seen.stage = "scaled" if subject.scales and not events.unscaled else "unscaled"
            return original(parameters, max_norm, total_norm, *rest, **more)
        return clip

    def wrap_value(original: Any) -> Any:
        def by_value(*args: Any, **kwargs: Any) -> Any:
            events.problems.append(Problem("clip_grad_value_", hint="clip_grad_norm_ is replayed"))
            return original(*args, **kwargs)
        return by_value

    _replace(stack, clip_grad, "_get_total_norm", wrap_total)
    _replace(stack, clip_grad, "_clip_grads_with_norm_", wrap_clip)
    for module in (clip_grad, torch.nn.utils):
        _replace(stack, module, "clip_grad_value_", wrap_value)


def _watch_scaler(stack: contextlib.ExitStack, subject: Subject, events: Events,
                  on_gradients: Callable[[], None]) -> None:
    def wrap_unscale(original: Any) -> Any:
        def unscale(optimizer: Any) -> Any:
            result = original(optimizer)
            if optimizer is subject.optimizer:
                events.unscaled = True
            return result
        return unscale

    def wrap_step(original: Any) -> Any:
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(optimizer, *args, **kwargs)
            if optimizer is subject.optimizer:
                if not events.stepped:
                    events.found_inf = True
                    on_gradients()  # no hook of the optimizer ran
                events.ended = True
            return result
        return step

    _replace(stack, subject.scaler, "unscale_", wrap_unscale)
    _replace(stack, subject.scaler, "step", wrap_step)


def _watch_optimizer(stack: contextlib.ExitStack, subject: Subject, events: Events,
                     on_gradients: Callable[[], None]) -> None:
    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if events.ended:
            events.problems.append(Problem("two optimizer steps in one block", hint="one cap.step block per step"))
            return
        found_inf = getattr(optimizer, "found_inf", None)  # fused optimizers decide themselves
        events.found_inf = found_inf is not None and float(found_inf) > 0
        events.stepped = not events.found_inf
        events.ended = True
        on_gradients()

    handle = subject.optimizer.register_step_pre_hook(before)
    stack.callback(handle.remove)


def gradient_factor(subject: Subject) -> float:
    """By what .grad must be multiplied: a fused optimizer is handed gradients that are still scaled."""
    grad_scale = getattr(subject.optimizer, "grad_scale", None)
    return 1.0 if grad_scale is None else 1.0 / float(grad_scale)
