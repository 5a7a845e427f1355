"""Sees every random number that PyTorch draws in a block of code, without changing any.

A dispatch mode below autograd and autocast: dropout shows there as bernoulli_ (CPU) or native_dropout (CUDA).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_IN_PLACE = ("bernoulli_", "normal_", "uniform_", "exponential_", "random_")
_NOISE = ("randn", "rand", "randn_like", "rand_like", "randint", "randint_like", "randperm",
          "normal", "bernoulli", "multinomial")


@dataclass
class Draw:
    """One draw: its op (provenance) and a copy of what came out."""

    op: str
    value: torch.Tensor


class MaskTap(TorchDispatchMode):
    """draws: all so far. While `active` is false nothing is recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[Draw] = []
        self.active = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.active:
            name = func._schema.name.removeprefix("aten::")
            if name == "native_dropout":
                self.draws.append(Draw(str(func), result[1].detach().clone()))
            elif name in _IN_PLACE or name in _NOISE:
                self.draws.append(Draw(str(func), result.detach().clone()))
        return result
