"""The forward pass as PyTorch sees it: calls of ATen ops on named values.

frontend_run.py makes one; everything after it (normaliser, interpreter) knows nothing of how. Values are named, a name
is bound once, in-place ops keep their in-place spelling.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import Problem
from .assigned_buffers import copied_back
from .attributes import Attribute


@dataclass(frozen=True)
class Ref:
    """A use of a named value."""

    name: str


@dataclass(frozen=True)
class Autocast:
    """The innermost torch.autocast block of the model around a call: of those for the loop's device, if there are any."""

    enabled: bool
    dtype: str  # "bfloat16", "float16"
    device: str
    cache: bool

    def json(self) -> dict[str, Any]:
        return {"enabled": self.enabled, "dtype": self.dtype, "device": self.device, "cache": self.cache}


@dataclass(frozen=True)
class Place:
    """The place of a call in the user's code."""

    module: str = ""  # path, "blocks.0.attn"
    module_class: str = ""  # "torch.nn.modules.linear.Linear"
    call: int = 0  # how often that module had been called before
    source: str = ""  # "model.py:33", of a library too
    caller: str = ""  # the user's own line, if that is another one
    package: str = ""  # of the library: "timm"
    text: str = ""  # what is computed there: "t * freq"

    def problem(self, what: str, hint: str) -> Problem:
        """What is refused here: the user's line first, then the library's."""
        where = f"{self.caller}, in {self.package} {self.source}" if self.caller and self.package else self.source
        return Problem(what, self.module, where, hint)


@dataclass(frozen=True)
class Limit:
    """A limit of a dtype: "max", "eps" or "tiny" of torch.finfo(of)."""

    name: str
    of: torch.dtype

    def shares(self, x: torch.Tensor) -> torch.Tensor:
        """x as multiples of the limit."""
        return (x.double() / getattr(torch.finfo(self.of), self.name)).float()

    def in_dtype(self, x: torch.Tensor) -> torch.Tensor:
        """Multiples x of the limit, which are multiples of that of x's own dtype. FP64 has FP32's limits."""
        own = torch.float32 if x.dtype == torch.float64 else x.dtype
        if own == self.of:
            return x
        limits = [getattr(torch.finfo(dtype), self.name) for dtype in (own, self.of)]
        return (x.double() * (limits[0] / limits[1])).to(x.dtype)


@dataclass
class Call:
    """name = target(*args, **kwargs); args are Refs, numbers, or lists of them."""

    name: str
    target: Any  # torch OpOverload, or operator.getitem
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    place: Place = field(default_factory=Place)
    autocast: Autocast | None = None
    nograd: bool = False
    narrows: bool = False  # in place, with a wider operand: the result goes back to the first operand's dtype
    reads_places: bool = False  # max or min along a dimension: the places are read, too
    renames: bool = False  # made by the trace itself: another name for the operand, no op of the model's
    limit: Limit | None = None  # of a cast to another tensor's dtype: of multiples of that limit
    backward_of: str = ""  # a call of the backward pass of that custom_gradient (custom_functions.py)

    @property
    def op(self) -> str:
        """`aten.add.Tensor`, or `getitem`."""
        return "getitem" if self.is_getitem else str(self.target)

    @property
    def is_getitem(self) -> bool:
        return self.target is operator.getitem

    def refs(self) -> list[str]:
        return [ref.name for ref in iterate_refs((self.args, self.kwargs))]


def iterate_refs(value: Any) -> Iterator[Ref]:
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from iterate_refs(item)
    elif isinstance(value, dict):
        yield from iterate_refs(list(value.values()))


def map_refs(value: Any, body: Callable[[Ref], Any]) -> Any:
    """The same structure with body(ref) in the place of every Ref."""
    if isinstance(value, Ref):
        return body(value)
    if isinstance(value, tuple):
        return tuple(map_refs(item, body) for item in value)
    if isinstance(value, list):
        return [map_refs(item, body) for item in value]
    if isinstance(value, dict):
        return {key: map_refs(item, body) for key, item in value.items()}
    return value


@dataclass(frozen=True)
class Number:
    """A float that Python read from a value; None: all elements of one."""

    name: str
    place: Place
    value: float | None


@dataclass(frozen=True)
class WatchedName:
    """A value that the step names. call: a detach() of the value, made when it was named."""

    call: str
    log_probs: bool


@dataclass
class Program:
    """One forward pass with static shapes.

    inputs: value name -> leaf of the batch (pytree order). params, buffers: value name -> canonical
    module path. constants: value name -> tensor. loss: name of the value that the step returns. decisions: integers
    that a call chose from floats, as they were in the traced pass. read: values that left PyTorch (item, tolist, NumPy),
    by name; numbers: the floats among them. assigned: call of copy_ that replaces `self.buffer = ...` -> canonical path of that buffer; nothing reads it after that call.
    watched: of watch_value(), by the name given there.
    """

    frontend: str
    inputs: dict[str, int] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    loss: str = ""
    decisions: dict[str, torch.Tensor] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    numbers: list[Number] = field(default_factory=list)
    assigned: dict[str, str] = field(default_factory=dict)
    watched: dict[str, WatchedName] = field(default_factory=dict)

    def note_assigned(self, paths: list[str], names: Names) -> None:
        """paths: of the buffers that the program's last calls write, see copied_back()."""
        last = self.calls[len(self.calls) - len(paths) :]
        assert all(call.op == "aten.copy_.default" for call in last), "the trace lost an assignment to a buffer"
        self.assigned = {call.name: names.canonical(path) for call, path in zip(last, paths, strict=True)}


class StepModule(torch.nn.Module):
    """loss = step_fn(model, batch) as a module, which is what is traced. attributes: state like buffers; trains: the loss
    must have a gradient; assigned: see copied_back()."""

    def __init__(
        self,
        model: torch.nn.Module,
        step_fn: Callable[..., torch.Tensor],
        attributes: Sequence[Attribute] = (),
        trains: bool = True,
    ):
        super().__init__()
        self.trains = trains
        self.model = model
        self.step_fn = step_fn
        self.attributes = attributes
        self.assigned: list[str] = []

    def forward(self, batch: Any) -> torch.Tensor:
        with copied_back(self.model, self.attributes, self.assigned):
            return self.step_fn(self.model, batch)


class Names:
    """Which paths lead to a parameter or buffer: the first one in order is its name. attributes: counted as buffers."""

    def __init__(self, model: torch.nn.Module, attributes: Sequence[Attribute] = ()):
        state = {id(attribute.value) for attribute in attributes}
        named = model.named_parameters(remove_duplicate=False)
        self.params = self._collect((path, tensor) for path, tensor in named if id(tensor) not in state)
        self.buffers = self._collect(
            [
                *model.named_buffers(remove_duplicate=False),
                *((attribute.path, attribute.value) for attribute in attributes),
            ]
        )
        self._canonical = {}
        for table in (self.params, self.buffers):
            for _, paths in table:
                self._canonical.update(dict.fromkeys(paths, paths[0]))

    @staticmethod
    def _collect(named: Iterable[tuple[str, torch.Tensor]]) -> list[tuple[torch.Tensor, list[str]]]:
        found: dict[int, tuple[torch.Tensor, list[str]]] = {}
        for path, tensor in named:
            found.setdefault(id(tensor), (tensor, []))[1].append(path)
        return list(found.values())

    def __contains__(self, path: str) -> bool:
        return path in self._canonical

    def canonical(self, path: str) -> str:
        return self._canonical[path]

    def parameter_of(self, tensor: torch.Tensor) -> str | None:
        """The parameter whose storage this tensor is, if any."""
        return self._owner(self.params, tensor)

    def buffer_of(self, tensor: torch.Tensor) -> str | None:
        return self._owner(self.buffers, tensor)

    @staticmethod
    def _owner(table: list[tuple[torch.Tensor, list[str]]], tensor: torch.Tensor) -> str | None:
        for held, paths in table:
            if held is tensor:
                return paths[0]
            if torch.strided != held.layout or torch.strided != tensor.layout or tensor.numel() == 0:
                continue
            if (
                held.data_ptr() == tensor.data_ptr()
                and held.shape == tensor.shape
                and held.dtype == tensor.dtype
                and held.stride() == tensor.stride()
            ):
                return paths[0]
        return None
