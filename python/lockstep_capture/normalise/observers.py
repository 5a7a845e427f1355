"""What one run of a program shows: types and layouts of all values, content of those that are no part of the network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..ir.decisions import picks, places_of
from ..ir.gradients import GRADIENT, differentiated
from ..ir.program import Call, Program, iterate_refs
from .interpreter import Interpreter, Observer
from .ssa import GRAPH, Versions, is_new_empty, started_as, value_name, versions_of
from .weighed import weigh


class TypeRecorder(Observer):
    """Shape and dtype of every value; of several outputs a list.

    layouts: tensors without content, in the order in which a value's elements lie, and would lie after a cast. shares: of
    calls: does the result have the memory of the first operand?
    """

    def __init__(self) -> None:
        self.types: dict[str, Any] = {}
        self.shares: dict[str, bool] = {}
        self.strides: dict[
            str, tuple[tuple[int, ...], int, int]
        ] = {}  # and offset, and how many elements the memory holds
        self._memory: dict[str, int] = {}
        self.layouts: dict[str, torch.Tensor] = {}

    def root(self, name: str, value: torch.Tensor) -> None:
        self._record(name, value)

    def after(self, call: Call, result: Any) -> None:
        self._record(call.name, result)
        memory = _memory_of(result)
        if memory and call.refs() and call.target is not GRADIENT:
            self.shares[call.name] = memory == self._memory.get(call.refs()[0])

    def _record(self, name: str, value: Any) -> None:
        self.types[name], self._memory[name] = _type_of(value), _memory_of(value)
        if isinstance(value, torch.Tensor):
            self.layouts[name] = torch.empty_like(value, device="meta")
            if value.layout == torch.strided:
                held = value.untyped_storage().nbytes() // value.element_size()
                self.strides[name] = (tuple(value.stride()), int(value.storage_offset()), held)

    def is_float(self) -> dict[str, bool]:
        """Complex values are pairs of floating ones."""
        first = {name: kind[0] if isinstance(kind, list) and kind else kind for name, kind in self.types.items()}
        return {name: bool(kind) and (kind[1].is_floating_point or kind[1].is_complex) for name, kind in first.items()}

    def complex_values(self) -> set[str]:
        return {
            name
            for name, kind in self.types.items()
            if kind and any(one and one[1].is_complex for one in (kind if isinstance(kind, list) else [kind]))
        }


def _memory_of(value: Any) -> int:
    """Of the first of several; 0 for no tensor."""
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    is_plain = isinstance(first, torch.Tensor) and first.layout == torch.strided
    return first.untyped_storage().data_ptr() if is_plain else 0


def _type_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, (list, tuple)):
        return [_type_of(item) for item in value]
    return None


class Snapshots(Observer):
    """Values outside of the network, as they are when the network reads them."""

    def __init__(self, versions: Versions):
        self._versions = versions
        self.values: dict[str, torch.Tensor] = {}
        self.decisions: dict[str, torch.Tensor] = {}  # by call, those that the graph does not make itself

    def root(self, name: str, value: torch.Tensor) -> None:
        """Only its dtype may be read (randn_like)."""
        if name in self._versions.stored and self._versions.kind[name] != GRAPH:
            self.values[name] = value.detach().clone()

    def before(self, call: Call, value: Callable[[str], Any]) -> None:
        needed = self._versions.live | self._versions.for_choices
        if (
            self._versions.kind[call.name] != GRAPH or call.name not in needed
        ) and call.name not in self._versions.weighed:
            return
        for ref in iterate_refs(self._versions.reads[call.name]):
            if self._versions.kind.get(ref.name) != GRAPH and ref.name not in self.values:
                found = value(value_name(ref.name))
                if isinstance(found, torch.Tensor):
                    self.values[ref.name] = found.detach().clone()

    def after(self, call: Call, result: Any) -> None:
        if call.name in self._versions.recorded:
            self.decisions[call.name] = result.detach().clone()
            if call.name in self._versions.weighed:
                self.values[call.name] = self.decisions[call.name]
        if call.name in self._versions.started:
            self.values[started_as(call.name)] = (
                torch.zeros_like(result) if is_new_empty(call) else result.detach().clone()
            )
        if self._versions.kind[call.name] == GRAPH and picks(call):
            self.values[places_of(call)] = result[1].detach().clone()


def analyse(
    program: Program,
    params: Mapping[str, torch.Tensor],
    buffers: Mapping[str, torch.Tensor],
    leaves: list[Any],
    *,
    single: bool = False,
) -> tuple[Versions, TypeRecorder]:
    """Types by a run of the program that draws its own random numbers and leaves the global generators alone.

    single: the model has narrower weights, and runs in FP32.
    """
    recorder = TypeRecorder()
    with torch.set_grad_enabled(bool(differentiated(program))), torch.random.fork_rng():
        Interpreter(
            program, params, buffers, leaves, None, decisions=program.decisions, observer=recorder, single=single
        ).run()
    versions = versions_of(program, recorder.is_float(), recorder.shares, recorder.complex_values())
    weigh(program, versions)
    return versions, recorder
