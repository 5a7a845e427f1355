"""Fake quantisation in FP64: PyTorch's kernels round to FP32 inside, references do not."""

from __future__ import annotations

from typing import Any

import torch

from .custom_functions import with_backward

FAKE_QUANTIZE = {
    f"aten.fake_quantize_per_{what}_affine{cachemask}"
    for what in ("tensor", "channel")
    for cachemask in ("", "_cachemask")
}


def number_of(value: float) -> float:
    """The scale that PyTorch's kernels make of a number: rounded to FP32."""
    return float(torch.tensor(value, dtype=torch.float32))


def in_double(a: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The result and where the gradient passes. a: the op's arguments by name."""
    x, scale, zero = a["self"], a["scale"], a["zero_point"]
    inverse: Any = 1.0 / scale if isinstance(scale, torch.Tensor) else number_of(1.0 / number_of(scale))
    scale = scale if isinstance(scale, torch.Tensor) else number_of(scale)
    if "axis" in a and isinstance(scale, torch.Tensor):
        spread = [-1 if d == a["axis"] % x.dim() else 1 for d in range(x.dim())]
        scale, zero, inverse = scale.reshape(spread), zero.reshape(spread), inverse.reshape(spread)
    rounds_last = "axis" in a and zero.dtype.is_floating_point
    with torch.no_grad():
        steps = torch.round(x * inverse + zero) if rounds_last else torch.round(x * inverse) + zero
        limited = steps.clamp(a["quant_min"], a["quant_max"])
        y, passes = (limited - zero) * scale, steps == limited
    if x.requires_grad:
        (y,) = with_backward([y], [x], lambda dy: [dy[0] * passes])
    return y, passes
