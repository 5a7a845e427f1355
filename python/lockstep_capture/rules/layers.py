"""Embeddings, dropout, PReLU, upsampling, pixel shuffles."""

from __future__ import annotations

from typing import Any

from ..ir.graph import Value
from ..ir.random_ops import random_site
from .context import KINKS, RuleContext, positive_side, rule
from .upsampling import interpolated


@rule("embedding")
def embedding(c: RuleContext) -> Value:
    if c.a["scale_grad_by_freq"]:
        raise c.unsupported("scale_grad_by_freq is not replayed")
    weight, indices = c.value("weight"), c.integer("indices")
    row = int(c.a["padding_idx"])
    return c.node("embedding", [weight, indices], c.out_shape(), {"padding_idx": row} if row >= 0 else {}).value()


@rule("dropout", "feature_dropout", "native_dropout")
def dropout(c: RuleContext) -> Any:
    x = c.value("self" if "self" in c.a else "input")
    p = float(c.a["p"])
    if random_site(c.call) is None:
        if p == 1 and c.a["train"]:
            raise c.unsupported("p = 1 drops everything")
        return x
    node = c.node("dropout", [x], [(x.shape, "f32"), (x.shape, "i32")], {"p": p, "training": True})
    return [node.value(0), node.value(1)] if "native" in c.call.op else node.value()


@rule("prelu")
def prelu(c: RuleContext) -> Value:
    x = c.value("self")
    return c.node("prelu", [x, c.value("weight")], x.shape).value()


KINKS["prelu"] = positive_side


@rule("upsample_nearest2d", "upsample_bilinear2d")
def upsample(c: RuleContext) -> Value:
    x, shape = c.value("input" if "input" in c.a else "self"), c.out_shape()
    bilinear = "bilinear" in c.call.op
    factors = c.a.get("scale_factors") or [f for f in (c.a.get("scales_h"), c.a.get("scales_w")) if f]
    if not factors:
        attrs: dict[str, Any] = {"size": list(shape[2:])}
    elif factors[0] == factors[-1]:
        attrs = {"scale": float(factors[0])}
    elif all(float(f).is_integer() for f in factors):
        attrs = {"scale": [int(f) for f in factors]}
    elif bilinear:
        return interpolated(c, x, "linear")
    else:
        raise c.unsupported("different fractional scales; give size=")
    if bilinear:
        attrs["align_corners"] = bool(c.a["align_corners"])
    return c.node("upsample_bilinear2d" if bilinear else "upsample_nearest2d", [x], shape, attrs).value()


@rule("pixel_shuffle", "pixel_unshuffle")
def pixel_shuffle(c: RuleContext) -> Value:
    factor = c.a["upscale_factor" if "upscale_factor" in c.a else "downscale_factor"]
    op = "pixel_unshuffle" if "unshuffle" in c.call.op else "pixel_shuffle"
    return c.node(op, [c.value("self")], c.out_shape(), {"factor": int(factor)}).value()
