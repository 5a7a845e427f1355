"""A training loop of our own around a capture, on the user's model, which is as before afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch

from .. import torch_api
from ..errors import CaptureError
from ..ir.program import StepModule
from ..model_state import Subject
from ..trace.step_function import StepFunction
from ..trace.untouched import restored, untouched

Clip = Callable[[Iterable[torch.nn.Parameter]], object]


class Recording(Protocol):
    """A Capture, as far as a loop uses it."""

    @property
    def finished(self) -> bool: ...
    @property
    def has_steps(self) -> bool: ...
    def step(self, batch: Any) -> Any: ...
    def abandon(self) -> None: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, kind: Any, value: Any, trace: Any) -> None: ...


def record(
    cap: Recording,
    subject: Subject,
    loader: Iterable[Any],
    step_fn: StepFunction,
    *,
    scaler: Any,
    dtype: torch.dtype | None,
    clip: Clip | None,
    accumulate: int,
    divisor: int,
    on_backward: Callable[[torch.Tensor], None] = lambda loss: None,
    on_step: Callable[[], None] = lambda: None,
) -> None:
    """Trains until the capture has its steps, then puts everything back: weights, gradients, buffers, the optimizer's state, and
    what step_fn can reach (see untouched.py). The user's hooks of optimizers do not run.

    scaler: one whose state may change. dtype: of autocast. clip: of all weights, after unscaling. divisor: of each
    micro-batch's loss. on_backward: is called after each backward pass, with the loss that it started from, without its
    scale. on_step: before each step of the optimizer or the scaler, after clipping. Throws: CaptureError if the loader ends
    before the first step.
    """
    own, optimizer = subject.model, subject.optimizer
    weights = list(subject.params.values())
    with contextlib.ExitStack() as stack:
        stack.enter_context(untouched(StepModule(own, step_fn)))
        stack.enter_context(restored(weights, optimizer))
        stack.enter_context(_apart(optimizer))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(cap)
        for weight in weights:
            weight.grad = None
        for number, batch in enumerate(loader):
            with cap.step(batch):
                with torch.autocast(subject.device.type, dtype=dtype, enabled=dtype is not None):
                    loss = step_fn(own, batch) / divisor if divisor > 1 else step_fn(own, batch)
                if optimizer is not None:
                    (scaler.scale(loss) if scaler is not None else loss).backward()
                    on_backward(loss.detach())
                    if (number + 1) % accumulate == 0:
                        _optimizer_step(own, optimizer, scaler, clip, on_step)
            if cap.finished:
                return
        if not cap.has_steps:
            cap.abandon()
    if not cap.has_steps:
        raise CaptureError(f"loader: ended before the first optimizer step, must hold at least {accumulate} batches")


@contextlib.contextmanager
def _apart(optimizer: Any) -> Iterator[None]:
    """Without hooks of the optimizer, and without what a scaler has told a fused one about the loop's own step. Gradients of
    all its tensors are as before on the way out."""
    if optimizer is None:
        yield
        return
    tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    gradients = [tensor.grad for tensor in tensors]
    told = {name: vars(optimizer).pop(name) for name in ("grad_scale", "found_inf") if name in vars(optimizer)}
    hooks = [torch_api.ALL_PRE_HOOKS.get(), torch_api.ALL_POST_HOOKS.get()]
    for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        if hasattr(optimizer, name):
            hooks.append(getattr(optimizer, name))
    kept = [dict(own) for own in hooks]
    for own in hooks:
        own.clear()
    try:
        yield
    finally:
        for own, before in zip(hooks, kept, strict=True):
            own.clear()
            own.update(before)
        vars(optimizer).update(told)
        for tensor, gradient in zip(tensors, gradients, strict=True):
            tensor.grad = gradient


def _optimizer_step(
    own: torch.nn.Module, optimizer: Any, scaler: Any, clip: Clip | None, on_step: Callable[[], None]
) -> None:
    if clip is not None:
        if scaler is not None:
            scaler.unscale_(optimizer)
        clip(own.parameters())
    on_step()
    if scaler is not None:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    optimizer.zero_grad()
