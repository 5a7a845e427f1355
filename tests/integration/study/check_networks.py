"""Six small networks of six families, as texts of users' scripts, for the study of refactors and harmful changes.

All have the same blocks and the same training loop, so that one change applies to several of them.
"""

HEAD = '''"""A user's script."""

import math

import torch
import torch.nn.functional as F
from lockstep_capture import Capture
from torch import nn

WIDTH, CLASSES, ROWS, LENGTH, STEPS, ACCUMULATE, CLIP = 12, 5, 8, 6, 4, 2, 0.5
AUTOCAST = "bfloat16"


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        h = F.gelu(self.up(x))
        return self.drop(self.down(h))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = Mlp()
        self.register_buffer("shift", torch.full((WIDTH,), 0.1))

    def forward(self, x):
        h = self.norm(x + self.shift)
        return x + self.mlp(h)


'''

BLOCKS = """
        for block in self.blocks:
            x = block(x)
"""
POOLED = (
    BLOCKS
    + """        x = x.mean(1)
        return self.head(x)
"""
)

_STACK = "self.blocks = nn.ModuleList([Block() for _ in range(2)])"
_HEAD_LAYER = "self.head = nn.Linear(WIDTH, CLASSES)"

CONV = f"""class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, WIDTH, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(WIDTH)
        {_STACK}
        {_HEAD_LAYER}

    def forward(self, x):
        y = self.bn(self.conv(x))
        y = F.max_pool2d(F.relu(y), 2)
        x = y.flatten(2).transpose(1, 2)
{POOLED.lstrip(chr(10))}

def batches(seed):
    templates = torch.randn(CLASSES, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    g = torch.Generator().manual_seed(seed)
    for _ in range(STEPS * ACCUMULATE):
        labels = torch.randint(0, CLASSES, (ROWS,), generator=g)
        yield templates[labels] + torch.randn(ROWS, 1, 6, 6, generator=g), labels


"""

_WORDS = """def batches(seed):
    g = torch.Generator().manual_seed(seed)
    for _ in range(STEPS * ACCUMULATE):
        words = torch.randint(0, CLASSES, (ROWS, LENGTH), generator=g)
        yield words, words.sum(1) % CLASSES


"""

TRANSFORMER = f"""class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (3, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(2, 3) / 2
        scores = scores.masked_fill(self.mask, -1e4)
        weights = F.softmax(scores, dim=-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(CLASSES, WIDTH)
        self.attention = Attention()
        {_STACK}
        {_HEAD_LAYER}
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.sin(torch.outer(torch.arange(LENGTH), 0.5 ** torch.arange(WIDTH))))

    def forward(self, x):
        x = self.embed(x) + self.table
        x = x + self.attention(x)
{POOLED.lstrip(chr(10))}

{_WORDS}"""

RECURRENT = f"""class Gru(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.u = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x, h):
        r, z, n = self.w(x).chunk(3, -1)
        hr, hz, hn = self.u(h).chunk(3, -1)
        z = torch.sigmoid(z + hz)
        n = torch.tanh(n + torch.sigmoid(r + hr) * hn)
        return (1 - z) * n + z * h


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(CLASSES, WIDTH)
        self.cell = Gru()
        {_STACK}
        {_HEAD_LAYER}
        self.head.weight = self.embed.weight

    def forward(self, x):
        h, states = torch.zeros(ROWS, WIDTH), []
        for word in self.embed(x).unbind(1):
            h = self.cell(word, h)
            states.append(h)
        x = torch.stack(states, 1)
{POOLED.lstrip(chr(10))}

{_WORDS}"""

MIXER = f"""class Rms(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs, self.mix = nn.Linear(7, WIDTH), nn.Linear(LENGTH, LENGTH)
        self.rms = Rms()
        {_STACK}
        {_HEAD_LAYER}

    def forward(self, x):
        x = F.silu(self.inputs(x))
        x = x + self.mix(self.rms(x).transpose(1, 2)).transpose(1, 2)
{POOLED.lstrip(chr(10))}

def batches(seed):
    centres = torch.randn(CLASSES, LENGTH, 7, generator=torch.Generator().manual_seed(0))
    g = torch.Generator().manual_seed(seed)
    for _ in range(STEPS * ACCUMULATE):
        labels = torch.randint(0, CLASSES, (ROWS,), generator=g)
        yield centres[labels] + torch.randn(ROWS, LENGTH, 7, generator=g), labels


"""

DENOISER = f"""class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs, self.film = nn.Linear(7, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        {_STACK}
        self.head = nn.Linear(WIDTH, 7)
        self.register_buffer("table", torch.sin(torch.outer(torch.arange(LENGTH), 0.5 ** torch.arange(WIDTH))))

    def forward(self, x):
        scale, shift = self.film(self.table).chunk(2, -1)
        x = self.inputs(x) * (1 + scale) + shift{BLOCKS}        return self.head(x)


def batches(seed):
    g = torch.Generator().manual_seed(seed)
    for _ in range(STEPS * ACCUMULATE):
        clean, noise = (torch.randn(ROWS, LENGTH, 7, generator=g) for _ in range(2))
        share = torch.arange(1, LENGTH + 1).unsqueeze(1) / LENGTH
        yield clean.cumsum(1) * (1 - share) + noise * share, noise


"""

GRAPH = f"""class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.node, self.near = nn.Linear(7, WIDTH), nn.Linear(WIDTH, WIDTH)
        ring = torch.eye(LENGTH) + torch.eye(LENGTH).roll(1, 0) + torch.eye(LENGTH).roll(-1, 0)
        self.register_buffer("edges", ring / 3)
        {_STACK}
        {_HEAD_LAYER}

    def forward(self, x):
        x = F.relu(self.node(x))
        x = x + F.relu(self.near(self.edges @ x))
{POOLED.lstrip(chr(10))}

def batches(seed):
    g = torch.Generator().manual_seed(seed)
    for _ in range(STEPS * ACCUMULATE):
        nodes = torch.randn(ROWS, LENGTH, 7, generator=g)
        yield nodes, (nodes.sum((1, 2)) > 0).long() + (nodes[:, 0, 0] > 0).long()


"""

TAIL = """def loss_of(model, batch):
    inputs, labels = batch
    logits = model(inputs).float()
    return F.cross_entropy(logits, labels)


def train(path, seed=1):
    torch.manual_seed(seed)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / 3))
    with Capture(path, model, optimizer, loss_of, autocast=AUTOCAST, steps=STEPS) as cap:
        for i, batch in enumerate(batches(seed)):
            with cap.step(batch):
                with torch.autocast("cpu", torch.bfloat16, enabled=AUTOCAST is not None):
                    loss = loss_of(model, batch)
                (loss / ACCUMULATE).backward()
                if (i + 1) % ACCUMULATE == 0:
                    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
                    optimizer.step()
                    optimizer.zero_grad()
                    schedule.step()
"""


def _script(body):
    return HEAD + body + TAIL


NETWORKS = {
    "conv": _script(CONV).replace('AUTOCAST = "bfloat16"', "AUTOCAST = None"),
    "transformer": _script(TRANSFORMER),
    "recurrent": _script(RECURRENT),
    "mixer": _script(MIXER),
    "denoiser": _script(DENOISER).replace("F.cross_entropy(logits, labels)", "F.mse_loss(logits, labels)"),
    "graph": _script(GRAPH),
}
