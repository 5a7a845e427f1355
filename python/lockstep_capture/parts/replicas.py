"""A module of a running model as a plain module of its own: recorded weights, no sharding, no wrappers, no hooks of either."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

from ..write.part_checks import Placement
from .names import own_path

_WRAPPERS = {"CheckpointWrapper", "OptimizedModule"}  # hold the module that does the work, and call it
_HOOKS = (
    *("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
)
_OF_RUNS = ("torch.distributed", "lockstep_capture", "torch._dynamo")


def replica(
    module: torch.nn.Module, weights: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor], frozen: set[str]
) -> torch.nn.Module:
    """weights, buffers: by path in `module` without wrappers' levels; the replica holds these very tensors. Everything else that
    the module refers to is shared with it, but for containers of modules and tensors."""
    made: dict[int, Any] = {}
    for path, weight in module.named_parameters(remove_duplicate=False):
        if id(weight) not in made:
            own = own_path(path)
            made[id(weight)] = torch.nn.Parameter(weights[own], requires_grad=own not in frozen)
    for path, buffer in module.named_buffers(remove_duplicate=False):
        made.setdefault(id(buffer), buffers[own_path(path)])
    found = _copy(module, made)
    _fill(module, made, set())
    return found


def _unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    while type(module).__name__ in _WRAPPERS:
        module = next(iter(module.children()))
    return module


def plain_class(module: torch.nn.Module) -> type[torch.nn.Module]:
    """fully_shard() gives a module a class made of FSDPModule and its own."""
    own: type[torch.nn.Module] = type(module)
    while own.__module__.startswith("torch.distributed") and len(own.__bases__) > 1:
        own = own.__bases__[-1]
    return own


def _copy(module: torch.nn.Module, made: dict[int, Any]) -> torch.nn.Module:
    module = _unwrapped(module)
    if id(module) in made:
        return made[id(module)]
    kind = plain_class(module)
    new = kind.__new__(kind)
    made[id(module)] = new
    inner = {name: child if child is None else _copy(child, made) for name, child in module._modules.items()}
    new.__dict__["_modules"] = inner
    return new


def _fill(module: torch.nn.Module, made: dict[int, Any], filled: set[int]) -> None:
    """Attributes, once every module has its copy: they may refer to any."""
    module = _unwrapped(module)
    if id(module) in filled:
        return
    filled.add(id(module))
    new = made[id(module)]
    inner = new.__dict__["_modules"]
    for name, value in vars(module).items():
        if "composable" in name:  # FSDP's state
            continue
        new.__dict__[name] = inner if name == "_modules" else _hooks(value) if name in _HOOKS else _mapped(value, made)
    new.__dict__.pop("_compiled_call_impl", None)
    for child in module._modules.values():
        if child is not None:
            _fill(child, made, filled)


def _hooks(hooks: Any) -> Any:
    """Leaves out hooks of torch.distributed and of captures; a user's own belong to what the module computes."""
    kept = type(hooks)()
    for number, hook in hooks.items():
        if not str(getattr(hook, "__module__", "") or type(hook).__module__).startswith(_OF_RUNS):
            kept[number] = hook
    return kept


def _mapped(value: Any, made: dict[int, Any]) -> Any:
    if id(value) in made:
        return made[id(value)]
    if isinstance(value, types.MethodType) and id(value.__self__) in made:  # a patched forward()
        return types.MethodType(value.__func__, made[id(value.__self__)])
    if isinstance(value, functools.partial):
        keywords = {name: _mapped(item, made) for name, item in value.keywords.items()}
        return functools.partial(_mapped(value.func, made), *(_mapped(item, made) for item in value.args), **keywords)
    if isinstance(value, torch.nn.Module) or type(value) not in (dict, list, tuple, set):
        return value
    if isinstance(value, dict):
        return {key: _mapped(item, made) for key, item in value.items()}
    return type(value)(_mapped(item, made) for item in value)


class _SplitLinear(torch.nn.Linear):
    """A linear layer as tensor parallelism computes it: a product for each rank, in their order, so that its sums are the run's.
    By rows of the weight the results stand side by side. By columns they are added; each rank adds its share of the bias."""

    split_of: tuple[int, int]  # dimension of the weight, ranks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dimension, ranks = self.split_of
        x = x.view_as(x)  # the shares of its gradient are added before those of other layers
        weights = torch.chunk(self.weight, ranks, dimension)
        if dimension == 0:
            biases = torch.chunk(self.bias, ranks) if self.bias is not None else [None] * ranks
            return torch.cat([torch.nn.functional.linear(x, w, b) for w, b in zip(weights, biases, strict=True)], -1)
        bias = self.bias / ranks if self.bias is not None else None
        total: Any = None
        for part, weight in zip(torch.chunk(x, ranks, -1), weights, strict=True):
            one = torch.nn.functional.linear(part, weight, bias)
            total = one if total is None else total + one
        return total


def split(module: torch.nn.Module, placements: dict[str, Placement]) -> torch.nn.Module:
    """The replica with every linear layer split as its weight was placed on the ranks when the module ran."""
    for path, inner in module.named_modules():
        placement = placements.get(f"{path}.weight" if path else "weight")
        if type(inner) is torch.nn.Linear and placement is not None and len(placement.splits) == 1:
            inner.__class__ = _SplitLinear
            vars(inner)["split_of"] = placement.splits[0]
    return module


def in_place_of(path: str, module: torch.nn.Module) -> torch.nn.Module:
    """A model that holds nothing but the module, under its path in the large one."""
    for name in reversed(path.split(".")):
        outer = torch.nn.Module()
        outer.add_module(name, module)
        module = outer
    return module
