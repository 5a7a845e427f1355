"""PyTorch's norms and its cosine with a tensor as eps, so that a program shows where it comes from: torch.finfo(x.dtype).eps."""

from __future__ import annotations

from typing import Any

import torch

_LIBRARY = torch.library.Library("lockstep_capture", "FRAGMENT")
for _name, _operands in (
    ("layer_norm", "Tensor input, int[] normalized_shape, Tensor? weight, Tensor? bias"),
    ("rms_norm", "Tensor input, int[] normalized_shape, Tensor? weight"),
    ("group_norm", "Tensor input, int num_groups, Tensor? weight, Tensor? bias"),
    ("cosine_similarity", "Tensor x1, Tensor x2, int dim"),
):
    _LIBRARY.define(f"{_name}({_operands}, Tensor eps) -> Tensor")
_IMPLICIT = "CompositeImplicitAutograd"  # autocast and autograd see PyTorch's own op


def _layer_norm(input: torch.Tensor, shape: list[int], weight: Any, bias: Any, eps: torch.Tensor) -> torch.Tensor:
    return torch.layer_norm(input, shape, weight, bias, float(eps))


def _rms_norm(input: torch.Tensor, shape: list[int], weight: Any, eps: torch.Tensor) -> torch.Tensor:
    return torch.rms_norm(input, shape, weight, float(eps))


def _group_norm(input: torch.Tensor, groups: int, weight: Any, bias: Any, eps: torch.Tensor) -> torch.Tensor:
    return torch.group_norm(input, groups, weight, bias, float(eps))


def _cosine_similarity(x1: torch.Tensor, x2: torch.Tensor, dim: int, eps: torch.Tensor) -> torch.Tensor:
    return torch.cosine_similarity(x1, x2, dim, float(eps))


_LIBRARY.impl("layer_norm", _layer_norm, _IMPLICIT)
_LIBRARY.impl("rms_norm", _rms_norm, _IMPLICIT)
_LIBRARY.impl("group_norm", _group_norm, _IMPLICIT)
_LIBRARY.impl("cosine_similarity", _cosine_similarity, _IMPLICIT)
LAYER_NORM: Any = torch.ops.lockstep_capture.layer_norm.default
RMS_NORM: Any = torch.ops.lockstep_capture.rms_norm.default
GROUP_NORM: Any = torch.ops.lockstep_capture.group_norm.default
COSINE_SIMILARITY: Any = torch.ops.lockstep_capture.cosine_similarity.default
