"""`self.c = ...` and `self.c.data = ...` on a buffer, or an attribute like one, seen as a copy into it.

A trace follows tensors: an attribute that is another tensor after the forward pass leaves no trace.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from ..errors import Problem, UnsupportedModelError
from .attributes import Attribute

_HINT = (
    "self.{0}.copy_(...) with a value of the buffer's own shape and kind; if its first forward pass gives it the shape, run "
    "the model once before the capture"
)


@contextlib.contextmanager
def copied_back(model: torch.nn.Module, attributes: Sequence[Attribute], assigned: list[str]) -> Iterator[None]:
    """After the block every buffer is the tensor that it was, with the content of the one that replaced it.

    The last ops of the block are one copy_ for each of `assigned`, which gets the paths of these buffers.
    Throws: UnsupportedModelError for a buffer that was taken away, or replaced by one of another shape, or by integers
    where it was floating. The new one's floating dtype may be another one: under autocast the model makes BF16 of FP32.
    """
    tables = [(path, module._buffers, name) for path, module in model.named_modules() for name in module._buffers]
    tables += [(attribute.path.rpartition(".")[0], attribute.table, attribute.name) for attribute in attributes]
    before = [
        (path, table, name, buffer, buffer.data)
        for path, table, name in tables
        if (buffer := table.get(name)) is not None
    ]
    assigned.clear()
    yield
    originals = {id(buffer) for *_, buffer, _ in before}
    problems, contents = [], []
    for path, table, name, buffer, data in before:
        now = table.get(name)
        if now is buffer and _is_same(buffer, data):
            continue
        if now is None or now.shape != data.shape or not _is_kind_of(now.dtype, data.dtype):
            problems.append(Problem(f"buffer {name} replaced by another kind of tensor", path, "", _HINT.format(name)))
        else:  # self.a, self.b = self.b, self.a: first read all, then write
            assigned.append(f"{path}.{name}" if path else name)
            contents.append((table, name, buffer, data, now.detach().clone() if id(now) in originals else now.detach()))
    if problems:
        raise UnsupportedModelError(problems)
    for table, name, buffer, data, content in contents:
        if not _is_same(buffer, data):
            buffer.data = data
        buffer.copy_(content)
        table[name] = buffer


def _is_same(tensor: torch.Tensor, data: torch.Tensor) -> bool:
    """False after `tensor.data = ...`."""
    return tensor.layout != torch.strided or (tensor.data_ptr() == data.data_ptr() and tensor.dtype == data.dtype)


def _is_kind_of(dtype: torch.dtype, other: torch.dtype) -> bool:
    return dtype == other or (dtype.is_floating_point and other.is_floating_point)
