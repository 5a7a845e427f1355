"""Every rule of the normaliser: a small step function, its graph run in FP64, loss and gradients as PyTorch's.

PyTorch's side is the traced program with every floating type widened; the graph's side is graph_in_torch.py.
"""

import functools
import json
import math

import pytest
import torch
import torch.nn.functional as F
from graph_in_torch import run
from lockstep_capture.model_state import Subject
from lockstep_capture.normalise.interpreter import Interpreter
from lockstep_capture.rules.context import KINKS, WINNERS
from lockstep_capture.trace.traced import Traced, see
from lockstep_capture.watch.mask_tap import MaskTap

torch.set_num_threads(1)
# Both sides are FP64 and sum in different orders: 2^-53 times some hundred terms, times a margin of 100.
BOUND = 2.0**-53 * 256 * 100


class Weights(torch.nn.Module):
    """Parameters w0, w1, ... of the given shapes."""

    def __init__(self, *shapes):
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        for i, shape in enumerate(shapes):
            self.register_parameter(f"w{i}", torch.nn.Parameter(torch.randn(shape, generator=generator)))

    def __iter__(self):
        return iter(self.parameters())


def graph_of(model, step_fn, batch):
    subject = Subject(model, None)
    seen = see(subject, step_fn, batch)
    traced, leaves = Traced(subject, seen), seen.leaves
    problems = traced.support_problems(leaves)
    assert not problems, problems
    return subject, traced, leaves


def compare(model, step_fn, batch, monkeypatch=None):
    """Worst relative distance of loss and gradients; returns the graph."""
    subject, traced, leaves = graph_of(model, step_fn, batch)
    torch.manual_seed(5)
    with MaskTap() as tap:
        step_fn(model, batch)
    left = [draw.value for draw in tap.draws]
    draws = {site.call: [left.pop(0) for _ in range(site.draws)] for site in traced.sites}
    assert not left, "more draws than the graph has"
    snapshots = traced.snapshots()
    Interpreter(traced.program, subject.params, subject.buffers, leaves, draws, observer=snapshots).run()
    wide = {name: p.detach().double().requires_grad_() for name, p in subject.params.items()}
    expected = (
        Interpreter(traced.program, wide, subject.buffers, leaves, draws, double=True, kind=traced.versions.kind)
        .without_autocast()
        .run()
    )
    expected.backward()
    graph = json.loads(traced.graph.json())
    own = {name: p.detach().double().requires_grad_() for name, p in subject.params.items()}

    def widened(tensor):
        return tensor.double() if tensor.dtype.is_floating_point else tensor.long()

    values = {f"p:{name}": tensor for name, tensor in own.items()}
    values |= {f"b:{name}": widened(tensor) for name, tensor in subject.buffers.items()}
    values |= {f"c:{name}": widened(tensor) for name, tensor in traced.graph.constants.items()}
    for i, entry in enumerate(traced.graph.inputs):
        values[f"in{i}"] = widened(entry.compute(*[snapshots.values[name] for name in entry.operands]))
    kinds = {site.call: site.kind for site in traced.sites}
    shapes = {node["id"]: node["out"] for node in graph["nodes"]}
    masks = {}
    for node, call in traced.graph.rng:
        mask = torch.stack(draws[call]) if kinds[call] == "lstm" else draws[call][0]
        masks[node] = mask if kinds[call] != "dropout" else mask.expand(shapes[node][1]["shape"])
    loss, _ = run(graph, values, masks)
    loss.backward()
    worst = abs(float(loss.detach() - expected.detach())) / max(abs(float(expected.detach())), 1e-30)
    assert worst <= BOUND, f"loss {float(loss)} against {float(expected)}"
    compared = 0
    for name, tensor in wide.items():
        if tensor.grad is None:
            assert own[name].grad is None or not own[name].grad.any(), name
            continue
        scale = float(tensor.grad.norm())
        assert own[name].grad is not None, name
        distance = float((own[name].grad - tensor.grad).norm()) / max(scale, 1e-30)
        assert distance <= BOUND or float(own[name].grad.norm()) < 1e-15, f"{name}: {distance}"
        worst, compared = max(worst, distance), compared + 1
    assert compared > 0, "no gradient was compared"
    return graph


@functools.cache  # made before anything is traced
def x(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


@functools.cache
def labels(*shape, below=5):
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(4))


S = (4, 6)
UNARY = {
    "relu": F.relu,
    "relu6": lambda t: F.relu6(3 * t),
    "silu": F.silu,
    "gelu": F.gelu,
    "mish": F.mish,
    "gelu_tanh": lambda t: F.gelu(t, approximate="tanh"),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "selu": F.selu,
    "celu": F.celu,
    "softplus": F.softplus,
    "logsigmoid": F.logsigmoid,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
    "log": lambda t: torch.log(t.abs() + 1),
    "sqrt": lambda t: (t * t + 1).sqrt(),
    "rsqrt": lambda t: (t * t + 1).rsqrt(),
    "reciprocal": lambda t: 1.0 / (t.abs() + 1),
    "abs": torch.abs,
    "neg": lambda t: -t,
    "square": torch.square,
    "pow": lambda t: (t.abs() + 1) ** 1.5,
    "cube": lambda t: t**3,
    "rsub": lambda t: 1 - t,
    "rsub_alpha": lambda t: torch.rsub(t, 2.0, alpha=3),
    "add_alpha": lambda t: torch.add(t, t * t, alpha=0.5),
    "sub_alpha": lambda t: torch.sub(t, t * t, alpha=2),
    "sub": lambda t: t - 0.5,
    "div": lambda t: t / 3,
    "div_tensor": lambda t: t / (t * t + 1),
    "clamp": lambda t: t.clamp(-0.5, 0.7),
    "clamp_min": lambda t: t.clamp(min=0.1),
    "softmax": lambda t: t.softmax(-1),
    "log_softmax": lambda t: t.log_softmax(0),
    "softmax_fp32": lambda t: F.softmax(t, 1, dtype=torch.float32),
    "sum": lambda t: t.sum(1) ** 2,
    "mean": lambda t: t.mean((0, 1), keepdim=True) * t,
    "amax": lambda t: t.amax(1),
    "amin": lambda t: t.amin(0),
    "max_all": lambda t: t.max() * t,
    "max_dim": lambda t: t.max(1)[0],
    "min_dim": lambda t: t.min(1).values,
    "var": lambda t: t.var(1),
    "std": lambda t: t.std(0, unbiased=False),
    "var_mean": lambda t: sum(torch.var_mean(t, 1)),
    "logsumexp": lambda t: t.logsumexp(1),
    "cumsum": lambda t: t.cumsum(1),
    "norm": lambda t: t.norm(dim=1),
    "normalize": lambda t: F.normalize(t, dim=1),
    "maximum": lambda t: torch.maximum(t, -t * 0.5),
    "minimum": lambda t: torch.minimum(t, t * t),
    "where": lambda t: torch.where(x(*S) > 0, t, t * t),
    "where_number": lambda t: torch.where(x(*S) > 0, t, 0.0),
    "masked_fill": lambda t: t.masked_fill(x(*S) > 0, -3.0),
    "lerp": lambda t: torch.lerp(t, t * t, 0.3),
    "addcmul": lambda t: torch.addcmul(t, t, t, value=0.5),
    "view": lambda t: t.view(3, 8) * t.reshape(3, 8),
    "flatten": lambda t: t.unflatten(1, (2, 3)).flatten() ** 2,
    "unsqueeze": lambda t: (t.unsqueeze(1) * t.unsqueeze(0)).squeeze(),
    "permute": lambda t: t.view(4, 2, 3).permute(2, 0, 1) ** 2,
    "transpose": lambda t: t.t() @ t,
    "T": lambda t: t.T * x(6, 4),
    "mT": lambda t: t.mT * x(6, 4),
    "T_square": lambda t: t[:, :4].T * x(4, 4),
    "mH": lambda t: t.view(2, 2, 6).mH * x(2, 6, 2),
    "adjoint": lambda t: t[:, :4].adjoint() * x(4, 4),
    "noise_like": lambda t: t + torch.empty_like(t).exponential_().log(),
    "float": lambda t: t.float().exp() + t,
    "type_as": lambda t: t.exp().type_as(t) * t,
    "movedim": lambda t: t.view(4, 2, 3).movedim(0, 2) ** 2,
    "expand": lambda t: t.view(4, 1, 6).expand(4, 3, 6) ** 2,
    "repeat": lambda t: t.repeat(2, 3) ** 2,
    "repeat_interleave": lambda t: t.repeat_interleave(2, 1) * x(4, 12),
    "slice": lambda t: t[1:, ::2] ** 2,
    "select": lambda t: t[:, -2] ** 2,
    "split": lambda t: sum(p.sum() ** 2 for p in t.split(4, 1)),
    "chunk": lambda t: t.chunk(2, 1)[1] ** 2,
    "unbind": lambda t: t.unbind(0)[2] ** 2,
    "cat": lambda t: torch.cat([t, t * 2], 1) ** 2,
    "stack": lambda t: torch.stack([t, t * 2], 1) ** 2,
    "roll": lambda t: t.roll((1, -2), (0, 1)) * x(*S),
    "flip": lambda t: t.flip(1) * x(*S),
    "pad": lambda t: F.pad(t, (1, 2), value=0.5) ** 2,
    "gather": lambda t: t.gather(1, labels(4, 3, below=6)) ** 2,
    "index_select": lambda t: t.index_select(1, labels(5)) ** 2,
    "index": lambda t: t[labels(7, below=4)] ** 2,
    "index_pair": lambda t: t[torch.arange(4), labels(4, below=6)] ** 2,
    "einsum": lambda t: torch.einsum("ij,kj->ik", t, t) ** 2,
    "einsum_batch": lambda t: torch.einsum("bij,bkj->bik", t.view(2, 2, 6), t.view(2, 2, 6)),
    "einsum_one": lambda t: torch.einsum("ij->j", t) ** 2,
    "matmul_vector": lambda t: t @ t[0],
    "bmm": lambda t: torch.bmm(t.view(2, 2, 6), t.view(2, 6, 2)),
    "addmm": lambda t: torch.addmm(t[:, :4], t, t.t(), beta=0.5, alpha=2),
    "baddbmm": lambda t: torch.baddbmm(t.view(2, 2, 6)[..., :2], t.view(2, 2, 6), t.view(2, 6, 2)),
    "in_place": lambda t: (t * 2).add_(1).mul_(3).relu_(),
    "detach": lambda t: t * t.detach(),
    "to": lambda t: t.to(torch.bfloat16).float() * t,
    "integer_factor": lambda t: t * labels(*S),
}


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_tensor(name):
    compare(Weights(S), lambda m, b: (UNARY[name](m.w0 * 1.0).float() * 0.7).sum(), ())


LAYERS = {
    "conv2d": ([(4, 2, 3, 3), (4,)], lambda m, b: F.conv2d(b, m.w0, m.w1, 2, 1), (3, 2, 7, 8)),
    "conv_same": ([(4, 2, 4, 3)], lambda m, b: F.conv2d(b, m.w0, padding="same"), (3, 2, 7, 8)),
    "conv_valid": ([(4, 1, 2, 3)], lambda m, b: F.conv2d(b, m.w0, groups=2, dilation=2, padding="valid"), (3, 2, 7, 8)),
    "conv1d": ([(4, 2, 3), (4,)], lambda m, b: F.conv1d(b, m.w0, m.w1, 2, 1), (3, 2, 9)),
    "conv_transpose2d": ([(2, 4, 3, 3)], lambda m, b: F.conv_transpose2d(b, m.w0, None, 2, 1, 1), (3, 2, 4, 5)),
    "conv_transpose1d": ([(2, 4, 3)], lambda m, b: F.conv_transpose1d(b, m.w0, None, 2), (3, 2, 5)),
    "layer_norm": ([(4, 6), (4, 6)], lambda m, b: F.layer_norm(b, (4, 6), m.w0, m.w1) * m.w0, (3, 4, 6)),
    "rms_norm": ([(6,)], lambda m, b: F.rms_norm(b * m.w0, (6,), m.w0), (3, 4, 6)),
    "group_norm": ([(4,), (4,)], lambda m, b: F.group_norm(b, 2, m.w0, m.w1) ** 2, (3, 4, 6)),
    "instance_norm": ([(4,), (4,)], lambda m, b: F.instance_norm(b, weight=m.w0, bias=m.w1) ** 2, (3, 4, 6, 2)),
    "prelu": ([(4,)], lambda m, b: F.prelu(b, m.w0), (3, 4, 6)),
    "max_pool2d": ([(3, 2, 8, 8)], lambda m, b: F.max_pool2d(m.w0 * b, 3, 2, 1), (3, 2, 8, 8)),
    "max_pool1d": ([(3, 2, 8)], lambda m, b: F.max_pool1d(m.w0 * b, 2), (3, 2, 8)),
    "avg_pool2d": ([(3, 2, 8, 8)], lambda m, b: F.avg_pool2d(m.w0 * b, 3, 2, 1, count_include_pad=False), (3, 2, 8, 8)),
    "adaptive": ([(3, 2, 8, 8)], lambda m, b: F.adaptive_avg_pool2d(m.w0 * b, (3, 5)), (3, 2, 8, 8)),
    "nearest": ([(3, 2, 4, 4)], lambda m, b: F.interpolate(m.w0 * b, scale_factor=2), (3, 2, 4, 4)),
    "bilinear": (
        [(3, 2, 4, 4)],
        lambda m, b: F.interpolate(m.w0 * b, (7, 5), mode="bilinear", align_corners=True),
        (3, 2, 4, 4),
    ),
    "pixel_shuffle": ([(3, 8, 2, 2)], lambda m, b: F.pixel_unshuffle(F.pixel_shuffle(m.w0 * b, 2), 2), (3, 8, 2, 2)),
    "sdpa": (
        [(2, 3, 5, 4)],
        lambda m, b: F.scaled_dot_product_attention(m.w0, m.w0 * 2, b, is_causal=True),
        (2, 3, 5, 4),
    ),
    "sdpa_dropout": (
        [(2, 3, 5, 4)],
        lambda m, b: F.scaled_dot_product_attention(m.w0, m.w0 * 2, b, dropout_p=0.3),
        (2, 3, 5, 4),
    ),
    "sdpa_mask": (
        [(2, 3, 5, 4)],
        lambda m, b: F.scaled_dot_product_attention(m.w0, m.w0, b, torch.ones(5, 5, dtype=torch.bool).tril()),
        (2, 3, 5, 4),
    ),
    "sdpa_bool_mask_dropout": (
        [(2, 3, 5, 4)],
        lambda m, b: F.scaled_dot_product_attention(
            m.w0, m.w0 * 2, b, torch.ones(5, 5, dtype=torch.bool).tril(), dropout_p=0.3
        ),
        (2, 3, 5, 4),
    ),
    "dropout": ([(3, 6)], lambda m, b: F.dropout(m.w0 * b, 0.3) * 2, (3, 6)),
    "dropout2d": ([(3, 6, 4, 4)], lambda m, b: F.dropout2d(m.w0 * b, 0.3), (3, 6, 4, 4)),
    "dropout_in_place": ([(3, 6)], lambda m, b: F.dropout(m.w0 * b, 0.3, inplace=True) * 2, (3, 6)),
    "noise": ([(3, 6)], lambda m, b: (m.w0 + torch.randn_like(b)) ** 2, (3, 6)),
    "drop_path": ([(3, 6)], lambda m, b: m.w0 * b.new_empty((3, 1)).bernoulli_(0.7).div_(0.7), (3, 6)),
    "random_mask": ([(3, 6)], lambda m, b: m.w0 * (torch.rand_like(b) < 0.5), (3, 6)),
    "sinusoid": ([(3, 6)], lambda m, b: m.w0 * torch.sin(b * 3.0), (3, 6)),
    "mse": ([(3, 6)], lambda m, b: F.mse_loss(m.w0, b), (3, 6)),
    "smooth_l1": ([(3, 6)], lambda m, b: F.smooth_l1_loss(m.w0, b, beta=0.5), (3, 6)),
    "huber": ([(3, 6)], lambda m, b: F.huber_loss(m.w0, b, delta=0.5, reduction="sum"), (3, 6)),
    "l1": ([(3, 6)], lambda m, b: F.l1_loss(m.w0, b), (3, 6)),
    "kl_div": ([(3, 6)], lambda m, b: F.kl_div(m.w0.log_softmax(1), b.softmax(1), reduction="batchmean"), (3, 6)),
    "bce": (
        [(3, 6)],
        lambda m, b: F.binary_cross_entropy_with_logits(m.w0, b.sigmoid(), pos_weight=torch.full((6,), 2.0)),
        (3, 6),
    ),
    "soft_targets": ([(3, 6)], lambda m, b: F.cross_entropy(m.w0, b.softmax(1)), (3, 6)),
    "cross_entropy": ([(3, 6)], lambda m, b: F.cross_entropy(m.w0 * b, labels(3), label_smoothing=0.1), (3, 6)),
    "cross_entropy_weights": ([(3, 5)], lambda m, b: F.cross_entropy(m.w0, labels(3), b.abs(), ignore_index=1), (5,)),
    "nll": ([(3, 6)], lambda m, b: F.nll_loss(F.log_softmax(m.w0 * b, 1), labels(3)), (3, 6)),
    "embedding": ([(5, 6)], lambda m, b: F.embedding(labels(3, 4), m.w0, padding_idx=1) ** 2, (1,)),
    "nograd": ([(3, 6)], lambda m, b: m.w0 * torch.no_grad()(lambda: m.w0.exp() + 1)(), (1,)),
    "mask_built_in_place": ([(3, 6)], lambda m, b: m.w0 + built_mask(), (1,)),
}


def built_mask():
    mask = torch.zeros(3, 6)
    mask[:, 2:] = 1.0
    mask[0].fill_(5.0)
    return mask


@pytest.mark.parametrize("name", LAYERS)
def test_layers_and_losses(name):
    shapes, body, batch = LAYERS[name]
    weighted = lambda m, b: (body(m, b) * 0.7).sum()
    compare(Weights(*shapes), weighted, x(*batch))


@pytest.mark.parametrize(
    "name,make",
    [
        ("lstm", lambda: torch.nn.LSTM(5, 4, 2, batch_first=True, dropout=0.3)),
        ("lstm_bidirectional", lambda: torch.nn.LSTM(5, 4, 2, bidirectional=True, bias=False)),
        ("lstm_projected", lambda: torch.nn.LSTM(5, 4, proj_size=3, batch_first=True)),
        ("gru", lambda: torch.nn.GRU(5, 4, 2, batch_first=True, dropout=0.3)),
    ],
)
def test_recurrent_layers(name, make):
    torch.manual_seed(0)
    graph = compare(make(), lambda m, b: (m(b)[0] ** 2).mean(), x(3, 6, 5))
    assert sum(node["op"] in ("lstm", "gru") for node in graph["nodes"]) == 1


def test_where_a_gru_adds_its_bias():
    """As linear below: batch_first transposes the input of the first layer."""
    for batch_first in (False, True):
        gru = torch.nn.GRU(5, 4, batch_first=batch_first)
        assert attributes_of("gru", gru, lambda m, b: m(b)[0], x(3, 6, 5)).get("separate_bias", False) == batch_first
        turned = attributes_of("gru", gru, lambda m, b: m(b.transpose(0, 1))[0], x(3, 6, 5))
        assert turned.get("separate_bias", False) != batch_first


def test_where_an_rnn_adds_its_bias():
    """Of the first layer the products with x: batch_first transposes their operand."""
    for batch_first in (False, True):
        rnn = torch.nn.RNN(5, 4, 2, batch_first=batch_first)
        nodes = compare(rnn, lambda m, b: (m(b)[0] ** 2).sum(), x(3, 6, 5))["nodes"]
        separate = [node["attrs"].get("separate_bias", False) for node in nodes if node["op"] == "linear"]
        assert separate == [batch_first] + [False] * (len(separate) - 1)


def test_lstm_cell():
    torch.manual_seed(0)
    compare(torch.nn.LSTMCell(5, 4), lambda m, b: (m(b)[0] ** 2).mean(), x(3, 5))


def test_modules_of_torch():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
    compare(layer, lambda m, b: (m(b) * b).mean(), x(2, 5, 8))
    compare(torch.nn.BatchNorm2d(4), lambda m, b: (m(b) * b).mean(), x(3, 4, 2, 2))
    compare(torch.nn.BatchNorm2d(4).eval(), lambda m, b: (m(b) * b).mean(), x(3, 4, 2, 2))


def attributes_of(op, model, body, batch):
    nodes = compare(model, lambda m, b: (body(m, b) ** 2).sum(), batch)["nodes"]
    (found,) = [node["attrs"] for node in nodes if node["op"] == op]
    return found


def test_where_linear_adds_its_bias():
    """at::linear is one product with its bias for matrices and for what lies row by row, else two roundings."""

    def separate(view):
        found = attributes_of("linear", Weights((4, 5), (4,)), lambda m, b: F.linear(view(b), m.w0, m.w1), x(3, 2, 5))
        return found.get("separate_bias", False)

    assert separate(lambda b: b.transpose(0, 1))
    assert not separate(lambda b: b)
    assert not separate(lambda b: b.transpose(0, 1).contiguous())
    assert not separate(lambda b: b[:, 1:])  # scattered, but no longer after the cast of autocast
    assert not separate(lambda b: b[0].T.contiguous().T)  # a matrix
    unbiased = attributes_of("linear", Weights((4, 5)), lambda m, b: F.linear(b.transpose(0, 1), m.w0), x(3, 2, 5))
    assert unbiased == {}


def test_which_attention_is_fused():
    def model(q, v):
        return attributes_of("sdpa", Weights(q), lambda m, b: F.scaled_dot_product_attention(m.w0, m.w0 * 2, b), x(*v))[
            "model"
        ]

    assert model((2, 3, 5, 4), (2, 3, 5, 4)) == "flash"
    assert model((3, 5, 4), (3, 5, 4)) == "math"
    assert model((2, 3, 5, 4), (2, 3, 5, 6)) == "math"


def test_no_number_is_lost_on_the_way_to_json():
    graph = compare(
        Weights(S), lambda m, b: (m.w0.masked_fill(x(*S) > 0, -math.inf).softmax(1) * m.w0).sum() * (1 / 3), ()
    )
    values = [node["attrs"] for node in graph["nodes"]]
    assert {"value": "-inf"} in values and {"scalar": 1 / 3} in values


def test_captures_record_the_kinks_of_the_ops_that_have_them(lockstep):
    """KINKS and WINNERS compute on tensors, so they are here; which ops have one is a field of the op's row."""
    rows = json.loads(lockstep("list", "ops", "--json").stdout)
    assert {row["op"] for row in rows if row["kink"] == "side"} == set(KINKS)
    assert {row["op"] for row in rows if row["kink"] == "winner"} == set(WINNERS)
