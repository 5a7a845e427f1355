"""Graph networks."""

import torch
import torch.nn.functional as F
from torch import nn

from ..parts import ints, normal
from ..registry import add, network


def _graph(nodes=10, edges=30, features=6):
    return lambda: (normal(nodes, features), ints(nodes, 2, edges), ints(3, nodes))


def _classify(model, batch):
    x, edges, y = batch
    return F.cross_entropy(model(x, edges), y)


class _Stack(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x, edges):
        return self.second(self.first(x, edges).relu(), edges)


_CONVOLUTIONS = {
    "gcn": ("GCNConv", {}),
    "gat": ("GATConv", dict(dropout=0.2)),
    "gat_v2": ("GATv2Conv", {}),
    "sage": ("SAGEConv", {}),
    "sage_max": ("SAGEConv", dict(aggr="max")),
    "cheb": ("ChebConv", dict(K=3)),
    "tag": ("TAGConv", {}),
    "transformer": ("TransformerConv", {}),
    "arma": ("ARMAConv", {}),
    "gated": ("ResGatedGraphConv", {}),
    "cluster": ("ClusterGCNConv", {}),
    "feast": ("FeaStConv", {}),
    "film": ("FiLMConv", {}),
    "gen": ("GENConv", {}),
    "sgc": ("SGConv", dict(K=2)),
    "general": ("GeneralConv", {}),
}


def _convolution(kind, options):
    import torch_geometric.nn as gnn

    make = getattr(gnn, kind)
    return _Stack(make(6, 8, **options), make(8, 3, **options)), _classify, _graph()


for _name, (_kind, _options) in _CONVOLUTIONS.items():
    add(f"pyg_{_name}", "graph", "torch_geometric", lambda kind=_kind, options=_options: _convolution(kind, options))


@network("graph", "torch_geometric")
def pyg_gin_pooled():
    from torch_geometric.nn import GINConv, global_add_pool

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = GINConv(
                nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8)), train_eps=True
            )
            self.head = nn.Linear(8, 3)

        def forward(self, x, edges, graph):
            return self.head(global_add_pool(self.conv(x, edges), graph))

    return (
        Net(),
        lambda m, b: F.cross_entropy(m(*b[:3]), b[3]),
        lambda: (normal(10, 6), ints(10, 2, 30), torch.tensor([0] * 6 + [1] * 4), ints(3, 2)),
    )


@network("graph", "torch_geometric")
def pyg_rgcn():
    from torch_geometric.nn import RGCNConv

    model = RGCNConv(6, 3, 4, num_bases=2)
    return (
        model,
        lambda m, b: F.cross_entropy(m(b[0], b[1], b[2]), b[3]),
        lambda: (normal(10, 6), ints(10, 2, 30), ints(4, 30), ints(3, 10)),
    )


@network("graph", "torch_geometric")
def pyg_pna():
    from torch_geometric.nn import PNAConv

    degrees = torch.tensor([0, 2, 4, 4])
    model = PNAConv(6, 3, ["mean", "min", "max", "std"], ["identity", "amplification"], degrees)
    return model, _classify, _graph()


@network("graph", "torch_geometric")
def pyg_topk_pooling():
    from torch_geometric.nn import GraphConv, TopKPooling, global_mean_pool

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.pool, self.head = GraphConv(6, 8), TopKPooling(8, 0.5), nn.Linear(8, 3)

        def forward(self, x, edges, graph):
            x = self.conv(x, edges).relu()
            x, _, _, graph, _, _ = self.pool(x, edges, None, graph)
            return self.head(global_mean_pool(x, graph))

    return (
        Net(),
        lambda m, b: F.cross_entropy(m(*b[:3]), b[3]),
        lambda: (normal(10, 6), ints(10, 2, 30), torch.tensor([0] * 6 + [1] * 4), ints(3, 2)),
    )


@network("graph", "torch_geometric")
def pyg_schnet():
    from torch_geometric.nn.models import SchNet

    model = SchNet(
        hidden_channels=8,
        num_filters=8,
        num_interactions=2,
        num_gaussians=6,
        interaction_graph=lambda positions, graph: _all_pairs(positions),
    )
    return model, lambda m, b: F.mse_loss(m(b[0], b[1]), b[2]), lambda: (ints(9, 6) + 1, normal(6, 3), normal(1, 1))


def _all_pairs(positions):
    n = len(positions)
    edges = torch.cartesian_prod(torch.arange(n), torch.arange(n)).T
    edges = edges[:, edges[0] != edges[1]]
    return edges, (positions[edges[0]] - positions[edges[1]]).norm(dim=-1)


@network("graph", "torch_geometric")
def pyg_vgae():
    from torch_geometric.nn import VGAE, GCNConv

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean, self.log_std = GCNConv(6, 4), GCNConv(6, 4)

        def forward(self, x, edges):
            return self.mean(x, edges), self.log_std(x, edges)

    model = VGAE(Encoder())

    def step(model, batch):
        z = model.encode(*batch)
        return model.recon_loss(z, batch[1]) + 0.1 * model.kl_loss()

    return model, step, lambda: (normal(10, 6), ints(10, 2, 20))


@network("graph", "torch_geometric")
def pyg_light_gcn():
    from torch_geometric.nn import LightGCN

    model = LightGCN(12, 8, 2)

    def step(model, batch):
        edges, pairs = batch
        ranks = model(edges, pairs)
        return model.recommendation_loss(ranks[:5], ranks[5:], node_id=edges.unique())

    return model, step, lambda: (ints(12, 2, 20), ints(12, 2, 10))


@network("graph", "torch_geometric")
def pyg_edge_conv():
    from torch_geometric.nn import EdgeConv

    model = _Stack(EdgeConv(nn.Sequential(nn.Linear(12, 8), nn.ReLU()), "max"), EdgeConv(nn.Linear(16, 3), "max"))
    return model, _classify, _graph()


@network("graph", "e3nn")
def e3nn_tensor_product():
    from e3nn import o3

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.product = o3.FullyConnectedTensorProduct("4x0e + 2x1o", "1x0e + 1x1o", "4x0e + 2x1o")
            self.linear = o3.Linear("4x0e + 2x1o", "1x0e")

        def forward(self, x, r):
            return self.linear(self.product(x, o3.spherical_harmonics("1x0e + 1x1o", r, normalize=True)))

    return Net(), lambda m, b: F.mse_loss(m(b[0], b[1]), b[2]), lambda: (normal(5, 10), normal(5, 3), normal(5, 1))


@network("graph", "egnn-pytorch")
def egnn():
    from egnn_pytorch import EGNN

    model = EGNN(dim=8, m_dim=8)

    def step(model, batch):
        features, positions = model(batch[0], batch[1])
        return features.square().mean() + F.mse_loss(positions, batch[2])

    return model, step, lambda: (normal(2, 6, 8), normal(2, 6, 3), normal(2, 6, 3))


@network("graph", quick=True, fp32_only="scatter_reduce() does not take an FP32 table and BF16 messages")
def message_passing():
    """Sums, means and maxima over edges with index_add, scatter_add and scatter_reduce."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.out = nn.Linear(6, 8), nn.Linear(16, 8), nn.Linear(8, 3)

        def forward(self, x, e):
            h = self.a(x).relu()
            total = torch.zeros_like(h).index_add_(0, e[1], h[e[0]])
            degree = torch.zeros(len(h)).scatter_add_(0, e[1], torch.ones(e.shape[1])).clamp(min=1)
            h = self.b(torch.cat([h, total / degree[:, None]], 1)).relu()
            most = torch.zeros(len(h), 8).scatter_reduce(
                0, e[1][:, None].expand(-1, 8), h[e[0]], "amax", include_self=False
            )
            return self.out(h + most)

    return Net(), _classify, _graph()


@network("graph")
def dense_gcn_sparse_adjacency():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x, edges):
            adjacency = torch.sparse_coo_tensor(edges, torch.ones(edges.shape[1]), (len(x), len(x)))
            return torch.sparse.mm(adjacency, self.b(torch.sparse.mm(adjacency, self.a(x)).relu()))

    return Net(), _classify, _graph()
