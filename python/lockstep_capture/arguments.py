"""Checks the arguments of a capture before training begins."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Iterable
from typing import Any

import torch

from .errors import CaptureError
from .model_state import unwrap_optimizer
from .torch_api import warn_if_newer
from .write.writer import MAGIC

_SHOWN_PATHS = 8  # of modules, where none is near

_DTYPES = {
    "float16": torch.float16,
    "fp16": torch.float16,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
}


def dtype_of(autocast: str | torch.dtype | None) -> torch.dtype | None:
    """Throws: CaptureError for anything that is not a dtype of autocast."""
    warn_if_newer(torch.__version__)
    dtype, problems = _dtype_of(autocast)
    if problems:
        raise CaptureError(problems[0])
    return dtype


def check_arguments(
    path: Any,
    optimizer: Any,
    step_fn: Any,
    *,
    scaler: Any,
    autocast: str | torch.dtype | None,
    steps: int,
    verify: Iterable[int] | None,
    on_unsupported: str,
) -> torch.dtype | None:
    """The dtype of autocast. Throws: CaptureError with all that is wrong."""
    warn_if_newer(torch.__version__)
    dtype, problems = _dtype_of(autocast)
    problems = [*_capture_problems(path), *_object_problems(optimizer, scaler, step_fn), *problems]
    if on_unsupported not in ("error", "report"):
        problems.append(f"on_unsupported: is {on_unsupported!r}, must be 'error' or 'report'")
    problems += count_problems("steps", steps) or _verify_problems(verify, steps)
    if problems:
        raise CaptureError("; ".join(problems))
    return dtype


def check_waiting(optimizer: Any, times: Any, cooldown: Any, max_bytes: Any) -> None:
    """Those that go with when=. Throws: CaptureError with all that is wrong."""
    problems = count_problems("times", times)
    problems += [] if max_bytes is None else count_problems("max_bytes", max_bytes)
    if not isinstance(cooldown, int) or isinstance(cooldown, bool) or cooldown < 0:
        problems.append(f"cooldown: is {cooldown!r}, must be a whole number of at least 0")
    if optimizer is None:
        problems.append("when: without an optimizer there is no step to wait for")
    if problems:
        raise CaptureError("; ".join(problems))


def check_not_waiting(**given: tuple[Any, Any]) -> None:
    """given: value and default of what goes with when=. Throws: CaptureError for what would be ignored without it."""
    names = [name for name, (value, default) in given.items() if value != default]
    if names:
        raise CaptureError(f'{", ".join(names)}: only with when=, as when="fault"')


def check_loop_arguments(loader: Any, accumulate: int, clip_grad_norm: float | None, optimizer: Any) -> None:
    """Those of capture(), which Capture lacks. Throws: CaptureError with all that is wrong."""
    problems = count_problems("accumulate", accumulate)
    if optimizer is None and (accumulate != 1 or clip_grad_norm is not None):
        problems.append("accumulate, clip_grad_norm: without an optimizer, which is inference, there are no gradients")
    if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
        problems.append(f"loader: is a {type(loader).__name__}, must give batches in a for loop")
    if clip_grad_norm is not None and not (isinstance(clip_grad_norm, (int, float)) and 0 < clip_grad_norm < math.inf):
        problems.append(f"clip_grad_norm: is {clip_grad_norm!r}, must be positive and finite, or None for no clipping")
    if problems:
        raise CaptureError("; ".join(problems))


def check_watched(patterns: list[Any], modules: Iterable[str]) -> None:
    """modules: those that compute something. Throws: CaptureError with all that match none, and the nearest paths."""
    paths, problems = set(), []
    for module in modules:
        parts = module.split(".")
        paths |= {".".join(parts[: i + 1]) for i in range(len(parts)) if module}
    for pattern in patterns:
        name = pattern.removeprefix("log_probs/") if isinstance(pattern, str) else ""
        matches = re.compile(re.escape(name).replace(r"\*", ".*").replace(r"\?", "."))
        if "," not in name and any(matches.fullmatch(path) for path in paths):
            continue
        near = difflib.get_close_matches(name, paths, cutoff=0.5) or sorted(paths)[:_SHOWN_PATHS]
        problems.append(
            f"watch: {pattern!r} is not the path of a module that computes something, nor a pattern of one; "
            f"near: {', '.join(near)}"
        )
    if problems:
        raise CaptureError("; ".join(problems))


def _dtype_of(autocast: str | torch.dtype | None) -> tuple[torch.dtype | None, list[str]]:
    dtype = _DTYPES.get(autocast) if isinstance(autocast, str) else autocast
    if autocast is None or dtype in _DTYPES.values():
        return dtype, []
    return None, [f"autocast: is {autocast!r}, must be one of {', '.join(_DTYPES)} or None"]


def count_problems(name: str, value: Any) -> list[str]:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return []
    return [f"{name}: is {value!r}, must be a whole number of at least 1"]


def _verify_problems(verify: Any, steps: int) -> list[str]:
    if verify is None:
        return []
    if not isinstance(verify, Iterable) or not all(isinstance(number, int) for number in verify):
        return [f"verify: is {verify!r}, must be numbers of steps, e.g. [0, {steps - 1}]"]
    outside = sorted(number for number in verify if not 0 <= number < steps)
    return [f"verify: has {outside}, must be in [0, {steps})"] if outside else []


def path_problems(path: Any, example: str) -> list[str]:
    """Of a file that is to be written; what may be replaced is the caller's to say."""
    if not isinstance(path, (str, os.PathLike)):
        return [f"path: is a {type(path).__name__}, must be the name of a file, e.g. {example!r}"]
    if not os.fspath(path):
        return [f"path: is '', must be the name of a file, e.g. {example!r}"]
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        return [f"path: {path} is a folder, must be a file"]
    if os.path.exists(path) and not os.path.isfile(path):
        return [f"path: {path} is a device or pipe, must be a file"]
    if not os.path.isdir(folder):
        return [f"path: the folder {folder} does not exist"]
    if not os.access(folder, os.W_OK):
        return [f"path: the folder {folder} cannot be written to"]
    return []


def scaler_problems(scaler: Any) -> list[str]:
    if scaler is None or isinstance(scaler, torch.amp.GradScaler):
        return []
    return [f"scaler: is a {type(scaler).__name__}, must be a torch.amp.GradScaler or None"]


def model_problems(model: Any) -> list[str]:
    if isinstance(model, torch.nn.Module):
        return []
    return [f"model: is a {type(model).__name__}, must be a torch.nn.Module"]


def _capture_problems(path: Any) -> list[str]:
    problems = path_problems(path, "run.lscap.h5")
    if problems or _may_replace(path):
        return problems
    return [f"path: {path} exists and is not a capture, must be a new name or an older capture"]


def _may_replace(path: str | os.PathLike[str]) -> bool:
    """The path is free, or holds an empty file or a capture."""
    if not os.path.exists(path):
        return True
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) in (b"", MAGIC)


def _object_problems(optimizer: Any, scaler: Any, step_fn: Any) -> list[str]:
    problems = []
    try:
        if optimizer is not None:
            unwrap_optimizer(optimizer)
    except CaptureError as error:
        problems.append(str(error))
    if optimizer is None and scaler is not None:
        problems.append(
            "scaler: without an optimizer, which is inference, there are no gradients to scale: leave it out"
        )
    else:
        problems += scaler_problems(scaler)
    if not callable(step_fn):
        problems.append(f"step_fn: is a {type(step_fn).__name__}, must be a function of model and batch")
    return problems
