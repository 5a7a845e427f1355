"""The tensors of a batch: in tuples, lists and dicts, and in objects that hold them by name.

By name they are held by mappings (BatchEncoding), dataclasses, objects with keys() and [key] (Data of PyTorch Geometric),
and objects with tensors as attributes. step_fn gets a copy of the object; the loop's own is never written to.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from .. import torch_api
from ..errors import CaptureError


def leaves_of(batch: Any, device: torch.device | None = None) -> tuple[list[Any], list[str]]:
    """The batch's leaves in order and their paths, "batch[0]" or "batch['ids']"."""
    paths, found = [], []
    for path, leaf in _flat(batch, "batch"):
        paths.append(path)
        found.append(leaf.to(device) if device is not None and isinstance(leaf, torch.Tensor) else leaf)
    return found, paths


def with_tensors(change: Callable[[torch.Tensor], torch.Tensor], batch: Any, within: tuple[int, ...] = ()) -> Any:
    """The batch with change(tensor) in the place of each tensor. Throws: CaptureError for an object that shares what it
    holds with its copy."""

    def changed(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return change(leaf)
        parts = _parts(leaf)
        if parts is None:
            return leaf
        inside = _entered(leaf, "batch", within)
        return _rebuilt(leaf, {key: with_tensors(change, parts[key], inside) for key in parts})

    return torch_api.MAP(changed, batch)


def _entered(value: Any, path: str, within: tuple[int, ...]) -> tuple[int, ...]:
    """Throws: CaptureError for an object that holds itself."""
    if id(value) in within:
        raise CaptureError(
            f"{path}: a {type(value).__name__} holds itself; give a dict of the tensors that step_fn reads"
        )
    return (*within, id(value))


def _flat(value: Any, path: str, within: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    for keys, leaf in torch_api.FLATTEN_WITH_PATH(value)[0]:
        place, parts = path + torch_api.KEYSTR(keys), _parts(leaf)
        if parts is None:
            yield place, leaf
            continue
        inside = _entered(leaf, place, within)
        for key, item in parts.items():
            yield from _flat(item, f"{place}[{key!r}]" if _has_keys(leaf) else f"{place}.{key}", inside)


def _has_keys(value: Any) -> bool:
    return isinstance(value, Mapping) or (hasattr(value, "keys") and hasattr(value, "__setitem__"))


def _parts(value: Any) -> dict[Any, Any] | None:
    """What an object holds by name; None: it is a leaf."""
    if isinstance(value, (torch.Tensor, torch.nn.Module, type)):
        return None
    if _has_keys(value):
        keys = value.keys() if callable(value.keys) else value.keys
        return {key: value[key] for key in keys}
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    held = getattr(value, "__dict__", {})
    return dict(held) if any(isinstance(item, torch.Tensor) for item in held.values()) else None


def _rebuilt(value: Any, parts: dict[Any, Any]) -> Any:
    if not _has_keys(value):
        made = copy.copy(value)
        for name, item in parts.items():
            object.__setattr__(made, name, item)  # frozen ones, too
        return made
    # Of those that give the same object whenever they are asked.
    before = {key: item for key, item in (_parts(value) or {}).items() if value[key] is item}
    try:
        if not hasattr(value, "__setitem__"):
            return type(value)(parts)
        made = copy.copy(value)
        for name, held in getattr(made, "__dict__", {}).items():
            if type(held) is dict and held is vars(value).get(name):
                vars(made)[name] = dict(held)
        for key, item in parts.items():
            made[key] = item
    except Exception as error:
        raise _not_copied(value) from error
    if any(value[key] is not item for key, item in before.items()):
        for key, item in before.items():
            value[key] = item
        raise _not_copied(value)
    return made


def _not_copied(value: Any) -> CaptureError:
    return CaptureError(
        f"batch: a {type(value).__name__} cannot be copied with other tensors (copy.copy shares what it holds, or its "
        "class takes no dict); must be possible, or give dict(batch)"
    )
