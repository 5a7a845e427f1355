"""Modules by path, as a user of the unwrapped model would write it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

import torch

from ..errors import CaptureError

# Wrappers that put a level of their own between a module and its name.
_LEVELS = {"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}
_SHOWN = 5


def own_path(path: str) -> str:
    """Without the levels that torch.compile and checkpoint wrappers add."""
    return ".".join(part for part in path.split(".") if part not in _LEVELS)


def _alternatives(pattern: str) -> list[str]:
    """`a.{0,1}.b` -> a.0.b, a.1.b"""
    found = re.search(r"\{([^{}]*)\}", pattern)
    if found is None:
        return [pattern]
    head, tail = pattern[: found.start()], pattern[found.end() :]
    return [one for middle in found[1].split(",") for one in _alternatives(head + middle.strip() + tail)]


def _expression(pattern: str) -> re.Pattern[str]:
    """`*` and `?` stay within one level, `**` passes levels."""
    parts = re.split(r"(\*\*|\*|\?)", pattern)
    signs = {"**": ".*", "*": "[^.]*", "?": "[^.]"}
    return re.compile("".join(signs.get(part, re.escape(part)) for part in parts))


def chosen(model: torch.nn.Module, patterns: Iterable[str]) -> dict[str, torch.nn.Module]:
    """The modules that match, by path, in the model's order. Throws: CaptureError with all patterns that match none."""
    modules: dict[str, torch.nn.Module] = {}
    for path, module in model.named_modules():
        modules[own_path(path)] = module  # the innermost: what a wrapper holds comes after it
    modules.pop("", None)
    wanted: set[str] = set()
    problems = []
    for pattern in patterns:
        for one in _alternatives(pattern):
            found = [path for path in modules if _expression(one).fullmatch(path)]
            wanted |= set(found)
            if not found:
                near = difflib.get_close_matches(one, modules, cutoff=0.5) or list(modules)[:_SHOWN]
                problems.append(f"{one!r} is not the path of a module, nor a pattern of one; near: {', '.join(near)}")
    if problems:
        raise CaptureError("parts: " + "; ".join(problems))
    return {path: module for path, module in modules.items() if path in wanted}


def tied_weights(model: torch.nn.Module, path: str, part: torch.nn.Module) -> dict[str, str]:
    """Weights of the part that a module outside of it holds, too, by path in the part: the run's gradient is that of both."""
    own = {id(weight): own_path(name) for name, weight in part.named_parameters()}
    inside = {id(module) for module in part.modules()}
    found = {}
    for place, module in model.named_modules():
        if id(module) in inside:
            continue
        for name, weight in module.named_parameters(recurse=False):
            if id(weight) in own:
                found[own[id(weight)]] = own_path(f"{place}.{name}" if place else name)
    return found


def check_wrappers(modules: dict[str, torch.nn.Module]) -> None:
    """Throws: CaptureError with all modules that cannot run on one rank alone."""
    hints = {
        "FullyShardedDataParallel": "FSDP1 hides its weights: use fully_shard(), or a run without sharding",
        "SyncBatchNorm": "its forward pass waits for other ranks: choose modules without it",
    }
    problems = []
    for path, part in modules.items():
        for name, module in part.named_modules():
            kinds = {kind.__name__ for kind in type(module).__mro__} & hints.keys()
            problems += [f"{path}.{name}".rstrip(".") + f" is a {kind}: {hints[kind]}" for kind in kinds]
        if any(hasattr(weight, "ds_id") for weight in part.parameters()):
            problems.append(f"{path} has weights of DeepSpeed ZeRO-3, which hides them: use FSDP2, or a run without it")
    if problems:
        raise CaptureError("parts: " + "; ".join(problems))
