"""The blocks of a capture where begin and end of a loop's body are different calls.

Knows nothing of any Trainer.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from ..errors import CaptureError
from ..monitor.monitor import Monitor
from ..trigger.answer import ENDING


class Recording(Protocol):
    """A Capture, Parts or Monitor, as far as a callback uses it."""

    @property
    def finished(self) -> bool: ...
    def step(self, batch: Any) -> contextlib.AbstractContextManager[None]: ...
    def finish(self) -> None: ...
    def __exit__(self, kind: Any, value: Any, trace: Any) -> None: ...


class Together:
    """Several of them around the same blocks; each may end before the others."""

    def __init__(self, all_of: list[Recording]):
        self._all = all_of

    @property
    def finished(self) -> bool:
        return all(one.finished for one in self._all)

    @contextlib.contextmanager
    def step(self, batch: Any) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for one in self._all:
                stack.enter_context(one.step(batch))
            yield

    def finish(self) -> None:
        with contextlib.ExitStack() as stack:  # the others, too, where one fails
            for one in self._all:
                stack.callback(one.finish)

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        with contextlib.ExitStack() as stack:
            for one in self._all:
                stack.callback(one.__exit__, kind, value, trace)


def with_monitor(
    path: str | os.PathLike[str],
    monitor: int | None,
    parts: Mapping[str, Any],
    waiting: dict[str, Any],
    make: Callable[[dict[str, Any]], Recording],
) -> Recording:
    """make(waiting), next to a Monitor every `monitor` steps, whose alarms take a step under the capture where that waits.
    path: the capture's, run.lscap.h5: the monitor writes run.live.h5."""
    if monitor is None:
        return make(waiting)
    name = os.fspath(path)
    root = name.removesuffix(ENDING) if name.endswith(ENDING) else os.path.splitext(name)[0]
    live = f"{root}.live.h5"
    watching = Monitor(live, every=monitor, overwrite=True, quiet=bool(waiting.get("quiet")), **parts)
    if waiting.get("when") is not None:
        when = waiting["when"]
        rules = list(when) if isinstance(when, (list, tuple, set, frozenset)) else [when]
        waiting = waiting | {"when": [*rules, watching.rule()]}
    try:
        return Together([make(waiting), watching])
    except BaseException:
        watching.abandon()
        raise


class Blocks:
    def __init__(self, cap: Recording):
        self._cap = cap
        self._open: contextlib.AbstractContextManager[None] | None = None

    @property
    def over(self) -> bool:
        """The file is written, or nothing will be."""
        return self._cap.finished

    def enter(self, batch: Any) -> None:
        """Before the forward pass of a micro-batch."""
        block = self._cap.step(batch)
        block.__enter__()
        self._open = block

    def leave(self, error: BaseException | None = None) -> None:
        """After the optimizer's step, after backward() where none follows, or where `error` ended the body."""
        block, self._open = self._open, None
        if block is not None:
            block.__exit__(
                None if error is None else type(error), error, None if error is None else error.__traceback__
            )

    def fail(self, error: BaseException) -> None:
        """The loop raised `error`, in a block or between two: the steps before it are kept."""
        if self._open is not None:
            self.leave(error)
        elif not self.over:
            self._cap.__exit__(type(error), error, error.__traceback__)

    def skip(self, why: str) -> None:
        """The loop left a block without its end, and trains on."""
        if self._open is not None:
            self._cap.finish()
            self.leave()
            warnings.warn(f"lockstep_capture: the capture ended with the steps so far: {why}", stacklevel=3)

    def finish(self) -> None:
        self._cap.finish()


def begun(make: Callable[[], Recording], on_unsupported: str) -> Blocks | None:
    """None, with one warning, where make() refuses the loop and on_unsupported is "report"."""
    try:
        return Blocks(make())
    except CaptureError as error:
        if on_unsupported != "report":
            raise
        warnings.warn(f"lockstep_capture: {error}", stacklevel=3)
        return None
