"""The step as it ran -> Program. Everything that depends on the version of torch's dispatcher is here.

A mode at the dispatcher's pre-dispatch key sees every op on real values above autocast and autograd, so that composite
ops stay whole (aten.linear, aten.cross_entropy_loss) and no cast of autocast shows. Python may read values: the
program is the path that it took. What it read is in the program as numbers, so that another path, or another number,
is another program (Observed.key). Blocks of torch.autocast and torch.no_grad are stamped on the calls.
"""

from __future__ import annotations

import contextlib
import hashlib
import operator
import os
import re
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from .. import torch_api
from ..errors import Problem, UnsupportedModelError
from ..ir.attributes import Attribute, Watched, plain_tensors
from ..ir.decisions import EXTREMES
from ..ir.gradients import GRADIENT
from ..ir.program import (
    Autocast,
    Call,
    Names,
    Number,
    Place,
    Program,
    Ref,
    StepModule,
    WatchedName,
    iterate_refs,
    map_refs,
)
from ..rules.context import Unsupported
from ..rules.observers import observing_form
from ..rules.spelled_out import (
    draws_between_layers,
    form_of_each,
    is_spelled_out,
    layer_by_layer,
    one_by_one,
    plain_form,
    written_out,
)
from ..torch_api import PreDispatchMode, op_schema, overload_name
from . import custom_functions
from .asked_dtypes import LOW, Asked, AskedDtypes, Event, Follows
from .batches import leaves_of, with_tensors
from .custom_ops import own_form
from .gradients import Given, inner_gradients, is_batched
from .modules import ModuleStack
from .named_values import named_to
from .other_dtype import batch_as, weights_as
from .outside import checksum, place_of, tensors_of
from .passed_by import SETS_DATA, Answers, Lines, PassedBy
from .reachable import reachable
from .scripted import in_python
from .step_function import check_result
from .untouched import untouched
from .user_code import running_lines, user_line
from .vmaps import in_vmap, passed_on

_TYPE_AS = "aten.type_as.default"
_NO_RESULT = {
    "aten::_assert_async",
    "aten::_assert_tensor_metadata",
    "aten::sym_constrain_range",
    "aten::retain_grad",
    "aten::requires_grad_",
    "aten::_backward",
}
_PASSES_THROUGH = {"profiler", "prim", "inductor", "streams"}
_DETACHES, _RESIZES = "aten::detach_", "aten::resize_"
_NEW = {"aten::lift_fresh"}  # what torch.tensor() ends with
_IN_PLACE = {
    "__iand__": "bitwise_and_",
    "__ior__": "bitwise_or_",
    "__ixor__": "bitwise_xor_",
    "__ilshift__": "bitwise_left_shift_",
    "__irshift__": "bitwise_right_shift_",
}
_WRITES_OUT = {
    "aten::embedding_renorm_": "leave out max_norm=m, and scale the rows e that were read: "
    "e * (m / e.norm(dim=-1, keepdim=True)).clamp(max=1)"
}
_TORCH = os.path.dirname(torch.__file__)  # what it makes there is nothing that a user could spell otherwise
_NO_NESTED = (
    "pad its parts to one length (torch.nn.utils.rnn.pad_sequence) and give attention a mask, or join them (torch.cat) for "
    "layers that work row by row"
)
_CHANGED_COPY = (
    "compute with a changed copy, F.linear(x, w.clamp(-c, c)), or as a parametrization (torch.nn.utils.parametrize)"
)
MADE_ELSEWHERE = "a tensor that no op here made (torch.func.jvp, another thread, a C++ extension)"


@dataclass
class Observed:
    """program: the path that step_fn took. key: the same for two passes with one program. calls: of each module.

    asked, answers: for another run on the same path: the dtypes that this one asked for, its decisions.
    left: the tensors outside of the model after the pass, by the names by which step_fn reaches them.
    cast: parameters whose data the pass replaced by some of another dtype, and that dtype.
    changed: attributes of modules that it read and changed, and that are no state yet.
    """

    program: Program
    key: str
    calls: dict[str, int]
    asked: Asked
    answers: Answers
    left: dict[str, torch.Tensor]
    cast: dict[str, torch.dtype]
    changed: list[Attribute]


def observe(step: StepModule, batch: Any, device: torch.device, autocast: torch.dtype | None) -> Observed:
    """Runs step(batch) under the loop's autocast, None: it has none. Nothing of the run remains.

    Its program has a key and no content: what it chose is not kept. Throws: what step_fn throws; UnsupportedModelError for
    what a program cannot hold.
    """
    return _run(step, batch, device, autocast, Follows(), set(), keeps=False)


def trace(
    step: StepModule,
    batch: Any,
    device: torch.device,
    autocast: torch.dtype | None = None,
    narrow: torch.dtype | None = None,
) -> Observed:
    """The same, with casts that follow a tensor recorded as such. narrow: the dtype of weights below FP32.

    Runs anew although the pass was observed before: caches that only the first pass fills are full now, as in the loop.
    """
    first = _run(step, batch, device, autocast, Follows(), set())
    if not first.asked.dtype and not first.asked.numbers and not _has_sums_in_place(first.program):
        return first
    follows, narrows = Follows(), set[Event]()

    def probe(lows: Sequence[torch.dtype], weights: torch.dtype | None, autocasts: bool) -> Exception | None:
        """Adds what a run in the first of `lows` that PyTorch can take shows; the error of the last one otherwise."""
        failure: Exception = RuntimeError("the loop uses both low dtypes")
        for low in lows:
            if low in (autocast, narrow):
                continue
            try:
                other, narrowed = _probe(step, batch, device, low, first.answers, weights, autocasts=autocasts)
            except Exception as error:  # an op that PyTorch lacks in that dtype
                failure = error
                continue
            follows.add(first.asked, other, low)
            narrows.update(narrowed)
            return None
        return failure

    failure = probe(LOW, narrow, autocasts=autocast is not None or narrow is None)
    if narrow is None and (first.asked.by_example() or first.asked.numbers):
        failure = probe(LOW[::-1], torch.float32, autocasts=False)
    fixed = [event for event in first.asked.by_example() if event not in follows.reads]
    fixed = [event for event in fixed if not event[1].co_filename.startswith(_TORCH)]
    if failure is not None and fixed:
        _warn_of_fixed_casts(fixed, failure)
    if not follows.reads and not follows.branches and not narrows:
        if follows.unlike:
            _warn_of_branches(follows.unlike)
        return first
    again = partial(_run, step, batch, device, autocast, stays_fp32=autocast is None and narrow is None)
    found = again(follows.without_branches(), narrows)
    if follows.branches:
        try:
            other = again(follows, narrows)
        except Exception:  # what the model does there is not for the loop's dtype
            other = None
        if other is not None and _adds_casts_only(found.program, other.program):
            found = other
        else:
            follows.unlike.update(follows.branches)
    if follows.unlike:
        _warn_of_branches(follows.unlike)
    return found


def _adds_casts_only(program: Program, other: Program) -> bool:
    """Does the other one compute the same, but for casts to a tensor's dtype?"""

    def computed(program: Program) -> list[str]:
        return [
            f"{call.op} {map_refs((call.args, call.kwargs), lambda ref: None)}"
            for call in program.calls
            if not call.renames and call.op != _TYPE_AS
        ]

    constants = zip(program.constants.values(), other.constants.values(), strict=False)
    return computed(program) == computed(other) and all(torch.equal(x, y) for x, y in constants)


def _warn_of_branches(branches: Mapping[Event, torch.dtype]) -> None:
    lines = sorted({_line_of(event) for event in branches})
    names = sorted({str(dtype).removeprefix("torch.") for dtype in branches.values()})
    warnings.warn(
        f"lockstep_capture: the model branches on a dtype ({', '.join(lines[:3])}), and computes something else in "
        f"{' and '.join(names)}; all lanes take the branch of this loop's dtype",
        stacklevel=6,
    )


def _line_of(event: Event) -> str:
    _, code, last, _ = event
    line = next((line for start, end, line in code.co_lines() if start <= last < end), code.co_firstlineno)
    return f"{os.path.basename(code.co_filename)}:{line}"


def _warn_of_fixed_casts(events: list[Event], error: Exception) -> None:
    """Which casts follow a tensor is not known: every one has the dtype that it has in the loop."""
    what = "1 cast or new tensor" if len(events) == 1 else f"{len(events)} casts and new tensors"
    warnings.warn(
        f"lockstep_capture: {what} (first: {_line_of(events[0])}) of the dtype of this loop will have that dtype in all lanes, "
        f"although the model may take it from another tensor: the forward pass does not run in another dtype "
        f"({': '.join([type(error).__name__, *str(error).splitlines()[:1]])})",
        stacklevel=6,
    )


def _has_sums_in_place(program: Program) -> bool:
    return any(
        not call.is_getitem and op_schema(call.target).name.endswith("_") and len(call.refs()) > 1
        for call in program.calls
    )


def copied(batch: Any, device: torch.device) -> Any:
    """The batch as tensors that step_fn may write to."""
    return with_tensors(lambda leaf: leaf.detach().to(device, copy=True).requires_grad_(leaf.requires_grad), batch)


def _run(
    step: StepModule,
    batch: Any,
    device: torch.device,
    autocast: torch.dtype | None,
    follows: Follows,
    narrows: set[Event],
    stays_fp32: bool = False,
    keeps: bool = True,
) -> Observed:
    batch = copied(batch, device)
    modules, asked = ModuleStack(step.model), AskedDtypes(autocast, follows, stays_fp32)
    held = list(reachable(step.step_fn, step.model))
    tensors = [value for _, value in held if isinstance(value, torch.Tensor)]
    plain = Watched(plain_tensors(held))
    dtypes = {path: parameter.dtype for path, parameter in step.model.named_parameters()}
    recorder = _Recorder(step, batch, modules, asked, tensors, narrows, keeps, device.type)
    with untouched(step), torch.enable_grad(), contextlib.ExitStack() as stack:
        stack.callback(recorder.put_back)
        stack.enter_context(
            torch.autocast(device.type, dtype=autocast, enabled=autocast is not None, cache_enabled=False)
        )
        for context in (
            modules.watch(),
            in_python(),
            recorder.blocks(),
            named_to(recorder.name_value),
            custom_functions.functions(recorder),
            inner_gradients(recorder),
            torch_api.ENABLE_DISPATCHER(),
            recorder,
            PassedBy(recorder.answers, force=False, note=recorder.note_read, set_data=recorder.set_data),
            asked,
        ):
            stack.enter_context(context)
        loss = step(batch)
        check_result(step.step_fn, loss, step.trains)
        left = tensors_of(step.step_fn, step.model) if recorder.program.constants else {}
        cast = {
            path: parameter.dtype
            for path, parameter in step.model.named_parameters()
            if parameter.dtype != dtypes.get(path)
        }
        read = {place_of(tensor) for tensor in recorder.program.constants.values()}
        state = [attribute for attribute, tensor in plain.changed().items() if place_of(tensor) in read]
        state += recorder.moved
    program = recorder.finish(loss, step)
    return Observed(program, recorder.key(), modules.calls, asked.asked, recorder.answers, left, cast, state)


def _probe(
    step: StepModule,
    batch: Any,
    device: torch.device,
    low: torch.dtype,
    answers: Answers,
    narrow: torch.dtype | None,
    *,
    autocasts: bool,
) -> tuple[Asked, set[Event]]:
    """What a run in `low` asks for, with every integer and every choice that of the loop's own run: under autocast, with
    weights of that dtype in the place of those of dtype `narrow`, or both."""
    batch, asked = batch_as(copied(batch, device), narrow, low), AskedDtypes(low, Follows(), False)
    probe = _Probe(answers, device.type, low)
    with (
        weights_as(step, narrow, low),
        untouched(step),
        torch.enable_grad(),
        torch.autocast(device.type, dtype=low, enabled=autocasts, cache_enabled=False),
        in_python(),
        inner_gradients(probe),
        torch_api.ENABLE_DISPATCHER(),
        probe,
        PassedBy(answers, force=True),
        asked,
    ):
        step(batch)
    return asked.asked, probe.narrows


class _Observing(PreDispatchMode):
    """paused: ops run as if it were not there."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = False

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before


def _computed(func: Any, args: Any, kwargs: Any) -> Any:
    with torch_api.NO_DISPATCHER():  # PyTorch's own kernels, not decompositions made for tracing
        return func(*args, **kwargs)


def _is_discrete(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not (value.dtype.is_floating_point or value.dtype.is_complex)


class _Probe(_Observing):
    """Puts the answers of another run in the place of integers, choices and numbers."""

    def __init__(self, answers: Answers, device: str, low: torch.dtype):
        super().__init__()
        self._answers, self._lines = answers, Lines()
        self._device, self._low = device, low
        self.narrows: set[Event] = set()

    def take_gradient(self, given: Given, results: Sequence[torch.Tensor | None]) -> None:
        pass

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.paused:
            return _computed(func, args, kwargs or {})
        if in_vmap(args, kwargs or {}):
            with self:
                return passed_on(func, args, kwargs or {})
        if is_spelled_out(func):
            with self:
                return func.decompose(*args, **(kwargs or {}))
        if (form := observing_form(func, args, kwargs or {})) is not None:
            with self:
                return form()
        event = self._lines.event(func, user_line())
        if event in self._answers:
            answer = self._answers[event]
            return answer.clone() if isinstance(answer, torch.Tensor) else answer
        if _narrows(func, args):
            self.narrows.add(event)
        try:
            return _computed(func, args, kwargs or {})
        except RuntimeError:  # no kernel for that dtype, or operands of several dtypes
            if op_schema(func).is_mutable:
                raise
            return self._in_fp32(func, args, kwargs or {})

    def _in_fp32(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The op on wide operands, with results in the dtype that this run is about."""

        def to(dtype: torch.dtype, other: torch.dtype, value: Any) -> Any:
            is_one = isinstance(value, torch.Tensor) and value.dtype == dtype
            return value.to(other) if is_one else value

        with torch.autocast(self._device, enabled=False):
            args, kwargs = torch_api.MAP((args, kwargs), partial(to, self._low, torch.float32))
            return torch_api.MAP(_computed(func, args, kwargs), partial(to, torch.float32, self._low))


def _narrows(func: Any, args: Any) -> bool:
    """`y += x` with an x whose dtype alone would make the sum wider than y. Numbers and 0-dim tensors do not."""
    if not op_schema(func).name.endswith("_"):
        return False
    dtypes = [value.dtype for value in args if isinstance(value, torch.Tensor) and value.dim() > 0]
    if len(dtypes) < 2 or not all(dtype.is_floating_point for dtype in dtypes):
        return False
    return any(torch.promote_types(dtypes[0], dtype) != dtypes[0] for dtype in dtypes[1:])


class _Recorder(_Observing):
    """Writes the program while step_fn runs."""

    def __init__(
        self,
        step: StepModule,
        batch: Any,
        modules: ModuleStack,
        asked: AskedDtypes,
        outside: list[torch.Tensor],
        narrows: set[Event],
        keeps: bool,
        device: str,
    ):
        super().__init__()
        self._device = device
        self._asked, self._keeps = asked, keeps  # answers and decisions
        self.program, self.answers = Program("run"), Answers()
        self._names, self._modules = Names(step.model, step.attributes), modules
        self._narrowing, self._lines = narrows, Lines()
        self._outside = {place_of(tensor) for tensor in outside}
        self._bound: Any = WeakTensorKeyDictionary()  # tensor -> name
        self._aliases: set[str] = set()
        self._taken: Counter[str] = Counter()
        self._regions: list[Autocast] = []
        self._made: list[int] = []  # checksums of tensors that the run made from nothing that it shows
        self._types: list[str] = []
        self._classes = {
            path: f"{type(module).__module__}.{type(module).__qualname__}"
            for path, module in step.model.named_modules()
        }
        self._problems: list[Problem] = []
        self._leaves = batch  # keeps the batch's own copies alive
        self._buffers = {id(tensor) for tensor, _ in self._names.buffers}
        self._datas: list[torch.Tensor] = []  # that became the buffers': alive, so that they keep their names
        self._parameters = {
            tensor.untyped_storage().data_ptr(): tensor
            for tensor, _ in self._names.params
            if tensor.layout == torch.strided and tensor.numel() > 0
        }
        self._names_of = {id(tensor): paths[0] for tensor, paths in self._names.params}
        self._model, self.moved = step.model, list[Attribute]()
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # parameters that the run writes to
        self._backward_of = ""
        self._from_gradient: set[str] = set()  # values of that backward pass that depend on its gradients
        self._fresh: Any = WeakTensorKeyDictionary()  # tensors made of Python's numbers
        for number, leaf in enumerate(leaves_of(batch)[0]):
            if isinstance(leaf, torch.Tensor):
                self._bound[leaf] = name = self._new(f"batch_{number}")
                self.program.inputs[name] = number
        for tensor, paths in self._names.params:
            self._bound[tensor] = name = self._new("p_" + re.sub(r"\W", "_", paths[0]))
            self.program.params[name] = paths[0]
        for tensor, paths in self._names.buffers:
            self._bound[tensor] = name = self._new("b_" + re.sub(r"\W", "_", paths[0]))
            self.program.buffers[name] = paths[0]

    def _new(self, wanted: str) -> str:
        number = self._taken[wanted]
        self._taken[wanted] += 1
        return self._new(f"{wanted}_{number}") if number else wanted

    # Autocast
    @contextlib.contextmanager
    def blocks(self) -> Iterator[None]:
        """Notes the autocast blocks that the model opens, those that switch it off included."""
        kind: Any = torch.autocast
        enter_original, exit_original = kind.__enter__, kind.__exit__
        regions, own = self._regions, threading.get_ident()  # other threads have blocks of their own

        def enter(block: Any) -> Any:
            entered = enter_original(block)
            if threading.get_ident() != own:
                return entered
            enabled, dtype, device, caches = torch_api.autocast_block(block)
            region = Autocast(enabled, "" if dtype is None else str(dtype).removeprefix("torch."), device, caches)
            # A block for another device leaves one for the loop's in force.
            is_other = bool(regions) and regions[-1].device == self._device != region.device
            regions.append(regions[-1] if is_other else region)
            return entered

        def leave(block: Any, *error: Any) -> Any:
            if threading.get_ident() == own:
                regions.pop()
            return exit_original(block, *error)

        kind.__enter__, kind.__exit__ = enter, leave
        try:
            yield
        finally:
            kind.__enter__, kind.__exit__ = enter_original, exit_original

    # Operands
    def _ref(self, tensor: torch.Tensor) -> Ref:
        name = self._bound.get(tensor)
        if name is None:
            name = self._bound[tensor] = self._unknown(tensor)
        return Ref(name)

    def _unknown(self, tensor: torch.Tensor) -> str:
        """A tensor that neither a call made nor the model registers."""
        owner = self._names.parameter_of(tensor)
        if owner is not None:
            name = next(name for name, path in self.program.params.items() if path == owner)
            if tensor.requires_grad:
                return name
            return self._add("detach", torch.ops.aten.detach.default, (Ref(name),), {}, Place(source=user_line()))
        if self._backward_of and (seen := self.known(tensor)) is not None:
            return seen  # a saved tensor, which PyTorch makes anew
        owner = self._names.buffer_of(tensor)
        if owner is not None:  # its .data: writing to it writes to the buffer
            return next(name for name, path in self.program.buffers.items() if path == owner)
        place = self._place()
        if tensor.layout != torch.strided and (tensor.layout != torch.sparse_coo or tensor.requires_grad):
            self._refuse("a sparse tensor", place, "use its to_dense()")
            tensor = tensor.detach().to_dense()
        elif tensor.grad_fn is not None or (
            self._backward_of and tensor not in self._fresh and place_of(tensor) not in self._outside
        ):
            self._refuse(MADE_ELSEWHERE, place, "compute it with ops of PyTorch in the thread of the forward pass")
        else:
            sharing = self._sharing(tensor)
            if sharing is not None and place_of(sharing) == place_of(tensor):  # y.data, or NumPy's view of y
                return self._add("detach", torch.ops.aten.detach.default, (Ref(self._bound[sharing]),), {}, place)
            if sharing is not None:
                self._refuse(
                    "a view of another tensor that no op made (.data, NumPy)", place, "detach() before the view"
                )
        name = self._new("c")
        known = place_of(tensor) in self._outside
        self.program.constants[name] = tensor.detach() if known else tensor.detach().clone()
        self._types.append(f"{tuple(tensor.shape)} {tensor.dtype}")
        if not known:
            self._made.append(checksum(tensor))
        return name

    def _sharing(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A tensor of the program with the same storage, the very same view if there is one."""
        if tensor.layout != torch.strided or tensor.numel() == 0:
            return None
        storage = tensor.untyped_storage().data_ptr()
        sharing = [
            known
            for known in self._bound
            if known.layout == torch.strided
            and known.device == tensor.device
            and known.untyped_storage().data_ptr() == storage
        ]
        return next((known for known in sharing if place_of(known) == place_of(tensor)), next(iter(sharing), None))

    def _refuse(self, what: str, place: Place, hint: str) -> None:
        problem = place.problem(what, hint)
        if problem not in self._problems:
            self._problems.append(problem)

    def _operands(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._ref(value)
        if isinstance(value, tuple):
            return tuple(self._operands(item) for item in value)
        if isinstance(value, list):
            return [self._operands(item) for item in value]
        return (
            None if isinstance(value, torch.Generator) else value
        )  # what is drawn is recorded, wherever it comes from

    def _place(self) -> Place:
        path, lines = self._modules.path, running_lines()
        where = (lines.innermost, lines.own if lines.own != lines.innermost else "", lines.package, lines.text)
        if not path:
            return Place("", self._classes[""] if self._modules.inside else "", 0, *where)
        return Place(path, self._classes[path], max(self._modules.calls[path] - 1, 0), *where)

    # Calls
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = op_schema(func).name
        if self.paused:
            return _computed(func, args, kwargs)
        if in_vmap(args, kwargs):
            with self:
                return passed_on(func, args, kwargs)
        if schema.split("::")[0] in _PASSES_THROUGH or schema in _NO_RESULT or is_batched((args, kwargs)):
            return _computed(func, args, kwargs)
        if schema in _NEW:
            fresh = _computed(func, args, kwargs)
            self._fresh[fresh] = True
            return fresh
        if is_spelled_out(func):
            with self:
                return func.decompose(*args, **kwargs)
        if draws_between_layers(func, args, kwargs):
            with self:
                return layer_by_layer(func, args, kwargs)
        if (plain := plain_form(func, kwargs)) is not None:
            with self:
                return written_out(plain, func, args, kwargs)
        if (each := form_of_each(func)) is not None:
            with self:
                return one_by_one(each, func, args, kwargs)
        place = self._place()
        self._check_nested((args, kwargs), place)
        try:
            form = observing_form(func, args, kwargs) or own_form(func, args, kwargs, self._device, self._is_computed)
        except Unsupported as error:
            self._refuse(error.what, place, error.hint)
            form = None
        if form is not None:
            with self:
                return form()
        event = self._lines.event(func, place.source)
        if schema == _DETACHES and (args[0] not in self._bound or not args[0].requires_grad):
            return _computed(func, args, kwargs)
        if schema == _RESIZES and tuple(args[0].shape) == tuple(args[1]):  # nothing happens
            return _computed(func, args, kwargs)
        if op_schema(func).is_mutable:
            self._keep_parameters(func, args, kwargs, place)
        operands = (self._operands(args), {key: self._operands(value) for key, value in kwargs.items()})
        self._types += _counted(schema, args)
        with self.aside():  # an op's own calls are not part of the model: a backward pass that a library registered
            result = _computed(func, args, kwargs)
        self._check_nested(result, place)
        if self._keeps and not self._backward_of:
            self._answer(event, result)
        if not isinstance(result, (torch.Tensor, list, tuple)):
            if {ref.name for ref in iterate_refs(operands)} & self._from_gradient:
                self._refuse(
                    "a backward pass that reads values of its gradient",
                    place,
                    "torch.where(condition, a, b) chooses between values",
                )
            if result is None and op_schema(func).is_mutable:
                self._refuse(f"{func}, which returns nothing", place, "write it out, op by op")
            names = [ref.name for ref in iterate_refs(operands)]
            self.program.read |= set(names)
            if isinstance(result, float):
                self.program.numbers += [Number(name, place, result) for name in names]
            return result  # a number that Python reads
        if any(argument.is_out for argument in op_schema(func).arguments):
            self._refuse(f"{func} with out=", place, "use its result instead")
        self._take(func, args, operands, result, place, event)
        return result

    def _check_nested(self, value: Any, place: Place) -> None:
        """Throws: UnsupportedModelError where tensors of several shapes are one."""
        if any(isinstance(x, torch.Tensor) and x.is_nested for x in torch_api.LEAVES(value)):
            raise UnsupportedModelError([*self._problems, place.problem("a nested tensor", _NO_NESTED)])

    def note_read(self, tensor: torch.Tensor) -> None:
        if tensor in self._bound:
            self.program.read.add(self._bound[tensor])
            if tensor.dtype.is_floating_point:
                self.program.numbers.append(Number(self._bound[tensor], self._place(), None))

    def name_value(self, name: str, tensor: torch.Tensor, log_probs: bool) -> None:
        """By a call, which reads what the tensor holds now; nothing else reads its result."""
        place = self._place()
        if name in self.program.watched:
            self._refuse(f"watch_value({name!r}) twice in a step", place, "give each tensor a name of its own")
            return
        with self.aside():
            ref = self._ref(tensor)
            call = self._add("detach", torch.ops.aten.detach.default, (ref,), {}, place)
        self.program.watched[name] = WatchedName(call, log_probs)

    def set_data(self, tensor: torch.Tensor, data: torch.Tensor) -> None:
        """`tensor.data = data`: a buffer is from here on what data is; parameters keep their names."""
        with self.aside():
            changes = tensor.dtype == data.dtype and not torch.equal(tensor, data)
            SETS_DATA(tensor, data)
        if id(tensor) in self._names_of and changes and not self._moves(tensor):
            self._refuse("in-place on a parameter", self._place(), _CHANGED_COPY)
        if id(tensor) in self._buffers:
            self._bound[tensor] = self._ref(data).name
            self._datas.append(data)

    def _keep_parameters(self, func: Any, args: Any, kwargs: Any, place: Place) -> None:
        """Before a write to a parameter, or to a view of one: what it holds, and a refusal."""
        for number, argument in enumerate(op_schema(func).arguments):
            written = args[number] if number < len(args) else kwargs.get(argument.name)
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            for tensor in torch_api.LEAVES(written):
                if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.numel() == 0:
                    continue
                held = self._parameters.get(tensor.untyped_storage().data_ptr())
                if held is not None and id(held) not in self._kept:
                    self._kept[id(held)] = (held, held.detach().clone())
                    if self._moves(held):
                        continue
                    hint = _WRITES_OUT.get(op_schema(func).name, _CHANGED_COPY)
                    self._refuse("in-place on a parameter", place, hint)

    def _moves(self, parameter: torch.Tensor) -> bool:
        """Notes a parameter that the run changes, if no gradient does: it is state like a buffer."""
        if parameter.requires_grad:
            return False
        path = self._names_of[id(parameter)]
        owner, _, name = path.rpartition(".")
        self.moved.append(Attribute(path, self._model.get_submodule(owner), name))
        return True

    def put_back(self) -> None:
        """Parameters that the run wrote to are as they were before."""
        with torch.no_grad():
            for held, before in self._kept.values():
                if not torch.equal(held, before):
                    held.copy_(before)

    def _is_computed(self, values: list[Any]) -> bool:
        """Do tensors among the values depend on parameters or buffers?"""
        wanted = {self._bound[x] for x in values if isinstance(x, torch.Tensor) and x in self._bound}
        for call in reversed(self.program.calls):
            if call.name in wanted:
                wanted.update(call.refs())
        return bool(wanted & {*self.program.params, *self.program.buffers})

    def _answer(self, event: Event, result: Any) -> None:
        if _is_discrete(result) and not event[0].split(".")[-2].endswith("_"):
            self.answers[event] = result.detach().clone()
        elif isinstance(result, (bool, int, float)):
            self.answers[event] = result

    def _take(self, func: Any, args: Any, operands: Any, result: Any, place: Place, event: Event) -> None:
        func, (read, options) = _spelled(func), operands
        short = op_schema(func).name.split("::")[1]
        if isinstance(result, torch.Tensor):
            given = [item for item in torch_api.LEAVES((args,)) if item is result]
            in_place = short.endswith("_") and not short.endswith("__")
            if given and not in_place:
                name = self._bound.get(result)
                if name not in self._aliases:
                    return  # an op that returns its operand did nothing
            name = self._add(short, func, read, options, place, event in self._narrowing)
            self._bind(result, name)
            if self._asked.renames:
                self._aliases.add(name)
            self._decide(name, args, result)
            return
        name = self._add(short, func, read, options, place)
        given = [item for item in torch_api.LEAVES((args,)) if isinstance(item, torch.Tensor)]
        for slot, item in enumerate(result):
            if isinstance(item, torch.Tensor) and not any(item is other for other in given):
                part = self._add("getitem", operator.getitem, (Ref(name), slot), {}, place)
                self._bind(item, part)
                self._decide(part, args, item)

    def _bind(self, tensor: torch.Tensor, name: str) -> None:
        self._bound[tensor] = name
        self._types.append(f"{tuple(tensor.shape)} {tensor.dtype}")

    def _decide(self, name: str, args: Any, result: torch.Tensor) -> None:
        """Integers that are chosen from floats depend on the run's roundings."""
        if (
            self._keeps
            and _is_discrete(result)
            and any(
                isinstance(item, torch.Tensor) and item.dtype.is_floating_point for item in torch_api.LEAVES((args,))
            )
        ):
            self.program.decisions[name] = result.detach().clone()

    def _add(self, wanted: str, target: Any, args: Any, kwargs: Any, place: Place, narrows: bool = False) -> str:
        name = self._new(wanted.rstrip("_") if wanted.strip("_") else wanted)
        self._append(Call(name, target, args, kwargs, place, None, not torch.is_grad_enabled(), narrows))
        return name

    def _append(self, call: Call) -> None:
        call.autocast, call.backward_of = self._regions[-1] if self._regions else None, self._backward_of
        call.renames, call.limit = self._asked.renames, self._asked.limit
        if self._backward_of and set(call.refs()) & self._from_gradient:
            self._from_gradient.add(call.name)
        self.program.calls.append(call)

    def take_gradient(self, given: Given, results: Sequence[torch.Tensor | None]) -> None:
        if self.paused:
            return
        place = self._place()
        if is_batched((given.outputs, given.inputs, given.seeds)):
            return self._refuse(
                "a batch of gradients at once (torch.autograd.grad(is_grads_batched=True), vectorize, torch.func.vmap)",
                place,
                "call torch.autograd.grad once for each of them, or once for their sum where rows do not depend on each other",
            )
        outputs, inputs, seeds = (self._operands(list(items)) for items in (given.outputs, given.inputs, given.seeds))
        with torch.set_grad_enabled(given.create_graph):
            name = self._add("gradient", GRADIENT, (outputs, inputs, seeds, given.create_graph), {}, place)
            for slot, item in enumerate(results):
                if item is not None:
                    self.add_item(name, slot, item, place)

    # Functions with a backward pass of their own: custom_functions.Recording
    place, refuse, new_name = _place, _refuse, _new

    def known(self, tensor: torch.Tensor) -> str | None:
        seen = tensor if tensor in self._bound else self._sharing(tensor)
        return self._bound[seen] if seen is not None and place_of(seen) == place_of(tensor) else None

    def add_call(self, target: Any, args: Any, place: Place, name: str = "") -> str:
        name = name or self._new(op_schema(target).name.rpartition("::")[2])
        self._append(Call(name, target, args, {}, place, None, not torch.is_grad_enabled()))
        return name

    def add_item(self, call: str, slot: int, tensor: torch.Tensor, place: Place) -> None:
        self._bind(tensor, self._add("getitem", operator.getitem, (Ref(call), slot), {}, place))

    @contextlib.contextmanager
    def backward(self, name: str) -> Iterator[None]:
        """PyTorch runs it outside of the forward pass's blocks."""
        outer = list(self._regions)
        self._regions.clear()
        self._backward_of = name
        try:
            yield
        finally:
            self._regions[:], self._backward_of = outer, ""
            self._from_gradient.clear()

    def seed(self, tensor: torch.Tensor, name: str) -> None:
        self._bind(tensor, name)
        self._from_gradient.add(name)

    # The result
    def finish(self, loss: torch.Tensor, step: StepModule) -> Program:
        if self._problems:
            raise UnsupportedModelError(self._problems)
        program = self.program
        program.loss = self._bound[loss] if loss in self._bound else self._ref(loss).name
        program.note_assigned(step.assigned, self._names)
        used = {name for call in program.calls for name in call.refs()} | {program.loss}
        extremes = {call.name: call for call in program.calls if call.op in EXTREMES}
        for call in program.calls:
            if call.is_getitem and call.name in used and call.args[1] == 1 and call.args[0].name in extremes:
                extremes[call.args[0].name].reads_places = True
        for table in (program.params, program.buffers, program.inputs):
            for name in [name for name in table if name not in used]:
                del table[name]
        return program

    def key(self) -> str:
        """Of two runs with equal keys, one program serves for both: tensors made of Python's numbers are the same too."""
        digest = hashlib.sha256()
        for call in self.program.calls:
            digest.update(
                f"{call.name} {call.op} {call.args} {call.kwargs} {call.autocast} {call.nograd} "
                f"{call.place.module}\n".encode()
            )
        digest.update(
            repr((self._types, self._made, self.program.loss, self.program.assigned, self.program.watched)).encode()
        )
        return digest.hexdigest()


def _spelled(func: Any) -> Any:
    """`mask &= other` by the name of the method that does the same."""
    name = op_schema(func).name.split("::")[1]
    return getattr(getattr(torch.ops.aten, _IN_PLACE[name]), overload_name(func)) if name in _IN_PLACE else func


def _counted(schema: str, args: Any) -> list[str]:
    """How many places masks name, where no shape of the result shows it."""
    masks = []
    if schema in ("aten::index_put", "aten::index_put_") and (len(args[1]) > 1 or args[2].numel() > 1):
        masks = args[1]
    elif schema in ("aten::masked_scatter", "aten::masked_scatter_"):
        masks = [args[1]]
    return [str(int(mask.sum())) for mask in masks if mask is not None and mask.dtype == torch.bool]
