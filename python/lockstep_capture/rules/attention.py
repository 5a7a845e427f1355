"""Scaled dot-product attention."""

from __future__ import annotations

import math
from typing import Any

from ..ir.graph import Value
from ..ir.random_ops import random_site
from .context import RuleContext, rule


@rule("scaled_dot_product_attention")
def sdpa(c: RuleContext) -> Value:
    q, k, v = c.value("query"), c.value("key"), c.value("value")
    operands = [q, k, v]
    if c.has("attn_mask"):
        mask = c.any_value("attn_mask")
        if mask.id[0] == "n" or mask.id.startswith("p:"):
            raise c.unsupported("attn_mask is computed from weights; write softmax(q k^T + mask) v")
        operands.append(mask)
    site = random_site(c.call)
    scale = c.a["scale"]
    # Fused kernels take (N,H,T,E) only, one width, no dropout that the capture must see.
    fused = site is None and q.rank == k.rank == v.rank == 4 and q.shape[-1] == v.shape[-1]
    attrs: dict[str, Any] = {"scale": 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale),
                             "model": "flash" if fused and not c.plain_attention else "math"}
    if c.a["is_causal"]:
        attrs["causal"] = True
    if c.a["enable_gqa"]:
        attrs["gqa"] = True
    scores = (*q.shape[:-1], k.shape[-2])
    outputs = [(c.out_shape(), "f32"), (scores, "f32")]
    if site is not None:
        attrs["dropout_p"] = site.p
        outputs.append((scores, "i32"))
    return c.node("sdpa", operands, outputs, attrs).value()
