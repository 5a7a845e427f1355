"""Calls step_fn on a batch. Reports its own errors, and results that are not a loss, as step_fn's.

Knows nothing of graphs: these checks run before anything is traced.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from ..errors import CaptureError, first_line
from .user_code import is_user_file

StepFunction = Callable[[Any, Any], torch.Tensor]

_LONGEST = 160  # characters of a batch or a result in a message
_SHORT = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.uint8: "u8",
    torch.bool: "b1",
}


def type_of(tensor: torch.Tensor) -> str:
    """`f32[16,3,32,32]`."""
    return f"{_SHORT.get(tensor.dtype, tensor.dtype)}[{','.join(str(extent) for extent in tensor.shape)}]"


def raised(step_fn: StepFunction, batch: Any, error: Exception) -> CaptureError:
    """step_fn(model, batch) raised `error`, without tracing."""
    made = CaptureError(
        f"step_fn raised {first_line(error)}{_at(_innermost(error) or _defined(step_fn))}; it is called "
        f"as step_fn(model, batch), here with batch = {_shown(batch)}, and must return the loss"
    )
    made.__cause__ = error
    return made


def raised_in_fp32(step_fn: StepFunction, batch: Any, error: Exception) -> CaptureError:
    """step_fn(model, batch) works under the loop's autocast and raised `error` without."""
    made = CaptureError(
        f"step_fn needs the loop's autocast, without it it raised {first_line(error)}"
        f"{_at(_innermost(error))}, here with batch = {_shown(batch)}; a capture computes it in FP32, too: "
        "pass FP32 batches, and leave casts to autocast"
    )
    made.__cause__ = error
    return made


def calls_backward(line: str) -> CaptureError:
    return CaptureError(
        f"step_fn calls backward(){_at(line)}, must compute the loss and return it: backward(), "
        "optimizer.step() and zero_grad() belong in the loop"
    )


def check_result(step_fn: StepFunction, result: Any, trains: bool = True) -> None:
    """Throws: CaptureError where `result` is not a loss, or with `trains` one that backward() could not be called on."""
    wrong = _wrong_tensor(result, trains) if isinstance(result, torch.Tensor) else [_wrong_type(result)]
    if wrong:
        raise CaptureError(f"step_fn returned {'; '.join(wrong)}{_at(_defined(step_fn))}")


def _wrong_tensor(loss: torch.Tensor, trains: bool) -> list[str]:
    wrong = []
    if loss.numel() != 1:
        wrong.append(
            f"a loss of shape {list(loss.shape)}, must have one element: take its mean() or sum(), as the loop does"
            if trains
            else f"a result of shape {list(loss.shape)}, must be one number that says how good it is: its distance to the "
            "known answer, or result.mean(); the result itself is compared in every lane as the output of its layer"
        )
    if not loss.dtype.is_floating_point:
        wrong.append(f"a tensor of {str(loss.dtype).removeprefix('torch.')}, must be the loss, a floating number")
    elif trains and not loss.requires_grad:
        wrong.append(
            "a loss without gradient, must depend on weights that train: is it detached or computed under "
            "torch.no_grad(), is every parameter frozen?"
        )
    return wrong


def _wrong_type(result: Any) -> str:
    must = "must return the loss alone, a tensor"
    if result is None:
        return f"None, {must}: is a `return` missing?"
    if isinstance(result, (bool, int, float)):
        return f"a {type(result).__name__}, {must}: item() and float() cut it off from the weights"
    if isinstance(result, dict):
        return f"a {type(result).__name__}, {_shown(result)}, {must}: return result['loss'], or whatever its name is"
    if isinstance(result, (tuple, list)):
        return f"a {type(result).__name__}, {_shown(result)}, {must}: return result[0], or whichever item it is"
    return f"a {type(result).__name__}, {must}"


def _at(place: str) -> str:
    return f" ({place})" if place else ""


def _shown(value: Any) -> str:
    text = _contents(value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " …"


def _contents(value: Any) -> str:
    """Types in the place of tensors."""
    if isinstance(value, torch.Tensor):
        return type_of(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_contents(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        items = ", ".join(_contents(item) for item in value)
        return f"[{items}]" if isinstance(value, list) else f"({items},)" if len(value) == 1 else f"({items})"
    return repr(value)


def _innermost(error: BaseException) -> str:
    """The last line of user code that the error passed: "model.py:33"."""
    found, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if is_user_file(file):
            found = f"{os.path.basename(file)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _defined(step_fn: StepFunction) -> str:
    code = getattr(getattr(step_fn, "__func__", step_fn), "__code__", None)
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}" if code is not None else ""
