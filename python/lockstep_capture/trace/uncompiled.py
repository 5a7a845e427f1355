"""Code under torch.compile runs uncompiled where a capture watches: compiled kernels show no ops.

Without this, torch.compile(fullgraph=True) fails in the loop: it cannot compile while a dispatch mode is active.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .. import torch_api


@contextlib.contextmanager
def uncompiled(note: Callable[[], None] | None = None) -> Iterator[None]:
    """torch.compile does nothing in it, wherever the loop put it. note: is called before compiled code runs this way."""
    if "torch._dynamo.eval_frame" not in sys.modules:  # nothing was compiled yet
        yield
        return
    dynamo, name = torch_api.STANCE.place()
    original = getattr(dynamo, name)

    def look(callback: Any) -> Any:
        if note is not None and callback not in (None, False):  # these are code that is not to be compiled
            note()
        return original(callback)

    with torch.compiler.set_stance("force_eager"):
        try:
            setattr(dynamo, name, look)
            yield
        finally:
            setattr(dynamo, name, original)


def step_is_compiled() -> bool:
    """Whether a hook of an optimizer runs within torch.compile(optimizer.step), or within a compiled step of the loop."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.endswith("eval_frame.py") and "callback" in code.co_freevars:  # not so in dynamo.disable
            return True
        frame = frame.f_back
    return False
