"""Quantisation with observers is one kernel in PyTorch. Two parts of it, as ops of a program.

The scale follows from an interval, and is each lane's own. The zero point is an integer that is chosen by values: it is
recorded with the step.
"""

from __future__ import annotations

from typing import Any

import torch

from .fake_quantize import number_of

_LIBRARY = torch.library.Library("lockstep_capture", "FRAGMENT")
_ARGUMENTS = "(Tensor low, Tensor high, int quant_min, int quant_max, bool symmetric) -> Tensor"
_LIBRARY.define("observed_scale" + _ARGUMENTS)
_LIBRARY.define("observed_zero_point" + _ARGUMENTS)
OBSERVED_SCALE: Any = torch.ops.lockstep_capture.observed_scale.default
OBSERVED_ZERO_POINT: Any = torch.ops.lockstep_capture.observed_zero_point.default

# The constants of PyTorch's ChooseQuantizationParams (ATen/native/quantized/cpu/QuantUtils.h).
LEAST_SCALE = number_of(6.1e-5)
NO_SCALE = 2.0**-128  # below, the reciprocal is infinite in FP32
SCALE_OF_NOTHING = number_of(0.1)


def _by_pytorch(
    low: torch.Tensor, high: torch.Tensor, quant_min: int, quant_max: int, symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and zero point of the fused kernel for these intervals."""
    count, on, off = low.numel(), low.new_ones(1), low.new_zeros(1)
    scale, zero = low.new_ones(count), low.new_zeros(count, dtype=torch.int32)
    interval = low.reshape(-1).clone(), high.reshape(-1).clone()
    torch.ops.aten._fused_moving_avg_obs_fq_helper(
        low.new_zeros(count, 1), off, on, *interval, scale, zero, 1.0, quant_min, quant_max, 0, True, symmetric
    )
    return scale.reshape(low.shape), zero.reshape(low.shape)


def _scale(low: torch.Tensor, high: torch.Tensor, quant_min: int, quant_max: int, symmetric: bool) -> torch.Tensor:
    """Of doubles: the same without roundings to FP32."""
    if low.dtype != torch.float64:
        return _by_pytorch(low, high, quant_min, quant_max, symmetric)[0]
    below, above = sides(quant_min, quant_max)
    scale = (high.clamp(min=0) - low.clamp(max=0)) / (quant_max - quant_min)
    if symmetric:
        scale = torch.where((low < 0) & (high > 0), torch.maximum(low.abs() / below, high.abs() / above), scale)
    return torch.where(scale < NO_SCALE, SCALE_OF_NOTHING, scale).clamp(min=LEAST_SCALE)


def _zero_point(low: torch.Tensor, high: torch.Tensor, quant_min: int, quant_max: int, symmetric: bool) -> torch.Tensor:
    return _by_pytorch(low.float(), high.float(), quant_min, quant_max, symmetric)[1]


def sides(quant_min: int, quant_max: int) -> tuple[int, int]:
    """How many integers lie below and above a zero point in the middle."""
    half = (quant_max - quant_min) // 2
    return half + 1, half


for _name, _body in (("observed_scale", _scale), ("observed_zero_point", _zero_point)):
    _LIBRARY.impl(_name, _body, "CompositeExplicitAutograd")
