"""Losses, products, attention and recurrent layers, one by one, against PyTorch: values, gradients.

FP64 to 1e-12, FP32 to 2e-6 (values) and 1e-5 (gradients), by the norm of the difference.
"""

import numpy as np
import pytest
import torch
from op_tool import OpError, compare_with_torch, distance, random_arrays, run_op
from torch.nn.attention import SDPBackend, sdpa_kernel
from torchvision_ops import torchvision_ops

F = torch.nn.functional


def run_forward(op, inputs, attrs, like, **options):
    """The outputs alone; the tool wants a gradient for output 0, of the shape of `like`."""
    return run_op(op, inputs, attrs, np.zeros(np.shape(like)), **options)[0]


def labels(seed, shape, classes, ignored=()):
    target = np.random.default_rng(seed).integers(0, classes, shape)
    for place in ignored:
        target.flat[place] = -100
    return target


# --- losses ---


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(9, 5), (3, 4, 5, 7)])
def test_cross_entropy(reduction, smoothing, weighted, shape):
    (x,) = random_arrays(1, shape)
    target = labels(2, (shape[0], *shape[2:]), shape[1], ignored=(1, 4))
    operands = [3 * x, target]
    if weighted:
        operands.append(np.linspace(0.5, 2, shape[1]))

    def reference(x, t, w=None):
        return F.cross_entropy(
            x, t, weight=None if w is None else w.detach(), reduction=reduction, label_smoothing=smoothing
        )

    attrs = {"reduction": reduction, "label_smoothing": smoothing}
    print(compare_with_torch("cross_entropy", reference, operands, attrs, constants=[2] if weighted else []))


def test_cross_entropy_without_targets_is_nan():
    (x,) = random_arrays(3, (4, 3))
    (y,) = run_forward("cross_entropy", [x, np.full(4, -100)], {}, 0)
    assert np.isnan(y)
    attrs = {"ignore_index": 7, "reduction": "sum"}
    (y,) = run_forward("cross_entropy", [x, np.full(4, 7)], attrs, 0)
    assert y == 0


def test_cross_entropy_refuses_targets_out_of_range():
    (x,) = random_arrays(3, (4, 3))
    with pytest.raises(OpError, match=r"target 2 is 3, must be in \[0, 3\) or the ignore_index"):
        run_forward("cross_entropy", [x, np.array([0, 1, 3, 2])], {}, 0)


SIMPLE = {
    "mse_loss": (F.mse_loss, {}),
    "l1_loss": (F.l1_loss, {}),
    "smooth_l1_loss": (F.smooth_l1_loss, {"beta": 0.7}),
    "huber_loss": (F.huber_loss, {"delta": 0.6}),
}


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("op", SIMPLE)
def test_losses_of_differences(op, reduction):
    function, attrs = SIMPLE[op]
    x, t = random_arrays(4, (6, 5), (6, 5))
    x[0, 0] = t[0, 0]  # the kink

    def reference(x, t):
        return function(x, t, reduction=reduction, **attrs)

    print(compare_with_torch(op, reference, [x, t], {"reduction": reduction, **attrs}))


def test_smooth_l1_without_a_square_part():
    x, t = random_arrays(5, (6, 5), (6, 5))
    print(compare_with_torch("smooth_l1_loss", lambda x, t: F.smooth_l1_loss(x, t, beta=0.0), [x, t], {"beta": 0.0}))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none", "batchmean"])
@pytest.mark.parametrize("log_target", [False, True])
def test_kl_div(reduction, log_target):
    x, t = random_arrays(6, (6, 5), (6, 5))
    x = torch.log_softmax(torch.tensor(x), -1).numpy()
    t = torch.log_softmax(torch.tensor(t), -1).numpy() if log_target else torch.softmax(torch.tensor(t), -1).numpy()
    x, t = x.astype(np.float32).astype(np.float64), t.astype(np.float32).astype(np.float64)

    def reference(x, t):
        return F.kl_div(x, t, reduction=reduction, log_target=log_target)

    print(compare_with_torch("kl_div", reference, [x, t], {"reduction": reduction, "log_target": log_target}))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weights", [0, 1, 2])
def test_bce_with_logits(reduction, weights):
    x, t = random_arrays(7, (6, 5), (6, 5))
    x, t = 8 * x, 1 / (1 + np.exp(-t))
    t = t.astype(np.float32).astype(np.float64)
    more = [np.linspace(0.5, 1.5, 5).astype(np.float32), np.linspace(0.25, 4, 5).astype(np.float32)]

    def reference(x, t, weight=None, pos_weight=None):
        return F.binary_cross_entropy_with_logits(
            x,
            t,
            None if weight is None else weight.detach(),
            pos_weight=None if pos_weight is None else pos_weight.detach(),
            reduction=reduction,
        )

    print(
        compare_with_torch(
            "bce_with_logits", reference, [x, t, *more[:weights]], {"reduction": reduction}, constants=[2, 3][:weights]
        )
    )


# --- products ---


@pytest.mark.parametrize(
    "a,b",
    [
        ((2, 3, 4), (2, 4, 5)),
        ((2, 3, 4), (4, 5)),
        ((3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((1, 3, 4), (6, 4, 2)),
        ((7, 3, 4), (1, 4, 2)),
    ],
)
@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_matmul_broadcasts(a, b, ta, tb):
    def turned(shape, turn):
        return (*shape[:-2], shape[-1], shape[-2]) if turn else shape

    x, y = random_arrays(8, turned(a, ta), turned(b, tb))

    def reference(x, y):
        return torch.matmul(x.mT if ta else x, y.mT if tb else y)

    print(compare_with_torch("matmul", reference, [x, y], {"transpose_a": ta, "transpose_b": tb}))


@pytest.mark.parametrize("separate", [False, True])
def test_linear_rounds_before_a_separate_bias(separate):
    """at::linear under BF16 autocast: of a transposed batch the product is rounded before the bias joins it."""
    x, w, b = (a.astype(np.float32) for a in random_arrays(16, (6, 12, 32), (24, 32), (24,)))
    given = torch.tensor(x).transpose(0, 1) if separate else torch.tensor(x.swapaxes(0, 1).copy())
    with torch.autocast("cpu", torch.bfloat16):
        theirs = F.linear(given, torch.tensor(w), torch.tensor(b)).float().numpy()
    for attrs in ({}, {"separate_bias": True}):
        (ours,) = run_forward(
            "linear",
            [given.numpy(), w, b],
            attrs,
            np.zeros_like(theirs),
            dtype="fp32",
            policy="torch-autocast-bf16-cpu",
        )
        share = (ours == theirs).mean()
        print(f"separate {separate}, {attrs}: share of torch's bits {share:.4f}")
        # Another order of the FP32 sums of 32 terms flips a rounding to 8 bits in some sqrt(32) 2^(8-24) of all
        # cases, 1e-4; two roundings instead of one change a quarter of the elements.
        assert share > 0.99 if bool(attrs) == separate else share < 0.9


# --- attention ---

QKV = ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6))


def attention(q, k, v, mask=None, **options):
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)


@pytest.mark.parametrize("model", ["math", "math_reduced", "flash"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_sdpa(model, causal, scale):
    attrs = {"model": model, "causal": causal}
    if scale is not None:
        attrs["scale"] = scale
    print(
        compare_with_torch(
            "sdpa", lambda q, k, v: attention(q, k, v, is_causal=causal, scale=scale), random_arrays(9, *QKV), attrs
        )
    )


@pytest.mark.parametrize("model", ["math", "math_reduced", "flash"])
def test_sdpa_masks(model):
    q, k, v = random_arrays(10, *QKV)
    keep = np.random.default_rng(11).random((2, 1, 5, 7)) < 0.6
    keep[0, 0, 1] = False  # a row without keys: zeros
    print(compare_with_torch("sdpa", lambda q, k, v, m: attention(q, k, v, m), [q, k, v, keep], {"model": model}))
    added = np.where(keep, np.random.default_rng(12).random(keep.shape), -np.inf).astype(np.float32)
    print(
        compare_with_torch(
            "sdpa", lambda q, k, v, m: attention(q, k, v, m.detach()), [q, k, v, added], {"model": model}, constants=[3]
        )
    )


@pytest.mark.parametrize("model", ["math", "math_reduced", "flash"])
def test_sdpa_dropout_is_its_mask(model):
    q, k, v = random_arrays(13, *QKV)
    p = 0.25
    (dy,) = random_arrays(14, (2, 3, 5, 6))
    attrs = {"model": model, "dropout_p": p}
    (y, probabilities, mask), gradients = run_op("sdpa", [q, k, v], attrs, dy)
    tensors = [torch.tensor(x, requires_grad=True) for x in (q, k, v)]
    weights = torch.softmax(tensors[0] @ tensors[1].mT / 2, -1)
    expected = (weights * torch.tensor(mask) / (1 - p)) @ tensors[2]
    expected.backward(torch.tensor(dy))
    assert distance(probabilities, weights.detach().numpy()) <= 1e-12
    assert distance(y, expected.detach().numpy()) <= 1e-12
    for ours, tensor in zip(gradients, tensors):
        assert distance(ours, tensor.grad.numpy()) <= 1e-12
    # 210 draws; 5 sigma of sqrt(210 p (1 - p)) = 6.3
    assert abs((1 - mask).sum() - 210 * p) <= 5 * 6.3
    other = run_forward("sdpa", [q, k, v], attrs, dy, step=1)[2]
    assert (mask != other).any()
    assert len(run_forward("sdpa", [q, k, v], {**attrs, "training": False}, dy)) == 2


GROUPED = ((2, 6, 5, 4), (2, 3, 7, 4), (2, 2, 7, 6))


@pytest.mark.parametrize("model", ["math", "math_reduced", "flash"])
def test_sdpa_with_shared_heads(model):
    print(
        compare_with_torch(
            "sdpa",
            lambda q, k, v: attention(q, k, v, enable_gqa=True),
            random_arrays(20, *GROUPED),
            {"model": model, "gqa": True},
        )
    )
    with pytest.raises(OpError, match="attribute 'gqa' lets heads share"):
        run_forward("sdpa", random_arrays(20, *GROUPED), {}, np.zeros((2, 6, 5, 6)))


# Another order of the FP32 sums may flip single roundings, each by an ulp, 2 u of the format.
LOW = {"torch-autocast-bf16": (torch.bfloat16, 2**-7), "torch-autocast-fp16": (torch.float16, 2**-10)}


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("policy", LOW)
def test_sdpa_rounds_where_torch_rounds(policy, reduced):
    """math: torch's math backend as it comes; math_reduced: with its reduced-precision flag set."""
    kind, ulp = LOW[policy]
    q, k, v = (torch.tensor(x).to(kind) for x in random_arrays(15, *QKV))
    (dy,) = (torch.tensor(x).to(kind) for x in random_arrays(21, (2, 3, 5, 6)))
    tensors = [x.requires_grad_(True) for x in (q, k, v)]
    flag = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    assert not flag, "torch's default has changed: 'math' models it as off"
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(reduced)
    try:
        expected = attention(*tensors)
        expected.backward(dy)
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(flag)
    given = [x.detach().float().numpy() for x in tensors]
    attrs = {"model": "math_reduced"} if reduced else {}
    (y, probabilities), gradients = run_op("sdpa", given, attrs, dy.float().numpy(), dtype="fp32", policy=policy)
    weights = torch.softmax((tensors[0].detach().float() @ tensors[1].detach().float().mT) / 2, -1)
    if reduced:
        root = 4**-0.25
        scores = ((q * root).float() @ (k * root).float().mT).to(kind)
        weights = torch.softmax(scores.float(), -1).to(kind).float()
        assert (probabilities == weights.detach().numpy()).mean() > 0.95
    else:  # not rounded on the way
        assert distance(probabilities, weights.numpy()) <= 2e-6
    pairs = [(y, expected.detach())] + [(g, t.grad) for g, t in zip(gradients, tensors)]
    shares = []
    for ours, theirs in pairs:
        theirs = theirs.float().numpy()
        shares.append((ours == theirs).mean())
        assert np.abs(ours - theirs).max() <= ulp * np.abs(theirs).max()
    print(f"{policy}, reduced {reduced}: shares of torch's bits in y, dq, dk, dv:", shares)
    assert shares[0] > 0.95
    assert min(shares) > 0.95


# --- batch norm ---


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("momentum", [0.3, None])
def test_batch_norm(momentum, affine, training):
    channels = 3
    x, w, b, mean = random_arrays(22, (4, channels, 2, 5), *[(channels,)] * 3)
    var = np.linspace(0.5, 2, channels).astype(np.float32)
    before = 6

    def reference(x, *rest):
        module = torch.nn.BatchNorm2d(channels, momentum=momentum, affine=affine).to(x.dtype)
        module.train(training)
        running_mean, running_var = rest[-3:-1]
        module.load_state_dict(
            {
                **module.state_dict(),
                "running_mean": running_mean.detach(),
                "running_var": running_var.detach(),
                "num_batches_tracked": torch.tensor(before),
            }
        )
        y = torch.func.functional_call(module, dict(zip(["weight", "bias"], rest[:-3])), (x,))
        used = [x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)]
        if not training:
            used = [running_mean, running_var]
        return (
            y,
            module.running_mean,
            module.running_var,
            used[0],
            (used[1] + 1e-5) ** -0.5,
            module.num_batches_tracked,
        )

    attrs = {"training": training, "affine": affine}
    if momentum is None:
        attrs["cumulative"] = True
    else:
        attrs["momentum"] = momentum
    operands = [x, *([w, b] if affine else []), mean, var, np.array(before)]
    buffers = [len(operands) - 3, len(operands) - 2]
    print(compare_with_torch("batch_norm", reference, operands, attrs, constants=buffers))
    count = run_forward("batch_norm", operands, attrs, x, constants=buffers)[5]
    assert count == before + training


def test_batch_norm_averages_all_batches():
    """momentum=None over several batches: the counter and the statistics go round, as in torch."""
    module = torch.nn.BatchNorm1d(3, momentum=None).double()
    mean, var, count = np.zeros(3), np.ones(3), np.array(0)
    ones = [np.ones(3), np.zeros(3)]
    for batch in random_arrays(23, (5, 3), (7, 3), (4, 3)):
        module(torch.tensor(batch))
        _, mean, var, _, _, count = run_forward(
            "batch_norm", [batch, *ones, mean, var, count], {"cumulative": True}, batch, constants=[3, 4]
        )
        assert count == module.num_batches_tracked.item()
        assert distance(mean, module.running_mean.numpy()) <= 1e-12
        assert distance(var, module.running_var.numpy()) <= 1e-12


# --- recurrent layers ---


def recurrent(kind, layers, bidirectional, bias, seed=16, n=3, t=4, c=5, h=2):
    torch.manual_seed(seed)
    module = getattr(torch.nn, kind)(c, h, layers, bias=bias, bidirectional=bidirectional, batch_first=True)
    states = 2 if kind == "LSTM" else 1
    cells = layers * (2 if bidirectional else 1)
    operands = random_arrays(seed, (n, t, c), *[(cells, n, h)] * states)
    weights = [p.detach().double().numpy() for p in module.parameters()]
    attrs = {"layers": layers, "bidirectional": bidirectional, "has_bias": bias}
    return module, operands, weights, attrs, states


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize(
    "layers,bidirectional,bias", [(1, False, True), (2, False, False), (2, True, True), (3, True, False)]
)
def test_recurrent(kind, layers, bidirectional, bias):
    module, operands, weights, attrs, states = recurrent(kind, layers, bidirectional, bias)
    names = [name for name, _ in module.named_parameters()]

    def reference(x, *rest):
        start, values = rest[:states], rest[states:]
        start = tuple(start) if states == 2 else start[0]
        twin = module.to(x.dtype)
        y, end = torch.func.functional_call(twin, dict(zip(names, values)), (x, start))
        return (y, *end) if states == 2 else (y, end)

    op = kind.lower()
    print(compare_with_torch(op, reference, [*operands, *weights], attrs, float_outputs=1 + states))

    def time_first(x, *rest):
        y, *end = reference(x.transpose(0, 1), *rest)
        return (y.transpose(0, 1), *end)

    operands[0] = operands[0].transpose(1, 0, 2)
    print(
        compare_with_torch(
            op, time_first, [*operands, *weights], {**attrs, "batch_first": False}, float_outputs=1 + states
        )
    )


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_dropout_is_its_mask(kind):
    module, operands, weights, attrs, states = recurrent(kind, 2, True, True, n=4, t=6, h=3)
    p = 0.3
    (dy,) = random_arrays(17, (4, 6, 6))
    outputs, gradients = run_op(kind.lower(), [*operands, *weights], {**attrs, "dropout": p}, dy)
    mask = outputs[-2][0]  # (T,N,2H)
    # 144 draws; 5 sigma of sqrt(144 p (1 - p)) = 5.5
    assert mask.shape == (6, 4, 6) and abs((1 - mask).sum() - mask.size * p) <= 5 * 5.5

    tensors = [torch.tensor(x, requires_grad=True) for x in [*operands, *weights]]
    x, start = tensors[0], tensors[1 : 1 + states]
    values = tensors[1 + states :]
    for layer in range(2):
        single = getattr(torch.nn, kind)(x.shape[-1], 3, 1, bidirectional=True, batch_first=True)
        mine = values[layer * 8 : (layer + 1) * 8]
        state = [s[2 * layer : 2 * layer + 2] for s in start]
        names = [name for name, _ in single.named_parameters()]
        x, _ = torch.func.functional_call(
            single.double(), dict(zip(names, mine)), (x, tuple(state) if states == 2 else state[0])
        )
        if layer == 0:
            x = x * torch.tensor(mask).transpose(0, 1) / (1 - p)
    x.backward(torch.tensor(dy))
    assert distance(outputs[0], x.detach().numpy()) <= 1e-12
    for ours, tensor in zip(gradients, tensors):
        assert distance(ours, tensor.grad.numpy()) <= 1e-12
    without = run_forward(kind.lower(), [*operands, *weights], {**attrs, "dropout": p, "training": False}, dy)
    assert len(without) == len(outputs) - 2


@pytest.mark.parametrize("layers,bidirectional,bias", [(1, False, True), (2, True, True), (3, False, False)])
def test_projected_lstm(layers, bidirectional, bias):
    n, t, c, h, p = 3, 4, 5, 6, 2
    torch.manual_seed(24)
    module = torch.nn.LSTM(c, h, layers, bias=bias, bidirectional=bidirectional, batch_first=True, proj_size=p)
    cells = layers * (2 if bidirectional else 1)
    operands = random_arrays(24, (n, t, c), (cells, n, p), (cells, n, h))
    weights = [w.detach().double().numpy() for w in module.parameters()]
    names = [name for name, _ in module.named_parameters()]
    attrs = {"layers": layers, "bidirectional": bidirectional, "has_bias": bias, "proj_size": p}

    def reference(x, h0, c0, *values):
        y, end = torch.func.functional_call(module.to(x.dtype), dict(zip(names, values)), (x, (h0, c0)))
        return (y, *end)

    print(compare_with_torch("lstm", reference, [*operands, *weights], attrs, float_outputs=3))


def test_recurrent_refuses_wrong_projections():
    _, operands, weights, attrs, _ = recurrent("LSTM", 1, False, True)
    with pytest.raises(OpError, match="has 7 operands, must have 8"):
        run_forward("lstm", [*operands, *weights], {**attrs, "proj_size": 1}, 0)
    _, operands, weights, attrs, _ = recurrent("GRU", 1, False, True)
    with pytest.raises(OpError, match="attribute 'proj_size' is 1, must be 0"):
        run_forward("gru", [*operands, *weights], {**attrs, "proj_size": 1}, 0)


# --- prelu, weight norm ---


@pytest.mark.parametrize("shape,slopes", [((4, 3), 3), ((2, 3, 4, 5), 3), ((2, 3, 4), 1), ((7,), 1)])
def test_prelu(shape, slopes):
    x, w = random_arrays(18, shape, (slopes,))
    x.flat[0] = 0
    print(compare_with_torch("prelu", F.prelu, [x, w]))


def test_weight_norm_from_ops():
    """w = g v / |v|, the norm over all dimensions but the first, as torch's weight_norm forms it."""
    v, g, dw = random_arrays(19, (4, 3, 2), (4, 1, 1), (4, 3, 2))

    def run(op, inputs, dy, attrs=None):
        (y, *_), gradients = run_op(op, inputs, attrs, dy)
        return y, gradients

    over = {"dims": [1, 2], "keepdim": True}
    square, _ = run("mul", [v, v], v)
    total, _ = run("sum", [square], g, over)
    norm, _ = run("sqrt", [total], g)
    unit, _ = run("div", [v, norm], v)
    w, (dunit, dg) = run("mul", [unit, g], dw)
    _, (dv, dnorm) = run("div", [v, norm], dunit)
    _, (dtotal,) = run("sqrt", [total], dnorm)
    _, (dsquare,) = run("sum", [square], dtotal, over)
    _, (left, right) = run("mul", [v, v], dsquare)

    tensors = [torch.tensor(x, requires_grad=True) for x in (v, g)]
    expected = torch._weight_norm(tensors[0], tensors[1], 0)
    expected.backward(torch.tensor(dw))
    assert distance(w, expected.detach().numpy()) <= 1e-12
    assert distance(dv + left + right, tensors[0].grad.numpy()) <= 1e-12
    assert distance(dg, tensors[1].grad.numpy()) <= 1e-12


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_grid_sample(mode, align_corners, padding):
    """Places far outside as well, on the borders and exactly on pixels."""
    image, grid = random_arrays(31, (2, 3, 5, 7), (2, 4, 6, 2))
    grid[0, 0] = [[-1, -1], [1, 1], [0, 0], [-1, 1], [3.5, -4.5], [1e-3, 1]]
    attrs = {"mode": mode, "padding": padding, "align_corners": align_corners}
    compare_with_torch(
        "grid_sample", lambda x, g: F.grid_sample(x, g, mode, padding, align_corners), [image, grid], attrs
    )


def test_grid_sample_in_pixels():
    image, places = random_arrays(33, (2, 3, 5, 7), (2, 4, 6, 2))
    size = torch.tensor([7.0, 5.0])
    compare_with_torch(
        "grid_sample",
        lambda x, p: F.grid_sample(x, (2 * p + 1) / size.to(p.dtype) - 1, align_corners=False),
        [image, 3 * places + 2],
        {"in_pixels": True},
    )


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("sampling", [2, 3, 0])
def test_roi_align(sampling, aligned):
    """Boxes across the border, far outside, upside down, and narrower than a pixel."""
    ops = torchvision_ops()
    (image,) = random_arrays(34, (2, 3, 9, 7))
    boxes = np.array(
        [
            [0, 1, 2, 9, 14],
            [1, -3, -4, 5, 6],
            [1, 8.3, 3.1, 30, 30],
            [0, 90, 90, 95, 99],
            [0, 5, 5, 2, 1],
            [1, 4, 4, 4.2, 4.9],
        ],
        dtype=np.float32,
    )
    attrs = {"size": [2, 3], "scale": 0.5, "sampling": sampling, "aligned": aligned}
    compare_with_torch(
        "roi_align",
        lambda x, b: ops.roi_align(x, b, (2, 3), 0.5, sampling, aligned),
        [image, boxes],
        attrs,
        differentiable=[0],
    )


def test_roi_align_of_boxes_that_are_not_finite():
    boxes = np.array([[0, 0, 0, np.inf, 2], [0, 0, np.nan, 1, 2], [7, 0, 0, 1, 2], [0, 0, 0, 1, 2]], dtype=np.float32)
    attrs = {"size": [1, 1], "scale": 1.0, "sampling": 0}
    (y,) = run_forward("roi_align", [np.ones((1, 1, 4, 4)), boxes], attrs, np.zeros((4, 1, 1, 1)))
    assert np.isnan(y[:3]).all() and y[3] == 1


@pytest.mark.parametrize("dim", [0, 1])
def test_scatter_amax(dim):
    """Ties share the gradient; places without an element are 0."""
    (src,) = random_arrays(32, (6, 5))
    src[1] = src[0]
    index = np.random.default_rng(2).integers(0, 3, (6, 5))
    index[1] = index[0]
    shape = [8, 5] if dim == 0 else [6, 8]
    compare_with_torch(
        "scatter_amax",
        lambda s, i: s.new_zeros(shape).scatter_reduce(dim, i, s, "amax", include_self=False),
        [src, index],
        {"dim": dim, "shape": shape},
    )


@pytest.mark.parametrize("zero_infinity", [True, False])
def test_ctc_loss(zero_infinity):
    """Repeated labels, an empty target, times left over; with zero_infinity a target that is too long, too."""
    (x,) = random_arrays(33, (7, 4, 5))
    x = torch.tensor(x).log_softmax(2).numpy()
    targets = np.array([[1, 1, 4, 2], [3, 2, 1, 0], [0, 0, 0, 0], [2, 2, 2, 2]])
    times, counts = np.array([7, 6, 4, 7]), np.array([4, 2, 0, 4 if zero_infinity else 2])
    times[3] = 6 if zero_infinity else 7
    compare_with_torch(
        "ctc_loss",
        lambda *a: F.ctc_loss(a[0], a[1], a[2], a[3], 0, "none", zero_infinity),
        [x, targets, times, counts],
        {"blank": 0, "zero_infinity": zero_infinity},
    )
