"""What a training loop does in one block: autocast, backward, clipping, unscaling, the optimizer's step.

Functions are replaced while a block runs and always put back; the replacements only watch.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from .. import torch_api
from ..errors import Problem
from ..model_state import Subject
from ..trace.user_code import Place, own_place, user_line
from .gradient_hooks import gradient_hooks


@dataclass
class Clipping:
    max_norm: float = -1.0
    norm_type: float = 2.0
    norm: torch.Tensor | float = float("nan")  # before clipping; not read yet, which may wait for a GPU
    error_if_nonfinite: bool = False
    max_value: float = -1.0
    stage: str = "none"  # "unscaled", "scaled"

    @property
    def total_norm(self) -> float:
        return float(self.norm)


@dataclass
class Events:
    """What was seen. loss: the tensor of backward(), without the loss scale; ended: the optimizer's step() was called;
    places: where the loop first did what a name says, see trace/script_lines.py."""

    backward_count: int = 0
    loss: torch.Tensor | None = None
    clipping: Clipping = field(default_factory=Clipping)
    unscaled: bool = False
    stepped: bool = False
    ended: bool = False
    found_inf: bool = False
    looked_norm: torch.Tensor | float = math.nan  # of all gradients that the loop looked at; not read yet
    waits: bool = True  # for a GPU, where a fused optimizer's found_inf is there
    unread_found_inf: torch.Tensor | None = None
    cache_enabled: bool = True  # of every torch.autocast block before backward
    problems: list[Problem] = field(default_factory=list)
    places: dict[str, Place] = field(default_factory=dict)

    def note_place(self, name: str) -> None:
        if name not in self.places and (place := own_place()) is not None:
            self.places[name] = place

    def refuse(self, what: str, hint: str) -> None:
        self.add(Problem(what, "the loop", user_line(), hint))

    def add(self, problem: Problem) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


class Listener:
    """Called while a block runs."""

    def on_backward(self, loss: torch.Tensor) -> None:
        """Before the first backward."""

    def around_backward(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def on_backward_done(self) -> None:
        """After it: its gradients have been added to .grad."""

    def known_change(self) -> contextlib.AbstractContextManager[None]:
        """Around changes of gradients that a replay makes, too: unscale_, clip_grad_norm_."""
        return contextlib.nullcontext()

    def on_clamp(self, limit: float) -> None:
        """Before clip_grad_value_."""

    def on_gradients(self) -> None:
        """The gradients of the step are final: before the optimizer uses them, or leaves them."""

    def on_stepped(self) -> None:
        """After the optimizer's step."""


class Loop(Protocol):
    """A Subject, as far as backward() and what follows it are watched."""

    @property
    def optimizer(self) -> Any: ...
    @property
    def scaler(self) -> Any: ...
    @property
    def scales(self) -> bool: ...
    def raw_gradients(self) -> list[torch.Tensor]: ...


@contextlib.contextmanager
def watch(subject: Subject, events: Events, listener: Listener) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if subject.trains:
            stack.enter_context(gradient_hooks(subject.model, events.add))
        _watch_autocast(stack, events)
        watch_training(stack, subject, events, listener)
        yield


def watch_training(stack: contextlib.ExitStack, subject: Loop, events: Events, listener: Listener) -> None:
    """From backward() on."""
    _watch_backward(stack, subject, events, listener)
    _watch_clipping(stack, subject, events, listener)
    _watch_scalers(stack, subject, events, listener)
    if subject.optimizer is not None:
        _watch_optimizer(stack, subject, events, listener)


def replace(stack: contextlib.ExitStack, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    """owner.name = wrap(original) until the stack closes."""
    is_own = name in vars(owner)
    original = getattr(owner, name)
    setattr(owner, name, wrap(original))
    stack.callback(lambda: setattr(owner, name, original) if is_own else delattr(owner, name))


def _watch_autocast(stack: contextlib.ExitStack, events: Events) -> None:
    """A block may also enclose the whole loop."""
    events.cache_enabled = bool(torch.is_autocast_cache_enabled())

    def wrap(original: Any) -> Any:
        def enter(block: Any) -> Any:
            enabled, _, _, caches = torch_api.autocast_block(block)
            if enabled:
                events.note_place("autocast")
            if enabled and not events.backward_count:
                events.cache_enabled = events.cache_enabled and caches
            return original(block)

        return enter

    replace(stack, torch.autocast, "__enter__", wrap)


def _watch_backward(stack: contextlib.ExitStack, subject: Loop, events: Events, listener: Listener) -> None:
    running: list[bool] = []

    def wrap(original: Any) -> Any:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if running:  # a backward pass within another: a reentrant checkpoint
                return original(tensors, *args, **kwargs)
            root = tensors[0] if isinstance(tensors, (list, tuple)) else tensors
            events.backward_count += 1
            events.note_place("backward")
            is_the_first = events.backward_count == 1 and not events.ended
            if events.ended:
                events.refuse(
                    "backward() after optimizer.step() in one block",
                    "the block must hold forward pass, backward() and then the step of one micro-batch",
                )
            elif is_the_first:
                listener.on_backward(events.loss if events.loss is not None else root)
            running.append(True)
            try:
                with listener.around_backward():
                    result = original(tensors, *args, **kwargs)
            finally:
                running.clear()
            if is_the_first:
                listener.on_backward_done()
            return result

        return backward

    replace(stack, torch.autograd, "backward", wrap)


def _watch_clipping(stack: contextlib.ExitStack, subject: Loop, events: Events, listener: Listener) -> None:
    """At functions that clip_grad_norm_ and clip_grad_value_ call, which are found however those were imported."""
    seen = events.clipping

    def note(what: str, grads: list[torch.Tensor]) -> None:
        events.note_place("clipping")
        seen.stage = "scaled" if subject.scales and not events.unscaled else "unscaled"
        if {id(grad) for grad in grads} != {id(grad) for grad in subject.raw_gradients()}:
            events.refuse(
                f"{what} on other gradients than the optimizer's",
                "a replay clips all that the optimizer steps, together",
            )

    def wrap_total(original: Any) -> Any:
        def total(
            tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, *rest: Any, **more: Any
        ) -> Any:
            seen.norm_type = float(norm_type)
            seen.error_if_nonfinite = bool(error_if_nonfinite)
            return original(tensors, norm_type, error_if_nonfinite, *rest, **more)

        return total

    def wrap_clip(original: Any) -> Any:
        def clip(parameters: Any, max_norm: float, total_norm: torch.Tensor, *rest: Any, **more: Any) -> Any:
            parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            if max_norm == math.inf:  # the idiom for a look at the norm; factors are 1
                events.looked_norm = total_norm if seen.norm_type == Clipping.norm_type else math.nan
                seen.norm_type, seen.error_if_nonfinite = Clipping.norm_type, Clipping.error_if_nonfinite
                with listener.known_change():
                    return original(parameters, max_norm, total_norm, *rest, **more)
            if seen.max_norm >= 0 or seen.max_value >= 0:
                events.refuse("clip_grad_norm_ after another clipping", "a replay clips the norm first, and once")
            if not seen.norm_type > 0:
                events.refuse(f"clip_grad_norm_ with norm_type {seen.norm_type:g}", "it must be positive, or inf")
            if not max_norm > 0:
                events.refuse(f"clip_grad_norm_ with max_norm {max_norm:g}", "it must be positive")
            seen.max_norm, seen.norm = float(max_norm), total_norm
            note("clip_grad_norm_", [p.grad for p in parameters if p.grad is not None])
            with listener.known_change():
                return original(parameters, max_norm, total_norm, *rest, **more)

        return clip

    def wrap_grouping(original: Any) -> Any:
        def group(tensors: Any, *rest: Any, **more: Any) -> Any:
            caller = sys._getframe(1)
            if caller.f_code.co_name == "clip_grad_value_":
                if seen.max_value >= 0:
                    events.refuse("clip_grad_value_ called twice", "a replay clips values once")
                seen.max_value = float(caller.f_locals["clip_value"])
                if not 0 < seen.max_value < math.inf:
                    events.refuse(
                        f"clip_grad_value_ with clip_value {seen.max_value:g}", "it must be positive and finite"
                    )
                note("clip_grad_value_", tensors[0])
                listener.on_clamp(seen.max_value)
            return original(tensors, *rest, **more)

        return group

    replace(stack, *torch_api.TOTAL_NORM.place(), wrap_total)
    replace(stack, *torch_api.CLIP.place(), wrap_clip)
    replace(stack, *torch_api.GROUP_TENSORS.place(), wrap_grouping)


def _watch_scalers(stack: contextlib.ExitStack, subject: Loop, events: Events, listener: Listener) -> None:
    def wrap_any_scale(original: Any) -> Any:
        def scale(scaler: Any, outputs: Any) -> Any:
            if scaler is not subject.scaler and scaler.is_enabled():
                events.refuse("a GradScaler that the capture does not know", "Capture(..., scaler=scaler)")
            return original(scaler, outputs)

        return scale

    replace(stack, torch.amp.GradScaler, "scale", wrap_any_scale)
    if not subject.scales:
        return

    def wrap_scale(original: Any) -> Any:
        def scale(outputs: Any) -> Any:
            if isinstance(outputs, torch.Tensor):
                events.loss = outputs
            return original(outputs)

        return scale

    def wrap_unscale(original: Any) -> Any:
        def unscale(optimizer: Any) -> Any:
            if optimizer is not subject.optimizer:
                return original(optimizer)
            with listener.known_change():
                result = original(optimizer)
            events.unscaled = True
            return result

        return unscale

    def wrap_step(original: Any) -> Any:
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(optimizer, *args, **kwargs)
            if optimizer is subject.optimizer and not events.ended:  # no hook of the optimizer ran
                events.found_inf = events.ended = True
                listener.on_gradients()
            return result

        return step

    replace(stack, subject.scaler, "scale", wrap_scale)
    replace(stack, subject.scaler, "unscale_", wrap_unscale)
    replace(stack, subject.scaler, "step", wrap_step)


def _watch_optimizer(stack: contextlib.ExitStack, subject: Loop, events: Events, listener: Listener) -> None:
    optimizer = subject.optimizer
    assert optimizer is not None

    def reached() -> None:
        if events.ended:
            events.refuse(
                "two optimizer steps in one block, or a closure that runs twice",
                "one cap.step block per step; LBFGS and other line searches are not replayed",
            )
            return
        found_inf = getattr(optimizer, "found_inf", None)  # fused optimizers decide themselves
        if events.waits or found_inf is None:
            events.found_inf = found_inf is not None and float(found_inf) > 0
        else:
            events.unread_found_inf = found_inf.detach().clone()
        events.stepped = not events.found_inf
        events.ended = True
        listener.on_gradients()

    def before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A closure makes the gradients, so they exist after it: Lightning steps this way."""
        events.note_place("step")
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            return reached()

        def watched() -> Any:
            result = closure()
            reached()
            return result

        return (args[:1], {**kwargs, "closure": watched}) if len(args) < 2 else ((args[0], watched, *args[2:]), kwargs)

    def after(_: Any, args: Any, kwargs: Any) -> None:
        listener.on_stepped()

    around_step(stack, optimizer, before, after)


def around_step(
    stack: contextlib.ExitStack, optimizer: Any, before: Callable[..., Any], after: Callable[..., None]
) -> None:
    """Calls these as the hooks of torch.optim.Optimizer, also where an optimizer never called its __init__."""
    if hasattr(optimizer, "_optimizer_step_pre_hooks"):
        stack.callback(optimizer.register_step_pre_hook(before).remove)
        stack.callback(optimizer.register_step_post_hook(after).remove)
        return

    def wrap(original: Any) -> Any:
        def step(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = before(optimizer, (optimizer, *args), kwargs) or ((optimizer, *args), kwargs)
            result = original(*args[1:], **kwargs)
            after(optimizer, args, kwargs)
            return result

        return step

    replace(stack, optimizer, "step", wrap)


def gradient_factor(subject: Subject) -> float:
    """The factor for .grad: a fused optimizer gets gradients that are still scaled."""
    grad_scale = getattr(subject.optimizer, "grad_scale", None)
    return 1.0 if grad_scale is None else 1.0 / float(grad_scale)
