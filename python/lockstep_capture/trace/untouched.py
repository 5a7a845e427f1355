"""Restores what a run of the user's code changed: after tracing, which runs the step function a few times, and after
capture(), which trains the model that it was given.

Nothing is copied as an object: a copy.deepcopy of an optimizer lacks all that its class does not pickle (torch's has
three attributes), and not every model can be copied. What tensors hold is copied, and put back.
"""

from __future__ import annotations

import contextlib
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from ..errors import CaptureError
from ..ir.program import StepModule
from .reachable import CONTAINERS, GENERATORS, cells, is_users, named_globals, reachable

Undo = Callable[[], object]


@contextlib.contextmanager
def untouched(step: StepModule) -> Iterator[None]:
    """What the step function can reach is as before on the way out: attributes and buffers of modules, tensors outside
    of them, which gradients there are, what lists, dicts and sets hold, variables that it closes over, globals that it
    names, random generators.

    Not restored: gradients set to zero in place, attributes of objects that are no modules, iterators, files, what a call hands out.
    """
    python, numpy = random.getstate(), np.random.get_state()
    grads = [(parameter, parameter.grad) for parameter in step.model.parameters()]
    kept = [undo for _, value in reachable(step.step_fn, step.model) for undo in _undo_of(value)]
    kept += [_content(one.value) for one in step.attributes if isinstance(one.value, torch.nn.Parameter)]
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        for parameter, grad in grads:
            parameter.grad = grad
        _undo_all(kept)


@contextlib.contextmanager
def restored(*values: Any) -> Iterator[None]:
    """All that these hold, however deep, is as before on the way out: tensors, containers, attributes of objects. What
    modules hold is not: see untouched()."""
    kept = list(_undo_of_all(values, set()))
    try:
        yield
    finally:
        _undo_all(kept)


def _undo_all(kept: list[Undo]) -> None:
    """All of them, also where one fails, or Ctrl-C comes. Throws: CaptureError then, or KeyboardInterrupt."""
    failures: list[Exception] = []
    interrupt: KeyboardInterrupt | None = None
    with torch.no_grad():
        for undo in kept:
            try:
                try:
                    undo()
                except KeyboardInterrupt as error:
                    interrupt = error
                    undo()
            except Exception as error:
                failures.append(error)
    if interrupt is not None:
        raise interrupt
    if failures:
        raise CaptureError(
            f"{len(failures)} of {len(kept)} things that the capture changed could not be put back, the first: "
            f"{failures[0]}; please report this, and load the model and the optimizer again"
        ) from failures[0]


def _undo_of_all(value: Any, seen: set[int]) -> Iterator[Undo]:
    if id(value) in seen or isinstance(value, (type, types.ModuleType, types.FunctionType, torch.nn.Module)):
        return
    seen.add(id(value))
    held: list[Any] = []
    if isinstance(value, torch.Tensor):
        if hasattr(value, "__tensor_flatten__"):  # tensors that make up another, as in 8-bit states
            held = [getattr(value, name) for name in value.__tensor_flatten__()[0]]
        else:
            yield _numbers(value)
    elif isinstance(value, GENERATORS):
        yield _generator(value)
    elif isinstance(value, (*CONTAINERS, tuple)):
        if not isinstance(value, tuple):
            yield _items(value)
        held = list(dict.values(value)) if isinstance(value, dict) else list(value)
    elif isinstance(value, types.MethodType):
        held = [value.__self__]
    elif isinstance(value, torch.optim.Optimizer) or is_users(value):
        yield _variables(value)
        held = list(vars(value).values())
    for item in held:
        yield from _undo_of_all(item, seen)


def _numbers(tensor: torch.Tensor) -> Undo:
    """Also where another tensor took the place of its data."""
    data = tensor.data
    before = data.clone()

    def undo() -> None:
        if not torch.equal(data, before):  # one whose numbers share memory (expand) takes no copy
            data.copy_(before)
        tensor.data = data

    return undo


def _variables(value: Any) -> Undo:
    before = dict(vars(value))

    def undo() -> None:
        own = vars(value)
        for name in [name for name in own if name not in before]:
            del own[name]
        own.update(before)

    return undo


def _undo_of(value: Any) -> Iterator[Undo]:
    if isinstance(value, GENERATORS):
        yield _generator(value)
    elif isinstance(value, torch.nn.Module):
        yield _attributes(value)
    elif isinstance(value, torch.Tensor):
        if type(value) in (torch.Tensor, torch.nn.Parameter):
            yield _data(value)
        if type(value) is torch.Tensor and value.layout == torch.strided and not value.is_inference():
            yield _content(value)  # a parameter that it writes is of the step's attributes
    elif isinstance(value, CONTAINERS):
        yield _items(value)
    elif isinstance(value, types.FunctionType):
        yield from _closure(value)


def _generator(value: Any) -> Undo:
    if isinstance(value, torch.Generator):
        state = value.get_state()
        return lambda: value.set_state(state)
    if isinstance(value, np.random.Generator):
        words = value.bit_generator.state
        return lambda: setattr(value.bit_generator, "state", words)
    if isinstance(value, np.random.RandomState):
        before = value.get_state()
        return lambda: value.set_state(before)
    python = value.getstate()
    return lambda: value.setstate(python)


def _attributes(module: torch.nn.Module) -> Undo:
    attributes, buffers = _variables(module), dict(module._buffers)

    def undo() -> None:
        attributes()
        module._buffers.clear()
        module._buffers.update(buffers)

    return undo


def _data(tensor: torch.Tensor) -> Undo:
    """After `weight.data = weight.data.to(x.dtype)` the tensor has other storage, and under autocast other numbers."""
    before = tensor.data

    def undo() -> None:
        now = tensor.data
        if now.dtype != before.dtype or (now.layout == torch.strided and now.data_ptr() != before.data_ptr()):
            tensor.data = before

    return undo


def _content(tensor: torch.Tensor) -> Undo:
    before = tensor.detach().clone()

    def undo() -> None:
        if not torch.equal(tensor, before):  # a write to .data leaves tensor._version as it is
            tensor.copy_(before)

    return undo


def _items(container: Any) -> Undo:
    base: Any = next(kind for kind in CONTAINERS if isinstance(container, kind))
    # Not a subclass's own methods: a table of classes may make an object whenever an item is read.
    before = dict(dict.items(container)) if base is dict else base.copy(container)

    def undo() -> None:
        if isinstance(container, list):
            if len(container) != len(before) or any(a is not b for a, b in zip(container, before)):
                container[:] = before
        elif isinstance(container, dict):
            if list(container) != list(before) or any(
                dict.__getitem__(container, key) is not before[key] for key in before
            ):
                container.clear()
                container.update(before)
        elif container != before:
            container.clear()
            container.update(before)

    return undo


def _closure(function: types.FunctionType) -> Iterator[Undo]:
    held, named = cells(function), {name: function.__globals__[name] for name in named_globals(function)}

    def undo() -> None:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if name in held:
                cell.cell_contents = held[name]
        for name, value in named.items():
            if function.__globals__.get(name) is not value:
                function.__globals__[name] = value

    yield undo
