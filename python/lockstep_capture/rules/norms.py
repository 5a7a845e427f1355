"""Normalisations: batch, layer, group, instance and RMS norm."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..ir.cumulative import CUMULATIVE
from ..ir.graph import Value
from ..ir.program import Ref
from ..ir.random_ops import RMS_NORM_EPS
from .context import RULES, RuleContext, rule


@rule("batch_norm", "_batch_norm_impl_index", "cudnn_batch_norm", "native_batch_norm")
def batch_norm(c: RuleContext) -> Any:
    training, x = bool(c.a["training"]), c.value("input")
    mean = c.a["running_mean"]
    channel = (x.shape[1],)
    if not isinstance(mean, Ref) and not training:
        raise c.unsupported("evaluation without running statistics")
    affine = c.has("weight") or c.has("bias")
    operands = [x]
    if affine:  # one of them alone: the other is a constant
        operands += [
            c.value(name) if c.has(name) else c.derive(f"no_{name}", torch.full, [channel, neutral])
            for name, neutral in (("weight", 1.0), ("bias", 0.0))
        ]
    if isinstance(mean, Ref):
        operands += [c.value("running_mean"), c.value("running_var")]
    else:  # track_running_stats=False: the op's are constants, and their new values are dropped
        operands += [c.derive(f"running_{start}", torch.full, [channel, start]) for start in (0.0, 1.0)]
    cumulative = c.a["momentum"] == CUMULATIVE
    attrs: dict[str, Any] = {"training": training, "eps": float(c.a["eps"])}
    attrs |= (
        {"cumulative": True}
        if cumulative and training
        else {"momentum": 0.0 if cumulative else float(c.a["momentum"] or 0)}
    )
    if not affine:
        attrs["affine"] = False
    outputs = [(x.shape, "f32")] + [(channel, "f32")] * 4
    keeps = training and isinstance(mean, Ref)
    count = c.stored.count_of_batch_norm(mean) if keeps else None
    if count is not None:
        operands.append(count)
        outputs.append(((), "i32"))
    node = c.node("batch_norm", operands, outputs, attrs)
    if keeps:
        c.stored.mutate_batch_norm(node, mean, c.a["running_var"], count)
    return node.value() if c.call.op.startswith("aten.batch_norm") else [node.value(slot) for slot in range(3)]


@rule("layer_norm", "native_layer_norm")
def layer_norm(c: RuleContext) -> Any:
    x, ndim = c.value("input"), len(c.a["normalized_shape"])
    statistics = (x.shape[: x.rank - ndim], "f32")
    node = c.node(
        "layer_norm",
        _affine(c, x),
        [(x.shape, "f32"), statistics, statistics],
        {"normalized_ndim": ndim, "eps": float(c.a["eps"])},
    )
    return node.value()


def _affine(c: RuleContext, x: Value) -> list[Value]:
    if c.has("bias") and not c.has("weight"):
        raise c.unsupported("a bias without a weight")
    return [x] + [c.value(name) for name in ("weight", "bias") if c.has(name)]


@rule("rms_norm")
def rms_norm(c: RuleContext) -> Value:
    x, ndim = c.value("input"), len(c.a["normalized_shape"])
    eps = c.a["eps"]
    attrs = {"normalized_ndim": ndim, "eps": RMS_NORM_EPS if eps is None else float(eps)}
    outputs = [(x.shape, "f32"), (x.shape[: x.rank - ndim], "f32")]
    return c.node("rms_norm", _affine(c, x), outputs, attrs).value()


@rule("group_norm", "instance_norm")
def group_norm(c: RuleContext) -> Value:
    """instance_norm is a group_norm with one channel per group."""
    x = c.value("input")
    if "instance_norm" in c.call.op:
        if isinstance(c.a["running_mean"], Ref):
            raise c.unsupported("track_running_stats=False is replayed")
        groups = x.shape[1]
    else:
        groups = int(c.a["num_groups"])
    statistics = ((x.shape[0], groups), "f32")
    return c.node(
        "group_norm",
        _affine(c, x),
        [(x.shape, "f32"), statistics, statistics],
        {"groups": groups, "eps": float(c.a["eps"])},
    ).value()


def norm_with_tensor_eps(c: RuleContext) -> Value:
    """As layer_norm, rms_norm or group_norm, op by op: their nodes have eps as a number."""
    name = c.call.op.split(".")[1]
    operands = _affine(c, c.value("input"))
    shape = rows = operands[0].shape
    if name == "group_norm":
        rows = (shape[0], int(c.a["num_groups"]), math.prod(shape[1:]) // int(c.a["num_groups"]))
        dims, affine = [2], (shape[1], *[1] * (len(shape) - 2))
    else:
        first = len(shape) - len(c.a["normalized_shape"])
        dims, affine = list(range(first, len(shape))), shape[first:]

    def body(x: Value, *rest: Value) -> Value:
        *learned, eps = rest
        y = c.reshape(x, rows)
        if name != "rms_norm":
            y = c.binary("sub", y, c.reduce("mean", y, dims, keepdim=True))
        spread = c.reduce("mean", c.binary("mul", y, y), dims, keepdim=True)
        y = c.binary("mul", y, c.same("rsqrt", c.binary("add", spread, eps)))
        y = c.reshape(y, shape)
        for op, operand in zip(("mul", "add"), learned, strict=False):
            y = c.binary(op, y, c.reshape(operand, affine))
        return y

    found: Value = c.kernel(name, operands, body, [c.value("eps")])
    return found


for _name in ("layer_norm", "rms_norm", "group_norm"):
    RULES[f"lockstep_capture.{_name}"] = norm_with_tensor_eps
