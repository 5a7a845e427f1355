"""Fake quantisation by what an observer saw: ops that compute the same bits replace it in a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..ir.graph import Value
from ..ir.observers import LEAST_SCALE, NO_SCALE, OBSERVED_SCALE, OBSERVED_ZERO_POINT, SCALE_OF_NOTHING, sides
from ..ir.program import Call
from ..ir.random_ops import arguments
from ..torch_api import op_schema
from .context import RULES, RuleContext, Unsupported

_FUSED = "aten::fused_moving_avg_obs_fake_quant"


def observing_form(func: Any, args: Any, kwargs: dict[str, Any]) -> Callable[[], torch.Tensor] | None:
    """Of the op with an observer, what calls others in its place; None for another op. Throws: Unsupported."""
    if op_schema(func).name != _FUSED:
        return None
    a = arguments(Call("", func, args, kwargs))
    observes, quantises = (bool(a[name].item()) for name in ("observer_on", "fake_quant_on"))
    low = a["running_min"]
    if low.numel() == 0:
        raise Unsupported(
            "an observer without a size",
            "run the model once before the capture: in its first "
            "forward pass PyTorch gives observers of channels their size",
        )
    unseen = low.isinf()
    if bool(unseen.any() != unseen.all()):
        raise Unsupported("an observer that has seen some of its channels")
    first = bool(unseen.all())

    def form() -> torch.Tensor:
        if observes:
            _observe(a, first)
        return _quantise(a) if quantises else a["self"].clone()

    return form


def _observe(a: dict[str, Any], first: bool) -> None:
    """Moves the averages of the least and the largest number; the first ones are taken as they are."""
    with torch.no_grad():
        x = a["self"]
        found = torch.aminmax(x.flatten(1), dim=1) if a["per_row_fake_quant"] else torch.aminmax(x)
        for kept, new in zip((a["running_min"], a["running_max"]), found, strict=True):
            new = new.reshape(kept.shape)
            kept.copy_(new if first else kept + (new - kept) * a["averaging_const"])


def _quantise(a: dict[str, Any]) -> torch.Tensor:
    limits = int(a["quant_min"]), int(a["quant_max"])
    with torch.no_grad():
        interval = (a["running_min"], a["running_max"], *limits, bool(a["symmetric_quant"]))
        scale = OBSERVED_SCALE(*interval).reshape(a["scale"].shape)
        zero = OBSERVED_ZERO_POINT(*interval).reshape(a["zero_point"].shape)
        a["scale"].copy_(scale)
        a["zero_point"].copy_(zero)
    if a["per_row_fake_quant"]:
        return torch.ops.aten.fake_quantize_per_channel_affine(a["self"], scale, zero, 0, *limits)
    return torch.ops.aten.fake_quantize_per_tensor_affine.tensor_qparams(a["self"], scale, zero, *limits)


def observed_scale(c: RuleContext) -> Value:
    low, high, bottom, top = c.value("low"), c.value("high"), int(c.a["quant_min"]), int(c.a["quant_max"])
    wide = c.binary("sub", c.same("clamp", high, {"min": 0.0}), c.same("clamp", low, {"max": 0.0}))
    scale = c.scalar("div", wide, top - bottom)
    if c.a["symmetric"]:
        below, above = sides(bottom, top)
        left, right = (c.scalar("div", c.same("abs", end), count) for end, count in ((low, below), (high, above)))
        widest = c.binary("maximum", left, right)
        both = c.mask("greater", [c.binary("minimum", c.same("neg", low), high)], low.shape, {"scalar": 0.0})
        scale = c.node("where", [both, widest, scale], low.shape).value()
    none = c.mask("less", [scale], scale.shape, {"scalar": NO_SCALE})
    scale = c.node("masked_fill", [scale, none], scale.shape, {"value": SCALE_OF_NOTHING}).value()
    return c.same("clamp", scale, {"min": LEAST_SCALE})


RULES["lockstep_capture.observed_scale"] = observed_scale
