"""Small PyTorch networks in which faults are planted: mlp, conv, transformer, rnn.

Every network says where a fault may be put:
    points  module paths whose output is a float tensor of the hidden stream; `insert` appends a module there
    pairs   (A, B) paths of layers with a positively homogeneous function between them (relu, a weighted mean):
            A's weight and bias times c and B's weight times 1/c leave the function as it is
    after_norm  (A, N): a normalisation N follows layer A
Knows nothing of faults or of Lockstep. Training is a few steps on teacher labels with an ordinary initialisation.
"""

import dataclasses

import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
CLASSES = 5


class Then(nn.Module):
    """A layer, and what was put after it."""

    def __init__(self, inner, plant):
        super().__init__()
        self.inner, self.plant = inner, plant

    def forward(self, x):
        return self.plant(self.inner(x))


class Mlp(nn.Module):
    """fc0, relu, ..., head; optionally a layer_norm before each relu."""

    def __init__(self, features, width, depth, norm):
        super().__init__()
        widths = [features] + [width] * depth
        self.fcs = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:]))
        self.norms = nn.ModuleList(nn.LayerNorm(width) if norm else nn.Identity() for _ in range(depth))
        self.head = nn.Linear(width, CLASSES)
        names = [f"fcs.{i}" for i in range(depth)]
        self.points = names + [f"norms.{i}" for i in range(depth)] * norm
        self.pairs = [] if norm else list(zip(names, names[1:] + ["head"]))
        self.after_norm = [(name, f"norms.{i}") for i, name in enumerate(names)] if norm else []

    def forward(self, x):
        for fc, norm in zip(self.fcs, self.norms):
            x = torch.relu(norm(fc(x)))
        return self.head(x)


class Conv(nn.Module):
    """conv, batch_norm, relu, ...; mean over the pixels; fc, relu, head."""

    def __init__(self, channels, depth):
        super().__init__()
        widths = [2] + [channels] * depth
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in zip(widths, widths[1:]))
        self.bns = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(depth))
        self.fc, self.head = nn.Linear(channels * 16, 24), nn.Linear(24, CLASSES)
        self.points = [f"convs.{i}" for i in range(depth)] + [f"bns.{i}" for i in range(depth)] + ["fc"]
        self.pairs = [("fc", "head")]
        self.after_norm = [(f"convs.{i}", f"bns.{i}") for i in range(depth)]

    def forward(self, x):
        for conv, bn in zip(self.convs, self.bns):
            x = torch.relu(bn(conv(x)))
        x = torch.relu(self.fc(F.avg_pool2d(x, 2).flatten(1)))
        return self.head(x)


class Block(nn.Module):
    """A pre-normalised transformer block; attention written out."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        h = self.ln1(x)
        q, k, v = (f(h).view(b, t, self.heads, c // self.heads).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) * (c // self.heads) ** -0.5
        h = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(b, t, c)
        x = x + self.o(h)
        return x + self.fc2(torch.relu(self.fc1(self.ln2(x))))


class Transformer(nn.Module):
    """Tokens and positions, blocks, layer_norm, head; the class of the whole sequence."""

    def __init__(self, width, heads, depth, tokens=11, length=8):
        super().__init__()
        self.embed, self.position = nn.Embedding(tokens, width), nn.Parameter(torch.randn(length, width) * 0.3)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)
        b = [f"blocks.{i}" for i in range(depth)]
        self.points = [f"{x}.{name}" for x in b for name in ("o", "fc1", "fc2", "ln1", "ln2")]
        self.pairs = [(f"{x}.fc1", f"{x}.fc2") for x in b] + [(f"{x}.v", f"{x}.o") for x in b]
        self.after_norm = []
        self.attention = b

    def forward(self, tokens):
        x = self.embed(tokens) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class Rnn(nn.Module):
    """inp, a recurrence written out (or nn.GRU), mid, relu, head."""

    def __init__(self, features, width, depth, library):
        super().__init__()
        self.inp = nn.Linear(features, width)
        self.library = library
        if library:
            self.gru = nn.GRU(width, width, batch_first=True)
        else:
            self.x, self.h = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.mids = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, CLASSES)
        names = [f"mids.{i}" for i in range(depth)]
        self.points = ["inp"] + names
        self.pairs = list(zip(names, names[1:] + ["head"]))
        self.after_norm = []

    def forward(self, x):
        x = torch.relu(self.inp(x))
        if self.library:
            h = self.gru(x)[0][:, -1]
        else:
            h = torch.tanh(self.x(x[:, 0]))
            for t in range(1, x.shape[1]):
                h = torch.tanh(self.x(x[:, t]) + self.h(h))
        for mid in self.mids:
            h = torch.relu(mid(h))
        return self.head(h)


@dataclasses.dataclass
class Drawn:
    """A network with its batches."""

    name: str
    model: nn.Module
    batches: list
    about: str


def labels_of(x, classes, generator):
    """A rule that can be learnt: which of some random directions fits an example best."""
    flat = x.float().flatten(1)
    return (flat @ torch.randn(flat.shape[1], classes, generator=generator)).argmax(1)


def draw(rng, names=("mlp", "conv", "transformer", "rnn"), count=8, size=None, width=None):
    """A random network of one of the names, with `count` batches."""
    name = names[int(rng.integers(len(names)))]
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    torch.manual_seed(int(rng.integers(2**31)))
    size = size or int(rng.choice([16, 32]))
    depth = int(rng.integers(2, 5))
    if name == "mlp":
        norm = bool(rng.integers(2)) if width is None else False
        width = width or int(rng.choice([24, 48]))
        model, shape = Mlp(12, width, depth, norm), (12,)
        about = f"depth {depth}, width {width}{', layer_norm' * norm}"
    elif name == "conv":
        depth = min(depth, 3)
        channels = int(rng.choice([6, 10]))
        model, shape = Conv(channels, depth), (2, 8, 8)
        about = f"depth {depth}, {channels} channels"
    elif name == "transformer":
        depth = min(depth, 3)
        model, shape = Transformer(16, 2, depth), None
        about = f"depth {depth}, width 16"
    else:
        library = bool(rng.integers(2))
        model, shape = Rnn(6, 16, depth, library), (6, 6)
        about = f"depth {depth}, width 16, {'nn.GRU' if library else 'recurrence written out'}"
    teacher = torch.Generator().manual_seed(int(rng.integers(2**31)))
    state, batches = teacher.get_state(), []
    for _ in range(count):
        x = (
            torch.randint(0, 11, (size, 8), generator=generator)
            if shape is None
            else torch.randn(size, *shape, generator=generator)
        )
        teacher.set_state(state)
        batches.append((x, labels_of(x, CLASSES, teacher)))
    return Drawn(name, model, batches, f"{about}, batches of {size}")


def insert(model, path, plant):
    """Puts `plant` after the module at `path`. Returns the plant's path."""
    parent, _, last = path.rpartition(".")
    setattr(model.get_submodule(parent), last, Then(model.get_submodule(path), plant))
    return f"{path}.plant"


def scale_layer(model, path, factor, bias=True):
    with torch.no_grad():
        layer = model.get_submodule(path)
        layer.weight.mul_(factor)
        if bias and layer.bias is not None:
            layer.bias.mul_(factor)


def scale_pair(model, pair, factor):
    """The function is unchanged; the values between the two layers are `factor` times as large."""
    scale_layer(model, pair[0], factor)
    scale_layer(model, pair[1], 1 / factor, bias=False)
