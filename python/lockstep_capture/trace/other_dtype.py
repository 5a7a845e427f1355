"""A model of narrow weights with weights of another dtype for a while: what then asks for that dtype followed a tensor."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ..ir.program import StepModule
from .batches import with_tensors


@contextlib.contextmanager
def weights_as(step: StepModule, narrow: torch.dtype | None, other: torch.dtype) -> Iterator[None]:
    """Copies of the parameters and buffers of dtype `narrow`, None: of none. Attributes that are state are buffers."""
    made: dict[int, torch.Tensor] = {}
    changed: list[tuple[dict[str, Any], str, Any]] = []

    def twin(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            copy = tensor.detach().to(other)
            made[id(tensor)] = (
                torch.nn.Parameter(copy, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else copy
            )
        return made[id(tensor)]

    try:
        for attribute in step.attributes if narrow is not None else ():
            if isinstance(attribute.value, torch.Tensor) and attribute.value.dtype == narrow:
                changed.append((attribute.table, attribute.name, attribute.value))
                attribute.table[attribute.name] = twin(attribute.value)
        for module in step.model.modules() if narrow is not None else ():
            tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
            for table in tables:
                for name, tensor in list(table.items()):
                    if tensor is not None and tensor.dtype == narrow:
                        changed.append((table, name, tensor))
                        table[name] = twin(tensor)
            if isinstance(module, torch.nn.RNNBase):
                own = vars(module)
                changed.append((own, "_flat_weights", own["_flat_weights"]))
                own["_flat_weights"] = [made.get(id(tensor), tensor) for tensor in own["_flat_weights"]]
        yield
    finally:
        for table, name, tensor in reversed(changed):
            table[name] = tensor


def batch_as(batch: Any, narrow: torch.dtype | None, other: torch.dtype) -> Any:
    return with_tensors(lambda leaf: leaf.to(other) if leaf.dtype == narrow else leaf, batch)
