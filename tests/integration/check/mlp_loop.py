"""A user's script: a residual network with norms on tabular data, under BF16 autocast. The changes of mutants.py and
refactors.py edit single lines of it."""

import torch
import torch.nn.functional as F
from lockstep_capture import Capture
from torch import nn

FEATURES, WIDTH, EXPERTS, CLASSES, ROWS, STEPS = 10, 24, 3, 4, 16, 8


class Rms(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.rms = nn.LayerNorm(WIDTH), Rms(2 * WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        h = self.up(self.norm(x))
        h = F.silu(self.rms(h))
        return x + self.down(h)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs = nn.Linear(FEATURES, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm = nn.LayerNorm(WIDTH)
        self.drop = nn.Dropout(0.1)
        self.experts = nn.Parameter(torch.randn(EXPERTS, WIDTH, CLASSES) / WIDTH**0.5)
        self.gate = nn.Linear(WIDTH, EXPERTS)

    def forward(self, x):
        x = torch.tanh(self.inputs(x))
        for block in self.blocks:
            x = block(x)
        x = self.drop(self.norm(x))
        shares = F.softmax(self.gate(x), -1)
        logits = torch.stack([x @ self.experts[e] for e in range(EXPERTS)], 1)
        return (shares.unsqueeze(-1) * logits).sum(1)


def loss_of(model, batch):
    features, labels = batch
    return F.cross_entropy(model(features).float(), labels)


def batches(seed):
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0))
    g = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        labels = torch.randint(0, CLASSES, (ROWS,), generator=g)
        yield centres[labels] + torch.randn(ROWS, FEATURES, generator=g), labels


def train(path, seed=1, data_seed=None):
    torch.manual_seed(seed)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=0.01)
    with Capture(path, model, optimizer, loss_of, autocast="bfloat16", steps=STEPS) as cap:
        for batch in batches(seed if data_seed is None else data_seed):
            with cap.step(batch):
                with torch.autocast("cpu", torch.bfloat16):
                    loss = loss_of(model, batch)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
