"""A monitor's counts are those of a replay of the same step, to the last element. Ten networks whose sums are exact in FP32
in any order: whole numbers small enough, rates that are powers of two."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from lockstep_capture import Capture, Monitor, read_run

nn = torch.nn


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.second(torch.relu(self.first(x))) + x


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.value = nn.Linear(8, 6), nn.Linear(8, 6)

    def forward(self, x):
        return self.gate(x) * torch.relu(self.value(x))


class LinearAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(4, 4, bias=False) for _ in range(3))

    def forward(self, x):
        return self.query(x) @ (self.key(x).transpose(-2, -1) @ self.value(x))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(12, 6)

    def forward(self, x):
        return F.linear(self.embedding(x), self.embedding.weight)


class Twice(nn.Module):
    """A module that is called two times."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 6)

    def forward(self, x):
        return self.body(torch.relu(self.body(x)))


NETWORKS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), (5, 8)),
    "conv": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)), (2, 2, 7, 7)),
    "depthwise": (lambda: nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.ReLU(), nn.Conv2d(4, 2, 1)), (2, 4, 6, 6)),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(2, 3, 2), nn.ReLU()), (2, 2, 4, 4)),
    "pooled": (lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.MaxPool1d(2), nn.ReLU()), (3, 2, 10)),
    "residual": (Residual, (5, 8)),
    "gated": (Gated, (4, 8)),
    "attention": (LinearAttention, (2, 3, 4)),
    "tied": (Tied, "tokens"),
    "twice": (Twice, (4, 6)),
}


def whole(network):
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(torch.randint(-2, 3, weight.shape, generator=generator))


def loss_of(model, batch):
    return (model(batch) ** 2).sum()


def histograms(path, lane):
    """{(layer, role): the bins of every site}, of step 0."""
    run = read_run(path)
    found = {}
    for (step, site), bins in run.histograms(lane).iterrows():
        if step == 0:
            row = run.sites.loc[site]
            found.setdefault((row.layer, row.role, row.point, row["node"], row["op"]), []).append(tuple(bins))
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_counts_are_a_replays(name, tmp_path, monkeypatch, binary_dir, lockstep):
    monkeypatch.setenv("LOCKSTEP", str(binary_dir / "lockstep"))
    make, shape = NETWORKS[name]
    torch.manual_seed(1)
    network = make()
    whole(network)
    generator = torch.Generator().manual_seed(4)
    if shape == "tokens":
        batch = torch.randint(0, 12, (3, 4), generator=generator)
    else:
        batch = torch.randint(-3, 4, shape, generator=generator).float()
    optimizer = torch.optim.SGD(network.parameters(), lr=2.0**-12)
    live, captured, replayed = (str(tmp_path / file) for file in ("live.h5", "c.lscap.h5", "run.h5"))
    with (
        Monitor(live, network, optimizer, quiet=True) as monitor,
        Capture(captured, network, optimizer, loss_of, steps=1, quiet=True) as cap,
    ):
        with monitor.step(batch), cap.step(batch):
            loss_of(network, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    lockstep("replay", captured, "--lanes", "fp32", "-o", replayed)
    ours, theirs = histograms(live, "live"), histograms(replayed, "fp32")
    compared = 0
    for (_, role, _, node, _), bins in ours.items():
        tensor = node.removeprefix("live:").rpartition(":")[0]
        if role in ("weight", "update"):
            start = "storage:p:" if role == "weight" else "optimizer:"
            want = [b for (_, r, _, n, _), b in theirs.items() if n == start + tensor and r == role]
            assert len(want) == 1 and want[0] == bins, (tensor, role)
            compared += 1
        else:
            # Every other tensor of the loop is the output of some op of the same layer, or of one around it.
            want = {b for all_of in theirs.values() for b in all_of}
            if name == "twice":  # both calls of the module are added up
                want |= {tuple(map(sum, zip(*pair, strict=True))) for pair in itertools.combinations(want, 2)}
            assert set(bins) <= want, (tensor, role)
            compared += 1
    assert compared >= 2 * len(list(network.parameters()))
