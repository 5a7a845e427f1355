"""capture(): its own training loop, for users without one. Afterwards model and optimizer are as before."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .arguments import check_loop_arguments
from .capture import Capture
from .errors import CaptureError
from .ir.program import StepModule
from .model_state import Subject
from .trace.step_function import StepFunction
from .trace.untouched import restored, untouched
from .trace.user_code import shown_to_users

Clip = Callable[[Iterable[torch.nn.Parameter]], object]


@shown_to_users
def capture(
    path: str | os.PathLike[str],
    model: torch.nn.Module,
    optimizer: Any,
    loader: Iterable[Any],
    step_fn: StepFunction,
    *,
    steps: int = 8,
    scaler: Any = None,
    autocast: str | torch.dtype | None = None,
    clip_grad_norm: float | None = None,
    accumulate: int = 1,
    **options: Any,
) -> None:
    """Trains the model for `steps` steps, captures them, and puts everything back: weights, gradients, buffers, the
    optimizer's state, and what step_fn can reach (see untouched.py).

    optimizer: None for inference: forward passes, without training. accumulate: micro-batches per optimizer step. Further options as in Capture. It takes only as many batches from
    the loader as it captures. Throws: CaptureError if the loader ends before the first step.
    """
    check_loop_arguments(loader, accumulate, clip_grad_norm, optimizer)

    def clip(weights: Iterable[torch.nn.Parameter]) -> None:
        assert clip_grad_norm is not None
        torch.nn.utils.clip_grad_norm_(weights, clip_grad_norm)

    capture_steps(
        path,
        Subject(model, optimizer, scaler, trains=optimizer is not None),
        loader,
        step_fn,
        scaler=copy.deepcopy(scaler),
        autocast=autocast,
        clip=None if clip_grad_norm is None else clip,
        accumulate=accumulate,
        divisor=accumulate,
        steps=steps,
        **options,
    )


def capture_steps(
    path: str | os.PathLike[str],
    subject: Subject,
    loader: Iterable[Any],
    step_fn: StepFunction,
    *,
    scaler: Any,
    autocast: str | torch.dtype | None,
    clip: Clip | None,
    accumulate: int,
    divisor: int,
    on_backward: Callable[[torch.Tensor], None] = lambda loss: None,
    on_step: Callable[[], None] = lambda: None,
    **options: Any,
) -> None:
    """scaler: one whose state may change. clip: of all weights, after unscaling. divisor: of each micro-batch's loss.
    on_backward: is called after each backward pass, with the loss that it started from, without its scale. on_step: before
    each step of the optimizer or the scaler, after clipping."""
    own, optimizer = subject.model, subject.optimizer
    cap = Capture(path, own, optimizer, step_fn, scaler=scaler, autocast=autocast, **options)
    device, dtype = subject.device.type, cap._dtype
    weights = list(subject.params.values())
    with untouched(StepModule(own, step_fn)), restored(weights, optimizer), torch.enable_grad(), cap:
        for weight in weights:
            weight.grad = None
        for number, batch in enumerate(loader):
            with cap.step(batch):
                with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
                    loss = step_fn(own, batch) / divisor if divisor > 1 else step_fn(own, batch)
                if optimizer is not None:
                    (scaler.scale(loss) if scaler is not None else loss).backward()
                    on_backward(loss.detach())
                    if (number + 1) % accumulate == 0:
                        _optimizer_step(own, optimizer, scaler, clip, on_step)
            if cap.finished:
                return
        if not cap._done:
            cap._abandon()
    if not cap._done:
        raise CaptureError(f"loader: ended before the first optimizer step, must hold at least {accumulate} batches")


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
