"""Finds what a step function can reach in addition to model and batch.

What it closes over, the globals that it names, its own object, default arguments; and from there attributes of
modules and items of containers. Not seen: what it gets by calling something, attributes of imported modules.
"""

from __future__ import annotations

import contextlib
import functools
import random
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from .user_code import is_user_file

GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
CONTAINERS = (list, dict, set)
_LEAVES = (*GENERATORS, torch.Tensor, torch.nn.Module)
_MOST_ITEMS = 64  # of a container that is looked into: longer ones are data
_TABLES = ("_parameters", "_buffers", "_modules")  # of a torch.nn.Module


def reachable(step_fn: Any, model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Every object once, with the name by which the user knows it: `teacher.fc.weight`."""
    seen: set[int] = set()
    left: list[tuple[str, Any]] = [("", step_fn), ("", model)]  # the model's own names come first
    while left:
        path, value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield path, value
        left.extend(_children(path, value))


def named_globals(function: types.FunctionType) -> list[str]:
    """The globals that its code, and code within, names."""
    codes, names = [function.__code__], []
    for code in codes:  # grows on the way
        names += [name for name in code.co_names if name in function.__globals__]
        codes += [item for item in code.co_consts if isinstance(item, types.CodeType)]
    return names


def cells(function: types.FunctionType) -> dict[str, Any]:
    """Variables that it closes over, those without a value left out."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def _children(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, types.FunctionType):
        yield from cells(value).items()  # of torch's decorators, too
        if is_user_file(value.__code__.co_filename):
            yield from ((name, value.__globals__[name]) for name in named_globals(value))
            yield from ((value.__name__, item) for item in (value.__defaults__ or ()))
            yield from (value.__kwdefaults__ or {}).items()
    elif isinstance(value, types.MethodType):
        yield path or "self", value.__self__
        yield path, value.__func__
    elif isinstance(value, functools.partial):
        yield from ((path, item) for item in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, torch.nn.Module):
        tables = [getattr(value, table) for table in _TABLES]
        for name, item in [pair for table in (*tables, vars(value)) for pair in table.items()]:
            if name not in _TABLES:
                yield _join(path, name), item
    elif isinstance(value, dict):
        if dict.__len__(value) <= _MOST_ITEMS:
            yield from ((f"{path}[{key!r}]", item) for key, item in list(dict.items(value)))
    elif isinstance(value, (list, tuple, set)):
        base: Any = next(kind for kind in (list, tuple, set) if isinstance(value, kind))
        if base.__len__(value) <= _MOST_ITEMS:  # a subclass may have no length, or another one
            yield from ((f"{path}[{number}]", item) for number, item in enumerate(base.__iter__(value)))
    elif is_users(value):
        # Only the parts of other objects that concern random numbers and arithmetic: no walk through a whole program.
        yield from ((_join(path, name), item) for name, item in list(vars(value).items()) if isinstance(item, _LEAVES))
        if callable(value):
            yield path, type(value).__call__


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def is_users(value: Any) -> bool:
    if isinstance(value, (type, types.ModuleType, *_LEAVES)) or not hasattr(value, "__dict__"):
        return False
    return type(value).__module__.partition(".")[0] not in ("torch", "numpy", "builtins", "functools")
