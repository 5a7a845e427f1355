"""Tensors that the forward pass reads and that belong neither to the model nor to the batch.

A graph holds them once, as constants: their content must be the same in every step that it serves. The forward pass
may put other tensors in their places (torchvision's anchors take the dtype of the features in the first pass): what it
reads then belongs to the next step, which has a graph of its own if these are of another type.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import torch

from ..errors import CaptureError
from ..ir.program import Program
from .reachable import reachable


def checksum(tensor: torch.Tensor) -> int:
    """Of the bits in the order of the elements; of a sparse matrix, of its places and values."""
    if tensor.layout == torch.sparse_coo:
        return zlib.crc32(f"{checksum(tensor._indices())} {checksum(tensor._values())}".encode())
    elements = tensor.detach().cpu().contiguous().reshape(-1)
    return zlib.crc32(elements.view(torch.uint8).numpy().tobytes())


def tensors_of(step_fn: Any, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """By the names by which the step function reaches them."""
    return {path: value for path, value in reachable(step_fn, model) if isinstance(value, torch.Tensor)}


class Outside:
    """The constants of a program as they are now. left: what is in their places after the forward pass."""

    def __init__(self, program: Program, step_fn: Any, model: torch.nn.Module, left: Mapping[str, torch.Tensor]):
        self._constants, self._step_fn, self._model = program.constants, step_fn, model
        paths = {place_of(tensor): path for path, tensor in self._tensors().items()}
        self._paths = {name: paths.get(place_of(tensor), "") for name, tensor in program.constants.items()}
        self._before = {name: checksum(tensor) for name, tensor in program.constants.items()}
        self._after = {
            name: checksum(left.get(self._paths[name], tensor)) for name, tensor in program.constants.items()
        }

    def _tensors(self) -> dict[str, torch.Tensor]:
        return tensors_of(self._step_fn, self._model) if self._constants else {}

    def check_before(self) -> None:
        """Before a pass. Throws: CaptureError if one changed: its content, or the tensor that its name means."""
        self._check(self._before)

    def check_after(self) -> None:
        """The same, where the forward pass has left what it left when it was traced."""
        self._check(self._after)

    def _check(self, expected: Mapping[str, int]) -> None:
        now = self._tensors()
        changed = [
            name
            for name, tensor in self._constants.items()
            if checksum(tensor) != self._before[name] or checksum(now.get(self._paths[name], tensor)) != expected[name]
        ]
        if changed:
            known = [self._paths[name] for name in changed if self._paths[name]]
            shown = known[0] if known else f"one of shape {list(self._constants[changed[0]].shape)}"
            raise CaptureError(
                f"{len(changed)} tensors outside of the model changed during the capture, e.g. {shown}: a "
                "capture holds them once, as constants; put them in the batch, or make them buffers that "
                "the forward pass updates (an average of weights that the loop updates cannot be replayed)"
            )


def place_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Equal for tensors that show the same memory in the same way; a sparse tensor's is its own."""
    if tensor.layout != torch.strided:
        return (id(tensor),)
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype
