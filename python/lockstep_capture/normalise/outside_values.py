"""Values that no weight reaches: constants of the graph, and inputs that Python computes for every micro-batch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from ..ir.graph import Graph, GraphInput, Value, element_type
from ..ir.program import Call, Program, Ref
from ..ir.random_ops import random_site
from ..rules.context import Unsupported
from .ssa import CONST, GRAPH, Versions, value_name

MASK_LIMIT = 1e30  # constants beyond are masks (-FLT_MAX, -inf), not weights of anything
_RENAMES = {"aten.alias.default", "aten.type_as.default"}
_DTYPES = {
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
}


class OutsideValues:
    """Adds constants and inputs to the graph, each once. snapshots: their content in the traced run."""

    def __init__(
        self,
        graph: Graph,
        program: Program,
        versions: Versions,
        snapshots: Mapping[str, torch.Tensor],
        paths: Sequence[str],
        graded: Collection[str],
    ):
        """graded: paths of the batch that a gradient goes back to."""
        self._graded = graded
        self._graph, self._program, self._versions = graph, program, versions
        self._snapshots, self._paths = snapshots, paths
        self._calls = {call.name: call for call in program.calls}
        self._made: dict[Any, Value] = {}

    def operands(self, besides: set[str]) -> set[str]:
        """The values that Python made something of, for other graph values than these."""
        return {
            name for (_, names), made in self._made.items() if made.id not in besides or made.is_empty for name in names
        }

    def constant(self, ref: Ref) -> torch.Tensor | None:
        """The tensor, if it depends on neither batch nor weights."""
        return self._snapshots.get(ref.name) if self._versions.kind.get(ref.name) == CONST else None

    def is_float(self, name: str) -> bool:
        """Throws: Unsupported for a value that is not a tensor."""
        return self._tensor(name).dtype.is_floating_point

    def is_huge(self, name: str) -> bool:
        """Numbers of a mask that are finite."""
        tensor = self._tensor(name)
        return _is_mask(tensor) and bool((tensor.abs().float().nan_to_num(0, 0, 0) > MASK_LIMIT).any())

    def _any_tensor(self, name: str) -> torch.Tensor:
        found = self._snapshots.get(name)
        if found is None:
            raise Unsupported("a value without tensor", "only tensors can be operands")
        return found

    def _tensor(self, name: str) -> torch.Tensor:
        found = self._any_tensor(name)
        if found.layout != torch.strided:
            raise Unsupported("a sparse tensor", "use its to_dense(), or a product with it from the left (torch.mm)")
        return found

    def examples(self, refs: Sequence[Ref]) -> list[torch.Tensor]:
        return [self._any_tensor(ref.name) for ref in refs]

    def value(self, name: str, to_float: bool) -> Value:
        if to_float:
            return self.derive("float", lambda x: x.float(), [Ref(name)], None)
        return self.derive("", lambda x: x, [Ref(name)], None)

    def derive(self, what: str, body: Callable[..., torch.Tensor], operands: Sequence[Any], call: Call | None) -> Value:
        """A constant, or an input, that is body(*operands); operands: Refs of constant or derived values, or numbers."""
        names = tuple(ref.name for ref in operands if isinstance(ref, Ref))
        if any(self._versions.kind[name] == GRAPH or name not in self._snapshots for name in names):
            raise Unsupported(call.op if call else "index", "an index that is computed from activations")

        def compute(*values: torch.Tensor) -> torch.Tensor:
            left = list(values)
            found = body(*[left.pop(0) if isinstance(item, Ref) else item for item in operands])
            return found.float() if found.dtype == torch.float64 else found

        key = (what, tuple(item.name if isinstance(item, Ref) else repr(item) for item in operands))
        if key not in self._made:
            example = compute(*[self._snapshots[name] for name in names])
            if example.numel() == 0:
                self._made[key] = Value("empty", tuple(example.shape), element_type(example.dtype))
                return self._made[key]
            constant = all(self._versions.kind[name] == CONST for name in names)
            self._made[key] = (
                self._constant(names, what, example) if constant else self._input(names, what, example, compute)
            )
        return self._made[key]

    def _constant(self, names: tuple[str, ...], what: str, tensor: torch.Tensor) -> Value:
        exempt = _is_mask(tensor)
        tensor = tensor.contiguous()
        raw = tensor.float() if tensor.dtype.is_floating_point else tensor.to(torch.int64)
        digest = hashlib.sha256(raw.cpu().numpy().tobytes() + str(tuple(tensor.shape)).encode()).hexdigest()[:8]
        label = "_".join([*(self._own_name(name) for name in names), what]).strip("_") or "constant"
        name = f"{label}-{digest}"
        self._check_dtype(tensor, f"the constant {label}")
        self._graph.constants[name] = tensor
        if exempt:
            self._graph.stat_exempt.add(name)
        return Value(f"c:{name}", tuple(tensor.shape), element_type(tensor.dtype))

    def _own_name(self, name: str) -> str:
        """`zeros` for what the trace made another name for, and cast."""
        call = self._calls.get(value_name(name))
        while call is not None and call.op in _RENAMES:
            name = call.refs()[0]
            call = self._calls.get(name)
        return value_name(name)

    def _input(
        self, names: tuple[str, ...], what: str, example: torch.Tensor, compute: Callable[..., torch.Tensor]
    ) -> Value:
        path = self._path_of(names, what)
        self._check_dtype(example, path)
        entry = GraphInput(
            path,
            tuple(example.shape),
            element_type(example.dtype),
            str(example.dtype).removeprefix("torch."),
            names,
            compute,
            stat_exempt=path.startswith("derived:") and _is_mask(example),
            requires_grad=path in self._graded,
        )
        self._graph.inputs.append(entry)
        return Value(f"in{len(self._graph.inputs) - 1}", entry.shape, entry.dtype)

    def _path_of(self, names: tuple[str, ...], what: str) -> str:
        if len(names) == 1 and names[0] in self._program.inputs and not what:
            return self._paths[self._program.inputs[names[0]]]
        call = self._calls.get(value_name(names[0])) if names else None
        if not what and call is not None and random_site(call) is not None:
            return f"noise:{call.op}:{call.name}"
        if call is None:
            source = self._root_of(value_name(names[0]))
        else:  # before Python 3.11 lines have no text: "mul (net.py:9)"
            short = call.op.split(".")[1] if "." in call.op else call.op
            source = call.place.text or f"{short} ({call.place.source})"
        return f"derived:{source}:{'_'.join(value_name(name) for name in names)}" + (f":{what}" if what else "")

    def _root_of(self, name: str) -> str:
        """What the user calls a leaf of the batch, or a buffer of integers."""
        return self._program.buffers[name] if name in self._program.buffers else self._paths[self._program.inputs[name]]

    def _check_dtype(self, tensor: torch.Tensor, what: str) -> None:
        if tensor.dtype not in _DTYPES:
            raise Unsupported(
                f"{what}: is {str(tensor.dtype).removeprefix('torch.')}",
                "floats of 16 to 64 bits, integers and booleans can be captured; cast it before the block",
            )


def _is_mask(tensor: torch.Tensor) -> bool:
    if not tensor.dtype.is_floating_point or tensor.numel() == 0:
        return False
    return bool((tensor.abs().float() > MASK_LIMIT).any())
