"""Margin losses of classes, and the loss of counts."""

from __future__ import annotations

import math

import torch

from ..ir.graph import Value
from .context import RuleContext, rule
from .losses import reduction_of


def _reduced(c: RuleContext, terms: Value) -> Value:
    reduction = reduction_of(c)["reduction"]
    return terms if reduction == "none" or terms.rank == 0 else c.reduce(reduction, terms, None)


def _rows(c: RuleContext, x: Value) -> Value:
    return x if x.rank == 2 else c.reshape(x, (1, *x.shape))


@rule("multi_margin_loss")
def multi_margin_loss(c: RuleContext) -> Value:
    """Per row sum over classes j other than t of weight[t] max(margin - x[t] + x[j], 0)^p / classes."""
    margin, power = float(c.a["margin"]), int(c.a["p"])
    count = c.shape_of("self")[-1]
    place = c.derive("column", lambda t: t.reshape(-1, 1), [c.a["target"]])
    own = c.derive(f"own{count}", lambda t: torch.nn.functional.one_hot(t.reshape(-1), count), [c.a["target"]])

    def losses(x: Value, *weight: Value) -> Value:
        x = _rows(c, x)
        right = c.node("gather", [x, place], place.shape, {"dim": 1}).value()
        beyond = c.same("clamp", c.scalar("add", c.binary("sub", x, right), margin), {"min": 0.0})
        beyond = beyond if power == 1 else c.binary("mul", beyond, beyond)
        beyond = c.node("masked_fill", [beyond, own], beyond.shape, {"value": 0.0}).value()
        for w in weight:
            line = c.reshape(place, (place.shape[0],))
            beyond = c.binary(
                "mul", beyond, c.reshape(c.node("index_select", [w, line], line.shape, {"dim": 0}).value(), place.shape)
            )
        terms = c.reshape(c.scalar("div", c.reduce("sum", beyond, [1]), count), c.shape_of("target"))
        return _reduced(c, terms)

    found: Value = c.kernel(
        "multi_margin_loss", [c.value("self"), *([c.value("weight")] if c.has("weight") else [])], losses
    )
    return found


@rule("multilabel_margin_loss")
def multilabel_margin_loss(c: RuleContext) -> Value:
    """Per row sum over labels y (up to the first -1) and other classes j of max(1 - x[y] + x[j], 0) / classes."""
    count = c.shape_of("self")[-1]

    def first(t: torch.Tensor) -> torch.Tensor:
        return (t.reshape(-1, count) < 0).cumsum(1) == 0

    def is_label(t: torch.Tensor) -> torch.Tensor:
        t, counted = t.reshape(-1, count), first(t)
        found = torch.zeros(len(t), count, dtype=torch.int64, device=t.device)
        return found.scatter_add_(1, t.clamp(min=0), counted.long()) > 0

    target = c.a["target"]
    places = c.derive("labels", lambda t: t.reshape(-1, count).clamp(min=0), [target])
    left_out = c.derive("no_pair", lambda t: ~(first(t)[:, :, None] & ~is_label(t)[:, None, :]), [target])

    def losses(x: Value) -> Value:
        x = _rows(c, x)
        rows = x.shape[0]
        right = c.node("gather", [x, places], places.shape, {"dim": 1}).value()
        apart = c.binary("sub", c.reshape(x, (rows, 1, count)), c.reshape(right, (rows, count, 1)))
        beyond = c.same("clamp", c.scalar("add", apart, 1.0), {"min": 0.0})
        beyond = c.node("masked_fill", [beyond, left_out], beyond.shape, {"value": 0.0}).value()
        terms = c.scalar("div", c.reduce("sum", beyond, [1, 2]), count)
        return _reduced(c, c.reshape(terms, c.shape_of("self")[:-1]))

    found: Value = c.kernel("multilabel_margin_loss", [c.value("self")], losses)
    return found


@rule("poisson_nll_loss")
def poisson_nll_loss(c: RuleContext) -> Value:
    """exp(x) - t x, or x - t ln(x + eps); full: with Stirling's t ln t - t + ln(2 pi t) / 2 where t > 1."""
    x, target = c.listed("poisson_nll_loss", c.value("input"), c.value("target"))
    if c.a["log_input"]:
        terms = c.binary("sub", c.same("exp", x), c.binary("mul", target, x))
    else:
        terms = c.binary("sub", x, c.binary("mul", target, c.same("log", c.scalar("add", x, float(c.a["eps"])))))
    if c.a["full"]:
        logs = c.same("log", target)
        half = c.scalar("mul", c.same("log", c.scalar("mul", target, 2 * math.pi)), 0.5)
        stirling = c.binary("add", c.binary("sub", c.binary("mul", target, logs), target), half)
        few = c.mask("less_equal", [target], target.shape, {"scalar": 1.0})
        terms = c.binary("add", terms, c.node("masked_fill", [stirling, few], stirling.shape, {"value": 0.0}).value())
    return _reduced(c, terms)
