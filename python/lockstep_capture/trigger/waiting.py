"""A capture that waits for a fault: Capture(..., when=...). Until a rule fires it keeps what a step begins with: generators,
buffers that change, the batches. Then the step is taken again under a capture, before the optimizer changes a weight, and
the loop goes on with the bits that it would have had.
"""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..errors import CaptureError, failed
from ..ir.program import StepModule
from ..model_state import Subject, alone, rank, world_size
from ..trace.step_function import StepFunction
from ..trace.uncompiled import uncompiled
from ..trace.untouched import untouched
from ..trace.user_code import ShownToUsers, depth_of_user
from ..watch.hooks import Clipping, Events, Listener, watch_training
from .answer import ENDING, Fault, answer_later, told_at_once
from .own_loop import Clip, Recording, record
from .rules import NotFinite, Rule, StepFacts

_LONGEST_ANSWER = 60.0  # seconds that finish() waits for
_MOST_LOOKS = 3  # at steps that the loop left before backward(), and whose loss was finite


class Generators:
    """Python's, NumPy's and PyTorch's, at one moment."""

    def __init__(self, device: torch.device):
        self._python, self._numpy, self._cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
        self._device = device
        self._cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def put_back(self) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda, self._device)


class Buffers:
    """What buffers held when note() was called last. One that nobody wrote to is copied once."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[torch.Tensor, int, torch.Tensor]] = {}  # the tensor, its version, a copy

    def note(self, model: torch.nn.Module) -> None:
        for buffer in model.buffers():
            known = self._kept.get(id(buffer))
            if known is None or known[1] != buffer._version:
                self._kept[id(buffer)] = buffer, buffer._version, buffer.detach().clone()

    @contextlib.contextmanager
    def put_back(self) -> Iterator[None]:
        """As they were, within it."""
        changed = [(buffer, before) for buffer, version, before in self._kept.values() if buffer._version != version]
        with torch.no_grad():
            now = [buffer.detach().clone() for buffer, _ in changed]
            for buffer, before in changed:
                buffer.copy_(before)
        try:
            yield
        finally:
            with torch.no_grad():
                for (buffer, _), content in zip(changed, now, strict=True):
                    buffer.copy_(content)


@dataclass
class _Step:
    """The blocks of one optimizer step so far."""

    batches: list[tuple[Any, Generators]] = field(default_factory=list)
    losses: list[torch.Tensor] = field(default_factory=list)  # what backward() was called on, without the loss scale
    ended: bool = False


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
        self._path, self._model, self._optimizer, self._step_fn = path, model, optimizer, step_fn
        self._scaler, self._dtype, self._rules = scaler, autocast, rules
        self._times, self._cooldown, self._most_bytes = times, cooldown, max_bytes
        self._sync, self._quiet, self._program, self._make = sync, quiet, program, make
        self._subject: Subject | None = None
        self._buffers, self._now = Buffers(), _Step()
        self._number, self._last, self._bytes = 0, -cooldown - 1, 0
        self._inside, self._retaking, self.finished = False, False, False
        self._looks, self._compared = 0, False
        self.faults: list[Fault] = []  # whose files were written
        self._answers: list[subprocess.Popen[bytes]] = []

    def step(self, batch: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self.finished else ShownToUsers(self._block(batch))

    def finish(self) -> None:
        """The loop has ended: answers that are on their way are waited for, a minute long."""
        self._stop()
        end = time.monotonic() + _LONGEST_ANSWER
        for process in self._answers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
        self._answers = []

    def _stop(self) -> None:
        self.finished = True
        for rule in self._rules:
            rule.close()
        self._now, self._buffers, self._subject = _Step(), Buffers(), None

    # ---- One block

    @contextlib.contextmanager
    def _block(self, batch: Any) -> Iterator[None]:
        if self._inside:
            raise CaptureError("cap.step(): a block inside a block; each micro-batch needs its own")
        if not self._prepare():
            yield
            return
        subject = self._subject
        assert subject is not None
        self._now.batches.append((batch, Generators(subject.device)))
        events = Events()
        listener = _Ears(self, events)
        self._inside = True
        try:
            with contextlib.ExitStack() as stack:
                watch_training(stack, subject, events, listener)
                yield
        except Exception as error:
            kind = type(error).__name__
            self._guarded(lambda: self._look_at(f"the loop raised {kind}"))
            self._stop()
            raise
        finally:
            self._inside = False
        if not self._now.ended and not self.finished:
            self._guarded(lambda: self._left(events))
        if self._now.ended:
            self._number += 1
            self._now = _Step()
            if self._times == 0:
                self._stop()

    def _prepare(self) -> bool:
        if self._subject is None:
            self._guarded(self._begin)
        if self.finished:
            return False
        if not self._now.batches:
            assert self._subject is not None
            self._buffers.note(self._subject.model)
        return True

    def _begin(self) -> None:
        self._subject = Subject(self._model, self._optimizer, self._scaler)
        on_gpu = self._subject.device.type != "cpu"
        if self._sync is None:
            self._sync = not on_gpu
        blind = [rule.name for rule in self._rules if rule.reads_values]
        if on_gpu and not self._sync and blind and self._scaler is None:
            self._warn(
                f"when: {', '.join(blind)} need the loss and the gradients of every step, which waits for the GPU: "
                "give sync=True, or they never fire"
            )

    def _guarded(self, body: Any) -> None:
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

    def heard(self, loss: torch.Tensor) -> None:
        if not self._retaking:
            self._now.losses.append(loss.detach())

    def ended(self, events: Events) -> None:
        """The gradients of the step are final; no weight has changed."""
        if self._retaking or self.finished:
            return
        self._now.ended = True
        if not self._compared:
            self._compared = True
            self._guarded(self._compare)
        if not self.finished:
            self._guarded(lambda: self._judge(self._facts(events), events.clipping))

    def _compare(self) -> None:
        """Once, in the first step: does step_fn give the loop's loss? Later a difference is then the machine's."""
        subject = self._subject
        assert subject is not None
        if not self._sync and self._scaler is None:
            return
        device, dtype = subject.device.type, self._dtype
        (batch, generators), wanted = self._now.batches[0], float(self._now.losses[0])
        with uncompiled(), self._as_before(), torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            generators.put_back()
            loss = self._step_fn(subject.model, batch).detach()
        found = [float(loss), float(loss / len(self._now.batches))]
        if not any(_is_same(wanted, one) for one in found):
            raise CaptureError(
                f"step_fn gives {found[0]!r} for the first batch, the loop called backward() on {wanted!r}: step_fn must compute "
                "what the loop does, from the batch, the model and generators alone"
            )

    def _facts(self, events: Events) -> StepFacts:
        subject = self._subject
        assert subject is not None
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
            return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))))

    def _judge(self, facts: StepFacts, clipping: Clipping) -> None:
        reasons = [(why, rule) for rule in self._rules if (why := rule.check(facts))]  # every rule sees every step
        if not reasons or not self._times or self._number - self._last <= self._cooldown:
            return
        why, rule = reasons[0]
        if isinstance(rule, NotFinite) and not self._weights_are_finite():
            self._warn(
                f"step {self._number}: {why}, but weights were not finite before it: the cause lies earlier, nothing more is "
                "captured"
            )
            self._stop()
            return
        self._take(why, clipping)

    def _left(self, events: Events) -> None:
        """A block without a step: a micro-batch, or one that the loop gave up, because its loss is not finite."""
        losses = self._now.losses
        if events.backward_count:
            given_up = self._sync and bool(losses) and not bool(torch.isfinite(losses[-1]).all())
            if not given_up or not any(isinstance(rule, NotFinite) for rule in self._rules):
                return
            self._now.ended = True
            self._judge(StepFacts(self._number, loss=float(losses[-1])), events.clipping)
        elif self._looks < _MOST_LOOKS:
            self._looks += 1
            self._look_at("the loop left the step")

    def _look_at(self, why: str) -> None:
        """Whether the loss of a step that was left is finite."""
        if not any(isinstance(rule, NotFinite) for rule in self._rules) or not self._now.batches:
            return
        batch, generators = self._now.batches[-1]
        subject = self._subject
        assert subject is not None
        device, dtype = subject.device.type, self._dtype
        with self._as_before(), torch.no_grad(), torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            generators.put_back()
            loss = float(self._step_fn(subject.model, batch))
        if loss != loss or loss in (float("inf"), -float("inf")):
            self._now.ended = True
            self._now.losses = []  # backward() has not come
            self._take(f"the loss is {loss}, and {why}", Clipping())

    # ---- The step taken again

    @contextlib.contextmanager
    def _as_before(self) -> Iterator[None]:
        """Buffers and generators as before the step; as they are now, afterwards."""
        subject = self._subject
        assert subject is not None
        self._retaking = True
        try:
            with untouched(StepModule(subject.model, self._step_fn)), self._buffers.put_back(), alone():
                yield
        finally:
            self._retaking = False

    def _take(self, why: str, clipping: Clipping) -> None:
        start = time.monotonic()
        path = self._free_path()
        assert self._subject is not None
        own = _Own(self._now.losses, self._subject, clipping)
        try:
            with uncompiled(), self._as_before():
                self._capture(path, clipping, own)
        except CaptureError as error:
            self._last = self._number
            self._times -= 1
            _remove(path)
            self._warn(f"step {self._number} ({why}) could not be captured: {error}")
            return
        if world_size() > 1 and "gradient is not finite" in why and own.is_finite:
            _remove(path)
            self._say(f"step {self._number}: {why}; it is another rank's, this one's own gradients are finite.")
            return
        self._last = self._number
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
        fault = Fault(
            path,
            self._number,
            why,
            loop_loss=own.wanted[0] if own.wanted else None,
            loss=own.seen[0],
            differs=own.differing,
        )
        self.faults.append(fault)
        self._say(
            f"step {self._number}: {why}. It was taken again into {path}: {size / 1e6:.3g} MB, "
            f"{time.monotonic() - start:.2g} s.{told_at_once(fault)} "
            f"Next: lockstep verify {shlex.quote(path)} && lockstep replay {shlex.quote(path)}"
        )
        if self._program is not None:
            self._answers.append(answer_later(fault, self._program))

    def _capture(self, path: str, clipping: Clipping, own: _Own) -> None:
        subject = self._subject
        assert subject is not None
        count = len(self._now.batches)

        def batches() -> Iterator[Any]:
            for batch, generators in self._now.batches:
                generators.put_back()
                yield batch

        for divisor in sorted({count, 1}, reverse=True):  # loops divide micro-batches by their number, or do not
            own.begin()
            scaler = self._fresh_scaler()
            record(
                self._make(path, scaler),
                subject,
                batches(),
                self._step_fn,
                scaler=scaler,
                dtype=self._dtype,
                clip=_clip_of(clipping),
                accumulate=count,
                divisor=divisor,
                on_backward=own.note,
                on_step=own.note_gradients,
            )
            if not own.differs:
                return

    def _fresh_scaler(self) -> Any:
        """The scaler before this step."""
        if self._scaler is None:
            return None
        assert self._subject is not None
        fresh = torch.amp.GradScaler(self._subject.device.type, enabled=self._scaler.is_enabled())
        fresh.load_state_dict(self._scaler.state_dict())
        return fresh

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


class _Own:
    """Losses and gradients of the step taken again, next to the loop's."""

    def __init__(self, losses: list[torch.Tensor], subject: Subject, clipping: Clipping):
        self._subject = subject
        self.wanted = [float(loss) for loss in losses]
        # A scaler that has not unscaled leaves gradients of another kind.
        is_final = subject.scaler is None or clipping.stage == "unscaled"
        self._gradients = {path: weight.grad for path, weight in subject.params.items()} if is_final else {}
        self.begin()

    def begin(self) -> None:
        self.seen: list[float] = []
        self.is_finite = True  # its gradients, which no other rank's were added to
        self.differing: list[str] = []  # what is not as in the loop

    def note(self, loss: torch.Tensor) -> None:
        self.seen.append(float(loss))
        self.is_finite = all(bool(torch.isfinite(gradient).all()) for gradient in self._subject.raw_gradients())

    def note_gradients(self) -> None:
        if self.differs:
            self.differing.append("the loss")
        if world_size() > 1:  # the loop's are means over ranks
            return
        for path, gradient in self._gradients.items():
            own = self._subject.params[path].grad
            if gradient is None or own is None or gradient.is_sparse or gradient.shape != own.shape:
                continue
            count = int((~((gradient == own) | (gradient.isnan() & own.isnan()))).sum())
            if count:
                self.differing.append(f"{count} of {own.numel()} elements of the gradient of {path}")

    @property
    def differs(self) -> bool:
        """One of the losses."""
        return not all(_is_same(a, b) for a, b in zip(self.wanted, self.seen, strict=False))


def _is_same(a: float, b: float) -> bool:
    return a == b or (a != a and b != b)


class _Ears(Listener):
    def __init__(self, waiting: Waiting, events: Events):
        self._waiting, self._events = waiting, events

    def on_backward(self, loss: torch.Tensor) -> None:
        self._waiting.heard(loss)

    def on_gradients(self) -> None:
        self._waiting.ended(self._events)


def _clip_of(clipping: Clipping) -> Clip | None:
    if clipping.max_norm >= 0:
        return lambda weights: torch.nn.utils.clip_grad_norm_(
            weights, clipping.max_norm, clipping.norm_type, error_if_nonfinite=False
        )
    if clipping.max_value >= 0:
        return lambda weights: torch.nn.utils.clip_grad_value_(weights, clipping.max_value)
    return None


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.remove(path)
