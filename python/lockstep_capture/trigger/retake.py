"""A step of the loop taken again: under a capture, or as a rehearsal in which nothing is written."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import CaptureError, describe
from ..ir.program import StepModule
from ..model_state import Subject, alone
from ..trace.step_function import StepFunction
from ..trace.uncompiled import uncompiled
from ..trace.untouched import untouched
from ..watch.hooks import Clipping, Events
from .before import Buffers, Generators
from .own_loop import Clip, Recording, record


@dataclass
class LoopStep:
    """The blocks of one optimizer step so far. losses: what backward() was called on, without the loss scale."""

    batches: list[tuple[Any, Generators]] = field(default_factory=list)
    losses: list[torch.Tensor] = field(default_factory=list)
    ended: bool = False


@dataclass
class Retaken:
    """loss: of the step, the mean over its micro-batches. wanted, seen: the loop's losses, and those now. differing: gradients
    that are not the loop's. has_finite_gradients: its own, which no other rank's were added to. compiled: the loop runs code of
    torch.compile, whose bits are others."""

    loss: float = math.nan
    wanted: list[float] = field(default_factory=list)
    seen: list[float] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    has_finite_gradients: bool = True
    compiled: bool = False

    @property
    def has_other_loss(self) -> bool:
        return not all(is_same(a, b) for a, b in zip(self.wanted, self.seen, strict=False))


def is_same(a: float, b: float) -> bool:
    return a == b or (a != a and b != b)


class Retake:
    """make: a capture of one step into a file, with this scaler."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Any,
        step_fn: StepFunction,
        scaler: Any,
        dtype: torch.dtype | None,
        make: Callable[[str, Any], Recording],
    ):
        self._model, self._optimizer, self._step_fn = model, optimizer, step_fn
        self._scaler, self._dtype, self._make = scaler, dtype, make
        self._most = 1  # micro-batches of a step so far
        self._divides: bool | None = None  # the loop divides each loss by their number; None: not known yet

    def take(self, path: str | None, step: LoopStep, events: Events, buffers: Buffers, gradients: bool) -> Retaken:
        """path: None for a rehearsal. gradients: whether they are compared. Throws: CaptureError."""
        if events.problems:
            raise CaptureError(describe(events.problems))
        if events.clipping.stage == "scaled":
            raise CaptureError("the loop clips scaled gradients: call scaler.unscale_(optimizer) before")
        subject = Subject(self._model, self._optimizer, self._scaler)
        count = len(step.batches)
        self._most = max(self._most, count)
        found = Retaken()
        with self._as_before(subject, buffers, found):
            for divisor in self._divisors(count):
                found.wanted = [float(loss) for loss in step.losses]
                found.seen, found.differing = [], []
                self._run(path, subject, step, events.clipping, divisor, found, gradients)
                found.loss = (
                    math.fsum(found.seen) * divisor / count if all(map(math.isfinite, found.seen)) else math.nan
                )
                if not found.has_other_loss:
                    if count > 1:
                        self._divides = divisor > 1
                    break
        return found

    def _divisors(self, count: int) -> list[int]:
        """Of each loss, the likely ones last: loops divide by the number of micro-batches, by the usual one in a shorter step, too;
        or not at all."""
        if self._divides is None:
            return list(dict.fromkeys((1, count)))
        return list(dict.fromkeys((self._most, count))) if self._divides else [1]

    def loss_of(self, step: LoopStep, buffers: Buffers) -> float:
        """Of the last batch: for a step that the loop left before backward()."""
        subject = Subject(self._model, self._optimizer, self._scaler)
        batch, generators = step.batches[-1]
        device, dtype = subject.device.type, self._dtype
        with self._as_before(subject, buffers, Retaken()), torch.no_grad():
            generators.put_back()
            with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
                return float(self._step_fn(subject.model, batch))

    @contextlib.contextmanager
    def _as_before(self, subject: Subject, buffers: Buffers, found: Retaken) -> Iterator[None]:
        """Buffers and generators as before the step; as they are now, afterwards."""

        def note() -> None:
            found.compiled = True

        with contextlib.ExitStack() as stack:
            stack.enter_context(uncompiled(note))
            stack.enter_context(untouched(StepModule(subject.model, self._step_fn)))
            stack.enter_context(buffers.put_back(subject.model))
            stack.enter_context(alone())
            yield

    def _run(
        self,
        path: str | None,
        subject: Subject,
        step: LoopStep,
        clipping: Clipping,
        divisor: int,
        found: Retaken,
        gradients: bool,
    ) -> None:
        loops = {name: weight.grad for name, weight in subject.params.items()} if gradients else {}

        def batches() -> Iterator[Any]:
            for batch, generators in step.batches:
                generators.put_back()
                yield batch

        def note(loss: torch.Tensor) -> None:
            found.seen.append(float(loss))
            found.has_finite_gradients = all(
                bool(torch.isfinite(gradient).all()) for gradient in subject.raw_gradients()
            )

        def compare() -> None:
            found.differing = _differing(loops, subject)

        scaler = self._fresh_scaler(subject)
        cap = _Rehearsal(len(step.batches)) if path is None else self._make(path, scaler)
        record(
            cap,
            subject,
            batches(),
            self._step_fn,
            scaler=scaler,
            dtype=self._dtype,
            clip=_clip_of(clipping),
            accumulate=len(step.batches),
            divisor=divisor,
            on_backward=note,
            on_step=compare,
        )

    def _fresh_scaler(self, subject: Subject) -> Any:
        """The scaler before this step."""
        if self._scaler is None:
            return None
        fresh = torch.amp.GradScaler(subject.device.type, enabled=self._scaler.is_enabled())
        fresh.load_state_dict(self._scaler.state_dict())
        return fresh


class _Rehearsal:
    """A capture that records nothing."""

    def __init__(self, blocks: int):
        self._left = blocks

    @property
    def finished(self) -> bool:
        return self._left == 0

    @property
    def has_steps(self) -> bool:
        return self._left == 0

    @contextlib.contextmanager
    def step(self, batch: Any) -> Iterator[None]:
        yield
        self._left -= 1

    def abandon(self) -> None:
        pass

    def __enter__(self) -> _Rehearsal:
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        pass


def _differing(loops: dict[str, torch.Tensor | None], subject: Subject) -> list[str]:
    """Where the gradients are not the loop's. Clipping spreads what is not finite over all of them: no name then."""
    found, broken = [], False
    for path, gradient in loops.items():
        own = subject.params[path].grad
        if gradient is None or own is None or gradient.is_sparse or gradient.shape != own.shape:
            continue
        count = int((~((gradient == own) | (gradient.isnan() & own.isnan()))).sum())
        if count:
            found.append(f"{count} of {own.numel()} elements of the gradient of {path}")
            broken = broken or bool(gradient.isnan().all())
    return ["the gradients"] if broken else found


def _clip_of(clipping: Clipping) -> Clip | None:
    if clipping.max_norm >= 0:
        return lambda weights: torch.nn.utils.clip_grad_norm_(
            weights, clipping.max_norm, clipping.norm_type, error_if_nonfinite=False
        )
    if clipping.max_value >= 0:
        return lambda weights: torch.nn.utils.clip_grad_value_(weights, clipping.max_value)
    return None
