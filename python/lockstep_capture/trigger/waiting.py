"""A capture that waits for a fault: Capture(..., when=...). Until a rule fires it keeps what a step begins with: generators,
buffers, the batches. Then the step is taken again under a capture, before the optimizer changes a weight, and the loop goes on
with the bits that it would have had.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import shlex
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..errors import CaptureError, failed
from ..model_state import Subject, rank, world_size
from ..trace.step_function import StepFunction
from ..trace.user_code import ShownToUsers, depth_of_user
from ..watch.hooks import Events, Listener, gradient_factor, watch_training
from ..watch.own_pass import own_pass
from .answer import ENDING, Fault, answer_later, told_at_once
from .before import Buffers, Generators
from .own_loop import Recording
from .retake import LoopStep, Retake, Retaken
from .rules import NotFinite, Rule, StepFacts

_LONGEST_ANSWER = 60.0  # seconds that finish() waits for
_MOST_LOOKS = 3  # at steps that the loop left before backward(), and whose loss was finite
_COMPILED = 0.01  # of a loss: what torch.compile may change


class Waiting:
    """Capture's other half, where `when` is given: step() and finish() are Capture's."""

    def __init__(
        self,
        path: str,
        model: torch.nn.Module,
        optimizer: Any,
        step_fn: StepFunction,
        *,
        scaler: Any,
        autocast: torch.dtype | None,
        rules: list[Rule],
        times: int,
        cooldown: int,
        max_bytes: int | None,
        sync: bool | None,
        quiet: bool,
        program: str | None,
        make: Callable[[str, Any], Recording],
    ):
        self._path, self._model, self._optimizer, self._scaler = path, model, optimizer, scaler
        self._retake = Retake(model, optimizer, step_fn, scaler, autocast, make)
        self._rules, self._times, self._cooldown, self._most_bytes = rules, times, cooldown, max_bytes
        self._sync, self._quiet, self._program = sync, quiet, program
        self._subject: Subject | None = None
        self._buffers, self._now = Buffers(), LoopStep()
        self._number, self._last, self._bytes = 0, -cooldown - 1, 0
        self._inside, self._retaking, self.finished = False, False, False
        self._rehearsed, self._same_loss, self._same_gradients = False, False, False
        self._looks = 0
        self._suspect: Events | None = None  # of a micro-batch whose loss is not finite: the loop may give the step up
        self.faults: list[Fault] = []  # whose files were written
        self._answers: list[subprocess.Popen[bytes]] = []

    def step(self, batch: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self.finished else ShownToUsers(self._block(batch))

    def finish(self, wait: bool = True) -> None:
        """The loop has ended. wait: for answers that are on their way, a minute long."""
        if not self.finished:
            self._guarded(self._resolve_suspect)
        self._stop()
        end = time.monotonic() + _LONGEST_ANSWER
        for process in self._answers if wait else []:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
        self._answers = []

    def _stop(self) -> None:
        self.finished = True
        for rule in self._rules:
            rule.close()
        self._now, self._buffers, self._subject, self._suspect = LoopStep(), Buffers(), None, None

    # ---- One block

    @contextlib.contextmanager
    def _block(self, batch: Any) -> Iterator[None]:
        if self._inside:
            raise CaptureError("cap.step(): a block inside a block; each micro-batch needs its own")
        events = Events()
        self._inside = True
        try:
            with contextlib.ExitStack() as stack:
                self._guarded(lambda: self._begin(batch, events, stack))
                yield
        except Exception as error:
            kind = type(error).__name__
            if not self.finished and not self._now.ended:
                self._guarded(lambda: self._look(events, f"the loop raised {kind}"))
            raise
        finally:
            self._inside = False
        if not self._now.ended and not self.finished:
            self._guarded(lambda: self._left(events))
        if self._now.ended:
            self._number += 1
            self._now = LoopStep()
            if self._times == 0:
                self._stop()

    def _begin(self, batch: Any, events: Events, stack: contextlib.ExitStack) -> None:
        if self._subject is None:
            self._subject = self._checked()
        self._resolve_suspect()
        if self.finished:
            return
        if not self._now.batches:
            self._buffers.note(self._subject.model)
        self._now.batches.append((batch, Generators(self._subject.device)))
        watch_training(stack, self._subject, events, _Follower(self, events))

    def _checked(self) -> Subject:
        subject = Subject(self._model, self._optimizer, self._scaler)
        if subject.masters.held:
            raise CaptureError("when: not with FP32 masters outside of the model, whose gradients the loop copies")
        on_gpu = subject.device.type != "cpu"
        if self._sync is None:
            self._sync = not on_gpu
        blind = [rule.name for rule in self._rules if rule.reads_values]
        if not self._sync and blind:
            seen = "only in steps that the scaler skips" if subject.scales else "never"
            self._warn(
                f"when: {', '.join(blind)} need the loss and the gradients of a step; on a GPU they are read {seen}, because "
                "reading waits for it: sync=True reads them in every step"
            )
        return subject

    def _guarded(self, body: Callable[[], None]) -> None:
        """A failure ends the waiting, never the loop."""
        try:
            body()
        except Exception as error:
            own = error if isinstance(error, CaptureError) else failed(error)
            self._warn(f"nothing more is captured: {own}")
            self._stop()

    def _warn(self, text: str) -> None:
        warnings.warn(f"lockstep_capture: {text}", stacklevel=1 + depth_of_user())

    def _say(self, text: str) -> None:
        if not self._quiet:
            print(f"lockstep_capture: {text}", file=sys.stderr)

    # ---- What it looks at

    def on_backward(self, loss: torch.Tensor) -> None:
        if not self._retaking:
            self._now.losses.append(loss.detach())

    def on_gradients(self, events: Events) -> None:
        """The gradients of the step are final; no weight has changed."""
        if self._retaking or self.finished:
            return
        self._now.ended, self._suspect = True, None
        # What the block has seen so far: the step taken again passes through its hooks, too.
        events = dataclasses.replace(
            events, clipping=dataclasses.replace(events.clipping), problems=list(events.problems)
        )
        if not self._rehearsed:
            self._rehearsed = True
            self._guarded(lambda: self._rehearse(events))
        if not self.finished:
            self._guarded(lambda: self._judge(self._facts(events), events))

    def _rehearse(self, events: Events) -> None:
        """The first step is taken again without a file: later, a difference is the machine's."""
        found = self._taken_again(None, events, gradients=True)
        if found.has_other_loss:
            close = found.compiled and all(
                abs(a - b) <= _COMPILED * abs(a) for a, b in zip(found.wanted, found.seen, strict=False)
            )
            if not close:
                raise CaptureError(
                    f"step_fn gives {found.seen[0]!r} for the first batch, the loop called backward() on {found.wanted[0]!r}: "
                    "step_fn must compute what the loop does, from the batch, the model and generators alone"
                )
        self._same_loss = not found.has_other_loss
        self._same_gradients = self._same_loss and not found.differing and self._compares_gradients(events)
        if self._same_loss and found.differing:
            self._warn(
                f"the loop changes the gradients after backward() ({found.differing[0]}): captures have those of step_fn"
            )

    def _compares_gradients(self, events: Events) -> bool:
        """Not of several ranks, which have means, nor of a scaler that has not unscaled them."""
        is_final = self._scaler is None or events.clipping.stage == "unscaled"
        return world_size() == 1 and is_final

    def _facts(self, events: Events) -> StepFacts:
        scale = float(self._scaler.get_scale()) if events.found_inf else None
        # A scaler that found an infinity has waited for the GPU.
        may_read = (self._sync or events.found_inf) and any(rule.reads_values for rule in self._rules)
        return StepFacts(
            self._number,
            loss=sum(float(loss) for loss in self._now.losses) if may_read and self._now.losses else None,
            gradient_norm=self._norm(events) if may_read and not events.found_inf else None,
            skipped=events.found_inf,
            scale=scale,
        )

    def _norm(self, events: Events) -> float:
        if events.clipping.max_norm >= 0 and events.clipping.norm_type == 2 and events.clipping.stage == "unscaled":
            return events.clipping.total_norm
        assert self._subject is not None
        gradients = [gradient for gradient in self._subject.raw_gradients() if not gradient.is_sparse]
        if not gradients:
            return 0.0
        with torch.no_grad():
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        return float(norm) * gradient_factor(self._subject)

    def _judge(self, facts: StepFacts, events: Events, more: str = "") -> None:
        fired = [(rule, why) for rule in self._rules if (why := rule.check(facts))]  # every rule sees every step
        is_cool = self._number - self._last > self._cooldown
        fired = [(rule, why) for rule, why in fired if is_cool or not rule.is_of_faults]
        if not fired or not self._times:
            return
        rule, why = fired[0]
        if isinstance(rule, NotFinite) and not self._weights_are_finite():
            self._warn(
                f"step {self._number}: {why}, but weights were not finite before it: the cause lies earlier, nothing more is "
                "captured"
            )
            self._stop()
            return
        self._take(why + more, rule, events)

    def _left(self, events: Events) -> None:
        """A block without a step: a micro-batch, or one that the loop gave up, because its loss is not finite."""
        if not events.backward_count:
            self._look(events, "the loop left the step")
        elif self._sync and self._now.losses and not bool(torch.isfinite(self._now.losses[-1]).all()):
            self._suspect = events

    def _resolve_suspect(self) -> None:
        """The loop gave the step up if no gradient is left of it."""
        events, self._suspect = self._suspect, None
        if events is None or self._subject is None:
            return
        if all(not bool(gradient.any()) for gradient in self._subject.raw_gradients()):
            self._judge(StepFacts(self._number, loss=float(self._now.losses[-1])), events)
            self._number += 1
            self._now = LoopStep()

    def _look(self, events: Events, why: str) -> None:
        """At the loss of a block that the loop left before backward(): what is not finite is a fault. Not on several ranks,
        where DistributedDataParallel waits for the backward pass of its forward pass."""
        now = self._now
        if not now.batches or events.backward_count or world_size() > 1 or self._looks == _MOST_LOOKS:
            now.batches = now.batches[: len(now.losses)]
            return
        if any(isinstance(rule, NotFinite) for rule in self._rules):
            try:
                with self._retake_alone():
                    loss = self._retake.loss_of(now, self._buffers)
            except Exception:  # step_fn fails as the loop did: it has no loss
                loss = 0.0
            if not math.isfinite(loss):
                now.ended = True
                self._judge(StepFacts(self._number, loss=loss), events, f", and {why}")
                return
            self._looks += 1
        now.batches.pop()

    # ---- The step taken again

    @contextlib.contextmanager
    def _retake_alone(self) -> Iterator[None]:
        self._retaking = True
        try:
            with own_pass():
                yield
        finally:
            self._retaking = False

    def _taken_again(self, path: str | None, events: Events, gradients: bool) -> Retaken:
        with self._retake_alone():
            compares = gradients and self._compares_gradients(events)
            return self._retake.take(path, self._now, events, self._buffers, compares)

    def _take(self, why: str, rule: Rule, events: Events) -> None:
        start = time.monotonic()
        path = self._free_path()
        self._last = self._number
        try:
            found = self._taken_again(path, events, gradients=self._same_gradients)
        except CaptureError as error:
            self._times -= 1
            _remove(path)
            self._warn(f"step {self._number} ({why}) could not be captured: {error}")
            return
        is_of_gradients = isinstance(rule, NotFinite) and all(map(math.isfinite, found.wanted))
        if world_size() > 1 and is_of_gradients and found.has_finite_gradients:
            _remove(path)
            self._say(f"step {self._number}: {why}, but not in this rank's own gradients: another rank has the fault")
            return
        size = os.path.getsize(path)
        if self._most_bytes is not None and self._bytes + size > self._most_bytes:
            _remove(path)
            self._times = 0
            self._warn(
                f"step {self._number} ({why}) takes {size:,} bytes, {self._bytes:,} are written, max_bytes is "
                f"{self._most_bytes:,}: it is not kept, nothing more is captured"
            )
            return
        self._times -= 1
        self._bytes += size
        differing = ["the loss"] if self._same_loss and found.has_other_loss and not found.compiled else []
        fault = Fault(path, self._number, why, found.loss, [*differing, *found.differing])
        self.faults.append(fault)
        self._say(
            f"step {self._number}: {why}. It was taken again into {path}: {size / 1e6:.3g} MB, "
            f"{time.monotonic() - start:.2g} s.{told_at_once(fault)} "
            f"Next: lockstep verify {shlex.quote(path)} && lockstep replay {shlex.quote(path)}"
        )
        if self._program is not None:
            self._answers.append(answer_later(fault, self._program))

    def _weights_are_finite(self) -> bool:
        assert self._subject is not None
        return all(bool(torch.isfinite(weight).all()) for weight in self._subject.params.values())

    def _free_path(self) -> str:
        root = self._path.removesuffix(ENDING) if self._path.endswith(ENDING) else os.path.splitext(self._path)[0]
        of_rank = f".rank{rank()}" if world_size() > 1 else ""
        stem, more = f"{root}.step{self._number:06d}{of_rank}", ""
        while os.path.exists(f"{stem}{more}{ENDING}"):  # of another run
            more = f"-{int(more[1:] or 1) + 1}"
        return f"{stem}{more}{ENDING}"


class _Follower(Listener):
    def __init__(self, waiting: Waiting, events: Events):
        self._waiting, self._events = waiting, events

    def on_backward(self, loss: torch.Tensor) -> None:
        self._waiting.on_backward(loss)

    def on_gradients(self) -> None:
        self._waiting.on_gradients(self._events)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.remove(path)
