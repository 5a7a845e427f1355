"""Functions that take numbers alone, written so that a tensor can be one of them: a limit of each lane's dtype."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ..ir.tensor_eps import COSINE_SIMILARITY, GROUP_NORM, LAYER_NORM, RMS_NORM


def _pad(input: torch.Tensor, pad: Sequence[int], mode: str = "constant", value: Any = None) -> torch.Tensor:
    if mode != "constant":
        return F.pad(input, pad, mode)
    outside = F.pad(torch.zeros(input.shape, dtype=torch.bool, device=input.device), pad, value=True)
    return F.pad(input, pad).masked_fill(outside, value)


def _normalize(input: torch.Tensor, p: float = 2.0, dim: Any = 1, eps: Any = 1e-12, out: Any = None) -> torch.Tensor:
    return torch.div(input, input.norm(p, dim, keepdim=True).clamp_min(eps).expand_as(input), out=out)


def _logit(input: torch.Tensor, eps: Any) -> torch.Tensor:
    return input.clamp(eps, 1 - eps).logit()


def _nan_to_num(input: torch.Tensor, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> torch.Tensor:
    bounds = [posinf, neginf]
    for slot, infinity in enumerate((math.inf, -math.inf)):
        if isinstance(bounds[slot], torch.Tensor):
            input, bounds[slot] = torch.where(input == infinity, bounds[slot], input), None
    return input.nan_to_num(nan, *bounds)


def _layer_norm(
    input: torch.Tensor, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: Any = 1e-5
) -> Any:
    return LAYER_NORM(input, normalized_shape, weight, bias, eps)


def _rms_norm(input: torch.Tensor, normalized_shape: Sequence[int], weight: Any = None, eps: Any = None) -> Any:
    return RMS_NORM(input, normalized_shape, weight, eps)


def _group_norm(input: torch.Tensor, num_groups: int, weight: Any = None, bias: Any = None, eps: Any = 1e-5) -> Any:
    return GROUP_NORM(input, num_groups, weight, bias, eps)


def _cosine_similarity(x1: torch.Tensor, x2: torch.Tensor, dim: int = 1, eps: Any = 1e-8) -> Any:
    return COSINE_SIMILARITY(x1, x2, dim, eps)


SHOWN: dict[str, Callable[..., Any]] = {
    "pad": _pad,
    "normalize": _normalize,
    "logit": _logit,
    "special_logit": _logit,
    "nan_to_num": _nan_to_num,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "cosine_similarity": _cosine_similarity,
}
PARAMETERS = {name: tuple(inspect.signature(body).parameters) for name, body in SHOWN.items()}
