"""The blocks of a capture where begin and end of a loop's body are different calls.

Knows nothing of any Trainer.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

from ..capture import Capture
from ..errors import CaptureError
from ..parts.parts import Parts


class Blocks:
    def __init__(self, cap: Capture | Parts):
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


def begun(make: Callable[[], Capture | Parts], on_unsupported: str) -> Blocks | None:
    """None, with one warning, where make() refuses the loop and on_unsupported is "report"."""
    try:
        return Blocks(make())
    except CaptureError as error:
        if on_unsupported != "report":
            raise
        warnings.warn(f"lockstep_capture: {error}", stacklevel=3)
        return None
