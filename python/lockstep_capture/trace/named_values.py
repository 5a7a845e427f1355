"""watch_value(): a name for a tensor inside the step, which a replay compares in every lane.

Only the runs that trace step_fn listen; everywhere else it returns its tensor and does nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

from ..errors import CaptureError

Listener = Callable[[str, torch.Tensor, bool], None]
_LISTENERS: list[Listener] = []


def watch_value(name: str, tensor: torch.Tensor, *, log_probs: bool = False) -> torch.Tensor:
    """Names a tensor that step_fn or the model computes. Replays record in every step how far each lane's is from the
    reference's (docs/pytorch.md). log_probs: it holds log-probabilities, of which they also record the KL divergence.

    Returns: the tensor. Throws: CaptureError for what is not a name and a floating tensor; the capture refuses a name that
    the step uses twice, and a tensor that does not depend on the model.
    """
    if not isinstance(name, str) or not name.isprintable() or not name:
        raise CaptureError(f"watch_value: the name is {name!r}, must be a text, e.g. 'log_probs'")
    if not isinstance(tensor, torch.Tensor) or not tensor.dtype.is_floating_point:
        kind = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise CaptureError(f"watch_value: {name!r} is a {kind}, must be a tensor of floating numbers")
    if _LISTENERS:
        _LISTENERS[-1](name, tensor, log_probs)
    return tensor


@contextlib.contextmanager
def named_to(listener: Listener) -> Iterator[None]:
    _LISTENERS.append(listener)
    try:
        yield
    finally:
        _LISTENERS.remove(listener)
