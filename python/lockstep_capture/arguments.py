"""What is wrong with the arguments of a capture, before training begins."""

from __future__ import annotations

import os
from typing import Any

import torch

from .errors import CaptureError
from .model_state import unwrap_optimizer

_DTYPES = {"float16": torch.float16, "fp16": torch.float16, "half": torch.float16,
           "bfloat16": torch.bfloat16, "bf16": torch.bfloat16}


def check_arguments(path: str, optimizer: Any, step_fn: Any, *, scaler: Any, autocast: str | torch.dtype | None,
                    steps: int, verify: set[int], on_unsupported: str) -> torch.dtype | None:
    """The dtype of autocast. Throws: CaptureError with all that is wrong."""
    problems = [*_path_problems(path), *_object_problems(optimizer, scaler, step_fn)]
    if steps < 1:
        problems.append(f"steps: is {steps}, must be at least 1")
    if on_unsupported not in ("error", "report"):
        problems.append(f"on_unsupported: is {on_unsupported!r}, must be 'error' or 'report'")
    dtype = _DTYPES.get(autocast) if isinstance(autocast, str) else autocast
    if autocast is not None and dtype not in _DTYPES.values():
        problems.append(f"autocast: is {autocast!r}, must be one of {', '.join(_DTYPES)} or None")
    outside = sorted(number for number in verify if not 0 <= number < steps)
    if outside:
        problems.append(f"verify: has {outside}, must be in [0, {steps})")
    if problems:
        raise CaptureError("; ".join(problems))
    return dtype


def _path_problems(path: str) -> list[str]:
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        return [f"path: {path} is a folder, must be a file"]
    if not os.path.isdir(folder):
        return [f"path: the folder {folder} does not exist"]
    return [] if os.access(folder, os.W_OK) else [f"path: the folder {folder} cannot be written to"]


def _object_problems(optimizer: Any, scaler: Any, step_fn: Any) -> list[str]:
    problems = []
    try:
        unwrap_optimizer(optimizer)
    except CaptureError as error:
        problems.append(str(error))
    if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
        problems.append(f"scaler: is a {type(scaler).__name__}, must be a torch.amp.GradScaler or None")
    if not callable(step_fn):
        problems.append(f"step_fn: is a {type(step_fn).__name__}, must be a function of model and batch")
    return problems
