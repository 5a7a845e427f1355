"""Code under torch.compile runs uncompiled where a capture watches: compiled kernels show no ops.

Without this, torch.compile(fullgraph=True) fails in the loop: it cannot compile while a dispatch mode is active.
"""

from __future__ import annotations

import contextlib
import sys
import types
from typing import Any

import torch

from .reachable import reachable

_OF_MODULES = ("forward", "_compiled_call_impl")  # attributes of a compiled module, which is in the list itself


def uncompiled() -> contextlib.AbstractContextManager[None]:
    """torch.compile does nothing in it, wherever the loop put it."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else contextlib.nullcontext()


def compiled_parts(step_fn: Any, model: torch.nn.Module) -> list[str]:
    """Modules and functions that the loop has compiled, by the names by which step_fn reaches them."""
    found = [path for path, value in reachable(step_fn, model) if _is_compiled(value)]
    return [path or "the model" for path in found if path.rpartition(".")[2] not in _OF_MODULES]


def _is_compiled(value: Any) -> bool:
    if isinstance(value, torch.nn.Module):
        compiled = "OptimizedModule" in {kind.__name__ for kind in type(value).__mro__}
        return compiled or value._compiled_call_impl is not None or _is_compiled(type(value).forward)
    attributes = vars(value) if isinstance(value, (types.FunctionType, types.MethodType)) else {}
    return "_torchdynamo_orig_callable" in attributes and "_torchdynamo_disable" not in attributes


def step_is_compiled() -> bool:
    """Whether a hook of an optimizer runs within torch.compile(optimizer.step), or within a compiled step of the loop."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.endswith("eval_frame.py") and "callback" in code.co_freevars:  # not so in dynamo.disable
            return True
        frame = frame.f_back
    return False
