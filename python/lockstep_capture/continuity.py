"""Do weights and buffers change only where a capture looks?

A replay takes the captured steps from the first captured state. What anything else does to the state in between (a
second optimizer, clamped weights, a forward pass in training mode outside of the block) it would not know.
"""

from __future__ import annotations

from typing import Mapping

import torch

from .errors import CaptureError
from .model_state import Subject

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Prints = dict[str, int]


def prints_of(tensors: Mapping[str, torch.Tensor]) -> Prints:
    """The sum of each tensor's bits, taken as integers: another sum, another tensor."""
    sums = [tensor.detach().view(_INTEGERS[tensor.element_size()]).sum(dtype=torch.int64).cpu()
            for tensor in tensors.values()]
    return {path: int(total) for path, total in zip(tensors, sums, strict=True)}


class Continuity:
    """Told where changes are in order; says where others happened."""

    def __init__(self, subject: Subject):
        self._subject = subject
        self._weights: Prints | None = None
        self._buffers: Prints | None = None

    def note_weights(self) -> None:
        """Behind the optimizer's step."""
        self._weights = prints_of(self._subject.params)

    def note_buffers(self) -> None:
        """Behind the forward pass."""
        self._buffers = prints_of(self._subject.buffer_values())

    @property
    def known(self) -> bool:
        return self._weights is not None

    def holds(self) -> bool:
        """Whether everything is as it was noted."""
        return prints_of(self._subject.params) == self._weights \
            and prints_of(self._subject.buffer_values()) == self._buffers

    def check_weights(self, when: str) -> None:
        self._compare("weights", self._weights, prints_of(self._subject.params), when,
                      "optimizer.step() must be called in the block, on the optimizer that was given; a second "
                      "optimizer, or weights changed by hand, cannot be replayed")

    def check_buffers(self, when: str) -> None:
        self._compare("buffers", self._buffers, prints_of(self._subject.buffer_values()), when,
                      "only the forward pass in the block may change them; was the model run in training mode "
                      "outside of it?")

    @staticmethod
    def _compare(what: str, before: Prints | None, now: Prints, when: str, hint: str) -> None:
        if before is None:
            return
        changed = [path for path, found in now.items() if before.get(path) != found]
        if changed:
            raise CaptureError(f"{len(changed)} {what} changed {when}, e.g. {changed[0]}: {hint}")
