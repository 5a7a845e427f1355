"""Rules for what is composed of several ops, masks that come from activations, and every movement of elements.

All extents differ, and every result meets a tensor of its own shape, so that a wrong order of elements shows.
"""

import functools

import h5py
import pytest
import torch
import torch.nn.functional as F
from lockstep_capture import capture, check
from test_capture_ops import Weights, compare, labels, x

nn = torch.nn
IMAGE, ROWS, LINE = (2, 3, 5, 7), (4, 6), (2, 3, 7)


@functools.cache
def weights_like(shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(11))


def ordered(y):
    """A number that changes when elements of y change places."""
    y = y.float()
    return (y * weights_like(tuple(y.shape))).sum() + (y * y).mean()


def straight_through(t):
    return t + (torch.where(t > 0, 1.0, -1.0) - t).detach()


MASKS = {
    "product": lambda t: (t > 0) * t,
    "float_product": lambda t: (t >= 0.3).float() * t * t,
    "less": lambda t: t * (t < t.mean()),
    "less_equal": lambda t: t * (t <= t[:, :1]),
    "equal": lambda t: t * (t == t.amax(1, keepdim=True)),
    "not_equal": lambda t: t * (t.relu() != 0),
    "where": lambda t: torch.where(t > 0, t * t, 0.1 * t),
    "where_numbers": lambda t: torch.where(t > 0, 1.0, 2.0) * t,
    "where_row": lambda t: torch.where(t[:, :1] > 0, t, 0.0),
    "masked_fill": lambda t: t.masked_fill(t < 0, 1.5) * t,
    "and": lambda t: ((t > -0.5) & (t < 1)) * t,
    "or": lambda t: ((t < -0.5) | (t > 1)) * t,
    "xor": lambda t: ((t > -0.5) ^ (t > 1)) * t,
    "not": lambda t: (~(t > 0)) * t,
    "logical_and": lambda t: torch.logical_and(t.relu(), t < 1) * t,
    "logical_not": lambda t: torch.logical_not(t > 1) * t,
    "beside_batch": lambda t: ((t > 0) & (x(*ROWS) > 0)) * t,
    "batch_mask_product": lambda t: (x(*ROWS) * 2 > 0.1) * t,
    "mean_of_kept": lambda t: ((t > 0) * t).sum() / (t > 0).sum(),
    "share": lambda t: (t > 0).float().mean() * t,
    "unsqueeze": lambda t: (t > 0).unsqueeze(0) * t,
    "transposed": lambda t: (t > 0).t() * t.t(),
    "flat": lambda t: (t > 0).flatten() * t.flatten(),
    "slice": lambda t: (t > 0)[:, 1:4] * t[:, 2:5],
    "isnan": lambda t: torch.where(torch.isnan(t), 0.0, t * t),
    "sign": lambda t: t.sign() * t * t,
    "straight_through": straight_through,
    "threshold": lambda t: F.threshold(t, 0.1, 0.4),
    "hardshrink": lambda t: F.hardshrink(t),
    "softshrink": lambda t: F.softshrink(t),
    "tril": lambda t: t.tril(1),
    "triu": lambda t: t.triu(-1),
    "ignored_targets": lambda t: (
        (F.l1_loss(t, x(*ROWS), reduction="none") * (x(*ROWS) > 0)).sum() / (x(*ROWS) > 0).sum()
    ),
    "hinge": lambda t: t.where(t.abs() > 0.5, t * 0.5),
    "type_as": lambda t: (t > 0).type_as(t) * t,
    "minus": lambda t: 1 - (t > 0).float() * t,
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_activations(name):
    compare(Weights(ROWS), lambda m, b: ordered(MASKS[name](m.w0 * 1.0)), ())


COMPOSED = {
    "glu": (ROWS, lambda t: F.glu(t, 1)),
    "glu_first": (ROWS, lambda t: F.glu(t, 0)),
    "log2": (ROWS, lambda t: (t.abs() + 1).log2()),
    "log10": (ROWS, lambda t: (t.abs() + 1).log10()),
    "outer": (ROWS, lambda t: torch.outer(t[0], t[:, 1])),
    "cosine_similarity": (IMAGE, lambda t: F.cosine_similarity(t, t[:1] * t, dim=2)),
    "pairwise": (ROWS, lambda t: F.pairwise_distance(t, t * t)),
    "pairwise_1": (ROWS, lambda t: F.pairwise_distance(t, t * t, p=1.0, keepdim=True)),
    "adaptive_max_1": (IMAGE, lambda t: F.adaptive_max_pool2d(t, 1)),
    "adaptive_max": ((2, 3, 4, 9), lambda t: F.adaptive_max_pool2d(t, (2, 3))),
    "adaptive_max_line": (LINE, lambda t: F.adaptive_max_pool1d(t, 1)),
    "global_max": (IMAGE, lambda t: t.amax((2, 3))),
    "einsum_dots": (IMAGE, lambda t: torch.einsum("...ij,kj->...ik", t, t[0, 0, :4])),
    "einsum_dots_both": (IMAGE, lambda t: torch.einsum("...ij,...kj->...ik", t, t[:, :1, :2])),
    "einsum_dots_implicit": (IMAGE, lambda t: torch.einsum("...ij,jk", t, t[0, 0].t())),
    "einsum_dots_ranks": (IMAGE, lambda t: torch.einsum("...i,...i->...", t, t[0])),
    "einsum_three": (IMAGE, lambda t: torch.einsum("bchw,bdhw,ce->bde", t, t * t, t[0, :, :4, 0])),
    "einsum_dots_alone": (IMAGE, lambda t: torch.einsum("...ij->...ji", t)),
    "channel_shuffle": ((2, 6, 3, 5), lambda t: F.channel_shuffle(t, 2)),
    "nearest1d": (LINE, lambda t: F.interpolate(t, 9)),
    "nearest1d_scale": (LINE, lambda t: F.interpolate(t, scale_factor=1.7)),
    "nearest_exact": (IMAGE, lambda t: F.interpolate(t, (4, 9), mode="nearest-exact")),
    "linear1d": (LINE, lambda t: F.interpolate(t, 9, mode="linear")),
    "linear1d_scale": (LINE, lambda t: F.interpolate(t, scale_factor=2, mode="linear", align_corners=True)),
    **{
        f"pad_{mode}": (IMAGE, lambda t, mode=mode: F.pad(t, (1, 2, 3, 0), mode=mode))
        for mode in ("reflect", "replicate", "circular")
    },
    "pad_line": (LINE, lambda t: F.pad(t, (3, 1), mode="reflect")),
    "pad_cut": (IMAGE, lambda t: F.pad(t, (-1, 2, 1, -2), mode="replicate")),
    "conv_padding_mode": (
        IMAGE,
        lambda t: nn.functional.conv2d(F.pad(t, (1, 1, 1, 1), mode="circular"), t[:, :, :3, :2]),
    ),
    "windows": (IMAGE, lambda t: t.unfold(2, 2, 2)),
    "windows_overlap": (LINE, lambda t: t.unfold(-1, 4, 1)),
    "image_windows": (IMAGE, lambda t: F.unfold(t, (2, 3), (1, 2), (1, 0), (2, 1))),
    "bilinear": (ROWS, lambda t: F.bilinear(t, t[:, :3], weights_like((5, 6, 3)), t[0, :5])),
    "soft_smoothed": (ROWS, lambda t: F.cross_entropy(t, x(*ROWS).softmax(1), label_smoothing=0.1)),
    "soft_weighted": (
        IMAGE,
        lambda t: F.cross_entropy(
            t, x(*IMAGE).softmax(1), weight=torch.tensor([1.0, 2.0, 0.5]), label_smoothing=0.2, reduction="sum"
        ),
    ),
    "triplet": (ROWS, lambda t: F.triplet_margin_loss(t, t * t, x(*ROWS), swap=True)),
    "triplet_none": (ROWS, lambda t: F.triplet_margin_loss(t, t * t, x(*ROWS), reduction="none")),
    "triplet_distance": (ROWS, lambda t: F.triplet_margin_with_distance_loss(t, t * t, x(*ROWS))),
    "cosine_embedding": (ROWS, lambda t: F.cosine_embedding_loss(t, t * t, torch.tensor([1, -1, -1, 1]), margin=0.1)),
    "ranking": (ROWS, lambda t: F.margin_ranking_loss(t[0], t[1], x(6).sign(), margin=0.5)),
    "hinge_embedding": (ROWS, lambda t: F.hinge_embedding_loss(t, x(*ROWS).sign())),
    "soft_margin": (ROWS, lambda t: F.soft_margin_loss(t, x(*ROWS).sign(), reduction="sum")),
    **{
        f"nll_{reduction}": (
            ROWS,
            lambda t, reduction=reduction: F.nll_loss(t.log_softmax(1), labels(4, below=6), reduction=reduction),
        )
        for reduction in ("mean", "sum", "none")
    },
    "nll_weighted": (
        IMAGE,
        lambda t: F.nll_loss(t.log_softmax(1), labels(2, 5, 7, below=3), torch.tensor([1.0, 2.0, 0.5]), ignore_index=1),
    ),
    "nll_weighted_none": (
        ROWS,
        lambda t: F.nll_loss(t.abs().log(), labels(4, below=6), x(6).abs(), ignore_index=5, reduction="none"),
    ),
    "nll_masked": (
        ROWS,
        lambda t: F.nll_loss(
            t.masked_fill(torch.arange(6) == 0, -torch.inf).log_softmax(1), torch.tensor([1, -100, 5, -100])
        ),
    ),
    "norm_inf": (ROWS, lambda t: t.norm(p=float("inf"), dim=0)),
    "norm_1": (ROWS, lambda t: t.norm(p=1, dim=1)),
    "std_mean": (ROWS, lambda t: sum(torch.std_mean(t, 1))),
    "bag_mean": ((9, 4), lambda t: F.embedding_bag(labels(3, 5, below=9), t)),
    "bag_sum": ((9, 4), lambda t: F.embedding_bag(labels(3, 5, below=9), t, mode="sum")),
    "bag_max": ((9, 4), lambda t: F.embedding_bag(labels(3, 5, below=9), t, mode="max")),
    "bag_padded": ((9, 4), lambda t: F.embedding_bag(labels(3, 5, below=9), t, padding_idx=2)),
    "bags": ((9, 4), lambda t: F.embedding_bag(labels(7, below=9), t, torch.tensor([0, 2, 2, 6]))),
    "bags_sum": (
        (9, 4),
        lambda t: F.embedding_bag(labels(7, below=9), t, torch.tensor([0, 3, 7]), mode="sum", include_last_offset=True),
    ),
    "bags_weighted": (
        (9, 4),
        lambda t: F.embedding_bag(labels(7, below=9), t, torch.tensor([0, 3]), mode="sum", per_sample_weights=x(7)),
    ),
    **{
        f"bce_{reduction}": (
            ROWS,
            lambda t, reduction=reduction: F.binary_cross_entropy(
                t.sigmoid(), x(*ROWS).sigmoid(), x(*ROWS).abs(), reduction=reduction
            ),
        )
        for reduction in ("mean", "sum", "none")
    },
    "bce_far": (ROWS, lambda t: F.binary_cross_entropy((t * 1e-30).abs(), (x(*ROWS) > 0).float())),
    "bag_weighted": (
        (9, 4),
        lambda t: F.embedding_bag(labels(3, 5, below=9), t, per_sample_weights=x(3, 5), mode="sum"),
    ),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_composed_layers_and_losses(name):
    shape, body = COMPOSED[name]
    compare(Weights(shape), lambda m, b: ordered(body(m.w0 * 1.0)), ())


MOVEMENTS = {
    "T": (ROWS, lambda t: t.T),
    "t": (ROWS, lambda t: t.t()),
    "mT": (IMAGE, lambda t: t.mT),
    "transpose": (IMAGE, lambda t: t.transpose(0, -1)),
    "swapaxes": (IMAGE, lambda t: t.swapaxes(1, 2)),
    "permute": (IMAGE, lambda t: t.permute(1, 3, 0, 2)),
    "movedim": (IMAGE, lambda t: t.movedim((0, 1), (2, 0))),
    "moveaxis": (IMAGE, lambda t: t.moveaxis(3, 1)),
    "flatten": (IMAGE, lambda t: t.flatten(1, 2)),
    "unflatten": ((3, 10, 7), lambda t: t.unflatten(1, (5, 2))),
    "unsqueeze": (ROWS, lambda t: t.unsqueeze(-1)),
    "squeeze": ((3, 1, 7), lambda t: t.squeeze(1)),
    "expand": ((3, 1, 7), lambda t: t.expand(2, 3, 5, 7)),
    "repeat": (LINE, lambda t: t.repeat(2, 1, 4, 3)),
    "tile": (LINE, lambda t: t.tile(4, 3)),
    "interleave": (LINE, lambda t: t.repeat_interleave(3, 1)),
    "interleave_all": (LINE, lambda t: t.repeat_interleave(2)),
    "slice": (IMAGE, lambda t: t[:, 1:, -4:-1, ::3]),
    "narrow": (IMAGE, lambda t: t.narrow(2, -3, 2)),
    "select": (IMAGE, lambda t: t.select(-2, -2)),
    "split": (IMAGE, lambda t: t.split(3, 3)[2]),
    "split_sizes": (IMAGE, lambda t: t.split([1, 4, 2], -1)[1]),
    "chunk": (IMAGE, lambda t: t.chunk(3, -1)[1]),
    "tensor_split": (IMAGE, lambda t: t.tensor_split(3, 3)[1]),
    "unbind": (IMAGE, lambda t: t.unbind(2)[3]),
    "cat": (IMAGE, lambda t: torch.cat([t, t[:, :, 1:] * 2], -2)),
    "stack": (IMAGE, lambda t: torch.stack([t, t * 2, t * 3], -2)),
    "roll": (IMAGE, lambda t: t.roll((2, -1), (-1, 1))),
    "flip": (IMAGE, lambda t: t.flip((1, -1))),
    "pad": (IMAGE, lambda t: F.pad(t, (1, 0, 2, 3), value=0.5)),
    "zero_pad": (IMAGE, lambda t: nn.ZeroPad2d((1, 0, 2, 3))(t)),
    "gather": (IMAGE, lambda t: t.gather(-2, labels(2, 3, 4, 7, below=5))),
    "index_select": (IMAGE, lambda t: t.index_select(-2, labels(6, below=5))),
    "index_middle": (IMAGE, lambda t: t[:, labels(4, below=3)]),
    "index_two": (IMAGE, lambda t: t[:, labels(4, below=3), labels(4, below=5)]),
    "index_table": (IMAGE, lambda t: t[:, :, labels(4, 6, below=5)]),
    "index_far": (IMAGE, lambda t: t[labels(4, below=2), :, labels(4, below=5)]),
    "index_mask": (IMAGE, lambda t: t[:, x(3, 5) > 0]),
    "index_rows": (IMAGE, lambda t: t[x(2, 3) > -9, 2]),
    "own_mask": (IMAGE, lambda t: t[t > 0.2]),
    "masked_select": (IMAGE, lambda t: t.masked_select(x(3, 1, 7) > 0)),
    "diagonal": (IMAGE, lambda t: t.diagonal(1, 2, 3)),
    "diagonal_below": (IMAGE, lambda t: t.diagonal(-1, -1, 1)),
    "diag": (ROWS, lambda t: t.diag(2)),
    "topk": (IMAGE, lambda t: t.topk(3, 2)[0]),
    "smallest": (IMAGE, lambda t: t.topk(2, largest=False)[0]),
    "sort": (IMAGE, lambda t: t.sort(1, descending=True)[0]),
    "kthvalue": (IMAGE, lambda t: t.kthvalue(2, 2)[0]),
    "median": (IMAGE, lambda t: t.median(1, keepdim=True)[0]),
    "argmax": (IMAGE, lambda t: t.gather(1, t.argmax(1, True))),
    "index_add": (IMAGE, lambda t: t.index_add(2, labels(4, below=5), t[:, :, 1:] * t[:, :, :-1], alpha=0.5)),
    "index_add_new": (IMAGE, lambda t: torch.zeros(2, 4, 5, 7).index_add_(1, labels(3, below=4), t)),
    "scatter_add": (IMAGE, lambda t: t.scatter_add(3, labels(2, 2, 5, 4, below=7), (t * t)[:, 1:, :, :4])),
    "scatter": (ROWS, lambda t: t.scatter(1, x(4, 6).argsort(1)[:, :3], (t * t)[:, 3:])),
    "scatter_number": (ROWS, lambda t: t.scatter(0, labels(2, 6, below=4), 0.5)),
    "put": (IMAGE, lambda t: t.index_put((labels(2, below=2), torch.tensor([0, 2])), t[0, 0])),
    "put_add": (
        IMAGE,
        lambda t: t.index_put(
            (labels(6, below=2), labels(6, below=3)), t[:, :, 0].reshape(6, 7)[:, None], accumulate=True
        ),
    ),
    "put_number": (IMAGE, lambda t: (t * 1).index_put_((x(*IMAGE) > 0,), torch.tensor(0.5))),
    "put_own": (ROWS, lambda t: t.index_put((t > 0,), t.sum())),
    "put_rows": (ROWS, lambda t: t.index_put((x(4) > -9,), t * t)),
    "masked_scatter": (ROWS, lambda t: t.masked_scatter(x(4, 6) > 0, t.t() * 2)),
    "pixel_shuffle": ((2, 12, 3, 5), lambda t: F.pixel_shuffle(t, 2)),
    "pixel_unshuffle": ((2, 3, 4, 10), lambda t: F.pixel_unshuffle(t, 2)),
    "view_transposed": (LINE, lambda t: t.transpose(1, 2).reshape(2, 3, 7)),
    "meshgrid": (ROWS, lambda t: torch.stack(torch.broadcast_tensors(t[:, :1], t[:1]), 1)),
    "cumsum": (IMAGE, lambda t: t.cumsum(-2)),
    "softmax": (IMAGE, lambda t: t.softmax(-3)),
    "max_dim": (IMAGE, lambda t: t.max(-2, keepdim=True)[0]),
    "var_mean": (IMAGE, lambda t: torch.var_mean(t, (-1, 1))[0]),
    "mean": (IMAGE, lambda t: t.mean((-1, 0))),
    "logsumexp": (IMAGE, lambda t: t.logsumexp((1, -1))),
}


@pytest.mark.parametrize("name", MOVEMENTS)
def test_movements_with_distinct_extents(name):
    shape, body = MOVEMENTS[name]
    compare(Weights(shape), lambda m, b: ordered(body(m.w0 * 1.0)), ())


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.RNN(5, 4, 2, batch_first=True, bidirectional=True),
        lambda: nn.RNN(5, 4, nonlinearity="relu", bias=False),
    ],
    ids=["tanh_bidirectional", "relu"],
)
def test_rnn(make):
    torch.manual_seed(0)
    compare(make(), lambda m, b: ordered(m(b)[0]) + ordered(m(b)[1]), x(3, 6, 5))


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.GRUCell(5, 4),
        lambda: nn.GRUCell(5, 4, bias=False),
        lambda: nn.RNNCell(5, 4),
        lambda: nn.RNNCell(5, 4, nonlinearity="relu"),
    ],
    ids=["gru", "gru_no_bias", "tanh", "relu"],
)
def test_cells(make):
    torch.manual_seed(0)
    compare(make(), lambda m, b: ordered(m(b, m(b, weights_like((3, 4))))), x(3, 5))


@pytest.mark.parametrize("dim", [0, 1, None])
def test_weight_norm(dim):
    torch.manual_seed(0)
    compare(nn.utils.parametrizations.weight_norm(nn.Linear(5, 4), dim=dim), lambda m, b: ordered(m(b)), x(3, 5))
    compare(nn.utils.weight_norm(nn.Conv1d(5, 4, 2), dim=dim), lambda m, b: ordered(m(b)), x(3, 5, 7))


class Twice(nn.Module):
    """A projection with batch norm that sees two views, as siamese networks have it."""

    def __init__(self, track=True):
        super().__init__()
        self.fc, self.norm, self.mask = nn.Linear(5, 4), nn.BatchNorm1d(4, track_running_stats=track), nn.Linear(4, 4)

    def forward(self, b):
        first, second = (self.norm(self.fc(view)) for view in (b, b * 2 + 1))
        kept = torch.where(self.mask(first) > 0.1, first, second * 0.5)
        return kept - second.tanh()


def test_batch_norm_twice_and_without_statistics():
    torch.manual_seed(0)
    graph = compare(Twice(), lambda m, b: ordered(m(b)), x(6, 5))
    first, second = (node for node in graph["nodes"] if node["op"] == "batch_norm")
    assert second["in"][3:] == [first["id"] + ".1", first["id"] + ".2", first["id"] + ".5"]
    assert {(entry["buffer"], entry["value"]) for entry in graph["mutations"]} == {
        (f"norm.{name}", second["id"]) for name in ("running_mean", "running_var", "num_batches_tracked")
    }
    graph = compare(Twice(track=False), lambda m, b: ordered(m(b)), x(6, 5))
    assert graph["mutations"] == []


@pytest.mark.parametrize("track", [True, False])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_replays(lockstep, tmp_path, track, autocast):
    """Through the C++ side: masks, a batch norm that is called twice (V4: its statistics), constant statistics."""
    torch.manual_seed(0)
    model, path = Twice(track), tmp_path / "twice.lscap.h5"
    batches = [torch.randn(6, 5) for _ in range(2)]
    capture(
        str(path),
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        batches,
        lambda m, b: m(b).float().square().mean(),
        steps=2,
        autocast=autocast,
    )
    said = lockstep("verify", path).stdout
    assert "FAIL" not in said and all(f"{gate}  PASS" in said for gate in ("V1", "V3"))
    assert ("V4  PASS" in said) == track


@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("order", [1, 2, float("inf")])
def test_a_norm_is_summed_in_fp32_and_rounded_once(lockstep, tmp_path, autocast, order):
    """Of numbers whose squares FP16 does not hold. The rows are one large number each and small ones that only their
    sum shows: PyTorch's loss to its last bit."""
    torch.manual_seed(0)
    model = nn.Linear(4, 64, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([-300.0] + [3.0] * 63)[:, None] * torch.eye(4)[0])
    path, run = tmp_path / "norm.lscap.h5", tmp_path / "run.h5"
    capture(
        str(path),
        model,
        torch.optim.SGD(model.parameters(), 1e-3),
        [torch.rand(5, 4) + 0.5 for _ in range(2)],
        lambda m, b: m(b).norm(order, dim=1).float().mean(),
        steps=2,
        autocast=autocast,
    )
    said = lockstep("verify", path).stdout
    assert "FAIL" not in said and "V7  PASS" in said
    name = {torch.bfloat16: "torch-autocast-bf16-cpu", torch.float16: "torch-autocast-fp16-cpu"}[autocast]
    lockstep("replay", path, "--lanes", f"fp32,{name}", "-o", run, "--quiet")
    with h5py.File(run) as file:
        ours, theirs = (file[f"lanes/{lane}/loss"][0] for lane in (name, "captured"))
    assert ours == theirs


@pytest.mark.parametrize(
    "body,hint",
    [
        (lambda t: t.scatter(0, torch.zeros(2, 6, dtype=torch.int64), t), "one place written twice"),
    ],
    ids=["twice"],
)
def test_refusals_say_what_to_write(body, hint):
    said = str(check(Weights(ROWS), lambda m, b: body(m.w0 * 1.0).sum(), ()))
    assert hint in said


def test_a_shape_that_depends_on_values_is_the_steps():
    def step(m, b):
        y = m.w0[m.w0 > 0]
        return y.view(y.shape[0], 1).square().mean()

    assert check(Weights(ROWS), step, ()).ops == {"decision": 1, "reshape": 2, "index_select": 1, "pow": 1, "mean": 1}
