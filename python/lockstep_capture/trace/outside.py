"""Tensors that the forward pass reads and that belong neither to the model nor to the batch.

The file holds them once, as constants: their content must be the same in every captured step.
"""

from __future__ import annotations

import zlib
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


class Outside:
    """The constants of a program as they are now. Names are those by which the step function reaches them."""

    def __init__(self, program: Program, step_fn: Any, model: torch.nn.Module):
        self._constants, self._step_fn, self._model = program.constants, step_fn, model
        paths = {place_of(tensor): path for path, tensor in self._tensors().items()}
        self._paths = {name: paths.get(place_of(tensor), "") for name, tensor in program.constants.items()}
        self._checksums = {name: checksum(tensor) for name, tensor in program.constants.items()}

    def _tensors(self) -> dict[str, torch.Tensor]:
        if not self._constants:
            return {}
        return {path: value for path, value in reachable(self._step_fn, self._model) if isinstance(value, torch.Tensor)}

    def check(self) -> None:
        """Throws: CaptureError if one has changed: its content, or the tensor that its name means.

        The same numbers in another dtype are no change: steps that read them in it have a program of their own.
        """
        now = self._tensors()
        changed = [name for name, tensor in self._constants.items()
                   if _checksum_in(tensor.dtype, now.get(self._paths[name], tensor)) != self._checksums[name]]
        if changed:
            known = [self._paths[name] for name in changed if self._paths[name]]
            shown = known[0] if known else f"one of shape {list(self._constants[changed[0]].shape)}"
            raise CaptureError(f"{len(changed)} tensors outside of the model changed during the capture, e.g. {shown}: a "
                               "capture holds them once, as constants; put them in the batch, or make them buffers that "
                               "the forward pass updates (an average of weights that the loop updates cannot be replayed)")


def _checksum_in(dtype: torch.dtype, tensor: torch.Tensor) -> int | None:
    """Of its numbers in another dtype; None: they are not numbers of that dtype."""
    if tensor.dtype == dtype:
        return checksum(tensor)
    found = tensor.to(dtype)
    return checksum(found) if checksum(found.to(tensor.dtype)) == checksum(tensor) else None


def place_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Equal for tensors that show the same memory in the same way; a sparse tensor's is its own."""
    if tensor.layout != torch.strided:
        return (id(tensor),)
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype
