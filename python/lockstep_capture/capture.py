"""Records training steps as they happen: `with cap.step(batch):` around an unchanged loop body.

Only the loop computes; a block watches. After the forward pass, the pass is repeated once from the traced
graph. It must give the loop's loss bit for bit (gate V0): a capture that is not faithful is never written.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from .arguments import check_arguments, check_not_waiting, check_waiting, check_watched
from .errors import CaptureError, UnsupportedModelError, failed
from .ir.attributes import Attribute
from .model_state import State, Subject, rank, world_size
from .needs import check_room
from .program import find_program
from .trace.script_lines import ScriptLines
from .trace.step_function import StepFunction
from .trace.survey import unwatched
from .trace.traced import Traced, see, unknown_state
from .trace.uncompiled import uncompiled
from .trace.user_code import ShownToUsers, own_place, user_line
from .trigger.rules import rules_of
from .trigger.waiting import Waiting
from .watch.continuity import Continuity
from .watch.forward_pass import Region
from .watch.hooks import Events, around_step
from .watch.own_pass import own_pass
from .watch.replayed_gradients import Replayed
from .watch.step import Step
from .watch.watcher import Watcher
from .write.part_checks import PartChecks
from .write.recorder import Recorder

_NOTHING: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


class Capture:
    """Captures `steps` optimizer steps of a loop into `path`, replacing what is there.

    step_fn(model, batch) gives the loss that the loop computes for a batch: the mean over the micro-batch, not
    divided by the number of micro-batches, not scaled. autocast: dtype of the torch.autocast block that the LOOP
    opens around the forward pass ("float16", "bfloat16"), None where it opens none; blocks inside step_fn or the
    model are found automatically. optimizer: None for inference: each block is a forward pass, and step_fn returns one
    number of its result. verify: numbers of the steps that get reference gradients, default the first
    alone; each adds 20 bytes per parameter to the file with AdamW, later ones 32. on_unsupported: "error" raises UnsupportedModelError at the first block, "report"
    warns with the same text and captures nothing. Other failures of the capture do the same; the loop's own errors never.
    watch: modules, by path or pattern ("head", "blocks.*.mlp"), whose outputs a replay compares in every lane and step;
    watch_value() names tensors inside the step. quiet: no line on standard error when the file is complete. part: the file
    is one of Parts, which alone pass it.

    when: waits for a step that is worth a file: "fault" (a loss or gradient that is not finite, a scaler that keeps skipping, a
    spike), step numbers, "every:N", "signal:USR1", "file:PATH", a function of trigger.rules.StepFacts, or a list of these. That
    step is taken again under a capture, before the optimizer changes a weight, into path with its number in the name; the
    loop goes on as without. At most `times` files, `cooldown` steps between two, max_bytes in all. sync: read loss and
    gradients in each step although that waits for a GPU; by default on the CPU alone. report: a process of its own verifies and replays each file, and prints what it was: data, format, machine.
    Each rank decides on its own. steps, verify and on_unsupported do not apply: a file has one step, with references, and a
    failure is a warning. docs/trigger.md.

    One block per micro-batch. A step ends with the block that calls the optimizer's step(). The file is complete
    after `steps` steps; for a loop that ends earlier, call finish() or leave `with Capture(...)`. An
    error or Ctrl-C in the loop ends the capture; the steps that were complete are kept. Under torch.distributed rank 0
    captures; nothing happens on the other ranks.

    step_fn is run a few times more to trace it. Generators, attributes of modules, variables and globals that it names
    are put back (see untouched.py). Changes in other objects, iterators or files are not.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        model: torch.nn.Module,
        optimizer: Any,
        step_fn: StepFunction,
        *,
        scaler: Any = None,
        autocast: str | torch.dtype | None = None,
        steps: int = 8,
        verify: Iterable[int] | None = None,
        on_unsupported: str = "error",
        watch: str | Sequence[str] = (),
        quiet: bool = False,
        part: PartChecks | None = None,
        when: Any = None,
        times: int = 3,
        cooldown: int = 100,
        max_bytes: int | None = None,
        sync: bool | None = None,
        report: bool = False,
    ):
        verify = None if verify is None else list(verify) if isinstance(verify, Iterable) else verify
        self.dtype = check_arguments(
            path,
            optimizer,
            step_fn,
            scaler=scaler,
            autocast=autocast,
            steps=steps,
            verify=verify,
            on_unsupported=on_unsupported,
        )
        self._watch = [watch] if isinstance(watch, str) else list(watch)
        self._path = os.fspath(path)
        self._verify = {0} if verify is None else set(verify)
        self._until_taken = verify is None and scaler is not None  # adds a step while the scaler skips these
        self._step_fn, self._steps = step_fn, steps
        self._model, self._optimizer, self._scaler = model, optimizer, scaler
        self._report, self._quiet, self._part = on_unsupported == "report", quiet, part
        self._subject: Subject | None = None
        self._continuity: Continuity | None = None
        self._attributes: list[Attribute] = []  # of modules, which the forward pass changes
        self._initial: State | None = None
        self._initial_hyper: list[dict[str, Any]] = []
        self._recorder: Recorder | None = None
        self._lines: ScriptLines | None = None
        self._traced: dict[str, tuple[Traced, int]] = {}
        self._step: Step | None = None
        self._done, self._closed, self._inside = 0, False, False
        self._waits, self._waited = False, False
        self._trigger: Waiting | None = None
        if when is not None:
            self._trigger = self._wait_until(when, times, cooldown, max_bytes, sync, report)
        else:
            check_not_waiting(
                times=(times, 3),
                cooldown=(cooldown, 100),
                max_bytes=(max_bytes, None),
                sync=(sync, None),
                report=(report, False),
            )
        self._made_at = own_place()
        self._process = os.getpid()  # a copy of this in a forked one writes nothing
        self._warned: set[str] = set()
        atexit.register(_finish_at_exit, weakref.ref(self))

    @property
    def finished(self) -> bool:
        """True once the file is written, or nothing will be."""
        return self._closed if self._trigger is None else self._trigger.finished

    @property
    def has_steps(self) -> bool:
        """One is complete, whether it is written or not."""
        return self._done > 0

    @property
    def files(self) -> list[str]:
        """That were written so far, where `when` is given."""
        return [] if self._trigger is None else [fault.path for fault in self._trigger.faults]

    def _wait_until(
        self, when: Any, times: int, cooldown: int, max_bytes: int | None, sync: bool | None, report: bool
    ) -> Waiting:
        check_waiting(self._optimizer, times, cooldown, max_bytes)

        def make(path: str, scaler: Any) -> Capture:
            return Capture(
                path,
                self._model,
                self._optimizer,
                self._step_fn,
                scaler=scaler,
                autocast=self.dtype,
                steps=1,
                watch=self._watch,
                quiet=True,
            )

        return Waiting(
            self._path,
            self._model,
            self._optimizer,
            self._step_fn,
            scaler=self._scaler,
            autocast=self.dtype,
            times=times,
            cooldown=cooldown,
            max_bytes=max_bytes,
            sync=sync,
            quiet=self._quiet,
            program=find_program(None) if report else None,
            rules=rules_of(when),  # the last: it may listen for a signal
            make=make,
        )

    @property
    def autocast(self) -> Region | None:
        """Of the block that the loop opens."""
        if self.dtype is None or self._subject is None:
            return None
        return self._subject.device.type, self.dtype

    def step(self, batch: Any) -> contextlib.AbstractContextManager[None]:
        """Around the body of the loop for one (micro-)batch; does nothing after the last captured step."""
        if self._trigger is not None:
            return self._trigger.step(batch)
        return _NOTHING if self._closed else ShownToUsers(self._block(batch))

    def finish(self) -> None:
        """Writes the file with the steps so far. Micro-batches without an optimizer step are left out.

        Throws: CaptureError where the file cannot be written (with on_unsupported="report" it warns).
        """
        if self._trigger is not None:
            self._closed = True
            self._trigger.finish()
        if self._closed:
            return
        if not self._done or self._recorder is None:
            blocks = len(self._step.micro) if self._step is not None else 0
            self.abandon()
            why = "the loop ended with the step that it waited for" if self._waited else _why_no_step(blocks)
            self._warn(f"no step was captured, {self._path} was not written: {why}")
            return
        self._guarded(self._write)

    close = finish

    def _write(self) -> None:
        assert self._recorder is not None and self._continuity is not None
        self._closed = True
        self._recorder.finish(self._done, self._step is None and self._continuity.holds())
        told = _written(self._path, self._done, self._subject)
        self._forget()
        if not self._quiet:
            print(told, file=sys.stderr)

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or self._recorder is None or self._process != os.getpid():
            return
        if self._recorder.writer.is_in_background:  # finish() would wait for the write that it interrupts
            threading.Thread(target=self.finish).start()
        else:
            self.finish()

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if self._trigger is not None:
            self._trigger.finish(wait=kind is None)
        elif kind is None:
            self.finish()
        else:
            self._end_with(value)

    def abandon(self) -> None:
        """Removes the unfinished file."""
        self._closed = True
        if self._recorder is not None:
            self._recorder.writer.abandon()
        self._forget()

    def _forget(self) -> None:
        """Frees graphs, copies of weights and the model: the loop may run for days."""
        self._step = self._initial = self._recorder = self._subject = self._continuity = self._lines = None
        self._traced.clear()

    def _end_with(self, error: BaseException) -> None:
        """Passes the loop's own error on; the steps before it are kept."""
        if self._closed:
            return
        text = f"no step was complete, {self._path} was not written"
        if self._done:
            try:
                self._write()
                text = f"{self._path} has the {self._done} steps before it"
            except Exception as other:  # report the loop's error, not this one
                text = str(other)
                self.abandon()
        else:
            self.abandon()
        self._warn(f"the loop raised {type(error).__name__}: {text}")

    def _warn(self, text: str, once: str = "") -> None:
        if once in self._warned:
            return
        self._warned |= {once} if once else set()
        warnings.warn(f"lockstep_capture: {text}", stacklevel=5)

    def _refuse(self, error: CaptureError) -> None:
        """Removes the file; with on_unsupported="report" the loop continues."""
        self.abandon()
        if not self._report:
            raise error
        self._warn(str(error))

    @contextlib.contextmanager
    def _block(self, batch: Any) -> Iterator[None]:
        if self._inside:
            raise CaptureError("cap.step(): a block inside a block; each micro-batch needs its own")
        watcher, stack = self._begin(batch), contextlib.ExitStack()
        if watcher is None or not self._guarded(lambda: bool(stack.enter_context(watcher.watch()))):
            with self._waiting():
                yield
            return
        self._inside = True
        try:
            with stack:
                yield
        except BaseException as error:
            self._end_with(error)
            raise
        finally:
            self._inside = False
        if not self._closed:  # by finish() in the block
            self._guarded(lambda: self._take(watcher))

    def _guarded(self, body: Callable[[], Any]) -> Any:
        """None, and a capture that is over, where the body fails."""
        try:
            return body()
        except CaptureError as error:
            self._refuse(error)
        except Exception as error:
            self._refuse(failed(error))
        except BaseException:  # Ctrl-C: the data being written are not complete
            self.abandon()
            raise
        return None

    def _begin(self, batch: Any) -> Watcher | None:
        if rank() > 0:
            self._closed = True
            return None
        watcher: Watcher | None = None if self._waits else self._guarded(lambda: self._prepare_uncompiled(batch))
        return watcher

    def _prepare_uncompiled(self, batch: Any) -> Watcher | None:
        with uncompiled(self._note_compiled), own_pass():
            return self._prepare(batch)

    def _wait_for(self, cast: dict[str, torch.dtype]) -> None:
        """The first pass gives weights another dtype, for good: a capture begins with the state after its step.

        Throws: CaptureError if it is not the first time.
        """
        path, dtype = next(iter(cast.items()))
        name = str(dtype).removeprefix("torch.")
        told = f"the forward pass casts the data of {len(cast)} weights, e.g. {path} to {name}"
        if self._waited or self._recorder is not None:
            raise CaptureError(f"{told}, and not in the first step alone: a replay cannot; cast a copy, {path}.to(...)")
        self._warn(f"{told}: the capture begins with the next step")
        self._waits = self._waited = True

    def _begin_anew(self, changed: list[Attribute]) -> None:
        """With these attributes as state. Where the first pass has only made them, its step is not captured."""
        if self._done:
            self._warn(
                f"the step before made {changed[0].path}, which each step changes: the capture begins with this one"
            )
        if self._recorder is not None:
            self._recorder.writer.abandon()
        self._forget()
        self._attributes += changed
        self._done = 0

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """Around a block that is not captured: sees whether it ends the step that the capture waits for."""
        if not self._waits:
            yield
            return
        assert self._subject is not None
        stepped = [] if self._subject.trains else [True]
        try:
            with contextlib.ExitStack() as stack:
                if self._subject.trains:
                    around_step(stack, self._subject.optimizer, lambda *_: None, lambda *_: stepped.append(True))
                yield
        finally:
            if stepped:
                self._waits, self._subject, self._continuity = False, None, None

    def _prepare(self, batch: Any) -> Watcher | None:
        """Before the body runs: the graph for this batch, and the state before the step. None: not yet."""
        if self._subject is None:
            trains = self._optimizer is not None
            self._subject = Subject(self._model, self._optimizer, self._scaler, self._attributes, trains=trains)
            if self._part is not None:
                self._subject.graded_inputs = self._part.graded_inputs()
            self._continuity = Continuity(self._subject)
            verified = self._verify | ({1} if self._until_taken and self._steps > 1 else set())
            check_room(self._subject, verified, self._steps, self._path)
            self._lines = ScriptLines(
                self._made_at, self._subject.model, self._subject.optimizer, self._scaler, self._step_fn
            )
        subject, continuity = self._subject, self._continuity
        assert continuity is not None
        subject.check_layout()
        continuity.check_masters()
        if self._step is None and (others := continuity.take_others()):
            assert self._recorder is not None
            self._recorder.add_others(self._done - 1, others)
        if continuity.known:
            continuity.check_weights("between two blocks")
            continuity.check_buffers("between two blocks")
        else:
            continuity.note_weights()
            continuity.note_buffers()
        seen = see(subject, self._step_fn, batch, self.dtype)
        if seen.path.cast:
            self._wait_for(seen.path.cast)
            return None
        if self._step is None and (found := unknown_state(subject, seen)):
            self._begin_anew(found)
            return self._prepare(batch)
        key = seen.key
        if key not in self._traced:
            traced = Traced(subject, seen, self.dtype)
            problems = traced.support_problems(seen.leaves)
            if problems:
                raise UnsupportedModelError(problems)
            traced.graph = None  # made anew from the loop's own run: constants may depend on its autocast
            self._traced[key] = (traced, -1)
        self._traced[key][0].outside.check_before()
        if self._initial is None and self._recorder is None:
            self._initial, self._initial_hyper = subject.state(), subject.hyper()
        if self._step is None:
            self._step = Step(self._done, Events(), [], subject.scale())
            if self._done in self._verify:
                self._step.pre = self._initial or subject.state()
                if world_size() == 1 and subject.trains:
                    self._step.replayed = Replayed(set(subject.held()), self._step.scale_before)
        traced, step = self._traced[key][0], self._step
        self._tell(subject, traced)
        result = None if subject.trains else unwatched(seen.step, seen.batch, subject.device, self.dtype)
        return Watcher(subject, step, traced, batch, continuity, self.autocast, self._note_compiled, result)

    def _tell(self, subject: Subject, traced: Traced) -> None:
        """Warns, once, of everything that runs otherwise than it would without the capture."""
        if traced.hides_masks:
            self._warn(
                "scaled_dot_product_attention runs in the math backend during the capture, because some of it has dropout: "
                "fused kernels hide their mask",
                once="sdpa",
            )
        if world_size() > 1 and subject.trains:
            self._warn(
                f"{world_size()} ranks: the loop's gradients are means over all of them, the file has the batches "
                "of rank 0 only, and a free replay sees only these",
                once="ranks",
            )

    def _note_compiled(self) -> None:
        """Before compiled code runs in a captured step, or in the run of step_fn before it."""
        self._warn(
            f"torch.compile: the captured steps run the code that is called at {user_line()} uncompiled, which may change "
            "their bits; later steps run compiled",
            once="compiled",
        )

    def _graph_number(self, traced: Traced) -> int:
        """Writes everything that the file holds once, and each graph once."""
        found, number = self._traced[traced.key]
        if number < 0:
            if self._recorder is None:
                assert self._subject is not None and self._initial is not None and traced.graph is not None
                check_watched(self._watch, (node.place.module for node in traced.graph.nodes))
                self._recorder = Recorder(
                    self._path,
                    self._subject,
                    traced,
                    self._initial,
                    self._initial_hyper,
                    self.autocast,
                    self._watch,
                    self._lines,
                    self._part,
                )
                self._initial = None  # it is in the file
            number = self._recorder.add_graph(traced)
            self._traced[traced.key] = (found, number)
        return number

    def _take(self, watcher: Watcher) -> None:
        """After the body: the micro-batch, and the step if it ended."""
        step = self._step
        assert step is not None
        micro = watcher.result()
        micro.graph = self._graph_number(micro.batch.traced)
        step.micro.append(micro)
        if not watcher.events.ended:
            return
        step.events = watcher.events
        if step.events.clipping.stage == "scaled":
            self._warn(
                "gradients were clipped before scaler.unscale_(optimizer): the clipping limit was compared "
                "with scaled gradients",
                once="clip",
            )
        self._verify_later(step)
        assert self._recorder is not None
        self._recorder.step(step)
        self._step, self._done = None, self._done + 1
        if self._done == self._steps:
            self.finish()

    def _verify_later(self, step: Step) -> None:
        """By default the first step that the scaler takes is verified, and the first of all."""
        if not self._until_taken or step.pre is None:
            return
        self._until_taken = not step.events.stepped
        if self._until_taken and step.number + 1 < self._steps:
            self._verify.add(step.number + 1)
            step.pre = step.pre if step.number == 0 else None


def _written(path: str, steps: int, subject: Subject | None) -> str:
    size, recorded = os.path.getsize(path) / 1e6, ""
    if subject is not None and not subject.trains:
        recorded = "It holds inference: forward passes alone. "
    elif subject is not None and not subject.replays_optimizer:
        name = type(subject.optimizer).__name__
        recorded = f"The updates of {name} are recorded: a replay adds them to each lane's weights. "
    return (
        f"lockstep_capture: {path} is complete: {steps} step{'s' * (steps != 1)}, {size:.3g} MB. {recorded}"
        f"Next: lockstep verify {shlex.quote(path)} && lockstep replay {shlex.quote(path)}"
    )


def _why_no_step(blocks: int) -> str:
    """blocks: how many were recorded without an optimizer step."""
    if blocks == 0:
        return "put the loop's body in `with cap.step(batch):`"
    return f"{blocks} blocks called backward(), none called step() of the optimizer that was given"


def _finish_at_exit(reference: Callable[[], Capture | None]) -> None:
    capture = reference()
    if capture is None or capture.finished or capture._recorder is None or capture._process != os.getpid():
        return
    capture.finish()
