"""When a step is taken again: rules over what one step of the loop showed. Knows nothing of models and files."""

from __future__ import annotations

import collections
import contextlib
import math
import os
import signal as signals
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import CaptureError


@dataclass(frozen=True)
class StepFacts:
    """One optimizer step. loss: what backward() was called on, without the loss scale, added over the micro-batches; gradient_norm:
    before clipping, of all gradients that the optimizer gets, without the loss scale. None: not read. skipped: by the scaler."""

    step: int
    loss: float | None = None
    gradient_norm: float | None = None
    skipped: bool = False
    scale: float | None = None


class Rule:
    """check() sees every step once, in order."""

    name, help = "", ""
    reads_values = False  # of the loss or the gradients
    is_of_faults = False  # which come in rows: a cool-down holds between two captures

    def check(self, facts: StepFacts) -> str:
        """Why the step is to be captured; "": it is not."""
        raise NotImplementedError

    def close(self) -> None:
        """The loop has ended."""


class NotFinite(Rule):
    name = "nonfinite"
    help = "the loss is not finite; or a gradient is not, where no scaler skips the step"
    reads_values = is_of_faults = True

    def check(self, facts: StepFacts) -> str:
        if facts.loss is not None and not math.isfinite(facts.loss):
            return f"the loss is {facts.loss}"
        norm = facts.gradient_norm
        if norm is not None and not math.isfinite(norm) and not facts.skipped:
            return "a gradient is not finite"
        return ""


class Skips(Rule):
    """A growing scale is skipped about once in a growth interval (torch.amp.GradScaler): that is no fault."""

    is_of_faults = True
    name = "skips"
    help = "the scaler skipped more than `most` of `within` steps, after the first step that was taken"

    def __init__(self, most: int = 3, within: int = 20):
        self.most, self.within = most, within
        self._last: collections.deque[bool] = collections.deque(maxlen=within)
        self._has_taken = False

    def check(self, facts: StepFacts) -> str:
        self._has_taken = self._has_taken or not facts.skipped
        if not self._has_taken:  # the first scale is still falling
            return ""
        self._last.append(facts.skipped)
        if not facts.skipped or sum(self._last) <= self.most:
            return ""
        count, of = sum(self._last), len(self._last)
        self._last.clear()
        return f"the scaler skipped {count} of the last {of} steps; its scale was {facts.scale:g}"


class Spike(Rule):
    """Source: OLMo's spike alarm, 6 standard deviations of 128 steps. Norms are skewed, so their logarithm is taken."""

    reads_values = is_of_faults = True
    name = "spike"
    help = "the loss, or the logarithm of the gradients' norm, is above mean + `sigmas` standard deviations of the last `window` steps"

    def __init__(self, sigmas: float = 6.0, window: int = 128, least: int = 64):
        self.sigmas, self.least = sigmas, least
        self._losses = collections.deque[float](maxlen=window)
        self._norms = collections.deque[float](maxlen=window)  # their logarithms

    def check(self, facts: StepFacts) -> str:
        loss, norm, why = facts.loss, facts.gradient_norm, ""
        if loss is not None and math.isfinite(loss):
            if (limit := self._limit(self._losses)) is not None and loss > limit:
                mean = sum(self._losses) / len(self._losses)
                why = f"the loss is {loss:.4g}, {mean:.4g} in the mean of the last {len(self._losses)} steps"
            self._losses.append(loss)
        if norm is not None and 0 < norm < math.inf:
            if (limit := self._limit(self._norms)) is not None and math.log(norm) > limit and not why:
                typical = math.exp(sum(self._norms) / len(self._norms))
                why = f"the gradients' norm is {norm:.4g}, typically {typical:.4g} in the last {len(self._norms)} steps"
            self._norms.append(math.log(norm))
        return why

    def _limit(self, seen: collections.deque[float]) -> float | None:
        """None: too few steps, or steps that do not differ."""
        if len(seen) < self.least:
            return None
        mean = sum(seen) / len(seen)
        deviation = math.sqrt(sum((one - mean) ** 2 for one in seen) / (len(seen) - 1))
        return mean + self.sigmas * deviation if deviation > 0 else None


class Steps(Rule):
    name = "steps"
    help = "these steps, counted from 0"

    def __init__(self, steps: Sequence[int]):
        self.steps = frozenset(steps)

    def check(self, facts: StepFacts) -> str:
        return f"step {facts.step} was asked for" if facts.step in self.steps else ""


class Every(Rule):
    name = "every:N"
    help = "every N steps"

    def __init__(self, count: int):
        self.count = count

    def check(self, facts: StepFacts) -> str:
        return f"every {self.count} steps" if (facts.step + 1) % self.count == 0 else ""


class Touched(Rule):
    name = "file:PATH"
    help = "a file exists: it is removed, and the step is captured"

    def __init__(self, path: str):
        self.path = path

    def check(self, facts: StepFacts) -> str:
        if not os.path.exists(self.path):
            return ""
        with contextlib.suppress(OSError):  # another rank was faster, or the folder is not ours
            os.remove(self.path)
        return f"{self.path} was there"


class Signalled(Rule):
    name = "signal:NAME"
    help = "the process got the signal, USR1 or USR2"

    def __init__(self, number: signals.Signals):
        self.number, self._came = number, False
        if threading.current_thread() is not threading.main_thread():
            raise CaptureError(f"when: {number.name} can be awaited in the main thread alone")
        self._before = signals.signal(number, self._note)

    def _note(self, number: int, frame: Any) -> None:
        self._came = True
        if callable(self._before):
            self._before(number, frame)

    def check(self, facts: StepFacts) -> str:
        came, self._came = self._came, False
        return f"the process got {self.number.name}" if came else ""

    def close(self) -> None:
        if self._before is not None and signals.getsignal(self.number) == self._note:
            signals.signal(self.number, self._before)


class Own(Rule):
    name = "a function"
    help = "of the step's facts (step, loss, gradient_norm, skipped, scale): true, or a text that says why"
    reads_values = is_of_faults = True

    def __init__(self, function: Callable[[StepFacts], Any]):
        self.function = function

    def check(self, facts: StepFacts) -> str:
        found = self.function(facts)
        return found if isinstance(found, str) else "the given function says so" if found else ""


FAULT = "fault"  # the first three
ROWS: tuple[type[Rule], ...] = (NotFinite, Skips, Spike, Steps, Every, Touched, Signalled, Own)
_SIGNALS = {"USR1": signals.SIGUSR1, "USR2": signals.SIGUSR2}


def rules_of(when: Any) -> list[Rule]:
    """when: "fault", a name of a row, a step number, a function, a rule, or a list of these. Throws: CaptureError."""
    problems: list[str] = []
    found: list[Rule] = []
    wanted = list(when) if isinstance(when, (list, tuple, set, frozenset)) else [when]
    numbers = [one for one in wanted if isinstance(one, int) and not isinstance(one, bool)]
    if any(number < 0 for number in numbers):
        problems.append(f"when: {min(numbers)} must be a step number of at least 0")
    if numbers:
        found.append(Steps(numbers))
    for one in wanted:
        if isinstance(one, int) and not isinstance(one, bool):
            continue
        if isinstance(one, Rule):
            found.append(one)
        elif isinstance(one, str):
            try:
                found += _named(one)
            except CaptureError as error:
                problems.append(str(error))
        elif callable(one):
            found.append(Own(one))
        else:
            problems.append(f"when: {one!r} is no rule, step number or function")
    if not wanted:
        problems.append("when: is empty, must hold at least one rule")
    if problems:
        for rule in found:
            rule.close()
        raise CaptureError("; ".join(problems))
    return found


def _named(name: str) -> list[Rule]:
    kind, _, rest = name.partition(":")
    if name == FAULT:
        return [NotFinite(), Skips(), Spike()]
    if kind == "every" and rest.isdecimal() and int(rest) > 0:
        return [Every(int(rest))]
    if kind == "file" and rest:
        return [Touched(rest)]
    if kind == "signal" and rest in _SIGNALS:
        return [Signalled(_SIGNALS[rest])]
    for row in (NotFinite, Skips, Spike):
        if name == row.name:
            return [row()]
    known = "; ".join([f"{FAULT}: the first three of these", *(f"{row.name}: {row.help}" for row in ROWS)])
    raise CaptureError(f"when: {name!r} is not known; there are {known}")
