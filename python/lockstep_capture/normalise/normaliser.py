"""Program -> Lockstep's graph: constants folded, in-place ops renamed, ATen's spellings made one.

The whole program is looked at before anything is refused, so that one error lists everything. Rules for the ops
are in rules/.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..errors import Problem, UnsupportedModelError
from ..ir.decisions import is_comparison, picks
from ..ir.gradients import GRADIENT, differentiated
from ..ir.graph import Complex, Graph, Node, Shape, Value, element_type
from ..ir.program import Call, Program, Ref, iterate_refs
from ..ir.random_ops import base_name, random_site
from ..rules import families  # noqa: F401  (they register themselves)
from ..rules.choices import decided
from ..rules.complex_numbers import as_pairs, by_part, complex_rule, halves
from ..rules.context import COMPLEX_HINT, Made, RuleContext, Unsupported, find_rule, no_rule, problem_of
from ..rules.view_writes import written_to
from .chosen import SAME_ORDER
from .observers import Snapshots, TypeRecorder
from .outside_values import OutsideValues
from .ssa import CONST, GRAPH, Versions, is_in_place, started_as, value_name
from .stored_values import StoredValues
from .views import Refreshed, Written
from .weighed import followed

_EMPTY = "empty"
# Ops that join operands of several dtypes. Integers among them take the dtype of the floating ones.
_PROMOTING = {
    f"aten.{name}" for name in ("add", "sub", "rsub", "mul", "div", "true_divide", "pow", "maximum", "minimum", "where")
}


def _without_elements(kind: Any) -> Any:
    """Values for results that have no elements, None where one has some."""
    if isinstance(kind, list):
        found = [_without_elements(item) for item in kind]
        return found if found and None not in found else None
    return Value(_EMPTY, kind[0], element_type(kind[1])) if kind and 0 in kind[0] else None


class Normaliser:
    """graph: the result. ir_of: value of the program -> id of the graph's value."""

    def __init__(
        self,
        program: Program,
        versions: Versions,
        types: TypeRecorder,
        snapshots: Snapshots,
        model: torch.nn.Module,
        buffers: Mapping[str, torch.Tensor],
        paths: Sequence[str],
        *,
        plain_attention: bool = False,
        graded: Collection[str] = (),
    ):
        """graded: paths of the batch that a gradient goes back to."""
        self._program, self._versions, self._types = program, versions, types.types
        self._layouts, self._memory = types.layouts, types.strides
        self.plain_attention = plain_attention
        self._env: dict[str, Any] = {}
        # Casts of a value to the dtype of an activation: nodes of a backward pass of the user's own are seen there alone.
        self._cast: dict[tuple[str, str, str], Value] = {}
        self._detached: dict[str, Value] = {}
        self._differentiated = differentiated(program)
        self._leaves: dict[str, Value] = {}  # of these, values from outside of the network: a node that all uses read
        self._nograd: set[str] = set()
        self._learned: set[str] = set()  # values of the graph that a gradient can pass
        # A gradient inside the loss may be one of the batch.
        self._has_inner_gradients = any(call.target is GRADIENT for call in program.calls)
        self._decisions: dict[str, Value | None] = {}  # by the call that chose
        self._decided: dict[str, Value] = {}  # by version: its recorded content as the graph has it
        self._copies: dict[str, str] = {}  # version of a buffer -> what it is a copy of: integers outside of the graph
        self._calls = {call.name: call for call in program.calls}
        self.ir_of: dict[str, str] = {}
        self.graph = Graph(type(model).__name__)
        self.stored = StoredValues(self.graph, program, model, buffers)
        self._outside = OutsideValues(self.graph, program, versions, snapshots.values, paths, graded)
        self.problems: list[Problem] = list(versions.problems)
        for call in program.calls:
            if versions.kind[call.name] == GRAPH and call.name in versions.live | versions.for_choices:
                self._normalise(call, required=call.name in versions.live)
            for step in versions.steps.get(call.name, ()):
                if step.version in versions.needed:
                    self._follow(step, call)
            if call.name in versions.weighed:
                self.decision_of(call)
        if (versions.kind.get(versions.loss) != GRAPH or not self.graph.params) and not self.problems:
            self.problems.append(
                Problem(
                    "a loss that depends on no weight of the model",
                    hint="step_fn(model, batch) must return the loss, computed with the model that it is given",
                )
            )
        self._watch()
        if self.problems:
            raise UnsupportedModelError(self.problems)
        self._finish()

    @property
    def program(self) -> Program:
        return self._program

    def _normalise(self, call: Call, *, required: bool) -> None:
        """required: the loss depends on it. Otherwise only a choice does, which is then not weighed."""
        args, kwargs = self._versions.reads[call.name]
        if call.is_getitem:
            found = self._env.get(args[0].name)
            if isinstance(found, (list, tuple)):
                self._bind(call, found[args[1]])
            return
        empty = _without_elements(self._types.get(call.name))
        if empty is not None:
            self._bind(call, empty)
            return
        written = self._versions.written.get(call.name)
        if base_name(call) == "aten.add_" and written and not self._is_float_type(self._types[call.name]):
            self.stored.counted.add(written)
            return  # num_batches_tracked: batch_norm counts
        if call.name in self._versions.started:
            start = Ref(started_as(call.name))
            self._bind(
                call, self.parts(start, call) if self.is_complex(start) else self.operand(start, call, want_float=True)
            )
            return
        result = self._result(call, args, kwargs, required)
        if result is None:
            return
        if written and base_name(call) == "aten.copy_" and isinstance(result, Value) and not result.is_float:
            source = args[1].name
            if self._versions.kind[source] != GRAPH and self.type_of(value_name(source))[0] == result.shape:
                self._copies[call.name] = source
        if call.narrows and isinstance(result, Value) and result.is_float:
            own = self.operand(args[0], call, want_float=True)
            result = self.add("cast_like", [result.id, own.id], {}, [(result.shape, "f32")], call).value()
        if call.nograd and is_in_place(call) and isinstance(args[0], Ref) and self._has_gradient(args[0].name):
            self._env[call.name] = self._passed_by(args[0], result, call)
            self.ir_of[call.name] = self._env[call.name].id
            return
        self._bind(call, result)

    def _has_gradient(self, version: str) -> bool:
        """Is it a floating activation that was made with gradients?"""
        name = value_name(version)
        return (
            name in self._calls
            and self._is_float_type(self._types[name])
            and version not in self._nograd
            and not self._calls[name].nograd
            and not isinstance(self._env.get(version), list)
        )

    def _passed_by(self, own: Ref, result: Value, call: Call) -> Value:
        """A write under no_grad: the gradient of the value passes by it, as of result + (own - own)."""
        outside = RuleContext(self, replace(call, nograd=False), *self._versions.reads[call.name])
        old = self.operand(own, outside.call, want_float=True)
        nothing = outside.binary("sub", old, outside.same("detach", old))
        return outside.binary("add", outside.same("detach", result), nothing)

    def _follow(self, step: Written | Refreshed, call: Call) -> None:
        """A version that a write to a view makes of another value."""
        if isinstance(step, Refreshed):
            empty = _without_elements(self._types.get(step.call.name))
            self._env[step.version] = empty or self._result(step.call, step.args, step.kwargs, required=True)
            return
        context = RuleContext(self, call, *self._versions.reads[call.name])
        try:
            shape = self._types[value_name(step.part)][0]
            context.a = {"old": Ref(step.old), "part": Ref(step.part)}

            def write(c: RuleContext) -> Value:
                return written_to(c, c.value("old"), c.value("part"), shape, step.path)

            self._env[step.version] = by_part(context, write) if self.is_complex(Ref(step.old)) else write(context)
        except Unsupported as error:
            self.problems.append(problem_of(error, call))
            self._env[step.version] = self._placeholder_result(self._calls[value_name(step.version)])

    def _result(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], required: bool) -> Any:
        """None for what only a choice needs and what no rule has."""
        if call.is_getitem:
            found = self._env.get(args[0].name)
            return found[args[1]] if isinstance(found, (list, tuple)) else None
        context = RuleContext(self, call, args, kwargs)
        try:
            found_rule = complex_rule(context) if self._has_complex(call, args, kwargs) else find_rule(call)
            if found_rule is None:
                raise no_rule(call)
            return found_rule(context)
        except Unsupported as error:
            if not required:
                return None
            self.problems.append(problem_of(error, call))
            return self._placeholder_result(call)

    def _bind(self, call: Call, result: Any) -> None:
        if call.name in self._differentiated and isinstance(result, Value) and not self._is_new(result):
            result = self._renamed(result, call)
        self._env[call.name] = result
        if call.nograd:
            self._nograd.add(call.name)
        if isinstance(result, (Value, Complex)):
            expected = self._types.get(call.name)
            if isinstance(expected, tuple) and (
                result.shape != expected[0] or isinstance(result, Complex) != expected[1].is_complex
            ):
                raise AssertionError(f"{call.op}: normalised to {result}, PyTorch gives {expected}")
        if isinstance(result, Value):
            self.ir_of[call.name] = result.id

    def _placeholder_result(self, call: Call) -> Any:
        """A value to continue with after a problem, so that all problems are found."""

        def value(kind: Any) -> Any:
            if isinstance(kind, list):
                return [value(item) for item in kind]
            shape, dtype = kind if kind else ((), torch.float32)
            if dtype.is_complex:
                return Complex(Value("n0", shape, "f32"), Value("n0", shape, "f32"))
            return Value("n0", shape, element_type(dtype))

        return value(self._types.get(call.name))

    # For RuleContext (ir/graph_builder.py)
    def is_list(self, name: str) -> bool:
        """Does the call return several values?"""
        return isinstance(self._types[name], list)

    def is_live(self, call: Call) -> bool:
        """Does the loss or a buffer need its result?"""
        return call.name in self._versions.live

    def is_recorded(self, call: Call) -> bool:
        """Is its result data of the step, because it is chosen from activations?"""
        return call.name in self._versions.recorded

    @staticmethod
    def _is_float_type(kind: Any) -> bool:
        return bool(kind) and not isinstance(kind, list) and (kind[1].is_floating_point or kind[1].is_complex)

    def type_of(self, name: str, slot: int | None = None) -> tuple[Shape, torch.dtype]:
        found = self._types[name]
        return found if slot is None else found[slot]

    def is_float(self, ref: Ref) -> bool:
        return self._is_float_type(self._types[value_name(ref.name)])

    def is_complex(self, ref: Ref) -> bool:
        kind = self._types[value_name(ref.name)]
        return bool(kind) and not isinstance(kind, list) and kind[1].is_complex

    def _has_complex(self, call: Call, args: Any, kwargs: Any) -> bool:
        kind = self._types.get(call.name)
        first = kind[0] if isinstance(kind, list) and kind else kind
        return bool(first and first[1].is_complex) or any(map(self.is_complex, iterate_refs((args, kwargs))))

    def parts(self, ref: Any, call: Call) -> Complex:
        """Of an operand: a complex one, or a real one, whose imaginary part is 0."""
        if not self.is_complex(ref):
            real = self.operand(ref, call, want_float=True)
            return Complex(real, RuleContext(self, call, (), {}).zeros(real.shape))
        if self._versions.kind[ref.name] != GRAPH:
            return Complex(
                *(
                    self.derive(part, lambda z, part=part: getattr(z.resolve_conj(), part).float(), [ref], call)
                    for part in ("real", "imag")
                )
            )
        if ref.name in {**self._program.params, **self._program.buffers}:
            return halves(RuleContext(self, call, (), {}), self._stored(ref.name))
        found = self._env[ref.name]
        assert isinstance(found, Complex), ref.name
        if ref.name not in self._nograd or call.nograd:
            return found
        return Complex(*(self._detach(part, ref.name) for part in (found.real, found.imag)))

    def _real_part(self, name: str, call: Call) -> Value:
        return self.parts(Ref(name), call).real if self.is_complex(Ref(name)) else self.operand(Ref(name), call, True)

    def dtype_of(self, ref: Ref) -> torch.dtype:
        return self._types[value_name(ref.name)][1]

    def is_computed(self, ref: Ref) -> bool:
        return self._versions.kind[ref.name] == GRAPH

    def has_lanes_format(self, ref: Ref) -> bool:
        return self._versions.has_lanes_format(ref.name)

    def format_of(self, ref: Ref) -> Ref | None:
        found = self._versions.format_of(ref.name, self._calls, self.is_float)
        return None if found is None else Ref(found)

    def layout(self, ref: Ref) -> torch.Tensor:
        return self._layouts[value_name(ref.name)]

    def memory(self, ref: Ref) -> torch.Tensor | None:
        """See RuleContext.memory_of()."""
        stride, offset, held = self._memory[value_name(ref.name)]
        shape = self._types[value_name(ref.name)][0]
        count = torch.Size(shape).numel()
        if offset != 0 or held != count:
            return None
        places = torch.full((count,), -1)
        if sum((extent - 1) * step for extent, step in zip(shape, stride, strict=True)) != count - 1:
            return None
        places.as_strided(shape, stride).copy_(torch.arange(count).reshape(shape))
        return places if bool((places >= 0).all()) else None

    def constant(self, ref: Ref) -> torch.Tensor | None:
        return self._outside.constant(ref)

    def constant_number(self, ref: Ref) -> float | None:
        found = self.constant(ref)
        return float(found.item()) if found is not None and found.numel() == 1 else None

    def operand(self, ref: Any, call: Call, want_float: bool | None, *, follows: bool = True) -> Value:
        """follows: in the dtype of an activation, if it took that."""
        if not isinstance(ref, Ref):
            raise Unsupported(call.op, f"an operand is {ref!r}, must be a tensor")
        if isinstance(ref, Made):
            return ref.value
        name = ref.name
        kind = self._versions.kind[name]
        if kind == GRAPH:
            found = self._graph_value(name, call)
        elif value_name(name) in self._differentiated and want_float is not False:
            return self._leaf(name, call)
        else:
            found = self._outside_value(name, kind, bool(want_float))
            if follows and want_float is not False and found.is_float:
                found = self._in_its_dtype(name, found, call)
        if want_float and not found.is_float:
            if name in self._copies:
                return self._outside_value(self._copies[name], "", True)
            if self.dtype_of(ref) != torch.bool:
                raise Unsupported(call.op, "an integer tensor computed from activations has no arithmetic here")
            return self.mask_as_number(found, call, besides=name)
        return found

    def _leaf(self, name: str, call: Call) -> Value:
        if name not in self._leaves:
            made = replace(call, nograd=False)
            self._leaves[name] = self._renamed(self._outside_value(name, self._versions.kind[name], True), made)
        return self._leaves[name]

    def _is_new(self, x: Value) -> bool:
        """Has the last node made it?"""
        return bool(self.graph.nodes) and x.id == self.graph.nodes[-1].id

    def _renamed(self, x: Value, call: Call) -> Value:
        """The same value under an id of its own, for gradients by it."""
        return self.add("reshape", [x.id], {"shape": x.shape}, [(x.shape, x.dtype)], call).value()

    def _in_its_dtype(self, name: str, found: Value, call: Call) -> Value:
        """A constant, noise or the like in the format of the activation whose dtype it takes, if it takes one."""
        if self._outside.is_float(name):
            example = self._versions.example_of(name, self._calls, self.is_float)
        else:  # y / integers has y's dtype
            promotes = not found.is_empty and base_name(call).removesuffix("_") in _PROMOTING
            example = self._floating_beside(name, call) if promotes else None
        if example is None:
            return found
        key = (found.id, example, call.backward_of)
        if key not in self._cast:
            like = self._real_part(example, call)
            attrs = {"saturate": True} if self._outside.is_huge(name) else {}  # finfo(y.dtype).min
            made = self._calls.get(value_name(name), call)
            here = replace(call, place=made.place, target=made.target)
            node = self.add("cast_like", [found.id, like.id], attrs, [(found.shape, "f32")], here)
            self._cast[key] = node.value()
        return self._cast[key]

    def decision_of(self, call: Call) -> Value | None:
        """The node of a recorded choice, made once; None: lanes cannot weigh it."""
        if call.name not in self._versions.weighed:
            return None
        if call.name not in self._decisions:
            args, kwargs = self._versions.reads[call.name]
            context = RuleContext(self, call, args, kwargs)
            try:
                found = self._decisions[call.name] = decided(context)
            except Unsupported:
                self._decisions[call.name] = None
                return None
            for name, slot in self._results_of(call):
                self._decided[name] = context.reshape(found, context.out_shape(slot))
        return self._decisions[call.name]

    def _in_graph(self, version: str) -> bool:
        """Is it a choice that the graph has as a node, or one in another shape?"""
        if version in self._decided:
            return True
        call = self._calls.get(version)
        short = "" if call is None or call.is_getitem else base_name(call).split(".")[1]
        if (
            call is None
            or short not in SAME_ORDER | {"expand"}
            or not self._in_graph(self._versions.reads[version][0][0].name)
        ):
            return False
        args, kwargs = self._versions.reads[version]
        context, source = RuleContext(self, call, args, kwargs), self._decided[args[0].name]
        shape = context.out_shape()
        if short == "expand" and source.rank != len(shape):
            return False
        self._decided[version] = (context.expand if short == "expand" else context.reshape)(source, shape)
        return True

    def _results_of(self, call: Call) -> list[tuple[str, int | None]]:
        """The values that are a call's recorded places, or truths."""
        if not picks(call):
            return [(call.name, None)]
        return [
            (other.name, 1)
            for other in self._program.calls
            if other.is_getitem and other.args[1] == 1 and other.args[0].name == call.name
        ]

    def mask_as_number(self, mask: Value, call: Call, besides: str = "") -> Value:
        """1.0 and 0.0 for a mask's 1 and 0: in the format of the other floating operand, as torch promotes, or FP32."""
        one, zero = (
            self.derive(f"number{n!r}", lambda n: torch.tensor(n, dtype=torch.float32), [n], call) for n in (1.0, 0.0)
        )
        node = self.add("where", [mask.id, one.id, zero.id], {}, [(mask.shape, "f32")], call)
        return self._beside(besides, node.value(), call) if besides else node.value()

    def _beside(self, name: str, number: Value, call: Call) -> Value:
        """What was made of an integer operand, in the format of the activation that the op joins it with."""
        other = self._floating_beside(name, call)
        if other is None:
            return number
        example = self._real_part(other, call)
        return self.add("cast_like", [number.id, example.id], {}, [(number.shape, "f32")], call).value()

    def _floating_beside(self, name: str, call: Call) -> str | None:
        """Another operand of the call: an activation, to whose dtype PyTorch's type promotion takes integers."""
        return next(
            (
                other.name
                for other in iterate_refs(self._versions.reads.get(call.name, ()))
                if other.name != name and self.has_lanes_format(other) and self.is_float(other)
            ),
            None,
        )

    def _stored(self, name: str) -> Value:
        if name in self._program.params:
            return self.stored.parameter(self._program.params[name])
        return self.stored.buffer_now(self._program.buffers[name])

    def _graph_value(self, name: str, call: Call) -> Value:
        if name in {**self._program.params, **self._program.buffers}:
            return self._stored(name)
        found = self._env.get(name)
        if name in self._versions.written and found is None:
            raise Unsupported(
                "a counter",
                f"buffer {self._versions.written[name]}: integers that the forward pass changes "
                "and reads have no arithmetic here; make the buffer a float",
            )
        if isinstance(found, Complex):
            raise Unsupported(call.op, COMPLEX_HINT)
        if not isinstance(found, Value):
            raise Unsupported(call.op, "a list of tensors where a tensor is needed")
        return self._detach(found, name) if name in self._nograd and not call.nograd and found.is_float else found

    def _detach(self, found: Value, name: str) -> Value:
        if found.id not in self._detached:
            node = self.add("detach", [found.id], {}, [(found.shape, "f32")], self._calls[name])
            self._detached[found.id] = node.value()
        return self._detached[found.id]

    def _outside_value(self, name: str, kind: str, want_float: bool) -> Value:
        if not want_float and self._in_graph(name):
            return self._decided[name]
        to_float = not self._outside.is_float(name) and want_float
        if kind == CONST and name in self._program.buffers and not to_float:
            return self.stored.buffer(self._program.buffers[name])
        return self._outside.value(name, to_float)

    def examples(self, refs: Sequence[Ref]) -> list[torch.Tensor]:
        return self._outside.examples(refs)

    def derive(self, what: str, body: Callable[..., torch.Tensor], operands: Sequence[Any], call: Call) -> Value:
        return self._outside.derive(what, body, operands, call)

    def add(
        self, op: str, inputs: list[str], attrs: dict[str, Any], outputs: list[tuple[Shape, str]], call: Call
    ) -> Node:
        if _EMPTY in inputs:
            raise Unsupported(call.op, "a tensor without elements has no part in this op")
        node = Node(
            f"n{len(self.graph.nodes)}",
            op,
            inputs,
            attrs,
            outputs,
            call.place,
            "" if call.is_getitem else call.op,
            call.autocast,
            call.nograd,
            backward_of=call.backward_of,
        )
        self.graph.nodes.append(node)
        self._note_gradient(node)
        site = random_site(call)
        if site is not None and (site.kind == op.replace("gru", "lstm") or op == "dropout"):
            self.graph.rng.append((node.id, call.name))
        return node

    def is_learned(self, x: Value) -> bool:
        return x.id in self.stored.trained or x.id.partition(".")[0] in self._learned or self._is_graded(x.id)

    def _is_graded(self, value: str) -> bool:
        number = value.removeprefix("in")
        return number != value and number.isdigit() and self.graph.inputs[int(number)].requires_grad

    def _note_gradient(self, node: Node) -> None:
        """A cast to the format of another value gets a gradient for its own operand alone."""
        operands = node.inputs[:1] if node.op == "cast_like" else node.inputs
        if not node.nograd and any(self.is_learned(Value(x, (), "")) for x in operands):
            self._learned.add(node.id)
        elif node.op == "cast_like" and not self._has_inner_gradients:
            node.nograd = True

    def _watch(self) -> None:
        """The values that the step names are outputs of the graph."""
        for name, version in self._versions.watched.items():
            found, named = self._env.get(version), self._program.watched[name]
            if isinstance(found, Value) and found.is_float and found.id.startswith("n"):
                self.graph.outputs[("log_probs/" if named.log_probs else "watch/") + name] = found.id
                continue
            hint = "name a real tensor that the step computes from the model's weights"
            self.problems.append(self._calls[named.call].place.problem(f"watch_value({name!r})", hint))

    def _finish(self) -> None:
        loss = self._graph_value(self._versions.loss, self._program_end())
        if loss.shape != ():
            node = self.add("reshape", [loss.id], {"shape": ()}, [((), "f32")], self.call_of_loss())
            loss = node.value()
        self.graph.loss = loss.id
        for path, version in self._versions.mutations.items():
            found = self._env.get(version)
            call = self._calls.get(value_name(version)) or self.call_of_loss()  # none: written by its parts
            if isinstance(found, Complex):
                found = as_pairs(RuleContext(self, call, (), {}), found)
            if isinstance(found, Value) and all(path != entry[0] for entry in self.graph.mutations):
                if not found.id.startswith("n"):  # a weight, an input, another buffer
                    found = self.add(
                        "reshape",
                        [found.id],
                        {"shape": found.shape},
                        [(found.shape, found.dtype)],
                        call,
                    ).value()
                self.stored.buffer(path)
                source, _, slot = found.id.partition(".")
                self.graph.mutations.append((path, source, int(slot or 0)))
        self._let_lanes_choose()
        self.graph.drop_unread()
        nodes = {node.id for node in self.graph.nodes}
        self.ir_of = {
            name: found
            for name, found in self.ir_of.items()
            if not found.startswith("n") or found.partition(".")[0] in nodes
        }

    def _let_lanes_choose(self) -> None:
        """Marks the choices that a lane may make itself: all that they lead to is in the graph."""
        nodes = {node.id: node for node in self.graph.nodes}
        recorded = {nodes[value.id].inputs[-1] for value in self._decisions.values() if value is not None}
        fixed = followed(self._versions, self._calls, self._outside.operands(besides=recorded) | self._program.read)
        for name, value in self._decisions.items():
            if (
                value is not None
                and not is_comparison(self._calls[name])
                and not fixed & {name, *(result for result, _ in self._results_of(self._calls[name]))}
            ):
                nodes[value.id].attrs["own"] = True

    def call_of_loss(self) -> Call:
        return self._calls[self._versions.loss]

    def _program_end(self) -> Call:
        return Call("", None, (), {})
