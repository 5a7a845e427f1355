"""Copies in host memory of what a running step holds, made without waiting for the device."""

from __future__ import annotations

import enum
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch

from .. import torch_api
from ..model_state import dense


def is_distributed(tensor: torch.Tensor) -> bool:
    return any(kind.__name__ == "DTensor" for kind in type(tensor).__mro__)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as one process would hold it. Of a distributed one: all ranks of its mesh must call this."""
    plain = tensor.detach()
    return plain.full_tensor() if is_distributed(plain) else plain  # type: ignore[attr-defined]


class Copies:
    """From a GPU they arrive in pinned memory some time later: wait() before they are read."""

    def __init__(self) -> None:
        self.bytes = 0
        self._devices: set[torch.device] = set()

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        own = whole(tensor)
        own = dense(own)
        self.bytes += own.numel() * own.element_size()
        if own.device.type == "cpu":
            return own.clone(memory_format=torch.contiguous_format)
        self._devices.add(own.device)
        kept = torch.empty(own.shape, dtype=own.dtype, pin_memory=True)
        return kept.copy_(own, non_blocking=True)

    def keep_all(self, values: Any) -> Any:
        """Of nested arguments: tuples, lists, dicts and what PyTorch knows to flatten."""
        kept: dict[int, torch.Tensor] = {}  # an argument given twice stays one

        def one(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return as_it_is(value)
            if id(value) not in kept:
                kept[id(value)] = self.keep(value)
            return kept[id(value)]

        return torch_api.MAP(one, values)

    def wait(self) -> None:
        for device in self._devices:  # CUDA's alone
            torch.cuda.synchronize(device)


def as_it_is(value: Any, made: dict[int, Any] | None = None) -> Any:
    """An object that calls change, such as a cache of keys and values, with all that it holds: a copy with containers of its
    own. Its tensors are shared, without their gradients. What is no plain object stays itself."""
    made = {} if made is None else made
    if id(value) in made:
        return made[id(value)]
    if isinstance(value, torch.Tensor):
        return value.detach()
    if type(value) in (list, tuple, set, dict):
        items = value.items() if isinstance(value, dict) else value
        copied = [as_it_is(item, made) for item in items]
        return dict(copied) if isinstance(value, dict) else type(value)(copied)
    if isinstance(value, _SHARED) or type(value).__module__.partition(".")[0] in ("torch", "builtins"):
        return value
    if not hasattr(value, "__dict__"):
        return value
    try:
        new = object.__new__(type(value))
    except TypeError:  # made in C
        return value
    made[id(value)] = new
    vars(new).update({name: as_it_is(item, made) for name, item in vars(value).items()})
    return new


_SHARED = (torch.nn.Module, type, enum.Enum, types.FunctionType, types.MethodType, types.ModuleType)


def leaves_by_name(values: Any, root: str) -> dict[str, Any]:
    """Leaves of a result by path: "last_hidden_state", "[0]"; root where it is one tensor."""
    return {_plain(torch_api.KEYSTR(keys)) or root: leaf for keys, leaf in torch_api.FLATTEN_WITH_PATH(values)[0]}


def _plain(path: str) -> str:
    """`['hidden_states'][0]` -> hidden_states[0]."""
    if path.startswith("['") and (end := path.find("']")) > 0:
        return path[2:end] + path[end + 2 :]
    return path


def arguments_by_name(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Leaves of a call's arguments by path: "hidden_states", "position_embeddings[0]", in the order of flattening."""
    try:
        own = list(inspect.signature(forward).parameters.values())
    except (TypeError, ValueError):  # written in C
        own = []
    positional = [one.name for one in own if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    found = {}
    for keys, leaf in torch_api.FLATTEN_WITH_PATH((args, kwargs))[0]:
        if keys[0].idx == 1:
            name = str(keys[1].key)
        else:
            name = positional[keys[1].idx] if keys[1].idx < len(positional) else f"args[{keys[1].idx}]"
        found[name + torch_api.KEYSTR(keys[2:])] = leaf
    return found
