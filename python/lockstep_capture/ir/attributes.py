"""Plain tensors that modules keep as attributes: `self.state = h.detach()`, without register_buffer.

One that the forward pass changes is state, as a buffer is: it is captured and replayed as one, by its path. So is a
parameter without gradient that the forward pass changes: an average of weights that train.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Attribute:
    """path: the name by which the user knows it, "criterion.centre"; name: in its module."""

    path: str
    module: torch.nn.Module
    name: str

    @property
    def table(self) -> dict[str, Any]:
        """What has the tensor under that name."""
        parameters: dict[str, Any] = self.module._parameters
        return parameters if self.name in parameters else vars(self.module)

    @property
    def value(self) -> Any:
        return self.table.get(self.name)


def plain_tensors(reachable: Iterable[tuple[str, Any]]) -> dict[Attribute, torch.Tensor]:
    """The floating ones without gradient, of all modules among these objects and their names."""
    found = {}
    for path, module in reachable:
        if isinstance(module, torch.nn.Module):
            for name, value in vars(module).items():
                if is_plain(value):
                    found[Attribute(f"{path}.{name}" if path else name, module, name)] = value
    return found


def is_plain(value: Any) -> bool:
    return (
        type(value) is torch.Tensor
        and value.layout == torch.strided
        and value.dtype.is_floating_point
        and not value.requires_grad
    )


class Watched:
    """These attributes before a forward pass."""

    def __init__(self, tensors: dict[Attribute, torch.Tensor]):
        self._tensors, self._versions = tensors, [tensor._version for tensor in tensors.values()]

    def changed(self) -> dict[Attribute, torch.Tensor]:
        """Those that now are other tensors of their shape, or were written to, with the tensors that they were."""
        found = {}
        for (attribute, tensor), version in zip(self._tensors.items(), self._versions, strict=True):
            now = attribute.value
            if (
                is_plain(now)
                and now.shape == tensor.shape
                and (now.data_ptr() != tensor.data_ptr() or now.dtype != tensor.dtype or now._version != version)
            ):
                found[attribute] = tensor
        return found
