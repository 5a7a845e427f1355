"""Products, normalisations, pools, attention, recurrent layers, embeddings, dropout."""

from __future__ import annotations

import math
from typing import Any

import torch

from .builder import RuleContext, pair, rule
from .cumulative import CUMULATIVE
from .einsum import einsum_product
from .ir import Value
from .program import Ref
from .random_ops import RMS_NORM_EPS, random_site


@rule("linear")
def linear(c: RuleContext) -> Value:
    """at::linear: one addmm of matrices and of what lies row by row, else matmul, rounded, and then the bias."""
    x = c.value("input")
    operands = [x, c.value("weight")] + ([c.value("bias")] if c.has("bias") else [])
    separate = len(operands) == 3 and x.rank != 2 and c.is_scattered("input", range(x.rank))
    return c.node("linear", operands, c.out_shape(), {"separate_bias": True} if separate else {}).value()


@rule("matmul", "mm", "bmm", "dot", "mv")
def matmul(c: RuleContext) -> Value:
    second = next(name for name in ("other", "mat2", "tensor", "vec") if name in c.a)
    return product(c, c.value("self"), c.value(second))


def product(c: RuleContext, x: Value, y: Value) -> Value:
    """torch.matmul; a vector is a matrix with one row, or one column, for its product."""
    rows, columns = x.rank == 1, y.rank == 1
    x = c.reshape(x, (1, *x.shape)) if rows else x
    y = c.reshape(y, (*y.shape, 1)) if columns else y
    batch = tuple(torch.broadcast_shapes(x.shape[:-2], y.shape[:-2]))
    out = c.node("matmul", [x, y], (*batch, x.shape[-2], y.shape[-1])).value()
    shape = batch + (() if rows else (x.shape[-2],)) + (() if columns else (y.shape[-1],))
    return c.reshape(out, shape)


@rule("addmm", "baddbmm", "addmv", "addbmm")
def addmm(c: RuleContext) -> Value:
    """beta self + alpha (a @ b)."""
    names = next(pair_ for pair_ in (("mat1", "mat2"), ("batch1", "batch2"), ("mat", "vec")) if pair_[0] in c.a)
    if c.call.op.startswith("aten.addbmm"):
        raise c.unsupported("use torch.bmm and sum")
    out = product(c, c.value(names[0]), c.value(names[1]))
    alpha, beta = float(c.a["alpha"]), float(c.a["beta"])
    out = out if alpha == 1 else c.scalar("mul", out, alpha)
    if beta == 0:
        return out
    return c.binary("add", out, c.value("self"), {} if beta == 1 else {"alpha": beta})


@rule("einsum")
def einsum(c: RuleContext) -> Value:
    return einsum_product(c, c.a["equation"], c.values("tensors"))


def _same_padding(kernel: list[int], dilation: list[int]) -> list[int]:
    """top, bottom, left, right; the odd one comes last."""
    sides = []
    for extent, step in zip(kernel, dilation, strict=True):
        total = step * (extent - 1)
        sides += [total // 2, total - total // 2]
    return sides


@rule("conv2d", "conv1d", "convolution", "_convolution", "conv_transpose2d", "conv_transpose1d")
def convolution(c: RuleContext) -> Value:
    """One-dimensional ones are images of one row."""
    name = c.call.op
    x, w = c.value("input"), c.value("weight")
    transposed = bool(c.a.get("transposed")) or "conv_transpose" in name
    flat = w.rank == 3
    if w.rank not in (3, 4):
        raise c.unsupported("convolutions of one and two dimensions are replayed")
    batched = x.rank == w.rank
    shape = c.out_shape()
    if not batched:
        x = c.reshape(x, (1, *x.shape))
        shape = (1, *shape)

    def both(value: Any, neutral: int) -> list[int]:
        return [neutral, pair(value)[0]] if flat else pair(value)

    stride, dilation = both(c.a["stride"], 1), both(c.a["dilation"], 1)
    if flat:
        x, w = c.reshape(x, (*x.shape[:2], 1, x.shape[2])), c.reshape(w, (*w.shape[:2], 1, w.shape[2]))
        shape = (*shape[:2], 1, shape[2])
    padding = c.a["padding"]
    if padding == "same":
        sides = _same_padding(list(w.shape[2:]), dilation)
    elif padding == "valid":
        sides = [0, 0]
    else:
        sides = both(padding, 0)
    attrs = {"stride": stride, "padding": sides, "dilation": dilation, "groups": int(c.a["groups"])}
    if transposed:
        attrs["output_padding"] = both(c.a["output_padding"], 0)
    operands = [x, w] + ([c.value("bias")] if c.has("bias") else [])
    y = c.node("conv_transpose2d" if transposed else "conv2d", operands, shape, attrs).value()
    return c.reshape(y, c.out_shape())


@rule("batch_norm", "_batch_norm_impl_index", "cudnn_batch_norm", "native_batch_norm")
def batch_norm(c: RuleContext) -> Any:
    training, x = bool(c.a["training"]), c.value("input")
    mean = c.a["running_mean"]
    channel = (x.shape[1],)
    if not isinstance(mean, Ref):
        if not training:
            raise c.unsupported("evaluation without running statistics")
    affine = c.has("weight")
    operands = [x] + ([c.value("weight"), c.value("bias")] if affine else [])
    if isinstance(mean, Ref):
        operands += [c.value("running_mean"), c.value("running_var")]
    else:  # track_running_stats=False: the op's are constants, and their new values are dropped
        operands += [c.derive(f"running_{start}", torch.full, [channel, start]) for start in (0.0, 1.0)]
    cumulative = c.a["momentum"] == CUMULATIVE
    attrs: dict[str, Any] = {"training": training, "eps": float(c.a["eps"])}
    attrs |= {"cumulative": True} if cumulative and training else \
        {"momentum": 0.0 if cumulative else float(c.a["momentum"] or 0)}
    if not affine:
        attrs["affine"] = False
    outputs = [(x.shape, "f32")] + [(channel, "f32")] * 4
    keeps = training and isinstance(mean, Ref)
    count = c._normaliser.count_of_batch_norm(mean) if keeps else None
    if count is not None:
        operands.append(count)
        outputs.append(((), "i32"))
    node = c.node("batch_norm", operands, outputs, attrs)
    if keeps:
        c._normaliser.mutate_batch_norm(node, mean, c.a["running_var"], count)
    return node.value() if c.call.op.startswith("aten.batch_norm") else [node.value(slot) for slot in range(3)]


@rule("layer_norm", "native_layer_norm")
def layer_norm(c: RuleContext) -> Any:
    x, ndim = c.value("input"), len(c.a["normalized_shape"])
    statistics = (x.shape[:x.rank - ndim], "f32")
    node = c.node("layer_norm", _affine(c, x), [(x.shape, "f32"), statistics, statistics],
                  {"normalized_ndim": ndim, "eps": float(c.a["eps"])})
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
    outputs = [(x.shape, "f32"), (x.shape[:x.rank - ndim], "f32")]
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
    return c.node("group_norm", _affine(c, x), [(x.shape, "f32"), statistics, statistics],
                  {"groups": groups, "eps": float(c.a["eps"])}).value()


@rule("prelu")
def prelu(c: RuleContext) -> Value:
    x = c.value("self")
    return c.node("prelu", [x, c.value("weight")], x.shape).value()


@rule("embedding")
def embedding(c: RuleContext) -> Value:
    if c.a["sparse"]:
        raise c.unsupported("sparse gradients; nn.Embedding(sparse=False)")
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


def _pooled(c: RuleContext, op: str, attrs: dict[str, Any], indices: bool) -> Any:
    """Two- and one-dimensional pools, with or without a batch dimension."""
    x = c.value("self")
    spatial = 1 if "1d" in c.call.op else 2
    shape = c.out_shape(0) if "with_indices" in c.call.op else c.out_shape()
    lead = x.shape[:-spatial]
    lead = (1,) * (2 - len(lead)) + lead
    image = c.reshape(x, lead + ((1,) if spatial == 1 else ()) + x.shape[-spatial:])
    wide = lead + ((1,) if spatial == 1 else ()) + shape[-spatial:]
    outputs = [(wide, "f32")] + ([(wide, "i32")] if indices else [])
    y = c.reshape(c.node(op, [image], outputs, attrs).value(), shape)
    return [y, None] if "with_indices" in c.call.op else y


def _window(c: RuleContext, name: str, neutral: int) -> list[int]:
    value = c.a[name]
    return [neutral, pair(value)[0]] if "1d" in c.call.op else pair(value)


@rule("max_pool2d", "max_pool2d_with_indices", "max_pool1d", "max_pool1d_with_indices")
def max_pool(c: RuleContext) -> Any:
    kernel = _window(c, "kernel_size", 1)
    attrs = {"kernel": kernel, "stride": _window(c, "stride", 1) if c.a["stride"] else kernel,
             "padding": _window(c, "padding", 0), "dilation": _window(c, "dilation", 1),
             "ceil_mode": bool(c.a["ceil_mode"])}
    return _pooled(c, "max_pool2d", attrs, True)


@rule("avg_pool2d", "avg_pool1d")
def avg_pool(c: RuleContext) -> Any:
    kernel = _window(c, "kernel_size", 1)
    attrs = {"kernel": kernel, "stride": _window(c, "stride", 1) if c.a["stride"] else kernel,
             "padding": _window(c, "padding", 0), "ceil_mode": bool(c.a["ceil_mode"]),
             "count_include_pad": bool(c.a["count_include_pad"])}
    if c.a.get("divisor_override"):
        attrs["divisor_override"] = int(c.a["divisor_override"])
    return _pooled(c, "avg_pool2d", attrs, False)


@rule("adaptive_avg_pool2d", "adaptive_avg_pool1d", "_adaptive_avg_pool2d")
def adaptive_avg_pool(c: RuleContext) -> Any:
    return _pooled(c, "adaptive_avg_pool2d", {"size": _window(c, "output_size", 1)}, False)


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


@rule("lstm", "gru")
def recurrent(c: RuleContext) -> Any:
    """Outputs y, h_n (, c_n), and what the op saves for its gradient (docs: ops lstm, gru)."""
    lstm = c.call.op.startswith("aten.lstm")
    if "batch_first" not in c.a:
        raise c.unsupported("packed sequences; pad, and mask the loss")
    x = c.value("input")
    if x.rank != 3:
        raise c.unsupported("give the input a batch dimension")
    states = c.values("hx") if lstm else [c.value("hx")]
    weights = c.values("params")
    layers, directions = int(c.a["num_layers"]), 2 if c.a["bidirectional"] else 1
    hidden, state = states[-1].shape[-1], states[0].shape[-1]
    batch_first, bias = bool(c.a["batch_first"]), bool(c.a["has_biases"])
    attrs: dict[str, Any] = {"layers": layers, "bidirectional": directions == 2, "batch_first": batch_first,
                             "has_bias": bias}
    if bias and c.is_scattered("input", (1, 0, 2) if batch_first else (0, 1, 2)):
        attrs["separate_bias"] = True  # as in linear, where a cell's products are ATen's
    site = random_site(c.call)
    time, batch = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
    width, cells = directions * state, layers * directions
    projects = lstm and state != hidden
    if projects:
        attrs["proj_size"] = state
    saved = [((cells, time, batch, 4 * hidden), "f32")]
    if lstm:
        saved.append(((cells, time, batch, hidden), "f32"))
    saved.append(((cells, time, batch, state), "f32"))
    if projects:
        saved.append(((cells, time, batch, hidden), "f32"))
    if site is not None:
        attrs |= {"dropout": site.p, "training": True}
        between = (layers - 1, time, batch, width)
        saved += [(between, "i32"), (between, "f32")]
    outputs = [(c.out_shape(0), "f32"), *((s.shape, "f32") for s in states), *saved]
    node = c.node("lstm" if lstm else "gru", [x, *states, *weights], outputs, attrs)
    return [node.value(slot) for slot in range(1 + len(states))]


@rule("lstm_cell")
def lstm_cell(c: RuleContext) -> Any:
    """Gates i, f, g, o: c = f c + i g, h = o tanh(c)."""
    hidden, cell = c.values("hx")
    x = c.value("input")

    def gates(value: Value, kind: str) -> Value:
        bias = [c.value(f"b_{kind}")] if c.has(f"b_{kind}") else []
        weight = c.value(f"w_{kind}")
        return c.node("linear", [value, weight, *bias], (*value.shape[:-1], weight.shape[0])).value()

    total = c.binary("add", gates(x, "ih"), gates(hidden, "hh"))
    size = cell.shape[-1]
    part = [c.slice(total, total.rank - 1, k * size, (k + 1) * size) for k in range(4)]
    i, f, o = (c.same("sigmoid", part[k]) for k in (0, 1, 3))
    new = c.binary("add", c.binary("mul", f, cell), c.binary("mul", i, c.same("tanh", part[2])))
    return [c.binary("mul", o, c.same("tanh", new)), new]
