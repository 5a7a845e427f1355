"""Scaled dot-product attention."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..ir.graph import Value
from ..ir.random_ops import random_site
from .context import RuleContext, rule


@rule("scaled_dot_product_attention")
def sdpa(c: RuleContext) -> Value:
    q, k, v = c.value("query"), c.value("key"), c.value("value")
    if not c.a["enable_gqa"]:  # batches and heads broadcast, as in matmul
        lead = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
        q, k, v = (c.expand(x, (*lead, *x.shape[-2:])) for x in (q, k, v))
    operands = [q, k, v]
    if c.has("attn_mask"):
        mask = c.mask_of("attn_mask")
        if c.is_learned(mask):
            return _with_learned_mask(c, q, k, v, c.value("attn_mask"))
        operands.append(mask)
    site = random_site(c.call)
    scale = c.a["scale"]
    # Fused kernels take (N,H,T,E) only, one width, no dropout that the capture must see.
    fused = site is None and q.rank == k.rank == v.rank == 4 and q.shape[-1] == v.shape[-1]
    attrs: dict[str, Any] = {
        "scale": 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale),
        "model": "flash" if fused and not c.plain_attention else "math",
    }
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


def _with_learned_mask(c: RuleContext, q: Value, k: Value, v: Value, mask: Value) -> Value:
    """PyTorch's math backend, which it takes where the mask needs a gradient: FP32 inside."""
    root = math.sqrt(1 / math.sqrt(q.shape[-1]) if c.a["scale"] is None else float(c.a["scale"]))
    site = random_site(c.call)
    if c.a["enable_gqa"] and k.shape[-3] != q.shape[-3]:
        k, v = _repeated(c, k, q.shape[-3]), _repeated(c, v, q.shape[-3])

    def body(q: Value, k: Value, v: Value, mask: Value) -> Value:
        keys = c.permute(k, [*range(k.rank - 2), k.rank - 1, k.rank - 2])
        scores = c.node("matmul", [c.scalar("mul", q, root), c.scalar("mul", keys, root)], (*q.shape[:-1], k.shape[-2]))
        added = c.binary("add", scores.value(), mask)
        weights = c.same("softmax", added, {"dim": added.rank - 1})
        if site is not None:
            weights = c.node(
                "dropout", [weights], [(weights.shape, "f32"), (weights.shape, "i32")], {"p": site.p, "training": True}
            ).value()
        return c.node("matmul", [weights, v], c.out_shape()).value()

    found: Value = c.kernel("sdpa", [q, k, v], body, [mask])
    return found


def _repeated(c: RuleContext, x: Value, heads: int) -> Value:
    """(N, G, T, E) with every group's head repeated: (N, H, T, E)."""
    times = heads // x.shape[-3]
    wide = (*x.shape[:-2], times, *x.shape[-2:])
    return c.reshape(
        c.expand(c.reshape(x, (*x.shape[:-2], 1, *x.shape[-2:])), wide), (*x.shape[:-3], heads, *x.shape[-2:])
    )
