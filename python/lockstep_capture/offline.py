"""capture(): its own training loop, for users without one. Afterwards model and optimizer are as before."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable
from typing import Any

import torch

from .arguments import check_loop_arguments
from .capture import Capture
from .model_state import Subject
from .trace.step_function import StepFunction
from .trace.user_code import shown_to_users
from .trigger.own_loop import record


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
    subject = Subject(model, optimizer, scaler, trains=optimizer is not None)
    own_scaler = copy.deepcopy(scaler)
    cap = Capture(
        path, subject.model, subject.optimizer, step_fn, scaler=own_scaler, autocast=autocast, steps=steps, **options
    )

    def clip(weights: Iterable[torch.nn.Parameter]) -> None:
        assert clip_grad_norm is not None
        torch.nn.utils.clip_grad_norm_(weights, clip_grad_norm)

    record(
        cap,
        subject,
        loader,
        step_fn,
        scaler=own_scaler,
        dtype=cap.dtype,
        clip=None if clip_grad_norm is None else clip,
        accumulate=accumulate,
        divisor=accumulate,
    )
