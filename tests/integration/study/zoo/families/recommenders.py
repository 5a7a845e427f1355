"""Recommenders and click-through prediction."""

import torch
import torch.nn.functional as F
from torch import nn

from ..parts import ints, normal
from ..registry import add, network


def _deepctr(kind, **options):
    import importlib
    from unittest import mock

    with mock.patch("threading.Thread.start"):  # its import asks the network for its newest version
        from deepctr_torch.inputs import DenseFeat, SparseFeat
    sparse = [SparseFeat(f"s{i}", 12, embedding_dim=4) for i in range(3)]
    columns = sparse + [DenseFeat("d0", 1), DenseFeat("d1", 1)]
    module = {"DCNMix": "dcnmix", "WDL": "wdl", "xDeepFM": "xdeepfm"}.get(kind, kind.lower())
    model = getattr(importlib.import_module(f"deepctr_torch.models.{module}"), kind)
    if kind == "PNN":
        made = model(columns, device="cpu", **options)
    elif kind == "AFM":
        made = model(columns, sparse, device="cpu", **options)
    else:
        made = model(columns, columns, device="cpu", **options)

    def batch():
        return torch.cat([ints(12, 6, 3).float(), normal(6, 2)], 1), torch.rand(6, 1).round()

    return made, lambda m, b: F.binary_cross_entropy(m(b[0]), b[1]) + m.get_regularization_loss().sum(), batch


_HIDDEN = dict(dnn_hidden_units=(8, 4))
for _name, _options in {
    "DeepFM": _HIDDEN,
    "xDeepFM": _HIDDEN | dict(cin_layer_size=(4, 4)),
    "DCN": _HIDDEN,
    "DCNMix": _HIDDEN | dict(low_rank=4, num_experts=2),
    "AutoInt": _HIDDEN | dict(att_layer_num=1),
    "AFM": {},
    "NFM": _HIDDEN,
    "PNN": _HIDDEN,
    "WDL": _HIDDEN,
    "FiBiNET": _HIDDEN,
    "ONN": _HIDDEN,
    "AFN": dict(afn_dnn_hidden_units=(8,), ltl_hidden_size=4),
}.items():
    add(
        f"deepctr_{_name.lower()}",
        "recommender",
        "deepctr-torch",
        lambda kind=_name, options=_options: _deepctr(kind, **options),
    )


@network("recommender", quick=True)
def dlrm():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = nn.ModuleList([nn.EmbeddingBag(20, 8, mode="sum") for _ in range(3)])
            self.dense, self.top = nn.Linear(4, 8), nn.Linear(8 + 6, 1)

        def forward(self, x, ids, offsets):
            v = [self.dense(x).relu()] + [table(i, o) for table, i, o in zip(self.tables, ids, offsets)]
            z = torch.stack(v, 1)
            i, j = torch.tril_indices(4, 4, -1)
            return torch.sigmoid(self.top(torch.cat([v[0], (z @ z.transpose(1, 2))[:, i, j]], 1)))[:, 0]

    return (
        Net(),
        lambda m, b: F.binary_cross_entropy(m(*b[:3]), b[3]),
        lambda: (normal(4, 4), ints(20, 3, 8), torch.tensor([[0, 2, 3, 6]] * 3), torch.rand(4).round()),
    )


@network("recommender")
def two_tower():
    """Sampled softmax within the batch, with a correction for how often an item is drawn."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.user = nn.Sequential(nn.EmbeddingBag(30, 8, mode="mean", padding_idx=0), nn.Linear(8, 8))
            self.item = nn.Sequential(nn.Embedding(40, 8), nn.Linear(8, 8))

        def forward(self, history, item):
            return F.normalize(self.user(history), dim=-1) @ F.normalize(self.item(item), dim=-1).T / 0.1

    return (
        Net(),
        lambda m, b: F.cross_entropy(m(b[0], b[1]) - b[2].log(), torch.arange(5)),
        lambda: (ints(30, 5, 4), ints(40, 5), torch.rand(5) + 0.1),
    )


@network("recommender")
def neural_collaborative_filtering():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.u, self.i = nn.Embedding(20, 8), nn.Embedding(30, 8)
            self.mlp, self.out = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Dropout(0.2)), nn.Linear(16, 1)

        def forward(self, u, i):
            u, i = self.u(u), self.i(i)
            return self.out(torch.cat([u * i, self.mlp(torch.cat([u, i], -1))], -1))[:, 0]

    return (
        Net(),
        lambda m, b: -F.logsigmoid(m(b[0], b[1]) - m(b[0], b[2])).mean(),
        lambda: (ints(20, 6), ints(30, 6), ints(30, 6)),
    )


@network("recommender")
def sasrec():
    """Attention over the history, a positive and a negative item at each place, padding left out."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.items, self.places = nn.Embedding(30, 8, padding_idx=0), nn.Embedding(6, 8)
            self.attend, self.norm = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True), nn.LayerNorm(8)

        def forward(self, seen):
            x = self.items(seen) * 8**0.5 + self.places(torch.arange(6))
            x = x * (seen != 0)[..., None]
            mask = ~torch.tril(torch.ones(6, 6, dtype=torch.bool))
            return self.norm(x + self.attend(x, x, x, attn_mask=mask)[0])

    def step(model, batch):
        seen, good, bad = batch
        h = model(seen)
        up, down = (h * model.items(good)).sum(-1), (h * model.items(bad)).sum(-1)
        where = torch.where(good != 0)
        return F.binary_cross_entropy_with_logits(
            up[where], torch.ones_like(up[where])
        ) + F.binary_cross_entropy_with_logits(down[where], torch.zeros_like(down[where]))

    return Net(), step, lambda: (ints(30, 3, 6), ints(30, 3, 6), ints(29, 3, 6) + 1)


@network("recommender")
def multi_gate_experts():
    """Click and purchase with shared experts and a gate for each task."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList([nn.Sequential(nn.Linear(6, 8), nn.ReLU()) for _ in range(3)])
            self.gates = nn.ModuleList([nn.Linear(6, 3) for _ in range(2)])
            self.towers = nn.ModuleList([nn.Linear(8, 1) for _ in range(2)])

        def forward(self, x):
            e = torch.stack([expert(x) for expert in self.experts], 1)
            return [
                tower((gate(x).softmax(-1)[..., None] * e).sum(1))[:, 0].sigmoid()
                for gate, tower in zip(self.gates, self.towers)
            ]

    def step(model, batch):
        click, buy = model(batch[0])
        return F.binary_cross_entropy(click, batch[1]) + F.binary_cross_entropy(click * buy, batch[1] * batch[2])

    return Net(), step, lambda: (normal(5, 6), torch.rand(5).round(), torch.rand(5).round())


@network("recommender")
def hashed_max_norm_embedding():
    """Rows are renormalised in place by the forward pass."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out = nn.Embedding(20, 8, max_norm=1.0), nn.Linear(8, 1)

        def forward(self, ids):
            return self.out(self.table(ids).sum(1))[:, 0]

    return Net(), lambda m, b: F.mse_loss(m(b[0]), b[1]), lambda: (ints(20, 4, 3), normal(4))
