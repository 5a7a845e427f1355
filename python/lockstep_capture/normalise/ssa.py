"""Which version of a value a call reads, what depends on what, and which in-place ops have no such form.

Every value is of one of three kinds: CONST depends on neither batch nor weights and is folded; DERIVED depends
on the batch and on random numbers alone and is not arithmetic of the network, Python evaluates it per micro-batch;
GRAPH is replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import Problem
from ..ir.decisions import picks, places_of
from ..ir.gradients import differentiated
from ..ir.program import Call, Program, Ref, iterate_refs, map_refs
from ..ir.random_ops import ATTENTION, arguments, base_name, random_site
from ..rules.context import find_rule
from ..torch_api import op_schema
from .chosen import chosen_outside
from .views import Refreshed, Views, Written

CONST, DERIVED, GRAPH = "const", "derived", "graph"

# Their result depends on the shape of an operand, not on its values.
_SHAPE_ONLY = {"zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty"}
_EMPTY = {"empty", "empty_like", "new_empty"}
# The same for random numbers.
_NOISE_LIKE = {"rand_like", "randn_like"}
_CASTS = {"to", "_to_copy", "float", "half", "bfloat16", "double", "type"}
# Casts that read the dtype of another operand, not its values.
_BY_EXAMPLE = {"aten.type_as.default", "aten.to.other"}
_BATCH_NORMS = {"aten.batch_norm", "aten._batch_norm_impl_index", "aten.native_batch_norm", "aten.cudnn_batch_norm"}


@dataclass
class Versions:
    """The program without in-place ops: every call reads and binds versions.

    reads: call -> its arguments with the names of the versions that it reads. kind: version -> kind.
    mutations: buffer's canonical path -> version it has at the end. written: call that overwrites a buffer ->
    that buffer's path. read_buffers: paths of those that this step's loss, or a later one's, depends on. live: calls
    that the loss or a mutation needs; needed: the versions. recorded: calls that choose integers from activations, which
    are data of the step. weighed: those whose choice a lane can compare with its own (weighed.py). for_choices: calls that
    only these need. steps: in-place call -> the further versions that it makes of what it wrote to a view of.
    integer_state: paths of buffers whose integers the forward pass changes and uses: data of the step.
    started: new tensors, made of no activation, to views of which activations are written; their content before that is
    version started_as(name). watched: version of each value that the step names. stored: floating buffers and leaves of the batch, whose format is each lane's, too.
    """

    reads: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=dict)
    kind: dict[str, str] = field(default_factory=dict)
    mutations: dict[str, str] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    read_buffers: set[str] = field(default_factory=set)
    live: set[str] = field(default_factory=set)
    needed: set[str] = field(default_factory=set)
    recorded: set[str] = field(default_factory=set)
    weighed: set[str] = field(default_factory=set)
    for_choices: set[str] = field(default_factory=set)
    steps: dict[str, list[Written | Refreshed]] = field(default_factory=dict)
    integer_state: set[str] = field(default_factory=set)
    started: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)
    loss: str = ""
    watched: dict[str, str] = field(default_factory=dict)

    def has_lanes_format(self, version: str) -> bool:
        """Is it a part of the network, a buffer, or a leaf of the batch? Other values have the dtype they were made in."""
        return self.kind[version] == GRAPH or version in self.stored

    def format_of(self, version: str, calls: Mapping[str, Call], is_float: Callable[[Ref], bool]) -> str | None:
        """The value whose format in each lane is this value's, too: itself, or its example."""
        return version if self.has_lanes_format(version) else self.example_of(version, calls, is_float)

    def example_of(self, version: str, calls: Mapping[str, Call], is_float: Callable[[Ref], bool]) -> str | None:
        """The value whose dtype a floating value outside of the network has, None where it has one of its own.

        zeros_like(y), noise in y's dtype, and values made of these and of numbers.
        """
        call = calls.get(value_name(version))
        if call is None or call.is_getitem:
            return None
        args, kwargs = self.reads[call.name]
        short = base_name(call).split(".")[1]
        refs = [ref for ref in iterate_refs((args, kwargs)) if is_float(ref)]
        if call.op in _BY_EXAMPLE:
            refs = [args[1]] if isinstance(args[1], Ref) and is_float(args[1]) else []
        elif kwargs.get("dtype") is not None or short in _CASTS:
            return None
        elif short in _SHAPE_ONLY | _NOISE_LIKE:
            refs = refs[:1]
        # What only noise was drawn with is not in the graph: what it was made from is.
        found = [
            ref.name
            if self.has_lanes_format(ref.name) and self._is_there(ref.name, calls)
            else self.example_of(ref.name, calls, is_float)
            for ref in refs
        ]
        return None if None in found else next(iter(found), None)

    def _is_there(self, version: str, calls: Mapping[str, Call]) -> bool:
        """Not made by a call, or by one that the loss needs; while the kinds are found, nothing is known of that."""
        call = calls.get(value_name(version))
        return not self.live or call is None or call.name in self.live


def value_name(version: str) -> str:
    """The value whose content, when it is read, is that version."""
    return version.split("@")[0]


def started_as(name: str) -> str:
    """The version of a new tensor before activations were written to it."""
    return f"{name}@start"


def is_new_empty(call: Call) -> bool:
    """A tensor whose content means nothing."""
    return not call.is_getitem and base_name(call).split(".")[1] in _EMPTY


def is_in_place(call: Call) -> bool:
    if call.is_getitem:
        return False
    name = op_schema(call.target).name
    return name.endswith("_") and not name.endswith("__")


def _refs_by_value(call: Call) -> list[str]:
    """Operands whose values are used, not only their shape or dtype; the first ones of all that are named."""
    if not call.is_getitem and base_name(call).split(".")[1] in _SHAPE_ONLY:
        return []
    return call.refs()[:1] if call.op in _BY_EXAMPLE else call.refs()


def overwritten(program: Program) -> set[str]:
    """Names whose tensors the program's ops write to, by in-place ops on them or on views of them."""
    first: dict[str, str] = {}  # call -> its first operand
    found: set[str] = set()
    for call in program.calls:
        refs = call.refs()
        if not refs:
            continue
        first[call.name] = refs[0]
        targets = [refs[0]] if is_in_place(call) else _running_statistics(call)
        while targets:
            name = targets.pop()
            found.add(name)
            targets += [first[name]] if name in first else []
    return found


def _is_new_noise(call: Call) -> bool:
    site = random_site(call)
    return site is not None and site.kind == "noise" and not is_in_place(call)


def _running_statistics(call: Call) -> list[str]:
    """What a batch_norm in training mode updates."""
    if base_name(call) not in _BATCH_NORMS or not (a := arguments(call)).get("training"):
        return []
    return [a[name].name for name in ("running_mean", "running_var") if isinstance(a[name], Ref)]


def versions_of(
    program: Program, is_float: Mapping[str, bool], shares: Mapping[str, bool], complex_values: set[str]
) -> Versions:
    """is_float: value name -> whether it is a floating tensor (the first of several). shares: see Views."""
    return _Walk(program, is_float, shares, complex_values).result


def needed_for(program: Program, versions: Versions, wanted: set[str]) -> tuple[set[str], set[str]]:
    """The calls that these versions need, and all that those read."""
    live, needed = set(), set(wanted)
    for call in reversed(program.calls):
        for step in reversed(versions.steps.get(call.name, ())):
            if step.version in needed:
                needed |= _reads_of(step)
        if call.name in needed or _running_statistics(call):
            live.add(call.name)
            if call.name in versions.recorded or _is_new_noise(call):
                continue
            needed.update(ref.name for ref in iterate_refs(versions.reads[call.name]))
    return live, needed


class _Walk:
    def __init__(
        self, program: Program, is_float: Mapping[str, bool], shares: Mapping[str, bool], complex_values: set[str]
    ):
        self._program, self._is_float, self._complex = program, is_float, complex_values
        self._views = Views(program, shares, is_in_place)
        self.result = Versions()
        self._current: dict[str, str] = {}  # value -> version
        self._calls = {call.name: call for call in program.calls if not call.is_getitem}
        self._made = {call.name: i for i, call in enumerate(program.calls)}
        self._last_use = {self._tensor(name): i for i, call in enumerate(program.calls) for name in call.refs()}
        self._last_use[self._tensor(program.loss)] = len(program.calls)
        kind = self.result.kind
        self._roots = {**program.inputs, **program.params, **program.constants}
        mutated = self._mutated_buffers()
        data = self._used_integers(mutated)
        self.result.integer_state = {program.buffers[name] for name in data}
        mutated -= data
        self._leaves = differentiated(program)
        weights = set(program.params) | mutated | self._leaves
        self._written = self._written_views(weights)
        self._chosen = chosen_outside(program, is_float, weights, self._written)
        self.result.recorded = self._chosen & set(program.decisions)
        self._forced = self._needed_outside(mutated)
        for name in program.inputs:
            kind[name] = DERIVED
        for name in program.params:
            kind[name] = GRAPH
        for name in program.constants:
            kind[name] = CONST
        for name in program.buffers:
            kind[name] = GRAPH if name in mutated else DERIVED if name in data else CONST
        self.result.stored = {name for name in (*program.buffers, *program.inputs) if is_float.get(name, False)}
        for index, call in enumerate(program.calls):
            self._visit(index, call)
        self.result.loss = self._read(program.loss)
        self.result.watched = {
            name: self.result.reads[named.call][0][0].name for name, named in program.watched.items()
        }
        self._find_live()

    def _tensor(self, name: str) -> str:
        """The value whose tensor it is: `c` for the result of `c.mul_(2)`."""
        return self._views.tensor(name)

    def _read(self, name: str) -> str:
        """The version that a use of the value reads now."""
        name = self._tensor(name)
        return self._current.get(name, name)

    def _mutated_buffers(self) -> set[str]:
        """Buffers that the forward pass changes, by value name."""
        found = set()
        for call in self._program.calls:
            if is_in_place(call) and call.refs():
                target = self._tensor(call.refs()[0])
                found |= {self._views.root(target)} & set(self._program.buffers)
            found |= set(_running_statistics(call)) & set(self._program.buffers)
        return found

    def _used_integers(self, mutated: set[str]) -> set[str]:
        """Of these buffers the integers that something reads: a place in a queue."""
        integers = {name for name in mutated if not self._is_float.get(name, False)}
        used = {root for name in self._program.read if (root := self._views.root(self._tensor(name))) in integers}
        for call in self._program.calls:
            counts = not call.is_getitem and base_name(call) == "aten.add_"
            for place, name in enumerate(call.refs()):
                root = self._views.root(self._tensor(name))
                if root in integers and not (counts and place == 0 and self._tensor(name) == root):
                    used.add(root)
        return used

    def _written_views(self, weights: set[str]) -> dict[str, list[str]]:
        """Calls that write what depends on weights to a view -> all that have these elements. Fills `started`."""
        inside, found = set(weights), {}
        for call in self._program.calls:
            if not inside & set(_refs_by_value(call)) and random_site(call) is None:
                continue
            inside.add(call.name)
            target = self._tensor(call.refs()[0]) if is_in_place(call) and call.refs() else ""
            root = self._views.root(target)
            if target and (root != target or self._views.all_of(root)):
                found[call.name] = [root, *self._views.all_of(root)]
                if root not in inside and root in self._calls and self._is_float.get(root, False):
                    self.result.started.add(root)
                inside |= set(found[call.name])
        return found

    def _needed_outside(self, mutated: set[str]) -> set[str]:
        """Arithmetic on the batch that leads to an op without rule (sin), a complex number, a mask, or a write to a part: Python evaluates all of it."""
        inside: set[str] = set(self._program.params) | mutated | self._leaves
        for call in self._program.calls:
            site = random_site(call)
            if call.name in self._chosen or (site is not None and site.kind == "noise"):
                continue
            if site is not None or inside & set(_refs_by_value(call)):
                inside |= {call.name, *self._written.get(call.name, ())}
        limited: set[str] = set()  # made of a limit of a dtype, which is each lane's
        for call in self._program.calls:
            if call.limit is not None or limited & set(call.refs()):
                limited.add(call.name)
        forced: set[str] = set()
        for call in reversed(self._program.calls):
            if base_name(call) == ATTENTION and isinstance(mask := arguments(call)["attn_mask"], Ref):
                forced |= {mask.name} - limited
            unknown = (
                not self._is_float.get(call.name, True)
                or call.name in self._complex
                or (not call.is_getitem and (find_rule(call) is None or self._writes_to_view(call)))
            )
            if call.name not in inside and (unknown or call.name in forced):
                forced |= {call.name, *_refs_by_value(call)}
        return forced

    def _writes_to_view(self, call: Call) -> bool:
        target = self._tensor(call.refs()[0]) if is_in_place(call) and call.refs() else ""
        return bool(target) and self._views.root(target) != target

    def _visit(self, index: int, call: Call) -> None:
        result = self.result

        def read(ref: Ref) -> Ref:
            return Ref(self._read(ref.name))

        result.reads[call.name] = (map_refs(call.args, read), map_refs(call.kwargs, read))
        result.kind[call.name] = self._kind_of(call, [self._read(name) for name in call.refs()])
        if picks(call):
            result.kind[places_of(call)] = DERIVED
        if is_in_place(call) and call.refs():
            self._overwrite(index, call)

    def _kind_of(self, call: Call, names: list[str]) -> str:
        if call.name in self.result.started:
            kind = self.result.kind[started_as(call.name)] = self._kind_by_operands(call, names)
            if kind == GRAPH:
                self.result.started.remove(call.name)
            return GRAPH
        return self._kind_by_operands(call, names)

    def _kind_by_operands(self, call: Call, names: list[str]) -> str:
        site = random_site(call)
        if site is not None:
            return DERIVED if site.kind == "noise" else GRAPH
        if call.op in _BY_EXAMPLE and self._rounds_as(call, *names):
            return GRAPH
        names = names[: len(_refs_by_value(call))]
        kinds = {GRAPH if value_name(name) in self._leaves else self.result.kind[name] for name in names}
        if GRAPH in kinds:
            return DERIVED if call.name in self._chosen else GRAPH
        if self._is_float.get(call.name, False) and call.name not in self._forced:
            if self.result.stored & set(names):
                return GRAPH  # arithmetic on images and tables belongs to the network
            if any(self.result.example_of(name, self._calls, self._is_floating) for name in names):
                return GRAPH  # so does arithmetic in the dtype of an activation: noise / keep_rate
        return DERIVED if DERIVED in kinds else CONST

    def _is_floating(self, ref: Ref) -> bool:
        return self._is_float.get(value_name(ref.name), False)

    def _rounds_as(self, call: Call, x: str, example: str | None = None) -> bool:
        """A table of cosines in q's dtype is rounded as q's format in a lane says, not as in the loop."""
        empty = x in self._calls and base_name(self._calls[x]).split(".")[1] in _EMPTY
        return (
            example is not None
            and self.result.format_of(example, self._calls, self._is_floating) is not None
            and self._is_float.get(example, False)
            and call.name not in self._forced
            and not empty
        )

    def _problem(self, call: Call, what: str, hint: str) -> None:
        problem = call.place.problem(what, hint)
        if problem not in self.result.problems:  # x[:, 0] += 1 is two in-place ops
            self.result.problems.append(problem)

    def _overwrite(self, index: int, call: Call) -> None:
        target = self._tensor(call.refs()[0])
        root = self._views.root(target)
        kind = self.result.kind
        program = self._program
        if kind[call.name] != GRAPH and root not in self._roots:
            # Constants and derived values are evaluated with the very ops of the program, in place.
            self._current[target] = call.name
            if root != target:
                self._current[root] = version = f"{root}@{index}"
                kind[version] = kind[call.name]
            return
        hint = "rewrite out-of-place"
        if root in program.params:
            return self._problem(call, "in-place on a parameter", hint)
        if root in program.inputs:
            return self._problem(call, "in-place on the batch", hint)
        if root in program.constants:
            return self._problem(call, "in-place on a tensor outside of the model", "make it a buffer of the model")
        if target != root and not self._is_float.get(root, False):
            return self._problem(call, "in-place on a view of integers", hint)
        if self._views.is_shown_as_others(root, index):
            return self._problem(
                call,
                "in-place on a complex tensor that shares its numbers with its parts or its conjugate",
                "write to a clone() of it, or compute a new tensor (torch.complex)",
            )
        if target != root and call.nograd and root in self._calls and not self._calls[root].nograd:
            return self._problem(
                call,
                "in-place on a view without gradient",
                "the gradient passes by such a write; write to a detached copy",
            )
        self._rebind(index, call, target)
        if root in program.buffers:
            if target == root:
                self.result.written[call.name] = program.buffers[root]
            self.result.mutations[program.buffers[root]] = self._read(root)

    def _rebind(self, index: int, call: Call, target: str) -> None:
        """New versions of the target, of all that it is a view of, and of other views that are read later."""
        root, steps = self._views.root(target), self.result.steps.setdefault(call.name, [])
        self._current[target] = call.name
        child, done = target, {target}
        while child != root:
            parent, path = self._views.above(child)
            step = Written(f"{parent}@{index}", self._read(parent), self._read(child), path)
            steps.append(step)
            self._renew(parent, step.version)
            done |= {parent, *(part.name for part in path)}
            child = parent

        def read(ref: Ref) -> Ref:
            return Ref(self._read(ref.name))

        for name in self._later(root, index):
            if name not in done:
                view = self._views.call(name)
                again = Refreshed(f"{name}@{index}", view, map_refs(view.args, read), map_refs(view.kwargs, read))
                steps.append(again)
                self._renew(name, again.version)

    def _renew(self, name: str, version: str) -> None:
        self._current[name] = version
        self.result.kind[version] = GRAPH

    def _later(self, root: str, index: int) -> list[str]:
        """The views made so far that are read after this call, themselves or in another view."""
        found: list[str] = []
        wanted: set[str] = set()
        for name in reversed(self._views.all_of(root)):
            if self._made[name] < index and (name in wanted or self._last_use.get(name, -1) > index):
                found.append(name)
                wanted.add(self._views.source(name))
        return found[::-1]

    def _find_live(self) -> None:
        """Backwards from the loss, from what is watched and from what buffers become."""
        result, buffers = self.result, self._program.buffers
        ends = {result.loss, *result.watched.values(), *result.mutations.values()}
        result.live, result.needed = needed_for(self._program, result, ends)
        wanted, count = {result.loss}, -1
        while len(wanted) > count:
            count = len(wanted)
            result.read_buffers = {
                buffers[name] for name in needed_for(self._program, result, wanted)[1] if name in buffers
            }
            wanted |= {result.mutations[path] for path in result.read_buffers if path in result.mutations}


def _reads_of(step: Written | Refreshed) -> set[str]:
    if isinstance(step, Written):
        return {step.old, step.part}
    return {ref.name for ref in iterate_refs((step.args, step.kwargs))}
