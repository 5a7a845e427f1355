"""capture(): its own training loop on a copy of the model, for users without a loop."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable
from typing import Any

import torch

from .arguments import check_loop_arguments
from .capture import Capture
from .errors import CaptureError
from .model_state import Subject
from .trace.step_function import StepFunction


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
    """Trains a copy for `steps` steps and captures it; the model given is left as it is.

    accumulate: micro-batches per optimizer step. Further options as in Capture. It takes only as many batches from
    the loader as it captures. Throws: CaptureError if the loader ends before the first step.
    """
    check_loop_arguments(loader, accumulate, clip_grad_norm)
    original = Subject(model, optimizer, scaler)
    twin, twin_optimizer, twin_scaler = copy.deepcopy((original.model, original.optimizer, scaler))
    cap = Capture(path, twin, twin_optimizer, step_fn, scaler=twin_scaler, autocast=autocast, steps=steps, **options)
    device, dtype = original.device.type, cap._dtype
    with torch.random.fork_rng(), torch.enable_grad(), cap:
        for number, batch in enumerate(loader):
            with cap.step(batch):
                with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
                    loss = step_fn(twin, batch) / accumulate if accumulate > 1 else step_fn(twin, batch)
                (twin_scaler.scale(loss) if twin_scaler is not None else loss).backward()
                if (number + 1) % accumulate == 0:
                    _optimizer_step(twin, twin_optimizer, twin_scaler, clip_grad_norm)
            if cap.finished:
                return
        if not cap._done:
            cap._abandon()
    if not cap._done:
        raise CaptureError(f"loader: ended before the first optimizer step, must hold at least {accumulate} batches")


def _optimizer_step(model: torch.nn.Module, optimizer: Any, scaler: Any, clip_grad_norm: float | None) -> None:
    if clip_grad_norm is not None:
        if scaler is not None:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip_grad_norm)
    if scaler is not None:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    optimizer.zero_grad()
