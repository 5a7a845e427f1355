"""Statistics of a user's own run, written while it trains: `with monitor.step(batch):` around an unchanged loop body.

On the steps of its cadence every layer's tensors are counted where they are; of all other steps only the loss, the scale and
the gradients' norm are noted, where the loop has them. The run file has one lane, `live`.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import math
import os
import shlex
import struct
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch

from .. import torch_api
from ..arguments import count_problems, model_problems, path_problems, scaler_problems
from ..errors import CaptureError, failed
from ..model_state import inside_wrappers, rank, unwrap_optimizer, world_size
from ..parts.names import chosen
from ..program import find_program
from ..trace.uncompiled import uncompiled
from ..trace.user_code import ShownToUsers, depth_of_user
from ..watch.hooks import Events, Listener, watch_training
from .alarm import Alarm, AlarmRule
from .ranks import Sites, Table, is_shared
from .sender import Sender
from .tally import NUMBERS, UPDATE_NUMBERS
from .taps import Key, Place, Taps, chosen_modules

_NOTHING: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
_MOST_BEFORE_SITES = 50  # steps that the scaler may skip before the optimizer has a state
_MOST_BLOCKS = 1024  # without the end of a step
_FIRST_LR = 4  # of a step's values
_LONGEST_END = 60.0  # seconds that finish() waits for the file


@dataclass
class _Subject:
    """The loop's parts, as far as watch_training() needs them."""

    optimizer: Any
    scaler: Any

    @property
    def scales(self) -> bool:
        return self.scaler is not None

    def raw_gradients(self) -> list[torch.Tensor]:
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        return [tensor.grad for group in groups for tensor in group["params"] if tensor.grad is not None]


@dataclass
class _Step:
    """What is known of one step. values: loss, scale, gradients' norm, found_inf, then the groups' rates; numbers or tensors
    on the device. has_begun: the copies to the host."""

    number: int
    seconds: float
    values: list[Any]
    has_scaled_norm: bool
    skipped: bool
    is_measured: bool
    taps: Taps | None
    has_begun: bool = False
    table: Table | None = None
    fetched: list[torch.Tensor] = field(default_factory=list)
    event: Any = None  # of CUDA: passed once everything has been copied to the host

    @property
    def is_there(self) -> bool:
        return self.event is None or self.event.query()


class Monitor:
    """Watches every step of a loop and writes `path`, a run file with the lane `live`.

    optimizer: None for inference, where each block is a step. every: steps between two that are measured; the first is.
    modules: globs over module paths, as in Parts; all by default. updates: measure what the optimizer changed, which takes
    a copy of the weights during a measured step. attention: measure the logits of scaled_dot_product_attention, formed
    once more for it. on_alarm: functions of an Alarm, called in the loop at the next block, e.g. wandb_alert; alarms are
    printed in any case unless quiet. per_rank: every rank writes a file of its own, path with .rankN; else the counts of all
    ranks are added up and rank 0 writes. overwrite: a run file that is there. program: the lockstep program, by default as
    for capture checks.

    Throws: CaptureError for wrong arguments, all at once. Later failures, of a full disk too, are warnings: training goes on.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        model: torch.nn.Module,
        optimizer: Any = None,
        *,
        scaler: Any = None,
        every: int = 100,
        modules: str | Sequence[str] | None = None,
        updates: bool = True,
        attention: bool = True,
        on_alarm: Callable[[Alarm], object] | Sequence[Callable[[Alarm], object]] = (),
        per_rank: bool = False,
        overwrite: bool = False,
        quiet: bool = False,
        program: str | os.PathLike[str] | None = None,
    ):
        self._alone = per_rank or world_size() == 1
        self._writes = self._alone or rank() == 0
        own = _path_of_rank(os.fspath(path)) if per_rank and world_size() > 1 and path else path
        problems = _path_problems(own, overwrite) if self._writes else []
        problems += _problems(model, scaler, every, on_alarm)
        if problems:
            raise CaptureError("; ".join(problems))
        self._path = os.fspath(own)
        self._model: torch.nn.Module = inside_wrappers(model)
        self._subject = _Subject(
            None if optimizer is None else unwrap_optimizer(optimizer),
            scaler if scaler is not None and scaler.is_enabled() else None,
        )
        globs = [modules] if isinstance(modules, str) else modules
        self._modules = chosen_modules(self._model) if globs is None else chosen(self._model, globs)
        self._every, self._updates, self._attention, self._quiet = every, updates, attention, quiet
        self._device = next((p.device for p in self._model.parameters()), torch.device("cpu"))
        self._overwrite = overwrite
        self._program = find_program(program) if self._writes else ""
        self._on_alarm = [on_alarm] if callable(on_alarm) else list(on_alarm)
        self._sender: Sender | None = None
        self._sites: Sites | None = None
        self._taps: Taps | None = None
        self._measured: _Step | None = None  # the last one that was
        self._losses: list[torch.Tensor] = []
        self._scale: Any = 1.0
        self._micro_batches = 0  # the most of a step
        self._blocks = 0  # since a step ended
        self._groups = 1  # of parameters, when the file began
        self._waiting: collections.deque[_Step] = collections.deque()  # whose numbers are on their way
        self._number, self._begun, self._inside, self.finished = 0, 0.0, False, False
        self._failure = ""
        self._came: collections.deque[Alarm] = collections.deque()  # from the sender's thread
        self.alarms: list[Alarm] = []
        self._process = os.getpid()
        self._rules: weakref.WeakSet[AlarmRule] = weakref.WeakSet()
        atexit.register(_finish_at_exit, weakref.ref(self))

    def step(self, batch: Any = None) -> contextlib.AbstractContextManager[None]:
        """Around the body of the loop for one (micro-)batch. A step ends with the block that calls the optimizer's step().
        batch: not looked at."""
        return _NOTHING if self.finished else ShownToUsers(self._block())

    def rule(self, *names: str) -> AlarmRule:
        """For Capture(when=monitor.rule()): an alarm takes the next step under the capture. names: of rules, all by default."""
        made = AlarmRule(names)
        self._rules.add(made)
        return made

    def finish(self) -> None:
        """Ends the file and waits for it, a minute at most."""
        if self.finished:
            return
        self.finished = True
        self._forget_step()
        if self._process != os.getpid():  # a fork has the pipe, not the run
            return
        self._guarded(lambda: self._send_all(wait=True))
        sender, self._sender = self._sender, None
        self._measured, self._modules = None, {}
        self._waiting.clear()
        if sender is None:
            if not self._failure and self._writes:
                self._warn(f"{self._path} was not written: no step was complete")
            return
        problem = sender.finish(_LONGEST_END)
        self._tell_alarms()
        if problem:
            self._warn(f"{self._path}: {problem}")
        elif not self._quiet and not self._failure:
            self._say(f"{self._path} has {self._number} steps. Next: lockstep report {shlex.quote(self._path)}")

    close = finish

    def abandon(self) -> None:
        """Before the first step: there will be no file, and no word about it."""
        self.finished = True

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        self.finish()

    # ---- One block

    @contextlib.contextmanager
    def _block(self) -> Iterator[None]:
        if self._inside:
            raise CaptureError("monitor.step(): a block inside a block; each micro-batch needs its own")
        self._tell_alarms()
        if self._failure and self._alone:
            self._stop(self._failure)
        events = Events(waits=self._device.type == "cpu")
        self._inside = True
        if not self._losses and self._taps is None:
            self._begun = time.perf_counter()
        try:
            with contextlib.ExitStack() as stack:
                if not self.finished:
                    self._guarded(lambda: self._begin(events, stack))
                yield
        except BaseException:
            self._forget_step()  # none ends with this block
            raise
        finally:
            self._inside = False
        if self._subject.optimizer is None:
            events.ended = True
        self._blocks = 0 if events.ended else self._blocks + 1
        if self._blocks > _MOST_BLOCKS:
            self._forget_step()
            self._fail(f"{_MOST_BLOCKS} blocks in a row had no optimizer.step() of this optimizer in them")
        if events.ended and not self.finished:
            self._guarded(lambda: self._end(events))

    def _forget_step(self) -> tuple[Taps | None, list[torch.Tensor]]:
        """What is known of the running one; its hooks are gone."""
        taps, losses = self._taps, self._losses
        self._taps, self._losses = None, []
        if taps is not None:
            taps.close()
        return taps, losses

    def _begin(self, events: Events, stack: contextlib.ExitStack) -> None:
        watch_training(stack, self._subject, events, _Follower(self, events))
        self._send_all(wait=False)
        if self._taps is None and self._number % self._every == 0 and not self._failure:
            self._taps = Taps(
                self._modules,
                self._subject.optimizer,
                scaled=self._subject.scales,
                attention=self._attention,
                updates=self._updates,
                fail=self._note_failure,
            )
        if self._taps is not None:
            stack.enter_context(uncompiled())
            stack.enter_context(self._taps.watch())

    def _end(self, events: Events) -> None:
        taps, losses = self._forget_step()
        found_inf: Any = events.found_inf if events.unread_found_inf is None else events.unread_found_inf
        groups = [] if self._subject.optimizer is None else self._subject.optimizer.param_groups
        step = _Step(
            number=self._number,
            seconds=time.perf_counter() - self._begun,
            values=[
                torch.stack([loss.to(torch.float64).reshape(()) for loss in losses]).sum() if losses else math.nan,
                self._scale,
                _whole(events.clipping.norm if events.clipping.max_norm >= 0 else events.looked_norm),
                found_inf,
                *([group.get("lr", math.nan) for group in groups] or [math.nan]),
            ],
            has_scaled_norm=events.clipping.stage == "scaled",
            skipped=events.ended and not events.stepped and self._subject.optimizer is not None,
            is_measured=self._number % self._every == 0,
            taps=taps,
        )
        if any("GradScaler" in problem.what for problem in events.problems) and not self._subject.scales:
            self._fail("the loop has a GradScaler: Monitor(..., scaler=scaler)")
        self._number += 1
        self._micro_batches = max(self._micro_batches, len(losses))
        self._waiting.append(step)
        if self._sites is None:
            self._make_sites(step)
        if step.is_measured and self._sites is not None and step.table is None and not self.finished:
            self._measure(step)
        self._fetch(step)

    def _make_sites(self, step: _Step) -> None:
        """After the first step that the scaler did not skip: then the optimizer has its state."""
        if step.skipped and step.number < _MOST_BEFORE_SITES:
            return
        places: dict[Key, Place] = {}
        shared: set[Key] = set()
        taps = [one.taps for one in self._waiting if one.taps is not None]
        self._guarded(lambda: self._find_places(taps, places, shared))
        self._sites = Sites(places, shared, self._alone)
        for one in self._waiting:
            if one.is_measured:
                self._measure(one)
                self._fetch(one)
        if self._writes and not self._failure:
            self._guarded(lambda: self._start(len(step.values) - _FIRST_LR))

    def _find_places(self, taps: list[Taps], places: dict[Key, Place], shared: set[Key]) -> None:
        for one in taps:
            one.note_states()  # those that the optimizer made in a step that was not measured
            for key, place in one.places.items():
                places.setdefault(key, place)
                parameter = one.parameters.get((key.layer, key.name.partition(".")[0]))
                if parameter is not None and is_shared(parameter):
                    shared.add(key)

    def _start(self, groups: int) -> None:
        """The program. It does not keep a monitor alive that nobody holds any more."""
        me, self._groups = weakref.ref(self), groups

        def ended(why: str) -> None:
            if (own := me()) is not None:
                own._note_ended(why)

        def alarmed(alarm: dict[str, Any]) -> None:
            if (own := me()) is not None:
                own._note_alarm(alarm)

        self._sender = Sender(
            [self._program, "monitor", self._path, *(["--overwrite"] if self._overwrite else [])],
            self._header(groups),
            failed=ended,
            alarm=alarmed,
        )
        weakref.finalize(self, self._sender.let_end).atexit = False

    def _header(self, groups: int) -> dict[str, Any]:
        assert self._sites is not None
        model, ranks = type(self._model).__name__, f", {world_size()} ranks" if world_size() > 1 else ""
        return {
            "format": "lockstep-monitor",
            "version": 1,
            "model": model,
            "data": f"live: {model}, PyTorch {torch.__version__} on {self._device.type}{ranks}",
            "device": self._device.type,
            "every": self._every,
            "groups": groups,
            "sites": [
                {
                    "layer": key.layer,
                    "op": place.op,
                    "role": key.role,
                    "name": f"{key.layer}.{key.name}:{key.role}",
                    "shape": list(place.shape),
                    "format": place.format,
                    "scaled": place.scaled,
                }
                for key, place in self._sites.places.items()
            ],
        }

    def _measure(self, step: _Step) -> None:
        """On several ranks all stop after the same step: the one after a table in which a rank had failed."""
        assert self._sites is not None
        before, self._measured = self._measured, step
        if before is not None and before.event is not None:
            before.event.synchronize()  # of the cadence's last step: long there
        last = None if before is None or before.table is None else before.table.has_failed
        if last is not None and float(before.fetched[-1] if before and before.fetched else last) > 0:
            self._stop(self._failure or "another rank has stopped")
            return
        found = {} if step.taps is None else step.taps.found
        step.table = self._sites.table(found, self._device, bool(self._failure), self._note_failure)
        step.taps = None

    def _fetch(self, step: _Step) -> None:
        """Begins the copies to the host."""
        if step.has_begun or (step.is_measured and step.table is None):
            return  # the latter before the sites are known
        step.has_begun = True
        tensors = [] if step.table is None else step.table.tensors()
        values = [
            value.detach().to(torch.float64).reshape(()) if isinstance(value, torch.Tensor) else value
            for value in step.values
        ]
        on_device = [value for value in values if isinstance(value, torch.Tensor)]
        if self._device.type == "cpu":
            step.fetched = tensors
            step.values = [float(value) for value in values]
            return
        step.fetched = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
        if on_device:
            together = torch.stack([value.to(self._device) for value in on_device]).to("cpu", non_blocking=True)
            numbers = iter(range(len(on_device)))
            step.values = [together[next(numbers)] if isinstance(value, torch.Tensor) else value for value in values]
        step.event = torch.cuda.Event()
        step.event.record(torch.cuda.current_stream(self._device))

    def _send_all(self, wait: bool) -> None:
        """What has arrived, in order. wait: for the GPU, at the end."""
        while self._waiting and self._sites is not None:
            step = self._waiting[0]
            if not step.has_begun:
                return
            if not step.is_there:
                if not wait:
                    return
                step.event.synchronize()
            self._waiting.popleft()
            self._send(step)

    def _send(self, step: _Step) -> None:
        if self._sender is None or self._failure:
            return
        loss, scale, norm, found_inf, *rates = (float(value) for value in step.values)
        norm = norm / scale if step.has_scaled_norm else norm
        rates = [*rates, *[math.nan] * self._groups][: self._groups]  # groups that came later have none
        numbers = struct.pack(f"<{4 + self._groups}d", loss, scale, norm, step.seconds, *rates)
        if step.table is not None:
            numbers += _packed(step.fetched, self._sites, scale)
        head = {
            "step": step.number,
            "measured": step.table is not None,
            "found_inf": found_inf > 0,
            "skipped": step.skipped or found_inf > 0,
        }
        if not self._sender.send(head, numbers) and self._sender.dropped:
            self._fail(f"{self._path}: the disk does not keep up; the steps so far are written")

    # ---- What it looks at

    def on_backward(self, loss: torch.Tensor) -> None:
        self._losses.append(loss.detach())
        if self._subject.scales and len(self._losses) == 1:  # update() changes it at the end of the step
            scale = torch_api.scale_tensor(self._subject.scaler)
            self._scale = 1.0 if scale is None else scale.detach().clone()

    def on_backward_done(self) -> None:
        if self._taps is not None:
            self._taps.note_gradients()

    def before_change(self) -> None:
        if self._taps is not None:
            self._taps.take_gradients()

    def on_gradients(self, events: Events) -> None:
        if self._taps is not None:
            self._taps.take_gradients()
            self._taps.take_weights(will_step=events.stepped)

    def on_stepped(self) -> None:
        if self._taps is not None:
            self._taps.take_updates()

    # ---- Alarms and failures

    def _note_alarm(self, alarm: dict[str, Any]) -> None:
        known = {name: value for name, value in alarm.items() if name in Alarm.__dataclass_fields__}
        if self._micro_batches < 2:
            known.pop("micro_batch", None)
        self._came.append(Alarm(**known))

    def _tell_alarms(self) -> None:
        while self._came:
            alarm = self._came.popleft()
            self.alarms.append(alarm)
            if not self._quiet:
                self._say(str(alarm))
            for rule in self._rules:
                rule.note(alarm)
            for function in self._on_alarm:
                try:
                    function(alarm)
                except Exception as error:
                    self._warn(f"on_alarm: {type(error).__name__}: {error}")

    def _note_failure(self, error: Exception) -> None:
        self._fail(str(error if isinstance(error, CaptureError) else failed(error)))

    def _note_ended(self, why: str) -> None:
        """From the sender's thread: the next block acts on it."""
        self._failure = self._failure or f"{self._path}: {why}"

    def _fail(self, why: str) -> None:
        """The next block ends the monitor; on several ranks it stays until all know, or they would wait for it."""
        self._failure = self._failure or why

    def _stop(self, why: str) -> None:
        self._failure = self._failure or why
        if not self.finished:
            self._warn(f"monitoring has stopped: {why}")
            self.finish()

    def _guarded(self, body: Callable[[], None]) -> None:
        """A failure ends the monitor, never the loop."""
        try:
            body()
        except Exception as error:
            self._note_failure(error)
            if self._alone:
                self._stop(self._failure)

    def _warn(self, text: str) -> None:
        warnings.warn(f"lockstep_capture: {text}", stacklevel=1 + depth_of_user())

    def _say(self, text: str) -> None:
        print(f"lockstep_capture: {text}", file=sys.stderr)


class _Follower(Listener):
    def __init__(self, monitor: Monitor, events: Events):
        self._monitor, self._events = monitor, events

    def on_backward(self, loss: torch.Tensor) -> None:
        self._monitor.on_backward(loss)

    def on_backward_done(self) -> None:
        self._monitor.on_backward_done()

    @contextlib.contextmanager
    def known_change(self) -> Iterator[None]:
        self._monitor.before_change()
        yield

    def on_clamp(self, limit: float) -> None:
        self._monitor.before_change()

    def on_gradients(self) -> None:
        self._monitor.on_gradients(self._events)

    def on_stepped(self) -> None:
        self._monitor.on_stepped()


def _packed(tensors: list[torch.Tensor], sites: Sites | None, scale: float) -> bytes:
    """As src/monitor/monitor_stream.cc reads it."""
    assert sites is not None
    histogram, numbers, updates, where = (tensor.numpy() for tensor in tensors[:4])
    counts = {name: numbers[:, i] for i, name in enumerate(NUMBERS)}
    of_updates = {name: updates[:, i] for i, name in enumerate(UPDATE_NUMBERS)}
    scales = numpy.array([scale if place.scaled else 1.0 for place in sites.places.values()])
    whole = [counts["count"], counts["zeros"], counts["nan"]]
    whole += [of_updates["count"], of_updates["stagnant"], of_updates["stagnant_bf16"]]
    reals = [scales, where[:, 0], counts["sum_sq"], of_updates["update_sq"], of_updates["weight_sq"]]
    parts = [column.astype("<u8").tobytes() for column in whole]
    parts += [numpy.ascontiguousarray(column, "<f8").tobytes() for column in reals]
    parts += [where[:, i].astype("<i8").tobytes() for i in range(1, 5)]
    return b"".join(parts) + histogram.astype("<u8").tobytes()


def _path_of_rank(path: str) -> str:
    root, ending = os.path.splitext(path)
    return f"{root}.rank{rank()}{ending}"


def _whole(norm: Any) -> Any:
    """FSDP2 leaves the norm in parts: all ranks add them up here, in the same step."""
    full = getattr(norm, "full_tensor", None)
    return norm if full is None else full()


def _path_problems(path: Any, overwrite: bool) -> list[str]:
    problems = path_problems(path, "live.h5")
    if not problems and os.path.exists(path) and not overwrite:
        problems.append(f"path: {os.fspath(path)} exists, choose another name or overwrite=True")
    return problems


def _problems(model: Any, scaler: Any, every: Any, on_alarm: Any) -> list[str]:
    problems = [*model_problems(model), *scaler_problems(scaler), *count_problems("every", every)]
    functions = [on_alarm] if callable(on_alarm) else on_alarm
    if not isinstance(functions, Sequence) or not all(callable(one) for one in functions):
        problems.append("on_alarm: must be a function of an alarm, or a list of them")
    return problems


def _finish_at_exit(monitor: weakref.ref[Monitor]) -> None:
    found = monitor()
    if found is not None:
        found.finish()
