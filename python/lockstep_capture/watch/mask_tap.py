"""Sees every random number that PyTorch draws in a block of code, without changing any.

A dispatch mode below autograd and autocast: dropout shows there as bernoulli_ (CPU) or native_dropout (CUDA).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch

from ..torch_api import CURRENT_MODE, POP_MODE, DispatchMode, op_schema
from .precision import attention_backends

_IN_PLACE = ("bernoulli_", "normal_", "uniform_", "exponential_", "random_")
_NOISE = (
    "randn",
    "rand",
    "randn_like",
    "rand_like",
    "randint",
    "randint_like",
    "randperm",
    "normal",
    "bernoulli",
    "multinomial",
)


@dataclass
class Draw:
    """One draw: its op (provenance) and a copy of what came out."""

    op: str
    value: torch.Tensor


_CUDNN_RNN = "_cudnn_rnn"
_FUSED_ATTENTION = "_scaled_dot_product_"  # _scaled_dot_product_flash_attention_for_cpu, ..._efficient_attention
_SOFTMAXES = ("_softmax", "_safe_softmax")  # what shows of the math backend


class MaskTap(DispatchMode):  # type: ignore[misc]
    """draws: all so far. attention: the fused kernels of scaled_dot_product_attention that ran, by name; backends:
    those that were allowed when one of them, or a softmax, ran. hides_dropout: cuDNN drew the dropout between the layers
    of an LSTM, GRU or RNN, which nobody sees. While `active` is false nothing is recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[Draw] = []
        self.attention: list[str] = []
        self.backends = ""
        self.hides_dropout = False
        self.active = True

    def lifted(self) -> contextlib.AbstractContextManager[Any]:
        """For the loop's backward pass. While a mode is in force, some of PyTorch's gradients (of prod; of cumprod, too,
        before 2.13) are computed by another formula, and get other bits."""
        return POP_MODE() if CURRENT_MODE() is self else contextlib.nullcontext()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.active:
            name = op_schema(func).name.removeprefix("aten::")
            if name == _CUDNN_RNN:
                names = (argument.name for argument in op_schema(func).arguments)
                given = dict(zip(names, args, strict=False)) | (kwargs or {})
                self.hides_dropout |= given["train"] and given["dropout"] > 0 and given["num_layers"] > 1
            elif name == "native_dropout":
                self.draws.append(Draw(str(func), result[1].detach().clone()))
            elif name in _IN_PLACE or name in _NOISE:
                self.draws.append(Draw(str(func), result.detach().clone()))
            elif name.startswith(_FUSED_ATTENTION):
                self.attention.append(name.removeprefix(_FUSED_ATTENTION))
                self.backends = attention_backends()
            elif name in _SOFTMAXES and not self.backends:
                self.backends = attention_backends()
        return result
