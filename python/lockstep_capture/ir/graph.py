"""Lockstep's graph as it is built: values with type, nodes, and the JSON of docs/graph-json.md."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .program import Autocast, Place

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Value:
    """A value of the graph: `n3`, `n3.1`, `p:fc.weight`, `in0`, `c:mask`, `b:bn.running_mean`."""

    id: str
    shape: Shape
    dtype: str  # "f32", "i32"

    @property
    def is_float(self) -> bool:
        return self.dtype == "f32"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_empty(self) -> bool:
        """No elements: the rows of an expert that got none. A graph has no such values."""
        return 0 in self.shape


@dataclass(frozen=True)
class Complex:
    """A complex value of the program: two real ones of its shape."""

    real: Value
    imag: Value

    @property
    def shape(self) -> Shape:
        return self.real.shape


FORMATS = {torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}  # of casts


def format_of(dtype: torch.dtype) -> str:
    """The format of a dtype narrower than FP32, "" for any other."""
    return "" if dtype in (torch.float32, torch.float64) else FORMATS.get(dtype, "")


def element_type(dtype: torch.dtype) -> str:
    return "f32" if dtype.is_floating_point or dtype.is_complex else "i32"


@dataclass
class RecordedBackward:
    """What a custom_gradient node does with gradients: docs/graph-json.md, "A backward pass of the user's own"."""

    nodes: list[Node]
    gradients: list[str]  # by operand, "": none

    def json(self) -> dict[str, Any]:
        return {"nodes": [node.json() for node in self.nodes], "gradients": self.gradients}


@dataclass
class Node:
    id: str
    op: str
    inputs: list[str]
    attrs: dict[str, Any]
    out: list[tuple[Shape, str]]
    place: Place
    aten: str
    autocast: Autocast | None
    nograd: bool
    stat_exempt: bool = False
    backward_of: str = ""  # while the graph is made: of which function's backward pass it is a part
    backward: RecordedBackward | None = None

    def value(self, slot: int = 0) -> Value:
        shape, dtype = self.out[slot]
        return Value(self.id if slot == 0 else f"{self.id}.{slot}", shape, dtype)

    def json(self) -> dict[str, Any]:
        fields = {
            "id": self.id,
            "op": self.op,
            "in": self.inputs,
            "attrs": {key: _attribute(value) for key, value in self.attrs.items()},
            "out": [{"shape": list(shape), "dtype": dtype} for shape, dtype in self.out],
            "module": self.place.module,
            "class": self.place.module_class,
            "call": self.place.call,
            "src": self.place.source,
            "aten": self.aten,
            "autocast": self.autocast.json() if self.autocast else None,
            "nograd": self.nograd,
        }
        if self.stat_exempt:
            fields["stat_exempt"] = True
        if self.backward is not None:
            fields["backward"] = self.backward.json()
        return fields


def _attribute(value: Any) -> Any:
    """Numbers that JSON has no spelling for are text; tuples are lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, (list, tuple)):
        return [int(item) for item in value]
    return value


@dataclass
class GraphInput:
    """in<i>. Its value for a micro-batch is compute(values), `values` giving the operands by version."""

    path: str
    shape: Shape
    dtype: str
    torch_dtype: str
    operands: tuple[str, ...]
    compute: Callable[..., torch.Tensor]
    stat_exempt: bool = False
    requires_grad: bool = False  # the backward pass goes back to it: an argument of a part


@dataclass
class Graph:
    name: str
    inputs: list[GraphInput] = field(default_factory=list)
    params: list[tuple[str, Shape, bool, str]] = field(default_factory=list)  # name, shape, requires_grad, module
    buffers: list[tuple[str, Shape, str, str]] = field(default_factory=list)  # name, shape, dtype, module
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    stat_exempt: set[str] = field(default_factory=set)  # constants
    nodes: list[Node] = field(default_factory=list)
    loss: str = ""
    outputs: dict[str, str] = field(default_factory=dict)  # "watch/NAME", "log_probs/NAME" -> value
    mutations: list[tuple[str, str, int]] = field(default_factory=list)  # buffer, node, slot
    rng: list[tuple[str, str]] = field(default_factory=list)  # node, call of the program
    formats: dict[str, str] = field(default_factory=dict)  # of parameters and buffers, by value id, where not FP32

    def drop_unread(self) -> None:
        """Nodes that reach no loss, output, buffer or decision (a rule made more than needed), and the nodes that only they read."""
        self.nodes = [node for node in self.nodes if not node.backward_of]  # custom_gradient nodes have them
        reached = {
            self.loss.partition(".")[0],
            *(value.partition(".")[0] for value in self.outputs.values()),
            *(node for _, node, _ in self.mutations),
            *(node for node, _ in self.rng),
            *(node.id for node in self.nodes if node.op == "decision"),
        }
        kept = []
        for node in reversed(self.nodes):
            if node.id in reached:
                kept.append(node)
                reached |= {name.partition(".")[0] if name.startswith("n") else name for name in node.inputs}
        self.nodes = kept[::-1]
        mutated = {buffer for buffer, _, _ in self.mutations}
        self.params = [entry for entry in self.params if f"p:{entry[0]}" in reached]
        self.buffers = [entry for entry in self.buffers if f"b:{entry[0]}" in reached or entry[0] in mutated]
        self.constants = {name: tensor for name, tensor in self.constants.items() if f"c:{name}" in reached}

    def region(self) -> Autocast | None:
        """The first block of the model that switches autocast on."""
        return next((node.autocast for node in self.nodes if node.autocast and node.autocast.enabled), None)

    def close_regions(self) -> None:
        """If only the model uses autocast, ops outside of its blocks are outside in every lane."""
        region = self.region()
        for node in self.nodes:
            if region is not None and node.autocast is None:
                node.autocast = Autocast(False, region.dtype, region.device, region.cache)

    def json(self) -> str:
        """One node per line."""

        def lines(items: Sequence[dict[str, Any]]) -> str:
            return "[\n  " + ",\n  ".join(json.dumps(item) for item in items) + "]" if items else "[]"

        def typed(name: str, shape: Shape, dtype: str, module: str) -> dict[str, Any]:
            return {"name": name, "shape": list(shape), "dtype": dtype, "module": module}

        def held(item: dict[str, Any], format: str) -> dict[str, Any]:
            return {**item, "format": format} if format else item

        inputs = []
        for i, entry in enumerate(self.inputs):
            item = held(
                {"id": f"in{i}", "path": entry.path, "shape": list(entry.shape), "dtype": entry.dtype},
                format_of(getattr(torch, entry.torch_dtype)),
            )
            item |= {"requires_grad": True} if entry.requires_grad else {}
            inputs.append({**item, "stat_exempt": True} if entry.stat_exempt else item)
        params = [
            held(
                {**typed(name, shape, "f32", module), "requires_grad": requires_grad}, self.formats.get(f"p:{name}", "")
            )
            for name, shape, requires_grad, module in self.params
        ]
        buffers = [held(typed(*buffer), self.formats.get(f"b:{buffer[0]}", "")) for buffer in self.buffers]
        constants = [
            held(
                {"name": name, "shape": list(tensor.shape), "dtype": element_type(tensor.dtype)},
                format_of(tensor.dtype),
            )
            | ({"stat_exempt": True} if name in self.stat_exempt else {})
            for name, tensor in self.constants.items()
        ]
        mutations = [{"buffer": buffer, "value": node, "slot": slot} for buffer, node, slot in self.mutations]
        head = {"ir": 1, "name": self.name}
        parts = [f'"{key}":{json.dumps(value)}' for key, value in head.items()]
        for key, items in (
            ("inputs", inputs),
            ("params", params),
            ("buffers", buffers),
            ("constants", constants),
            ("nodes", [node.json() for node in self.nodes]),
        ):
            parts.append(f'"{key}":{lines(items)}')
        parts += [
            f'"loss":{json.dumps(self.loss)}',
            f'"outputs":{json.dumps(self.outputs)}',
            f'"mutations":{json.dumps(mutations)}',
            f'"rng":{json.dumps([node for node, _ in self.rng])}',
        ]
        return "{" + ",\n".join(parts) + "}\n"
