"""FP32 masters: tensors that an optimizer steps in the place of narrower weights, which the loop then rounds from them.

for weight, master in zip(model.parameters(), masters): master.grad = weight.grad.float()
optimizer.step()
for weight, master in zip(model.parameters(), masters): weight.copy_(master)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch


def find_masters(params: Mapping[str, torch.Tensor], held: Iterable[torch.Tensor]) -> dict[str, torch.Tensor]:
    """By path of the weight. A master is a tensor of the optimizer that is no weight itself and whose value, rounded, is
    that of a weight; equal ones are matched in order."""
    own = {id(tensor) for tensor in params.values()}
    left = {path: tensor for path, tensor in params.items() if tensor.requires_grad}
    found: dict[str, torch.Tensor] = {}
    for master in held:
        if id(master) in own:
            continue
        path = next((path for path, weight in left.items() if is_master(master, weight)), None)
        if path is not None:
            found[path] = master
            del left[path]
    return found


def is_master(master: torch.Tensor, weight: torch.Tensor) -> bool:
    return (
        master.dtype == torch.float32
        and master.shape == weight.shape
        and master.device == weight.device
        and torch.equal(master.detach().to(weight.dtype), weight.detach())
    )


class Masters:
    """held: by path. Their .grad is the loop's copy of the weight's: until the copy is made it is that of the last step."""

    def __init__(self, held: dict[str, torch.Tensor], params: Mapping[str, torch.Tensor]):
        self.held, self._params = held, params
        self._stale: dict[str, torch.Tensor] = {}

    def mark_stale(self) -> None:
        """Before backward()."""
        self._stale = {
            path: master.grad.detach().clone() for path, master in self.held.items() if master.grad is not None
        }

    def gradient(self, path: str) -> torch.Tensor | None:
        """Of the weight, in FP32, or the loop's copy of it once there is a new one."""
        copy, own = self.held[path].grad, self._params[path].grad
        if copy is not None and (path not in self._stale or not torch.equal(copy, self._stale[path])):
            return copy
        if own is None:
            return copy if path not in self._stale else None
        return own.float()

    def unrounded(self) -> list[str]:
        """Weights that are not their rounded masters."""
        return [path for path, master in self.held.items() if not is_master(master, self._params[path])]
