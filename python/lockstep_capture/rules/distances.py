"""Distances, similarities, and the losses made of them: several kernels in PyTorch, too, as they are here."""

from __future__ import annotations

import torch

from ..ir.graph import Value
from ..ir.program import Ref
from .context import RULES, RuleContext, rule
from .losses import reduction_of
from .math import euclidean, norm_of

COSINE_LOSS_EPS = 1e-12  # of cosine_embedding_loss, added to both squared lengths


def _reduced(c: RuleContext, terms: Value) -> Value:
    reduction = reduction_of(c)["reduction"]
    return terms if reduction == "none" or terms.rank == 0 else c.reduce(reduction, terms, None)


def _margin(c: RuleContext, x: Value, margin: float) -> Value:
    """max(x + margin, 0)"""
    return c.same("clamp", c.scalar("add", x, margin) if margin else x, {"min": 0.0})


@rule("cosine_similarity")
def cosine_similarity(c: RuleContext) -> Value:
    """sum of x y / (max(|x|, eps) max(|y|, eps)); eps is a number or, where it follows a dtype, a tensor."""
    x, y = c.listed("cosine_similarity", c.value("x1"), c.value("x2"))
    shape = tuple(torch.broadcast_shapes(x.shape, y.shape))
    dim = c.a["dim"] % len(shape)

    def unit(value: Value) -> Value:
        if not isinstance(c.a["eps"], Ref):
            return c.binary("div", value, euclidean(c, value, [dim], keepdim=True, least=float(c.a["eps"])))
        length = euclidean(c, value, [dim], keepdim=True)
        return c.binary("div", value, c.binary("maximum", length, c.value("eps")))

    return c.reduce("sum", c.binary("mul", unit(c.expand(x, shape)), unit(c.expand(y, shape))), [dim])


RULES["lockstep_capture.cosine_similarity"] = cosine_similarity


def _distance(c: RuleContext, x: Value, y: Value, p: float, eps: float, keepdim: bool = False) -> Value:
    """|x - y + eps| over the last dimension."""
    apart = c.scalar("add", c.binary("sub", x, y), eps)
    return norm_of(c, apart, p, [apart.rank - 1], keepdim)


@rule("pairwise_distance")
def pairwise_distance(c: RuleContext) -> Value:
    return _distance(c, c.value("x1"), c.value("x2"), float(c.a["p"]), float(c.a["eps"]), bool(c.a["keepdim"]))


@rule("triplet_margin_loss")
def triplet_margin_loss(c: RuleContext) -> Value:
    """max(|a - p| - |a - n| + margin, 0); swap: the nearer of |a - n| and |p - n|."""
    a, p, n = c.listed("triplet_margin_loss", *(c.value(name) for name in ("anchor", "positive", "negative")))
    order, eps = float(c.a["p"]), float(c.a["eps"])
    near, far = _distance(c, a, p, order, eps), _distance(c, a, n, order, eps)
    if c.a["swap"]:
        far = c.binary("minimum", far, _distance(c, p, n, order, eps))
    return _reduced(c, _margin(c, c.binary("sub", near, far), float(c.a["margin"])))


def _chosen(c: RuleContext, target: int, yes: Value) -> Value:
    """`yes` where the target is this number, else 0."""
    other = c.derive(f"not{target}", lambda t: (t != target).long(), [c.a["target"]])
    shape = tuple(torch.broadcast_shapes(other.shape, yes.shape))
    return c.node("masked_fill", [c.expand(yes, shape), other], shape, {"value": 0.0}).value()


@rule("cosine_embedding_loss")
def cosine_embedding_loss(c: RuleContext) -> Value:
    """1 - cos where the target is 1, max(cos - margin, 0) where it is -1."""
    x, y = c.listed("cosine_embedding_loss", c.value("input1"), c.value("input2"))
    dim = x.rank - 1
    lengths = [c.scalar("add", c.reduce("sum", c.binary("mul", z, z), [dim]), COSINE_LOSS_EPS) for z in (x, y)]
    dot = c.reduce("sum", c.binary("mul", x, y), [dim])
    cosine = c.binary("div", dot, c.same("sqrt", c.binary("mul", lengths[0], lengths[1])))
    like = c.scalar("add", c.same("neg", cosine), 1.0)
    unlike = _margin(c, cosine, -float(c.a["margin"]))
    return _reduced(c, c.binary("add", _chosen(c, 1, like), _chosen(c, -1, unlike)))


@rule("margin_ranking_loss")
def margin_ranking_loss(c: RuleContext) -> Value:
    """max(-target (x - y) + margin, 0)"""
    x, y, target = c.listed("margin_ranking_loss", *(c.value(name) for name in ("input1", "input2", "target")))
    apart = c.binary("mul", c.same("neg", c.binary("sub", x, y)), target)
    return _reduced(c, _margin(c, apart, float(c.a["margin"])))


@rule("hinge_embedding_loss")
def hinge_embedding_loss(c: RuleContext) -> Value:
    """x where the target is 1, max(margin - x, 0) where it is -1."""
    (x,) = c.listed("hinge_embedding_loss", c.value("self"))
    unlike = _margin(c, c.same("neg", x), float(c.a["margin"]))
    return _reduced(c, c.binary("add", _chosen(c, 1, x), _chosen(c, -1, unlike)))


@rule("soft_margin_loss")
def soft_margin_loss(c: RuleContext) -> Value:
    """ln(1 + exp(-target x))"""
    x, target = c.listed("soft_margin_loss", c.value("self"), c.value("target"))
    x = c.binary("mul", c.same("neg", x), target)
    return _reduced(c, c.same("softplus", x, {"beta": 1.0, "threshold": 1e30}))
