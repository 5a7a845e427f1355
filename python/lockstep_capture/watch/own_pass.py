"""Whether the model runs because a capture takes a step again or traces it: a monitor counts the loop's own passes alone."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_now = threading.local()


@contextlib.contextmanager
def own_pass() -> Iterator[None]:
    _now.depth = getattr(_now, "depth", 0) + 1
    try:
        yield
    finally:
        _now.depth -= 1


def is_own_pass() -> bool:
    return getattr(_now, "depth", 0) > 0
