"""Losses. Their targets are integers from the batch, or floating tensors of the scores' shape."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..ir.graph import Value
from .context import RuleContext, rule

_REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}


def reduction_of(c: RuleContext) -> dict[str, Any]:
    return {"reduction": _REDUCTIONS[int(c.a["reduction"])]}


@rule("cross_entropy_loss")
def cross_entropy(c: RuleContext) -> Value:
    if c.tensor_is_float("target"):
        return _with_probabilities(c)
    attrs = reduction_of(c) | {"ignore_index": int(c.a["ignore_index"])}
    if float(c.a["label_smoothing"]):
        attrs["label_smoothing"] = float(c.a["label_smoothing"])
    return _classes(c, c.value("self"), attrs)


def _classes(c: RuleContext, x: Value, attrs: dict[str, Any]) -> Value:
    target = c.integer("target")
    if x.rank < 2:
        x, target = c.reshape(x, (1, *x.shape)), c.reshape(target, (1,))
        if attrs["reduction"] == "none":
            attrs = attrs | {"reduction": "sum"}
    weight = [c.value("weight")] if c.has("weight") else []
    return c.node("cross_entropy", [x, target, *weight], c.out_shape(), attrs).value()


def _with_probabilities(c: RuleContext) -> Value:
    """-sum over classes of weight target log_softmax(x); the mean is over positions. Smoothing s leaves 1 - s of the
    target and spreads s over the classes."""
    x, target, *weight = c.listed(
        "cross_entropy", c.value("self"), c.value("target"), *([c.value("weight")] if c.has("weight") else [])
    )
    dim = 1 if x.rank > 1 else 0
    smoothing = float(c.a["label_smoothing"])
    if smoothing:
        target = c.scalar("add", c.scalar("mul", target, 1 - smoothing), smoothing / x.shape[dim])
    for w in weight:
        target = c.binary("mul", target, c.reshape(w, w.shape + (1,) * (x.rank - 1 - dim)))
    terms = c.binary("mul", c.same("log_softmax", x, {"dim": dim}), target)
    loss = c.same("neg", c.reduce("sum", terms, [dim]))
    reduction = reduction_of(c)["reduction"]
    return loss if reduction == "none" or loss.rank == 0 else c.reduce(reduction, loss, None)


@rule("nll_loss", "nll_loss_nd", "nll_loss2d")
def nll_loss(c: RuleContext) -> Value:
    """-weight[t] x[t]; the mean is over the weights. Targets t that are ignore_index count 0."""
    x, target, left_out = c.value("self"), c.integer("target"), int(c.a["ignore_index"])
    if x.rank < 2:
        x, target = c.reshape(x, (1, *x.shape)), c.reshape(target, (1,))
    place = c.derive(
        f"place{left_out}",
        lambda t: t.masked_fill(t == left_out, 0).reshape(target.shape).unsqueeze(1),
        [c.a["target"]],
    )
    ignored = c.derive(f"ignored{left_out}", lambda t: (t == left_out).long().reshape(target.shape), [c.a["target"]])
    counted = c.derive(f"counted{left_out}", lambda t: (t != left_out).float().reshape(target.shape), [c.a["target"]])
    reduction = reduction_of(c)["reduction"]

    def losses(x: Value, *others: Value) -> Value:
        *weight, share = others
        taken = c.reshape(c.node("gather", [x, place], place.shape, {"dim": 1}).value(), target.shape)
        terms = c.same("neg", c.node("masked_fill", [taken, ignored], taken.shape, {"value": 0.0}).value())
        for w in weight:
            line = c.reshape(place, (place_count,))
            own = c.reshape(c.node("index_select", [w, line], line.shape, {"dim": 0}).value(), target.shape)
            terms, share = c.binary("mul", terms, own), c.binary("mul", share, own)
        if reduction == "none":
            return c.reshape(terms, c.out_shape())
        total = c.reduce("sum", terms, None)
        return total if reduction == "sum" else c.binary("div", total, c.reduce("sum", share, None))

    place_count = math.prod(place.shape)
    return c.kernel("nll_loss", [x] + ([c.value("weight")] if c.has("weight") else []), losses, [counted])


def _pointwise(op: str, c: RuleContext, attrs: dict[str, Any]) -> Value:
    x, target = c.value("self"), c.value("target")
    shape = tuple(torch.broadcast_shapes(x.shape, target.shape))
    return c.node(op, [c.expand(x, shape), c.expand(target, shape)], c.out_shape(), attrs).value()


@rule("mse_loss", "l1_loss")
def mse_loss(c: RuleContext) -> Value:
    return _pointwise("mse_loss" if "mse" in c.call.op else "l1_loss", c, reduction_of(c))


@rule("smooth_l1_loss")
def smooth_l1_loss(c: RuleContext) -> Value:
    return _pointwise("smooth_l1_loss", c, reduction_of(c) | {"beta": float(c.a["beta"])})


@rule("huber_loss")
def huber_loss(c: RuleContext) -> Value:
    return _pointwise("huber_loss", c, reduction_of(c) | {"delta": float(c.a["delta"])})


@rule("kl_div")
def kl_div(c: RuleContext) -> Value:
    return _pointwise("kl_div", c, reduction_of(c) | {"log_target": bool(c.a["log_target"])})


def _weights(c: RuleContext, name: str) -> Value:
    """The weights of a loss, which get no gradient, in PyTorch neither."""
    found = c.value(name)
    return c.same("detach", found) if c.is_computed(name) else found


@rule("binary_cross_entropy_with_logits")
def bce_with_logits(c: RuleContext) -> Value:
    x, target = c.value("self"), c.value("target")
    operands = [x, target]
    if c.has("weight") or c.has("pos_weight"):
        ones = c.derive("ones", lambda: torch.ones(()), [])
        operands.append(_weights(c, "weight") if c.has("weight") else ones)
        if c.has("pos_weight"):
            operands.append(_weights(c, "pos_weight"))
    return c.node("bce_with_logits", operands, c.out_shape(), reduction_of(c)).value()


_LEAST_LOG, _LEAST_SLOPE = -100.0, 1e-12  # PyTorch's bounds on the logarithms, and on x (1 - x) in the backward pass


@rule("binary_cross_entropy")
def bce(c: RuleContext) -> Value:
    """-(t log x + (1 - t) log(1 - x)). CUDA's autocast refuses it; outside of autocast it is FP32 like its operands.

    Its gradient (x - t) / max(x (1 - x), 1e-12) is not that of the bounded logarithms: it enters as the slope of x times a
    detached number, which adds x - x = 0 to the value.
    """
    operands = [c.value("self"), c.value("target"), *([c.value("weight")] if c.has("weight") else [])]

    def body(x: Value, t: Value, *weight: Value) -> Value:
        def log(of: Value) -> Value:
            return c.same("clamp", c.same("log", of), {"min": _LEAST_LOG})

        fixed, given = c.same("detach", x), t
        t = c.same("detach", t) if c.is_computed("target") else t
        others = c.scalar("add", c.same("neg", fixed), 1.0)
        loss = c.binary("sub", c.binary("mul", c.scalar("add", t, -1.0), log(others)), c.binary("mul", t, log(fixed)))
        slope = c.binary(
            "div", c.binary("sub", fixed, t), c.same("clamp", c.binary("mul", fixed, others), {"min": _LEAST_SLOPE})
        )
        loss = c.binary("add", loss, c.binary("mul", c.binary("sub", x, fixed), slope))
        if given.id != t.id:  # its gradient is log(1 - x) - log(x)
            logit = c.binary("sub", log(others), log(fixed))
            loss = c.binary("add", loss, c.binary("mul", c.binary("sub", given, t), logit))
        loss = c.binary("mul", loss, weight[0]) if weight else loss
        reduction = reduction_of(c)["reduction"]
        return loss if reduction == "none" else c.reduce(reduction, loss, None)

    found: Value = c.kernel("bce_with_logits", operands, body)
    return found
