"""torch.jit.trace -> Program, for models that torch.export does not take.

TorchScript is deprecated, so nothing else of it is used. Blocks of torch.autocast and torch.no_grad inside the
model are not visible here: a model that has them is refused.
"""

from __future__ import annotations

import contextlib
import operator
import os
import re
import sys
import warnings
from typing import Any, Iterator

import torch
import torch.utils._pytree as pytree

from ..errors import Problem, UnsupportedModelError
from ..ir.program import Call, Names, Place, Program, Ref, StepModule
from .user_code import is_user_file, user_line

_CONSTANT_LISTS = ("prim::ListConstruct", "prim::TupleConstruct")

TRACED_SHAPE = "a shape in the trace"


class _Flat(torch.nn.Module):
    """step(batch) with the batch's tensors as arguments, as the tracer needs it."""

    def __init__(self, step: StepModule, leaves: list[Any], spec: Any):
        super().__init__()
        self.model = step.model
        self._step, self._leaves, self._spec = [step], leaves, spec

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        left = list(tensors)
        leaves = [left.pop(0) if isinstance(leaf, torch.Tensor) else leaf for leaf in self._leaves]
        return self._step[0](pytree.tree_unflatten(leaves, self._spec))


def trace(step: StepModule, batch: Any) -> Program:
    """Traces one run of step(batch). Throws: UnsupportedModelError for what the tracer cannot show."""
    leaves, spec = pytree.tree_flatten(batch)
    tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    hidden: list[Problem] = []
    with warnings.catch_warnings(), _noticing_blocks(hidden):
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(_Flat(step, leaves, spec), tensors, check_trace=False)
    if hidden:
        raise UnsupportedModelError(hidden)
    names = Names(step.model)
    program = _Reader(traced.inlined_graph, traced,
                      [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)], names, step.model).program
    program.note_assigned(step.assigned, names)
    return program


@contextlib.contextmanager
def _noticing_blocks(problems: list[Problem]) -> Iterator[None]:
    """Lists the autocast and no_grad blocks that user code opens: the trace does not show where they are."""
    kinds: tuple[Any, ...] = (torch.autocast, torch.no_grad)
    originals = [kind.__enter__ for kind in kinds]

    def wrap(original: Any, name: str) -> Any:
        def enter(self: Any) -> Any:
            if is_user_file(sys._getframe(1).f_code.co_filename):
                problems.append(Problem(f"{name} in a traced model", "", user_line(),
                                        "torch.export failed on this model, and the tracer cannot see such blocks"))
            return original(self)
        return enter

    try:
        for kind, original in zip(kinds, originals, strict=True):
            kind.__enter__ = wrap(original, f"torch.{kind.__name__}")
        yield
    finally:
        for kind, original in zip(kinds, originals, strict=True):
            kind.__enter__ = original


class _Reader:
    def __init__(self, graph: Any, traced: Any, leaf_numbers: list[int], names: Names, model: torch.nn.Module):
        self.program = Program("jit")
        self._names, self._classes = names, {path: type(module) for path, module in model.named_modules()}
        self._values: dict[str, Any] = {}
        self._paths: dict[str, str] = {}  # of module values
        inputs = list(graph.inputs())
        self._paths[inputs[0].debugName()] = ""
        for value, leaf in zip(inputs[1:], leaf_numbers, strict=True):
            name = self._name(value)
            self.program.inputs[name] = leaf
            self._values[value.debugName()] = Ref(name)
        self._traced = traced
        for node in graph.nodes():
            self._node(node)
        loss = self._value(next(graph.outputs()))
        self.program.loss = loss.name

    @staticmethod
    def _name(value: Any) -> str:
        return "v" + re.sub(r"\W", "_", value.debugName())

    def _value(self, value: Any) -> Any:
        return self._values[value.debugName()]

    def _node(self, node: Any) -> None:
        kind = node.kind()
        if kind == "prim::GetAttr":
            return self._attribute(node)
        if kind == "prim::Constant":
            return self._constant(node)
        out = [value.debugName() for value in node.outputs()]
        operands = [self._value(value) for value in node.inputs()] if kind != "prim::CallMethod" else []
        if kind in _CONSTANT_LISTS:
            self._values[out[0]] = operands
        elif kind in ("prim::ListUnpack", "prim::TupleUnpack"):
            self._unpack(node, operands[0])
        elif kind == "prim::NumToTensor" or kind in ("aten::Int", "aten::ScalarImplicit", "aten::size"):
            self._shape_arithmetic(node, kind, operands)
        elif kind.startswith("aten::"):
            self._call(node, kind, operands)
        else:
            raise UnsupportedModelError([Problem(kind, *self._where(node))])

    def _attribute(self, node: Any) -> None:
        owner, name = next(node.inputs()).debugName(), node.s("name")
        out = next(node.outputs())
        path = f"{self._paths[owner]}.{name}".lstrip(".")
        self._paths[out.debugName()] = path
        value: Any = self._traced
        for part in path.split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            return
        own = path.removeprefix("model.")
        bound = self._name(out)
        if any(own in paths for _, paths in self._names.params):
            bound = _name_of(self._names.canonical(own), self.program.params, bound)
        elif any(own in paths for _, paths in self._names.buffers):
            bound = _name_of(self._names.canonical(own), self.program.buffers, bound)
        else:
            self.program.constants[bound] = value.detach()
        self._values[out.debugName()] = Ref(bound)

    def _constant(self, node: Any) -> None:
        out = next(node.outputs())
        value = out.toIValue()
        if not isinstance(value, torch.Tensor):
            self._values[out.debugName()] = value
            return
        bound = self._name(out)
        owner = self._names.parameter_of(value)
        if owner is not None:
            self.program.params[bound] = owner
        else:
            self.program.constants[bound] = value.detach()
        self._values[out.debugName()] = Ref(bound)

    def _unpack(self, node: Any, operand: Any) -> None:
        for slot, value in enumerate(node.outputs()):
            if isinstance(operand, list):
                self._values[value.debugName()] = operand[slot]
            else:
                name = self._name(value)
                self.program.calls.append(Call(name, operator.getitem, (operand, slot), {}, self._place(node)))
                self._values[value.debugName()] = Ref(name)

    def _shape_arithmetic(self, node: Any, kind: str, operands: list[Any]) -> None:
        """Shapes are static: what the tracer computes from them is a number of this run."""
        out = next(node.outputs())
        if kind == "aten::size" and isinstance(operands[0], Ref):
            raise UnsupportedModelError([Problem(TRACED_SHAPE, *self._where(node), "the tracer writes a "
                                                 "number instead where the shape does not depend on values")])
        self._values[out.debugName()] = operands[0]

    def _call(self, node: Any, kind: str, operands: list[Any]) -> None:
        outputs = list(node.outputs())
        target = _overload(kind.removeprefix("aten::"), node.schema())
        schema = target._schema.arguments
        args, kwargs = [], {}
        for argument, value in zip(schema, operands):
            value = _typed(argument, value)
            if argument.kwarg_only:
                kwargs[argument.name] = value
            else:
                args.append(value)
        place = self._place(node)
        name = self._name(outputs[0]) if len(outputs) == 1 else self._name(outputs[0]) + "_all"
        self.program.calls.append(Call(name, target, tuple(args), kwargs, place))
        if len(outputs) == 1:
            self._values[outputs[0].debugName()] = Ref(name)
            return
        for slot, value in enumerate(outputs):
            part = self._name(value)
            self.program.calls.append(Call(part, operator.getitem, (Ref(name), slot), {}, place))
            self._values[value.debugName()] = Ref(part)

    def _where(self, node: Any) -> tuple[str, str]:
        place = self._place(node)
        return place.module, place.source

    def _place(self, node: Any) -> Place:
        scope = node.scopeName().split("/")[-1] if node.scopeName() else ""
        path = scope.rpartition("::")[2].removeprefix("__module.").removeprefix("model").lstrip(".")
        source = ""
        for file, line in re.findall(r"([^\s()]+\.py)\((\d+)\)", node.sourceRange()):
            if is_user_file(file):
                source = f"{os.path.basename(file)}:{line}"
                break
        kind = self._classes.get(path)
        return Place(path, f"{kind.__module__}.{kind.__qualname__}" if kind else "", 0, source)


def _name_of(path: str, table: dict[str, str], wanted: str) -> str:
    """The one name of a parameter or buffer in the program, although the trace gets it anew for each use."""
    known = next((name for name, other in table.items() if other == path), None)
    table.setdefault(known or wanted, path)
    return known or wanted


def _typed(argument: Any, value: Any) -> Any:
    """TorchScript writes dtypes, layouts and memory formats as numbers."""
    kind = str(argument.real_type if hasattr(argument, "real_type") else argument.type)
    if value is None or isinstance(value, (Ref, list)):
        return value
    if "ScalarType" in kind and isinstance(value, int):
        return _SCALAR_TYPES[value]
    if ("Layout" in kind or "MemoryFormat" in kind) and isinstance(value, int):
        return None
    return value


_SCALAR_TYPES = {0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16,
                 6: torch.float32, 7: torch.float64, 11: torch.bool, 15: torch.bfloat16}


def _overload(name: str, schema: str) -> Any:
    """The OpOverload of a node's schema."""
    packet = getattr(torch.ops.aten, name)
    wanted = schema.split("(")[0].partition(".")[2] or "default"
    if wanted in packet.overloads():
        return getattr(packet, wanted)
    raise UnsupportedModelError([Problem(f"aten.{name}.{wanted}", hint="no overload of PyTorch's")])
