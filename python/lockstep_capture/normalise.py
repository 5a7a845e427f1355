"""Program -> Lockstep's graph: constants folded, in-place ops renamed, ATen's spellings made one.

The whole program is looked at before anything is refused, so that one error lists everything. Rules for the ops
are in rules_*.py.
"""

from __future__ import annotations

import hashlib
from typing import Any, Callable, Mapping, Sequence

import torch

from . import (rules_bags, rules_cells, rules_compare, rules_composed, rules_distances, rules_layers,  # noqa: F401
               rules_losses, rules_math, rules_shape, rules_windows)  # they register themselves
from .builder import RuleContext, Unsupported, find_rule, no_rule, problem_of
from .errors import Problem, UnsupportedModelError
from .interpreter import Interpreter, Observer
from .ir import Graph, GraphInput, Node, Shape, Value, element_type
from .program import Call, Names, Program, Ref, iterate_refs
from .random_ops import base_name, random_site
from .ssa import CONST, GRAPH, Versions, value_name, versions_of

MASK_LIMIT = 1e30  # constants beyond are masks (-FLT_MAX, -inf), not weights of anything
_DTYPES = {torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
           torch.uint8, torch.bool}


class TypeRecorder(Observer):
    """Shape and dtype of every value; of several outputs a list.

    layouts: tensors without content, in the order in which a value's elements lie, and would lie after a cast.
    """

    def __init__(self) -> None:
        self.types: dict[str, Any] = {}
        self.layouts: dict[str, torch.Tensor] = {}

    def root(self, name: str, value: torch.Tensor) -> None:
        self._record(name, value)

    def after(self, call: Call, result: Any) -> None:
        self._record(call.name, result)

    def _record(self, name: str, value: Any) -> None:
        self.types[name] = _type_of(value)
        if isinstance(value, torch.Tensor):
            self.layouts[name] = torch.empty_like(value, device="meta")

    def is_float(self) -> dict[str, bool]:
        first = {name: kind[0] if isinstance(kind, list) and kind else kind for name, kind in self.types.items()}
        return {name: bool(kind) and kind[1].is_floating_point for name, kind in first.items()}


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

    def before(self, call: Call, value: Callable[[str], Any]) -> None:
        if self._versions.kind[call.name] != GRAPH or call.name not in self._versions.live:
            return
        for ref in iterate_refs(self._versions.reads[call.name]):
            if self._versions.kind.get(ref.name) != GRAPH and ref.name not in self.values:
                found = value(value_name(ref.name))
                if isinstance(found, torch.Tensor):
                    self.values[ref.name] = found.detach().clone()


def analyse(program: Program, params: Mapping[str, torch.Tensor], buffers: Mapping[str, torch.Tensor],
            leaves: list[Any]) -> tuple[Versions, TypeRecorder]:
    """Types by a run of the program that draws its own random numbers and leaves the global generators alone."""
    recorder = TypeRecorder()
    with torch.no_grad(), torch.random.fork_rng():
        Interpreter(program, params, buffers, leaves, None, observer=recorder).run()
    return versions_of(program, recorder.is_float()), recorder


class Normaliser:
    """graph: the result. ir_of: value of the program -> id of the graph's value."""

    def __init__(self, program: Program, versions: Versions, types: TypeRecorder, snapshots: Snapshots,
                 model: torch.nn.Module, paths: Sequence[str], *, plain_attention: bool = False):
        self._program, self._versions, self._types, self._layouts = program, versions, types.types, types.layouts
        self._snapshots, self._paths, self.plain_attention = snapshots.values, paths, plain_attention
        self._model, self._names = model, Names(model)
        self._env: dict[str, Any] = {}
        self._cache: dict[Any, Value] = {}
        self._detached: dict[str, Value] = {}
        self._nograd: set[str] = set()
        self._calls = {call.name: call for call in program.calls}
        self.ir_of: dict[str, str] = {}
        self.graph = Graph(type(model).__name__)
        self.problems: list[Problem] = list(versions.problems)
        self._batch_norm_counts: dict[str, str] = {}  # num_batches_tracked -> the call that counts
        self._renewed: dict[str, Value] = {}  # buffer -> its value after the last batch_norm so far
        for call in program.calls:
            if call.name in versions.live and versions.kind[call.name] == GRAPH:
                self._normalise(call)
        if (versions.kind.get(versions.loss) != GRAPH or not self.graph.params) and not self.problems:
            self.problems.append(Problem("a loss that depends on no weight of the model", hint="step_fn(model, batch) "
                                         "must return the loss, computed with the model that it is given"))
        if self.problems:
            raise UnsupportedModelError(self.problems)
        self._finish()

    def _normalise(self, call: Call) -> None:
        args, kwargs = self._versions.reads[call.name]
        if call.is_getitem:
            found = self._env.get(args[0].name)
            if isinstance(found, (list, tuple)):
                self._bind(call, found[args[1]])
            return
        written = self._versions.written.get(call.name)
        if base_name(call) == "aten.add_" and written and not self._is_float_type(self._types[call.name]):
            self._batch_norm_counts[written] = call.name
            return  # num_batches_tracked: batch_norm counts
        found_rule = find_rule(call)
        try:
            if found_rule is None:
                raise no_rule(call)
            result = found_rule(RuleContext(self, call, args, kwargs))
            if call.narrows and isinstance(result, Value) and result.is_float:
                own = self.operand(args[0], call, want_float=True)
                result = self.add("cast_like", [result.id, own.id], {}, [(result.shape, "f32")], call).value()
        except Unsupported as error:
            self.problems.append(problem_of(error, call))
            result = self._placeholder_result(call)
        self._bind(call, result)

    def _bind(self, call: Call, result: Any) -> None:
        self._env[call.name] = result
        if call.nograd:
            self._nograd.add(call.name)
        if isinstance(result, Value):
            expected = self._types.get(call.name)
            if isinstance(expected, tuple) and result.shape != expected[0]:
                raise AssertionError(f"{call.op}: normalised to {result.shape}, PyTorch gives {expected[0]}")
            self.ir_of[call.name] = result.id

    def _placeholder_result(self, call: Call) -> Any:
        """A value to continue with after a problem, so that all problems are found."""
        def value(kind: Any) -> Any:
            if isinstance(kind, list):
                return [value(item) for item in kind]
            shape, dtype = kind if kind else ((), torch.float32)
            return Value("n0", shape, element_type(dtype))
        return value(self._types.get(call.name))

    # For RuleContext
    @staticmethod
    def _is_float_type(kind: Any) -> bool:
        return bool(kind) and not isinstance(kind, list) and kind[1].is_floating_point

    def type_of(self, name: str, slot: int | None = None) -> tuple[Shape, torch.dtype]:
        found = self._types[name]
        return found if slot is None else found[slot]

    def is_float(self, ref: Ref) -> bool:
        return self._is_float_type(self._types[value_name(ref.name)])

    def dtype_of(self, ref: Ref) -> torch.dtype:
        return self._types[value_name(ref.name)][1]  # type: ignore[no-any-return]

    def is_computed(self, ref: Ref) -> bool:
        return self._versions.kind[ref.name] == GRAPH

    def layout(self, ref: Ref) -> torch.Tensor:
        return self._layouts[value_name(ref.name)]

    def constant(self, ref: Ref) -> torch.Tensor | None:
        """The tensor, if it depends on neither batch nor weights."""
        return self._snapshots.get(ref.name) if self._versions.kind.get(ref.name) == CONST else None

    def constant_number(self, ref: Ref) -> float | None:
        found = self.constant(ref)
        return float(found.item()) if found is not None and found.numel() == 1 else None

    def operand(self, ref: Any, call: Call, want_float: bool | None) -> Value:
        if not isinstance(ref, Ref):
            raise Unsupported(call.op, f"an operand is {ref!r}, must be a tensor")
        name = ref.name
        kind = self._versions.kind[name]
        if kind == GRAPH:
            found = self._graph_value(name, call)
        else:
            found = self._outside_value(name, kind, want_float)
            if want_float and found.is_float:
                found = self._in_its_dtype(name, found, call)
        if want_float and not found.is_float:
            if self.dtype_of(ref) != torch.bool:
                raise Unsupported(call.op, "an integer tensor computed from activations has no arithmetic here")
            return self.mask_as_number(found, call, besides=name)
        return found

    def _in_its_dtype(self, name: str, found: Value, call: Call) -> Value:
        """A constant, noise or the like in the format of the activation whose dtype it took, if it took one."""
        example = self._versions.example_of(name, self._calls, self.is_float)
        if example is None or _is_huge(self._snapshots[name]):  # finfo(y.dtype).min is no number of another format
            return found
        key = ("in the dtype of", (found.id, example))
        if key not in self._cache:
            like = self._graph_value(example, call)
            node = self.add("cast_like", [found.id, like.id], {}, [(found.shape, "f32")], call)
            self._cache[key] = node.value()
        return self._cache[key]

    def mask_as_number(self, mask: Value, call: Call, besides: str = "") -> Value:
        """1.0 and 0.0 for a mask's 1 and 0: in the format of the other floating operand, as torch promotes, or FP32."""
        one, zero = (self.derive(f"number{n!r}", lambda n: torch.tensor(n, dtype=torch.float32), [n], call)
                     for n in (1.0, 0.0))
        node = self.add("where", [mask.id, one.id, zero.id], {}, [(mask.shape, "f32")], call)
        for other in iterate_refs(self._versions.reads[call.name]) if besides else ():
            if other.name != besides and self.is_computed(other) and self.is_float(other):
                example = self.operand(other, call, True)
                node = self.add("cast_like", [node.id, example.id], {}, [(mask.shape, "f32")], call)
                break
        return node.value()

    def _graph_value(self, name: str, call: Call) -> Value:
        if name in self._program.params:
            return self._parameter(self._program.params[name])
        if name in self._program.buffers:
            return self._buffer_now(self._program.buffers[name])
        found = self._env.get(name)
        if name in self._versions.written and found is None:
            raise Unsupported("a counter", f"buffer {self._versions.written[name]}: integers that the forward pass changes "
                              "and reads have no arithmetic here; make the buffer a float")
        if not isinstance(found, Value):
            raise Unsupported(call.op, "a list of tensors where a tensor is needed")
        if name in self._nograd and not call.nograd and found.is_float:
            if found.id not in self._detached:
                node = self.add("detach", [found.id], {}, [(found.shape, "f32")], self._calls[name])
                self._detached[found.id] = node.value()
            return self._detached[found.id]
        return found

    def _parameter(self, path: str) -> Value:
        parameter = self._model.get_parameter(path)
        if all(path != entry[0] for entry in self.graph.params):
            self.graph.params.append((path, tuple(parameter.shape), parameter.requires_grad, _module_of(path)))
        return Value(f"p:{path}", tuple(parameter.shape), "f32")

    def _buffer(self, path: str) -> Value:
        buffer = self._model.get_buffer(path)
        shape, dtype = tuple(buffer.shape), element_type(buffer.dtype)
        if all(path != entry[0] for entry in self.graph.buffers):
            self.graph.buffers.append((path, shape, dtype, _module_of(path)))
        return Value(f"b:{path}", shape, dtype)

    def _buffer_now(self, path: str) -> Value:
        return self._renewed.get(path) or self._buffer(path)

    def _outside_value(self, name: str, kind: str, want_float: bool | None) -> Value:
        found = self._snapshots.get(name)
        if found is None:
            raise Unsupported("a value without tensor", "only tensors can be operands")
        to_float = bool(want_float) and not found.dtype.is_floating_point
        if kind == CONST and name in self._program.buffers and not to_float:
            return self._buffer(self._program.buffers[name])
        if to_float:
            return self.derive("float", lambda x: x.float(), [Ref(name)], None)
        return self.derive("", lambda x: x, [Ref(name)], None)

    def derive(self, what: str, body: Callable[..., torch.Tensor], operands: Sequence[Any],
               call: Call | None) -> Value:
        """A constant, or an input, that is body(*operands); operands: Refs of constant or derived values, or numbers."""
        names = tuple(ref.name for ref in operands if isinstance(ref, Ref))
        if any(self._versions.kind[name] == GRAPH or name not in self._snapshots for name in names):
            raise Unsupported(call.op if call else "index", "an index that is computed from activations")

        def compute(*values: torch.Tensor) -> torch.Tensor:
            left = list(values)
            return body(*[left.pop(0) if isinstance(item, Ref) else item for item in operands])

        key = (what, tuple(item.name if isinstance(item, Ref) else repr(item) for item in operands))
        if key not in self._cache:
            example = compute(*[self._snapshots[name] for name in names])
            constant = all(self._versions.kind[name] == CONST for name in names)
            self._cache[key] = self._constant(names, what, example) if constant \
                else self._input(names, what, example, compute)
        return self._cache[key]

    def _constant(self, names: tuple[str, ...], what: str, tensor: torch.Tensor) -> Value:
        exempt = _is_mask(tensor)
        tensor = tensor.contiguous()
        raw = tensor.float() if tensor.dtype.is_floating_point else tensor.to(torch.int64)
        digest = hashlib.sha256(raw.cpu().numpy().tobytes() + str(tuple(tensor.shape)).encode()).hexdigest()[:8]
        label = "_".join([*(value_name(name) for name in names), what]).strip("_") or "constant"
        name = f"{label}-{digest}"
        self._check_dtype(tensor, f"the constant {label}")
        self.graph.constants[name] = tensor
        if exempt:
            self.graph.stat_exempt.add(name)
        return Value(f"c:{name}", tuple(tensor.shape), element_type(tensor.dtype))

    def _input(self, names: tuple[str, ...], what: str, example: torch.Tensor,
               compute: Callable[..., torch.Tensor]) -> Value:
        path = self._path_of(names, what)
        self._check_dtype(example, path)
        entry = GraphInput(path, tuple(example.shape), element_type(example.dtype),
                           str(example.dtype).removeprefix("torch."), names, compute,
                           stat_exempt=path.startswith("derived:") and _is_mask(example))
        self.graph.inputs.append(entry)
        return Value(f"in{len(self.graph.inputs) - 1}", entry.shape, entry.dtype)

    def _path_of(self, names: tuple[str, ...], what: str) -> str:
        if len(names) == 1 and names[0] in self._program.inputs and not what:
            return self._paths[self._program.inputs[names[0]]]
        call = self._calls.get(value_name(names[0])) if names else None
        if not what and call is not None and random_site(call) is not None:
            return f"noise:{call.op}:{call.name}"
        source = call.op if call is not None else self._paths[self._program.inputs[value_name(names[0])]]
        return f"derived:{source}:{'_'.join(value_name(name) for name in names)}" + (f":{what}" if what else "")

    def _check_dtype(self, tensor: torch.Tensor, what: str) -> None:
        if tensor.dtype not in _DTYPES:
            raise Unsupported(f"{what}: is {str(tensor.dtype).removeprefix('torch.')}", "floats of 32 bits or fewer, "
                              "integers and booleans can be captured; call .float() on it before the block")

    def add(self, op: str, inputs: list[str], attrs: dict[str, Any], outputs: list[tuple[Shape, str]],
            call: Call) -> Node:
        node = Node(f"n{len(self.graph.nodes)}", op, inputs, attrs, outputs, call.place,
                    "" if call.is_getitem else call.op, call.autocast, call.nograd)
        self.graph.nodes.append(node)
        site = random_site(call)
        if site is not None and site.kind == op.replace("gru", "lstm"):
            self.graph.rng.append((node.id, call.name))
        return node

    def _finish(self) -> None:
        loss = self._graph_value(self._versions.loss, self._program_end())
        if loss.shape != ():
            node = self.add("reshape", [loss.id], {"shape": ()}, [((), "f32")], self.call_of_loss())
            loss = node.value()
        self.graph.loss = loss.id
        for path, version in self._versions.mutations.items():
            found = self._env.get(version)
            if isinstance(found, Value) and all(path != entry[0] for entry in self.graph.mutations):
                if not found.id.startswith("n"):  # a weight, an input, another buffer
                    found = self.add("reshape", [found.id], {"shape": found.shape}, [(found.shape, found.dtype)],
                                     self._calls[version]).value()
                self._buffer(path)
                source, _, slot = found.id.partition(".")
                self.graph.mutations.append((path, source, int(slot or 0)))
        self.graph.drop_unread()
        nodes = {node.id for node in self.graph.nodes}
        self.ir_of = {name: found for name, found in self.ir_of.items()
                      if not found.startswith("n") or found.partition(".")[0] in nodes}

    # For batch_norm
    def count_of_batch_norm(self, mean: Ref) -> Value | None:
        """num_batches_tracked, if the module counts its batches."""
        path = self._count_path(mean)
        return self._buffer_now(path) if path in self._batch_norm_counts else None

    def _count_path(self, mean: Ref) -> str:
        return self._buffer_path(mean).replace("running_mean", "num_batches_tracked")

    def _buffer_path(self, ref: Ref) -> str:
        path = self._program.buffers.get(value_name(ref.name))
        if path is None:
            raise Unsupported("running statistics outside of the model", "the network of that batch_norm must be a "
                              "submodule of the model, or in evaluation mode")
        return path

    def mutate_batch_norm(self, node: Node, mean: Ref, var: Ref, count: Value | None) -> None:
        """Outputs 1 and 2 are the new running statistics, the last one is the new count."""
        for slot, ref in ((1, mean), (2, var)):
            self._set_buffer(self._buffer_path(ref), node, slot)
        if count is not None:
            self._set_buffer(self._count_path(mean), node, 5)

    def _set_buffer(self, path: str, node: Node, slot: int) -> None:
        """In its second call, a module reads the result of the first."""
        self.graph.mutations = [entry for entry in self.graph.mutations if entry[0] != path]
        self.graph.mutations.append((path, node.id, slot))
        self._buffer(path)
        self._renewed[path] = node.value(slot)

    def call_of_loss(self) -> Call:
        return self._calls[self._versions.loss]

    def _program_end(self) -> Call:
        return Call("", None, (), {})


def _module_of(path: str) -> str:
    return path.rpartition(".")[0]


def _is_huge(tensor: torch.Tensor) -> bool:
    """Numbers of a mask that are finite."""
    return _is_mask(tensor) and bool((tensor.abs().float().nan_to_num(0, 0, 0) > MASK_LIMIT).any())


def _is_mask(tensor: torch.Tensor) -> bool:
    if not tensor.dtype.is_floating_point or tensor.numel() == 0:
        return False
    return bool((tensor.abs().float() > MASK_LIMIT).any())
