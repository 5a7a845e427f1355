"""torch.export -> Program. Everything that depends on the version of torch.export is here.

Takes the pre-dispatch training IR (no run_decompositions), so that ops are at the level at which autocast
decides. Blocks of torch.autocast and torch.no_grad come as higher-order ops and are inlined, their content
stamped on the calls. The trace itself runs in an autocast block of its own (asked_dtypes.py says why), of which the
program shows nothing.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from typing import Any, Iterator

import torch

from ..errors import Problem, UnsupportedModelError
from ..ir.program import Autocast, Call, Names, Place, Program, Ref, StepModule
from .asked_dtypes import LOW, AskedDtypes
from .user_code import source_of

PREFIX = "model."  # of StepModule
# Checks that the export adds: they apply to the dtypes of its own run, which are not those of the loop.
_NO_EFFECT = {"aten._assert_tensor_metadata", "aten._assert_async", "aten.sym_constrain_range"}


class _Step(torch.nn.Module):
    """A StepModule in the block of autocast that the trace needs."""

    def __init__(self, step: StepModule, low: torch.dtype, asked: AskedDtypes):
        super().__init__()
        self.model = step.model  # the path that PREFIX names
        self._forward, self._low, self._asked = step.forward, low, asked

    def forward(self, batch: Any) -> torch.Tensor:
        with torch.autocast(_device_of(self.model), dtype=self._low), self._asked:
            return self._forward(batch)


def _device_of(model: torch.nn.Module) -> str:
    return next((tensor.device.type for tensor in model.parameters()), "cpu")


def trace(step: StepModule, batch: Any, autocast: torch.dtype | None = None) -> Program:
    """Exports step(batch). autocast: what the loop's block casts to, None: it has none.

    Throws: what torch.export throws; UnsupportedModelError for what it shows but we cannot read.
    """
    low = autocast if autocast in LOW else LOW[0]
    exported, asked = _export(step, batch, low, autocast is None)
    if asked.by_example:
        # A cast that is low precision under the other dtype, too, follows a tensor; one that is not, named it.
        other = LOW[1 - LOW.index(low)]
        by_name = asked.by_example - _export(step, batch, other, autocast is None)[1].by_example
        if by_name:
            exported, asked = _export(step, batch, low, autocast is None, frozenset(by_name))
    names = Names(step.model)
    program = _Reader(exported, names).program
    program.note_assigned(step.assigned, names)
    return program


def _export(step: StepModule, batch: Any, low: torch.dtype, stays_fp32: bool,
            by_name: frozenset[int] = frozenset()) -> tuple[Any, AskedDtypes]:
    asked = AskedDtypes(low, stays_fp32, by_name)
    with quiet(), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        return torch.export.export(_Step(step, low, asked), (batch,)), asked


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without torch.export's warnings, logs and prints about what this package handles and reports itself."""
    before = logging.root.manager.disable
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)


class ValueDependence(Exception):
    """The exported graph computes with the values of tensors: sizes of masks, symbolic numbers."""


def depends_on_values(error: BaseException) -> bool:
    """Did the export fail because the forward pass read a tensor's value?"""
    if isinstance(error, ValueDependence):
        return True
    text = f"{type(error).__name__} {error}"
    signs = ("data-dependent", "DataDependent", "GuardOnDataDependentSymNode", "aten._local_scalar_dense",
             "Could not guard", "Could not extract specialized integer", "aten.nonzero", "aten.masked_select")
    return any(sign in text for sign in signs)


class _Reader:
    """Walks an ExportedProgram's graph, higher-order ops included."""

    def __init__(self, exported: Any, names: Names):
        self.program = Program("export")
        self._names = names
        self._constants = dict(exported.constants)
        self._calls_of: dict[str, dict[str, int]] = {}
        self._values: dict[Any, Any] = {}  # fx node -> Ref, constant, or list of them
        self._taken: set[str] = set()
        module = self._root = exported.graph_module
        leaf = 0
        specs = {spec.arg.name: spec for spec in exported.graph_signature.input_specs}
        for node in module.graph.nodes:
            if node.op != "placeholder":
                continue
            leaf += self._placeholder(node, specs[node.name], leaf)
        output = self._walk(module, None, False)
        loss = output[0]
        while isinstance(loss, (list, tuple)):
            loss = loss[0]
        assert isinstance(loss, Ref)  # step_function.py has seen that it is a tensor
        self.program.loss = loss.name

    def _placeholder(self, node: Any, spec: Any, leaf: int) -> int:
        """1 if the placeholder is a leaf of the batch."""
        kind = spec.kind.name
        program, name = self.program, self._new(node.name)
        self._values[node] = Ref(name)
        if kind == "USER_INPUT":
            if not isinstance(node.meta.get("val"), torch.Tensor):
                self._values[node] = getattr(spec.arg, "value", None)  # a number: specialised
                return 1
            program.inputs[name] = leaf
            return 1
        if kind == "PARAMETER":
            program.params[name] = self._names.canonical(spec.target.removeprefix(PREFIX))
        elif kind == "BUFFER":
            program.buffers[name] = self._names.canonical(spec.target.removeprefix(PREFIX))
        elif kind == "CONSTANT_TENSOR":
            tensor = self._constants[spec.target]
            owner = self._names.parameter_of(tensor)  # a parameter kept in a Python list
            if owner is not None:
                program.params[name] = owner
            else:
                program.constants[name] = tensor.detach()
        elif isinstance(made := self._constants.get(spec.target), torch.Generator):
            self._values[node] = None  # what is drawn is recorded, wherever it comes from
        else:
            places = [self._place(user) for user in node.users] or [Place()]
            raise UnsupportedModelError([
                Problem(f"an operand of class {type(made).__name__} ({kind})", place.module, place.source,
                        "only tensors, numbers and random generators can be captured") for place in places])
        return 0

    def _new(self, wanted: str) -> str:
        name, number = wanted, 1
        while name in self._taken:
            number += 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        return name

    def _walk(self, module: torch.fx.GraphModule, autocast: Autocast | None, nograd: bool) -> Any:
        for node in module.graph.nodes:
            if node.op == "get_attr":
                self._values[node] = self._attribute(module, node)
            elif node.op == "call_function":
                self._call(module, node, autocast, nograd)
            elif node.op == "output":
                return self._argument(node.args[0])
        raise AssertionError("a graph without output")

    def _attribute(self, module: torch.fx.GraphModule, node: Any) -> Any:
        value: Any = module
        for part in node.target.split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            return value  # a block of a higher-order op
        name = self._new(node.name)
        owner = self._names.parameter_of(value)
        if owner is not None:
            self.program.params[name] = owner
        else:
            self.program.constants[name] = value.detach()
        return Ref(name)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return self._values[value]
        if isinstance(value, tuple):
            return tuple(self._argument(item) for item in value)
        if isinstance(value, list):
            return [self._argument(item) for item in value]
        if isinstance(value, dict):
            return {key: self._argument(item) for key, item in value.items()}
        return value

    def _call(self, module: Any, node: Any, autocast: Autocast | None, nograd: bool) -> None:
        args = tuple(self._argument(arg) for arg in node.args)
        kwargs = {key: self._argument(value) for key, value in node.kwargs.items()}
        target, name = node.target, str(node.target)
        if name == "wrap_with_autocast":
            device, dtype, enabled, cache, block, *operands = args
            dtype_name = str(dtype).removeprefix("torch.") if dtype is not None else ""
            region = None if module is self._root else Autocast(bool(enabled), dtype_name, device, bool(cache))
            self._values[node] = self._inline(block, operands, region, nograd)
        elif name == "wrap_with_set_grad_enabled":
            enabled, block, *operands = args
            self._values[node] = self._inline(block, operands, autocast, not enabled)
        elif _is_getitem(target) and isinstance(args[0], (list, tuple)):
            self._values[node] = args[0][args[1]]  # a result of an inlined block
        elif name.rpartition(".")[0] in _NO_EFFECT:
            return
        elif _is_getitem(target) or isinstance(target, torch._ops.OpOverload):
            bound = self._new(node.name)
            self._values[node] = Ref(bound)
            self.program.calls.append(
                Call(bound, target, args, kwargs, self._place(node), autocast, nograd, _narrows(node)))
        elif getattr(target, "__module__", "") in ("_operator", "math", "torch") or name.startswith("sym_"):
            raise ValueDependence(name)
        else:
            place = self._place(node)
            raise UnsupportedModelError([Problem(name, place.module, place.source,
                                                 "only autocast and no_grad blocks are understood")])

    def _inline(self, block: Any, operands: list[Any], autocast: Autocast | None, nograd: bool) -> Any:
        formal = [node for node in block.graph.nodes if node.op == "placeholder"]
        for node, value in zip(formal, operands, strict=True):
            self._values[node] = value
        return self._walk(block, autocast, nograd)

    def _place(self, node: Any) -> Place:
        source = source_of(node.meta.get("stack_trace") or "")
        stack = node.meta.get("nn_module_stack") or {}
        if not stack:
            return Place(source=source)
        key, (path, module_class) = list(stack.items())[-1]
        if not isinstance(module_class, str):
            module_class = f"{module_class.__module__}.{module_class.__qualname__}"
        path = path.split("@")[0]
        if path in ("", "model"):
            return Place("", module_class if path else "", 0, source)
        calls = self._calls_of.setdefault(path, {})
        return Place(path.removeprefix(PREFIX), module_class, calls.setdefault(key, len(calls)), source)


def _narrows(node: Any) -> bool:
    """`y += x` with an x whose dtype alone would make the sum wider than y. Numbers and 0-dim tensors do not."""
    if _is_getitem(node.target) or not node.target._schema.name.endswith("_"):
        return False
    values = [arg.meta.get("val") for arg in node.args if isinstance(arg, torch.fx.Node)]
    dtypes = [value.dtype for value in values if isinstance(value, torch.Tensor) and value.dim() > 0]
    if len(dtypes) < 2 or not all(dtype.is_floating_point for dtype in dtypes):
        return False
    return any(torch.promote_types(dtypes[0], dtype) != dtypes[0] for dtype in dtypes[1:])


def _is_getitem(target: Any) -> bool:
    return getattr(target, "__name__", "") == "getitem"
