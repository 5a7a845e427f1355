"""Runs Lockstep's graph JSON in PyTorch, in FP64: what a capture means, read from the file alone.

Written from docs/graph-json.md and the ops' help texts, not from the package that writes captures, so that the
two can disagree.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F

FUNCTIONS = {
    "neg": torch.neg,
    "abs": torch.abs,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "exp": torch.exp,
    "log": torch.log,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "relu": F.relu,
    "detach": torch.detach,
    "cast": lambda x, dtype: x,
    "cast_like": lambda x, like, limit=None: x if limit is None else x * getattr(torch.finfo(like.dtype), limit),
    "composed_operand": lambda x, of, dtype=None, own=False: x,
    "composed_result": lambda x, *operands, of: x,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    **{
        name: getattr(torch, name)
        for name in (
            "erf",
            "expm1",
            "log1p",
            "exp2",
            "sin",
            "cos",
            "tan",
            "asin",
            "acos",
            "atan",
            "atan2",
            "sinh",
            "cosh",
            "asinh",
            "acosh",
            "atanh",
            "lgamma",
            "digamma",
            "floor",
            "ceil",
            "round",
            "trunc",
        )
    },
    "gelu": lambda x, approximate="none": F.gelu(x, approximate=approximate),
    "leaky_relu": lambda x, negative_slope=0.01: F.leaky_relu(x, negative_slope),
    "elu": lambda x, alpha=1.0: F.elu(x, alpha),
    "softplus": lambda x, beta=1.0, threshold=20.0: F.softplus(x, beta, threshold),
    "clamp": lambda x, min=-math.inf, max=math.inf: torch.clamp(x, min, max),
    "prelu": F.prelu,
    "linear": lambda x, w, b=None, separate_bias=False: F.linear(x, w, b),
    "matmul": lambda x, y, of="": torch.matmul(x, y),
    "addmm": lambda a, b, c, alpha=1, beta=1: beta * c + alpha * (a @ b),
    "mul": lambda x, y=None, scalar=None: x * (scalar if y is None else y),
    "add": lambda x, y=None, scalar=None, alpha=1: x + alpha * (scalar if y is None else y),
    "sub": lambda x, y=None, scalar=None: x - (scalar if y is None else y),
    "div": lambda x, y=None, scalar=None: x / (scalar if y is None else y),
    "pow": lambda x, y=None, exponent=None: x ** (exponent if y is None else y),
    "where": lambda condition, x, y: torch.where(condition != 0, x, y),
    "masked_fill": lambda x, mask, value: x.masked_fill(mask != 0, value),
    "greater": lambda x, y=None, scalar=None: (x > (scalar if y is None else y)).long(),
    "greater_equal": lambda x, y=None, scalar=None: (x >= (scalar if y is None else y)).long(),
    "less": lambda x, y=None, scalar=None: (x < (scalar if y is None else y)).long(),
    "less_equal": lambda x, y=None, scalar=None: (x <= (scalar if y is None else y)).long(),
    "equal": lambda x, y=None, scalar=None: (x == (scalar if y is None else y)).long(),
    "not_equal": lambda x, y=None, scalar=None: (x != (scalar if y is None else y)).long(),
    "softmax": lambda x, dim: x.softmax(dim),
    "log_softmax": lambda x, dim: x.log_softmax(dim),
    "sum": lambda x, dims=None, keepdim=False: x.sum(dims or tuple(range(x.dim())), keepdim),
    "mean": lambda x, dims=None, keepdim=False: x.mean(dims or tuple(range(x.dim())), keepdim),
    "amax": lambda x, dims=None, keepdim=False: x.amax(dims or tuple(range(x.dim())), keepdim),
    "logsumexp": lambda x, dims=None, keepdim=False: x.logsumexp(dims or tuple(range(x.dim())), keepdim),
    "max_dim": lambda x, dim=-1, keepdim=False: tuple(x.max(dim, keepdim)),
    "cumsum": lambda x, dim: x.cumsum(dim),
    "reshape": lambda x, shape: x.reshape(shape),
    "permute": lambda x, dims: x.permute(dims),
    "expand": lambda x, shape: x.expand(shape),
    "slice": lambda x, dim, start, end, step=1: x[(slice(None),) * dim + (slice(start, end, step),)],
    "cat": lambda *x, dim=0: torch.cat(x, dim),
    "pad": lambda x, pads, value=0.0: F.pad(x, pads, value=value),
    "gather": lambda x, index, dim: x.gather(dim, index),
    "index_select": lambda x, index, dim=0, gradient_own_type="": x.index_select(dim, index),
    "scatter_add": lambda src, index, dim, shape, own_type="": src.new_zeros(shape).scatter_add(dim, index.long(), src),
    "index_add": lambda src, index, dim, shape, own_type="": src.new_zeros(shape).index_add(dim, index, src),
    "scatter_amax": lambda src, index, dim, shape: src.new_zeros(shape).scatter_reduce(
        dim, index.long(), src, "amax", include_self=False
    ),
    "ctc_loss": lambda x, t, times, labels, blank=0, zero_infinity=False: F.ctc_loss(
        x, t, times, labels, blank, "none", zero_infinity
    ),
    "embedding": lambda w, index, padding_idx=None: F.embedding(index, w, padding_idx),
    "pixel_shuffle": lambda x, factor: F.pixel_shuffle(x, factor),
    "pixel_unshuffle": lambda x, factor: F.pixel_unshuffle(x, factor),
    "avg_pool2d": lambda x, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override=None: F.avg_pool2d(
        x, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
    ),
    "adaptive_avg_pool2d": lambda x, size: F.adaptive_avg_pool2d(x, size),
    "upsample_nearest2d": lambda x, size=None, scale=None: F.interpolate(x, size, scale),
    "upsample_bilinear2d": lambda x, size=None, scale=None, align_corners=False: F.interpolate(
        x, size, scale, mode="bilinear", align_corners=align_corners
    ),
    "decision": lambda *operands, **by: operands[-1],
    "mse_loss": lambda x, t, reduction: F.mse_loss(x, t, reduction=reduction),
    "l1_loss": lambda x, t, reduction: F.l1_loss(x, t, reduction=reduction),
    "smooth_l1_loss": lambda x, t, reduction, beta: F.smooth_l1_loss(x, t, reduction=reduction, beta=beta),
    "huber_loss": lambda x, t, reduction, delta: F.huber_loss(x, t, reduction=reduction, delta=delta),
    "kl_div": lambda x, t, reduction, log_target: F.kl_div(x, t, reduction=reduction, log_target=log_target),
    "bce_with_logits": lambda x, t, w=None, p=None, reduction="mean": F.binary_cross_entropy_with_logits(
        x, t, w, pos_weight=p, reduction=reduction
    ),
    "cross_entropy": lambda x, t, w=None, reduction="mean", ignore_index=-100, label_smoothing=0.0: F.cross_entropy(
        x, t, w, reduction=reduction, ignore_index=ignore_index, label_smoothing=label_smoothing
    ),
    "conv_transpose2d": lambda x, w, b=None, stride=1, padding=0, dilation=1, groups=1, output_padding=0: (
        F.conv_transpose2d(x, w, b, stride, padding, output_padding, groups, dilation)
    ),
}


def conv2d(x, w, b=None, stride=1, padding=(0, 0), dilation=1, groups=1):
    if len(padding) == 4:
        top, bottom, left, right = padding
        x, padding = F.pad(x, (left, right, top, bottom)), 0
    return F.conv2d(x, w, b, stride, padding, dilation, groups)


def grid_sample(x, grid, mode="bilinear", padding="zeros", align_corners=False, in_pixels=False):
    if in_pixels:
        grid = (2 * grid + 1) / torch.tensor([x.shape[3], x.shape[2]]) - 1
    return F.grid_sample(x, grid, mode, padding, align_corners)


def roi_align(x, boxes, size, scale, sampling, aligned):
    """Box by box; a side's reading is a matrix (bins, extent), the mean over its places of their weights."""

    def side(start, end, bins, extent):
        length = end - start if aligned else max(end - start, 1.0)
        count = sampling or math.ceil(length / bins)
        places = start + (torch.arange(bins * count, dtype=x.dtype) + 0.5) * length / (bins * count)
        inside = (places >= -1) & (places <= extent)
        apart = (places.clamp(0, extent - 1)[:, None] - torch.arange(extent)).abs()
        weights = (1 - apart).clamp(min=0) * inside[:, None]
        return weights.reshape(bins, count, extent).mean(1)

    found = []
    for n, *corners in boxes.tolist():
        left, top, right, bottom = (corner * scale - 0.5 * aligned for corner in corners)
        rows, columns = side(top, bottom, size[0], x.shape[2]), side(left, right, size[1], x.shape[3])
        found.append(rows @ x[int(n)] @ columns.T)
    return torch.stack(found)


def statistics(x, dims, eps):
    mean = x.mean(dims, keepdim=True)
    return mean, (x.var(dims, unbiased=False, keepdim=True) + eps).rsqrt()


def layer_norm(x, w=None, b=None, normalized_ndim=1, eps=1e-5):
    return F.layer_norm(x, x.shape[x.dim() - normalized_ndim :], w, b, eps)


def rms_norm(x, w=None, normalized_ndim=1, eps=1e-5):
    return F.rms_norm(x, x.shape[x.dim() - normalized_ndim :], w, eps)


def max_pool2d(x, kernel, stride, padding, dilation, ceil_mode):
    return F.max_pool2d(x, kernel, stride, padding, dilation, ceil_mode, return_indices=True)


def var_mean(x, dims=None, keepdim=False, correction=1.0):
    return torch.var_mean(x, dims or tuple(range(x.dim())), correction=correction, keepdim=keepdim)


def batch_norm(x, *rest, training, eps, momentum=0.1, affine=True, cumulative=False):
    """y, then the new running mean, variance, the batch's mean and inverse deviation, the count."""
    rest = list(rest)
    w, b = (rest.pop(0), rest.pop(0)) if affine else (None, None)
    mean, var = rest[0].detach().clone(), rest[1].detach().clone()
    momentum = 1 / (float(rest[2]) + 1) if cumulative else momentum
    y = F.batch_norm(x, mean, var, w, b, training, momentum, eps)
    return y, mean, var, None, None, rest[2] + 1 if len(rest) > 2 else None


def dropout(x, mask, p, training):
    return x * mask.to(x.dtype) / (1 - p), mask


def sdpa(q, k, v, *rest, scale, model, causal=False, gqa=False, dropout_p=0.0):
    rest = list(rest)
    keep = rest.pop() if dropout_p else None
    if gqa:
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    scores = scale * (q @ k.transpose(-1, -2))
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    if rest:
        mask = rest[0]
        scores = scores + mask if mask.dtype.is_floating_point else scores.masked_fill(mask == 0, -math.inf)
    weights = scores.softmax(-1)
    return (weights if keep is None else weights * keep / (1 - dropout_p)) @ v, weights


def recurrent(
    kind, x, *operands, layers, bidirectional, batch_first, has_bias, dropout=0.0, training=False, proj_size=0
):
    operands = list(operands)
    masks = operands.pop() if dropout else None
    states = [operands.pop(0) for _ in range(2 if kind == "lstm" else 1)]
    directions = 2 if bidirectional else 1
    per_layer = len(operands) // layers
    x = x.transpose(0, 1) if batch_first else x
    ends = [[] for _ in states]
    for layer in range(layers):
        weights = operands[layer * per_layer : (layer + 1) * per_layer]
        own = [s[layer * directions : (layer + 1) * directions] for s in states]
        common = (weights, has_bias, 1, 0.0, False, bidirectional, False)
        x, *last = torch.lstm(x, own, *common) if kind == "lstm" else torch.gru(x, own[0], *common)
        for end, state in zip(ends, last):
            end.append(state)
        if masks is not None and layer + 1 < layers:
            x = x * masks[layer].to(x.dtype) / (1 - dropout)
    return (x.transpose(0, 1) if batch_first else x, *map(torch.cat, ends))


FUNCTIONS |= {
    "conv2d": conv2d,
    "grid_sample": grid_sample,
    "roi_align": roi_align,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "max_pool2d": max_pool2d,
    "var_mean": var_mean,
    "batch_norm": batch_norm,
    "dropout": dropout,
    "sdpa": sdpa,
    "group_norm": lambda x, w=None, b=None, groups=1, eps=1e-5: F.group_norm(x, groups, w, b, eps),
    "lstm": lambda *a, **k: recurrent("lstm", *a, **k),
    "gru": lambda *a, **k: recurrent("gru", *a, **k),
}


class Recorded(torch.autograd.Function):
    """custom_gradient: its results, and the backward pass that the node carries."""

    @staticmethod
    def forward(ctx, node, *operands):
        ctx.node, ctx.operands = node, operands
        return tuple(operand.detach().clone() for operand in operands[: node["attrs"]["results"]])

    @staticmethod
    def backward(ctx, *gradients):
        values = {f"x{i}": operand for i, operand in enumerate(ctx.operands)}
        values |= {f"dy{k}": dy for k, dy in enumerate(gradients)}
        evaluate(ctx.node["backward"]["nodes"], values, {})
        return None, *(values[name] if name else None for name in ctx.node["backward"]["gradients"])


FLOATS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def number(value):
    return FLOATS.get(value, value) if isinstance(value, str) else value


# Where something is rounded in low precision is nothing to FP64.
ROUNDING = {"separate_bias", "saturate"}


def run(graph, values, masks):
    """The loss, and all values. values: of inputs, params, buffers, constants by id; masks: by node id."""
    values = dict(values)
    evaluate(graph["nodes"], values, masks)
    return values[graph["loss"]], values


def evaluate(nodes, values, masks):
    """Adds the values of the nodes."""
    for node in nodes:
        operands = [values[name] for name in node["in"]]
        if node["id"] in masks:
            operands.append(torch.as_tensor(masks[node["id"]]))
        attrs = {key: number(value) for key, value in node["attrs"].items() if key not in ROUNDING}
        recorded = node["op"] == "custom_gradient"
        result = Recorded.apply(node, *operands) if recorded else FUNCTIONS[node["op"]](*operands, **attrs)
        results = result if isinstance(result, tuple) else (result,)
        for slot, (one, out) in enumerate(zip(results, node["out"])):
            if one is not None:
                assert list(one.shape) == out["shape"], (
                    f"{node['id']} ({node['op']}) output {slot}: {list(one.shape)}, the graph says {out['shape']}"
                )
                values[node["id"] if slot == 0 else f"{node['id']}.{slot}"] = one


def unpacked(dataset):
    """Packed bits with attribute shape."""
    shape = tuple(int(extent) for extent in dataset.attrs["shape"])
    return np.unpackbits(dataset[()], count=int(np.prod(shape))).reshape(shape).astype(np.int64)
