"""Functions under torch.jit.script run as Python where a capture traces: the TorchScript interpreter shows no ops."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ..errors import SCRIPTED_HINT, Problem, UnsupportedModelError
from .user_code import user_line


@contextlib.contextmanager
def in_python() -> Iterator[None]:
    """Throws: UnsupportedModelError, when it is called, for a function without its Python form (traced, loaded)."""
    kind: Any = torch.jit.ScriptFunction
    original = kind.__call__

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        own = getattr(function, "_torchdynamo_inline", None)
        if own is None:
            what = f"a TorchScript function without its Python form ({function.name})"
            raise UnsupportedModelError([Problem(what, "", user_line(), SCRIPTED_HINT)])
        return own(*args, **kwargs)

    kind.__call__ = call
    try:
        yield
    finally:
        kind.__call__ = original
