"""torch.func.vmap in the traced pass: an op on a tensor of a vmap is seen once more as the ops on whole tensors that
PyTorch makes of it. Those are recorded."""

from __future__ import annotations

import threading
from typing import Any

import torch

from .. import torch_api
from ..torch_api import HAS_KERNEL, op_schema

_STATE = threading.local()  # passed: within how many calls of passed_on() this thread is


def in_vmap(args: Any, kwargs: Any) -> bool:
    """Does vmap work on this call, and no other transform of torch.func?"""
    keys = torch_api.DISPATCH_KEY.get()
    calls = getattr(_STATE, "passed", 0) > 0 and torch_api.IS_EXCLUDED(keys.FuncTorchDynamicLayerFrontMode)
    stack = torch_api.TRANSFORMS() or ()
    if not calls and not (stack and any(map(_is_wrapped, torch_api.LEAVES((args, kwargs))))):
        return False
    return all(one.key() == torch_api.VMAP.get() for one in stack)


def _is_wrapped(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and bool(torch_api.IS_OF_FUNCTORCH(value))


def passed_on(func: Any, args: Any, kwargs: Any) -> Any:
    """Calls what the dispatcher has for the op after its pre-dispatch key."""
    keys = torch_api.DISPATCH_KEY.get()
    args = tuple(_as_tensor(argument, value) for argument, value in zip(op_schema(func).arguments, args, strict=False))
    found = torch_api.INCLUDED()
    for item in torch_api.LEAVES((args, kwargs)):
        if isinstance(item, torch.Tensor):
            found = found | torch_api.KEYS_OF(item)
    found = (found - torch_api.EXCLUDED()) & torch_api.KEYS_AFTER(keys.PreDispatch)
    if not HAS_KERNEL(func.name(), "FuncTorchVmapMode"):  # the dispatcher passes such a key by, redispatch() does not
        found = found.remove(keys.FuncTorchVmapMode)
    found = found.remove(keys.AutocastCPU).remove(keys.AutocastCUDA)  # casts belong to the ops that are recorded
    _STATE.passed = getattr(_STATE, "passed", 0) + 1
    try:
        return func.redispatch(found.remove(keys.PythonDispatcher), *args, **kwargs)
    finally:
        _STATE.passed -= 1


def _as_tensor(argument: Any, value: Any) -> Any:
    """A number where the op takes a tensor: the dispatcher has made one of it for its kernels."""
    is_number = isinstance(value, (bool, int, float)) and str(argument.type) == "Tensor"
    return torch.tensor(value) if is_number else value
