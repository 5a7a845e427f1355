"""Fake quantisation: numbers rounded to a row of integers times a scale, whose gradient passes straight through."""

from __future__ import annotations

from typing import Any

from ..ir.fake_quantize import number_of
from ..ir.graph import Value
from .context import RuleContext, rule
from .custom_functions import with_gradient


@rule("fake_quantize_per_tensor_affine", "fake_quantize_per_tensor_affine_cachemask")
def per_tensor(c: RuleContext) -> Any:
    if c.is_tensor("scale"):
        return _by_tensors(c, ())
    scale, zero = number_of(float(c.a["scale"])), int(c.a["zero_point"])
    inverse = number_of(1.0 / scale)
    low, high = float(int(c.a["quant_min"]) - zero), float(int(c.a["quant_max"]) - zero)

    def body(x: Value) -> Value:
        steps = c.same("round", c.scalar("mul", x, inverse))
        limited = c.same("clamp", steps, {"min": low, "max": high})
        return _straight_through(c, x, c.scalar("mul", limited, scale), steps, limited)

    return _result(c, c.kernel("fake_quantize", [c.value("self")], body))


@rule("fake_quantize_per_channel_affine", "fake_quantize_per_channel_affine_cachemask")
def per_channel(c: RuleContext) -> Any:
    rank = len(c.shape_of("self"))
    axis = int(c.a["axis"]) % rank
    return _by_tensors(c, [-1 if d == axis else 1 for d in range(rank)])


def _by_tensors(c: RuleContext, shape: Any) -> Any:
    """shape: of scale and zero point, as they meet the operand."""
    rounds_last = len(shape) > 0 and c.tensor_is_float("zero_point")  # of channels: round(x / scale + zero point)
    x, scale, zero = c.value("self"), c.value("scale"), c.value("zero_point")
    spread = tuple(scale.shape[0] if extent == -1 else 1 for extent in shape)
    low, high = float(c.a["quant_min"]), float(c.a["quant_max"])

    def body(x: Value, scale: Value, zero: Value) -> Value:
        scale, zero = c.reshape(scale, spread), c.reshape(zero, spread)
        steps = c.binary("mul", x, c.same("reciprocal", scale))
        steps = c.binary("add", steps, zero) if rounds_last else steps
        steps = c.same("round", steps)
        steps = steps if rounds_last else c.binary("add", steps, zero)
        limited = c.same("clamp", steps, {"min": low, "max": high})
        y = c.binary("mul", c.binary("sub", limited, zero), scale)
        return _straight_through(c, x, y, steps, limited)

    return _result(c, c.kernel("fake_quantize_by_tensors", [x], body, [scale, zero]))


def _straight_through(c: RuleContext, x: Value, y: Value, steps: Value, limited: Value) -> Value:
    """y, whose gradient goes to x where no limit was passed."""
    outside = c.mask("not_equal", [steps, limited], x.shape)
    return with_gradient(
        c, y, [x], lambda inside, dy: [inside.node("masked_fill", [dy, outside], x.shape, {"value": 0.0}).value()]
    )


def _result(c: RuleContext, y: Value) -> Any:
    return [y, None] if "cachemask" in c.call.op else y
