"""Ops that real networks use: loss and gradients of their graphs against PyTorch's, and replays in the C++ program.

As in test_capture_composed.py, all extents differ and every result meets a tensor of its own shape.
"""

import pytest
import torch
import torch.nn.functional as F
from lockstep_capture import capture, check
from test_capture_composed import IMAGE, LINE, ROWS, ordered, weights_like
from test_capture_ops import Weights, compare, labels, x

nn = torch.nn
VOLUME = (2, 3, 4, 5, 6)
INF = float("inf")


def adjacency():
    """Places may occur twice."""
    return torch.sparse_coo_tensor(torch.tensor([[0, 2, 2, 4, 0], [1, 3, 0, 1, 1]]), x(5), (5, 4))


FUNCTIONS = {
    name: getattr(torch, name)
    for name in (
        "sin",
        "cos",
        "tan",
        "erf",
        "expm1",
        "exp2",
        "atan",
        "sinh",
        "cosh",
        "asinh",
        "frac",
        "deg2rad",
        "rad2deg",
        "nan_to_num",
        "arctan",
    )
}
FUNCTIONS |= {
    f"{name}_part": lambda t, name=name: t - getattr(torch, name)(t) for name in ("floor", "ceil", "round", "trunc")
} | {
    "log1p": lambda t: torch.log1p(t.abs()),
    "lgamma": lambda t: torch.lgamma(t.abs() + 0.5),
    "digamma": lambda t: torch.digamma(t.abs() + 0.5),
    "asin": lambda t: torch.asin(t.tanh()),
    "acos": lambda t: torch.acos(t.tanh()),
    "atanh": lambda t: torch.atanh(t.tanh() * 0.9),
    "acosh": lambda t: torch.acosh(t.abs() + 1.1),
    "atan2": lambda t: torch.atan2(t, t.flip(0) + 0.1),
    "hypot": lambda t: torch.hypot(t, t * 2),
    "round_places": lambda t: t - torch.round(t, decimals=2),
    "logit": lambda t: torch.logit(t.sigmoid()),
    "logit_eps": lambda t: torch.logit(t.sigmoid(), 0.3),
    "fmod": lambda t: torch.fmod(t, 0.7),
    "remainder": lambda t: torch.remainder(t, 0.7),
    "remainder_tensor": lambda t: torch.remainder(t, t[:1].abs() + 0.1),
    "div_floor": lambda t: t - torch.div(t, 0.3, rounding_mode="floor"),
    "logaddexp": lambda t: torch.logaddexp(t, t * 2),
    "logaddexp_far_apart": lambda t: 0.01 * torch.logaddexp(t, t * 5000),
    "log_sigmoid_far_out": lambda t: 0.01 * F.logsigmoid(t * 5000),
    "xlogy": lambda t: torch.xlogy(t, t.abs() + 1),
    "number_to_the_power": lambda t: 0.3**t,
    "clamp_tensors": lambda t: t.clamp(t.detach() * 0.5 - 0.1, t.detach().abs() + 1),
    "copysign": lambda t: torch.copysign(t, x(*ROWS)),
    "celu": lambda t: F.celu(t, 0.5),
    "prod": lambda t: t.prod(1),
    "prod_all": lambda t: t.prod() * t,
    "prod_of_zeros": lambda t: (t * (t > 0)).prod(0),
    "cumprod": lambda t: t.cumprod(1),
    "nansum": lambda t: t.nansum(1),
    "nanmean": lambda t: t.nanmean() * t,
    "aminmax": lambda t: sum(torch.aminmax(t, dim=1)),
    "special": lambda t: torch.special.expit(t) + torch.special.log1p(t.abs()),
}

MATRICES = {
    "tensordot": lambda t: torch.tensordot(t, t * 2, dims=([1], [1])),
    "inner": lambda t: torch.inner(t, t[:3]),
    "addbmm": lambda t: torch.addbmm(t[:, :4], t[None, :, :3], t[None, :3, :4]),
    "addr": lambda t: torch.addr(t, t[:, 0], t[0], alpha=2),
    "multi_dot": lambda t: torch.linalg.multi_dot([t, t.t(), t]),
    "matrix_power": lambda t: torch.matrix_power(t[:, :4], 3),
    "eye_out": lambda t: torch.eye(4, 6, out=torch.empty_like(t)) - t,
    "trace": lambda t: t[:, :4].trace() * t,
    "einsum_diagonal": lambda t: torch.einsum("ii->i", t[:, :4]),
    "einsum_trace": lambda t: torch.einsum("ii,jk->jk", t[:, :4], t),
    "kron": lambda t: torch.kron(t, t[:2, :3]),
    "cross": lambda t: torch.linalg.cross(t[:, :3], t[:, 3:]),
    "cov": torch.cov,
    "corrcoef": torch.corrcoef,
    "diff": lambda t: t.diff(dim=1),
    "trapezoid": lambda t: torch.trapezoid(t, dim=1),
    "gradient": lambda t: torch.gradient(t)[0],
    "matrix_norm": lambda t: torch.linalg.matrix_norm(t) * t,
    **{f"norm_{p}": lambda t, p=p: torch.linalg.vector_norm(t, p, dim=1) for p in (0.5, 3, -INF)},
    "norm_all": lambda t: torch.linalg.norm(t) * t,
    **{f"cdist_{p}": lambda t, p=p: torch.cdist(t, t[:3] * 2 + 1, p=p) for p in (1.0, 2.0, 3.0, INF)},
    "cdist_by_product": lambda t: torch.cdist(t.repeat(8, 1), t.repeat(8, 1) * 2 + 1),
    **{f"cdist_itself_{p}": lambda t, p=p: torch.cdist(t, t, p=p) for p in (2.0, 3.0)},
    "norm_of_zeros": lambda t: (t * torch.tensor([[0.0], [1], [1], [0]])).norm(dim=1),
    "pdist": F.pdist,
    "dist": lambda t: torch.dist(t, t * t) * t,
    "renorm": lambda t: t.renorm(2, 0, 1.0),
    "pairwise_3": lambda t: F.pairwise_distance(t, t * t, p=3.0),
    **{f"inverse_{n}": lambda t, n=n: torch.linalg.inv(t[:n, :n]) for n in (1, 4)},
    "inverse_of_many": lambda t: torch.inverse(t.reshape(2, 3, 4)[:, :, :3] + torch.eye(3) * t[0, 0]),
    "inverse_zero_first": lambda t: torch.linalg.inv(t[:3, :3] * (1 - torch.eye(3))),
    "inverse_ex": lambda t: torch.linalg.inv_ex(t[:, :4])[0],
    "solve": lambda t: torch.linalg.solve(t[:, :4], t),
    "solve_right": lambda t: torch.linalg.solve(t[:, :4], t.T, left=False),
    "solve_vector": lambda t: torch.linalg.solve(t[:, :4], t[:, 5]),
    "solve_vectors": lambda t: torch.linalg.solve(t.reshape(2, 3, 4)[:, :, :3], t.reshape(2, 3, 4)[:, :, 3]),
    "matrix_exp": lambda t: torch.matrix_exp(t[:, :4] - t[:, :4].T),
    "matrix_exp_many": lambda t: torch.linalg.matrix_exp(t.reshape(2, 3, 4)[:, :, :3]),
    **{
        f"sparse_{name}": lambda t, f=f: f(adjacency(), t)
        for name, f in (("mm", torch.sparse.mm), ("matmul", torch.matmul), ("spmm", torch.spmm))
    },
    "softmax_bf16": lambda t: F.softmax(t, 1, dtype=torch.bfloat16) * t,
    "log_softmax_half": lambda t: torch.log_softmax(t, 0, dtype=torch.float16) * t,
    "poisson": lambda t: F.poisson_nll_loss(t, x(*ROWS).abs()),
    "poisson_full": lambda t: F.poisson_nll_loss(t.exp(), x(*ROWS).abs() * 3, log_input=False, full=True),
    "gaussian_nll": lambda t: F.gaussian_nll_loss(t, x(*ROWS), t.exp()),
    "gaussian_nll_bounded": lambda t: F.gaussian_nll_loss(t, x(*ROWS), t * t * 1e-7),
    "multi_margin": lambda t: F.multi_margin_loss(t, labels(4, below=6), p=2, margin=0.5),
    "multi_margin_weighted": lambda t: F.multi_margin_loss(t, labels(4, below=6), weight=x(6).abs()),
    "multilabel_margin": lambda t: F.multilabel_margin_loss(
        t, torch.tensor([[1, 3, -1, 0, 0, 0], [0, 5, 2, -1, 1, 1], [-1] * 6, [5, 4, 3, 2, 1, 0]])
    ),
    "one_row_ce": lambda t: F.cross_entropy(t[0], torch.tensor(2)),
    "one_row_nll": lambda t: F.nll_loss(t[0].log_softmax(0), torch.tensor(2)),
    "bce_computed_weight": lambda t: F.binary_cross_entropy_with_logits(
        t, x(*ROWS).sigmoid(), weight=t.detach().sigmoid()
    ),
    "bce_learned_target": lambda t: F.binary_cross_entropy(t.sigmoid(), (2 * t).sigmoid()),
}

PLACES = {
    **{
        f"scatter_{kind}{own}": lambda t, kind=kind, own=own: (t * 0.5).scatter_reduce(
            0, labels(4, 6, below=4), t, kind, include_self=bool(own)
        )
        for kind in ("sum", "mean", "amax", "amin")
        for own in ("", "_self")
    },
    "scatter_ties": lambda t: torch.zeros(3, 6).scatter_reduce(
        0, torch.zeros(4, 6, dtype=torch.int64), t.relu(), "amax", include_self=False
    ),
    "diag_embed": lambda t: torch.diag_embed(t, 1),
    "diag": lambda t: torch.diag(t[0]),
    "diagflat": lambda t: torch.diagflat(t[0], -1),
    "block_diag": lambda t: torch.block_diag(t, t[:2]),
    "select_scatter": lambda t: t.select_scatter(t[0] * 2, 0, 1),
    "slice_scatter": lambda t: t.slice_scatter(t[:2] * 2, 0, 1, 3),
    "diagonal_scatter": lambda t: t.diagonal_scatter(t[:, 0]),
    "index_fill": lambda t: t.index_fill(1, torch.tensor([0, 2]), 0.5),
    "index_copy": lambda t: t.index_copy(0, torch.tensor([0, 2]), t[1:3] * 2),
    "take": lambda t: t.take(labels(5, below=20)),
    "take_along": lambda t: torch.take_along_dim(t, x(*ROWS).argsort(1), 1),
    "as_strided": lambda t: t.as_strided((3, 2, 4), (1, 6, 2), 2),
    "roll_flat": lambda t: t.roll(3),
    "repeat_each": lambda t: t.repeat_interleave(torch.tensor([1, 2, 0, 3]), 0),
    "rot90": lambda t: t.rot90(),
    "rot90_back": lambda t: t.rot90(3),
    "fliplr": lambda t: t.fliplr(),
    "hstack": lambda t: torch.hstack([t, t * 2]),
    "cartesian": lambda t: torch.cartesian_prod(t[0], t[1]),
    "pad_sequence": lambda t: nn.utils.rnn.pad_sequence([t, t[:2]], batch_first=True),
    "bags_max": lambda t: F.embedding_bag(labels(7, below=4), t, torch.tensor([0, 2, 6]), mode="max"),
    "bags_padded": lambda t: F.embedding_bag(labels(7, below=4), t, torch.tensor([0, 2, 6]), padding_idx=2),
    "bag_padded_max": lambda t: F.embedding_bag(labels(3, 5, below=4), t, padding_idx=2, mode="max"),
    "grouped_mm": lambda t: torch._grouped_mm(
        torch.cat([t[:, :4]] * 2),
        t.reshape(1, 4, 6)[:, :, :4] * torch.tensor([1.0, 2.0])[:, None, None],
        offs=torch.tensor([3, 8], dtype=torch.int32),
    ),
}

IMAGES = {
    "conv3d": (
        VOLUME,
        lambda t: F.conv3d(
            t, weights_like((4, 3, 2, 3, 3)), weights_like((4,)), padding=1, stride=(2, 1, 2), dilation=(2, 1, 1)
        ),
    ),
    "conv3d_same": (VOLUME, lambda t: F.conv3d(t, t[:, :, :3, :2, :3], padding="same")),
    "conv3d_groups": (VOLUME, lambda t: F.conv3d(t, weights_like((6, 1, 3, 2, 1)), groups=3)),
    "conv3d_single": (VOLUME, lambda t: F.conv3d(t[0], t[:, :, :2, :2, :2])),
    "conv_transpose3d": (
        VOLUME,
        lambda t: F.conv_transpose3d(
            t, weights_like((3, 4, 2, 2, 3)), weights_like((4,)), stride=2, padding=1, output_padding=(1, 0, 1)
        ),
    ),
    "conv_transpose3d_groups": (
        VOLUME,
        lambda t: F.conv_transpose3d(t, weights_like((3, 2, 3, 1, 2)), groups=3, dilation=(2, 1, 1)),
    ),
    "max_pool3d": (VOLUME, lambda t: F.max_pool3d(t, (2, 3, 2), padding=1, stride=(1, 2, 2))),
    "avg_pool3d": (VOLUME, lambda t: F.avg_pool3d(t, 2, padding=1)),
    "avg_pool3d_inside": (VOLUME, lambda t: F.avg_pool3d(t, (2, 2, 3), padding=1, count_include_pad=False)),
    "adaptive_avg_pool3d": (VOLUME, lambda t: F.adaptive_avg_pool3d(t, (3, 2, 4))),
    "adaptive_max_pool3d": (VOLUME, lambda t: F.adaptive_max_pool3d(t, (3, 2, 4))),
    "adaptive_max_uneven": (IMAGE, lambda t: F.adaptive_max_pool2d(t, (2, 3))),
    "instance_norm3d": (VOLUME, lambda t: F.instance_norm(t)),
    "group_norm3d": (VOLUME, lambda t: F.group_norm(t, 3)),
    "replicate3d": (VOLUME, lambda t: F.pad(t, (1, 1, 2, 1, 1, 0), mode="replicate")),
    "batch_norm_without_bias": (IMAGE, lambda t: F.batch_norm(t, None, None, t[0, :, 0, 0], training=True)),
    "batch_norm_without_weight": (IMAGE, lambda t: F.batch_norm(t, None, None, None, t[0, :, 0, 0], training=True)),
    "bicubic": (IMAGE, lambda t: F.interpolate(t, (9, 4), mode="bicubic")),
    "bicubic_corners": (IMAGE, lambda t: F.interpolate(t, scale_factor=2, mode="bicubic", align_corners=True)),
    "trilinear": (VOLUME, lambda t: F.interpolate(t, scale_factor=(2, 1.5, 1), mode="trilinear")),
    "nearest3d": (VOLUME, lambda t: F.interpolate(t, (3, 7, 6))),
    "area": (IMAGE, lambda t: F.interpolate(t, (2, 3), mode="area")),
    "antialias": (IMAGE, lambda t: F.interpolate(t, (3, 3), mode="bilinear", antialias=True)),
    "antialias_bicubic": (IMAGE, lambda t: F.interpolate(t, (3, 4), mode="bicubic", antialias=True)),
    "bilinear_fractions": (IMAGE, lambda t: F.interpolate(t, scale_factor=(1.5, 2.3), mode="bilinear")),
    "linear_fraction": (LINE, lambda t: F.interpolate(t, scale_factor=1.5, mode="linear")),
    **{
        f"grid_{padding}": (
            IMAGE,
            lambda t, padding=padding: F.grid_sample(t, x(2, 4, 6, 2) * 1.5, padding_mode=padding, align_corners=False),
        )
        for padding in ("zeros", "border", "reflection")
    },
    "grid_nearest": (IMAGE, lambda t: F.grid_sample(t, x(2, 4, 6, 2), mode="nearest", align_corners=True)),
    "grid_learned": (IMAGE, lambda t: F.grid_sample(t, t[:, :2].permute(0, 2, 3, 1) * 0.5, align_corners=True)),
    "affine_grid": (
        (2, 2, 3),
        lambda t: F.grid_sample(
            x(*IMAGE), F.affine_grid(t * 0.5, (2, 3, 4, 6), align_corners=False), align_corners=False
        ),
    ),
    "fold": ((2, 12, 9), lambda t: F.fold(t, (6, 6), 2, stride=2)),
    "fold_overlap": ((2, 12, 20), lambda t: F.fold(t, (4, 5), (2, 2), padding=(1, 0))),
    "local_response": (IMAGE, lambda t: F.local_response_norm(t, 2)),
    "shared_heads": ((2, 4, 5, 8), lambda t: F.scaled_dot_product_attention(t, t[:, :1] * 2, t[:, :1] * 3)),
    "ctc": (
        (7, 2, 5),
        lambda t: F.ctc_loss(
            t.log_softmax(2), torch.tensor([[1, 2, 3], [1, 1, 4]]), torch.tensor([7, 6]), torch.tensor([3, 2])
        ),
    ),
    "ctc_flat": (
        (7, 2, 5),
        lambda t: F.ctc_loss(t.log_softmax(2), torch.tensor([1, 2, 3, 1, 4]), (7, 6), (3, 2), reduction="sum"),
    ),
    "ctc_impossible": (
        (3, 2, 5),
        lambda t: F.ctc_loss(
            t.log_softmax(2),
            torch.tensor([[1, 1, 1], [2, 3, 4]]),
            torch.tensor([3, 3]),
            torch.tensor([3, 2]),
            reduction="none",
            zero_infinity=True,
        ),
    ),
}
CASES = {name: (ROWS, body) for name, body in (FUNCTIONS | MATRICES | PLACES).items()} | IMAGES


@pytest.mark.parametrize("name", CASES)
def test_ops_of_real_networks(name):
    shape, body = CASES[name]
    compare(Weights(shape), lambda m, b: ordered(body(m.w0 * 1.0)), ())


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(5, 4)),
        lambda: nn.utils.spectral_norm(nn.Linear(5, 4)),
    ],
    ids=["parametrized", "hook"],
)
def test_spectral_norm(make):
    """Its power iteration writes to buffers, by out=."""
    torch.manual_seed(0)
    graph = compare(make(), lambda m, b: ordered(m(b)), x(3, 5))
    assert len(graph["mutations"]) == 2


class Packed(nn.Module):
    """A recurrent layer over packed sequences; what it gives, and its states at the end of each."""

    def __init__(self, layer, lengths, ordered_lengths=True):
        super().__init__()
        self.first, self.layer, self.lengths, self.ordered_lengths = nn.Linear(3, 5), layer, lengths, ordered_lengths

    def forward(self, b):
        first = self.layer.batch_first
        rows = nn.utils.rnn.pack_padded_sequence(self.first(b), self.lengths, first, self.ordered_lengths)
        y, states = self.layer(rows)
        y, _ = nn.utils.rnn.pad_packed_sequence(y, first, padding_value=0.5, total_length=7 if first else None)
        return ordered(y) + sum(ordered(state) for state in (states if isinstance(states, tuple) else (states,)))


PACKED = {
    "lstm_bidirectional": lambda: Packed(nn.LSTM(5, 4, 2, bidirectional=True), [6, 4, 4]),
    "gru_unordered": lambda: Packed(nn.GRU(5, 4, batch_first=True), [2, 6, 5], False),
    "rnn": lambda: Packed(nn.RNN(5, 4, bias=False), [6, 3, 1]),
    "lstm_tensor": lambda: Packed(nn.LSTM(5, 4, batch_first=True), torch.tensor([2, 6, 6]), False),
}


@pytest.mark.parametrize("name", PACKED)
def test_packed_sequences(name):
    torch.manual_seed(0)
    model = PACKED[name]()
    compare(model, lambda m, b: m(b), x(3, 6, 3) if model.layer.batch_first else x(6, 3, 3))


STACKS = {
    "gru": lambda: Packed(nn.GRU(5, 4, 2, batch_first=True, bidirectional=True, dropout=0.4), [2, 6, 5], False),
    "lstm": lambda: Packed(nn.LSTM(5, 4, 3, dropout=0.4), [6, 4, 4]),
    "rnn": lambda: Packed(nn.RNN(5, 4, 2, dropout=0.4), [6, 3, 1]),
    "rnn_padded": lambda: Recurrent(nn.RNN(5, 4, 3, dropout=0.4, nonlinearity="relu")),
}


class Recurrent(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.first, self.layer = nn.Linear(3, 5), layer

    def forward(self, b):
        y, states = self.layer(self.first(b))
        return ordered(y) + ordered(states)


@pytest.mark.parametrize("name", STACKS)
def test_dropout_between_layers(lockstep, tmp_path, name):
    torch.manual_seed(0)
    model, path = STACKS[name](), tmp_path / "a.h5"
    batches = [x(3, 6, 3) if model.layer.batch_first else x(6, 3, 3) for _ in range(2)]
    capture(path, model, torch.optim.SGD(model.parameters(), 0.01), batches, lambda m, b: m(b), steps=2, verify=[0, 1])
    lockstep("verify", path)


class Many(nn.Module):
    """Every family once, small enough to replay in a moment."""

    def __init__(self):
        super().__init__()
        self.rows, self.volume, self.heard = nn.Linear(6, 6), nn.Conv3d(1, 2, 2), nn.GRU(3, 2)
        self.rough = nn.Parameter(torch.randn(2, 3, 4, 4))

    def forward(self, b):
        rows = self.rows(b)
        values = (
            torch.sin(rows)
            + torch.erf(rows) * torch.cos(rows)
            + torch.log1p(rows.exp())
            + torch.atan2(rows, rows.flip(0) + 3)
        )
        pooled = values.new_zeros(3, 6).scatter_reduce(
            0, (torch.arange(4) % 3).reshape(4, 1).expand(4, 6), values, "amax", include_self=False
        )
        grid = torch.tanh(rows[:, :2]).reshape(2, 2, 1, 2)
        looked = F.grid_sample(self.rough, grid, align_corners=False)
        wide = F.interpolate(self.rough, scale_factor=2, mode="bicubic")
        volume = F.max_pool3d(self.volume(rows.reshape(1, 1, 2, 3, 4)), (1, 2, 1))
        spoken = F.ctc_loss(
            values.reshape(4, 1, 6).float().log_softmax(2), torch.tensor([[1, 2]]), torch.tensor([4]), torch.tensor([2])
        )
        packed = nn.utils.rnn.pack_padded_sequence(values.reshape(4, 2, 3), [4, 2])
        heard = self.heard(packed)[0].data
        bounded = rows.tanh().float()
        turned = torch.linalg.solve(torch.eye(4) + (bounded @ bounded.T).float(), bounded) @ torch.matrix_exp(
            (bounded.T @ bounded).float() * 0.1
        )
        with torch.autocast("cpu", enabled=False):  # PyTorch has no gradient of it there
            spread = torch.sparse.mm(adjacency(), turned.float())
        return (
            sum(y.float().square().mean() for y in (values, pooled, looked, wide, volume, heard, turned, spread))
            + spoken
        )


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_replays(lockstep, tmp_path, autocast):
    torch.manual_seed(0)
    model, path = Many(), tmp_path / "many.lscap.h5"
    capture(
        str(path),
        model,
        torch.optim.SGD(model.parameters(), 0.05),
        [torch.randn(4, 6) for _ in range(2)],
        lambda m, b: m(b),
        steps=2,
        autocast=autocast,
    )
    said = lockstep("verify", path).stdout
    assert "FAIL" not in said and all(f"{gate}  PASS" in said for gate in ("V1", "V3")), said
    if autocast is not None:
        assert "V7  PASS" in said


@pytest.mark.parametrize(
    "body,hint",
    [
        (lambda t: torch.linalg.svdvals(t), "train their result as a parameter"),
        (lambda t: t.median() * t, "x.flatten().median(0)"),
        (lambda t: t.scatter_reduce(0, labels(4, 6, below=4), t, "prod"), "sum the logarithms"),
        (
            lambda t: F.grid_sample(t[None, None], x(1, 2, 2, 2), mode="bicubic", align_corners=False),
            "mode='bilinear' or 'nearest'",
        ),
    ],
    ids=["singular_values", "median", "scatter_prod", "bicubic"],
)
def test_refusals_say_what_to_write(body, hint):
    assert hint in str(check(Weights(ROWS), lambda m, b: body(m.w0 * 1.0).sum(), ()))
