"""The models whose captures are tested: the five examples and eight more of different make.

All of them train in the loop of the examples (training_loop.py).
"""

import importlib
import math
import pathlib
import sys

import torch
import torch.nn.functional as F
from torch import nn

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "examples" / "pytorch"))
import training_loop
from training_loop import Task

EXAMPLES = ("cnn", "gpt", "encoder", "lstm", "unet")
BATCH = 6


def adamw(model, steps):
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 / (1 + i / 4))


def sgd(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)


def seeded(function):
    """make_batches from a function of a generator: the same batches at every call."""

    def make_batches(count, seed=0):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(count):
            yield function(generator)

    return make_batches


def padded_mask(generator, batch, length):
    """(B,T), true where there is a token; between half of it and all of it."""
    kept = torch.randint(length // 2, length + 1, (batch, 1), generator=generator)
    return torch.arange(length) < kept


# ---- depthwise convolutions, squeeze and excite, hardswish (MobileNetV3)


class InvertedResidual(nn.Module):
    def __init__(self, channels, expanded):
        super().__init__()
        self.expand = nn.Sequential(
            nn.Conv2d(channels, expanded, 1, bias=False), nn.BatchNorm2d(expanded), nn.Hardswish(inplace=True)
        )
        self.depthwise = nn.Conv2d(expanded, expanded, 5, padding=2, groups=expanded, bias=False)
        self.bn = nn.BatchNorm2d(expanded)
        self.squeeze, self.excite = nn.Conv2d(expanded, 8, 1), nn.Conv2d(8, expanded, 1)
        self.project = nn.Sequential(nn.Conv2d(expanded, channels, 1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x):
        y = F.hardswish(self.bn(self.depthwise(self.expand(x))))
        gate = F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))
        return x + self.project(y * F.hardsigmoid(self.excite(gate)))


class Mobile(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU6(inplace=True)
        )
        self.blocks = nn.Sequential(InvertedResidual(16, 32), InvertedResidual(16, 48))
        self.classifier = nn.Sequential(nn.Linear(16, 32), nn.Hardswish(), nn.Dropout(dropout), nn.Linear(32, 10))

    def forward(self, x):
        return self.classifier(self.blocks(self.stem(x)).mean([2, 3]))


@seeded
def images_and_labels(g):
    labels = torch.randint(10, (BATCH,), generator=g)
    images = torch.randn(BATCH, 3, 16, 16, generator=g)
    return images + torch.linspace(-2, 2, 10)[labels][:, None, None, None], labels


def classify(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


# ---- group norm and SiLU, a time embedding, nearest upsampling (a denoiser)


class Denoiser(nn.Module):
    def __init__(self, dropout, width=16):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, width), nn.SiLU(), nn.Linear(width, 2 * width))
        self.conv_in = nn.Conv2d(3, width, 3, padding=1)
        self.norm1, self.conv1 = nn.GroupNorm(4, width), nn.Conv2d(width, width, 3, 2, 1)
        self.norm2, self.conv2 = nn.GroupNorm(4, width, eps=1e-6), nn.Conv2d(width, width, 3, padding=1)
        self.drop, self.conv_out = nn.Dropout(dropout), nn.Conv2d(width, 3, 3, padding=1)
        self.register_buffer("frequencies", torch.exp(-math.log(1e4) * torch.arange(8) / 8))

    def forward(self, x, time):
        angles = time[:, None] * self.frequencies
        scale, shift = self.time(torch.cat([angles.sin(), angles.cos()], 1)).chunk(2, 1)
        x = self.conv_in(x)
        y = self.conv1(F.silu(self.norm1(x)))
        y = self.norm2(y) * (1 + scale[:, :, None, None]) + shift[:, :, None, None]
        y = self.conv2(self.drop(F.silu(y)))
        return self.conv_out(x + F.interpolate(y, scale_factor=2.0, mode="nearest"))


@seeded
def noisy_images(g):
    clean = torch.randn(BATCH, 3, 1, 1, generator=g).expand(-1, -1, 8, 8)
    noise, time = torch.randn(BATCH, 3, 8, 8, generator=g), torch.rand(BATCH, generator=g)
    share = time[:, None, None, None]
    return clean * (1 - share) + noise * share, 100 * time, noise


def denoise(model, batch):
    return F.mse_loss(model(batch[0], batch[1]), batch[2])


# ---- GRU


class GruTagger(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.embed = nn.Embedding(24, 16)
        self.rnn = nn.GRU(16, 32, num_layers=2, batch_first=True, dropout=dropout)
        self.head = nn.Linear(32, 24)

    def forward(self, tokens):
        output, _ = self.rnn(self.embed(tokens))
        return self.head(torch.tanh(output))


@seeded
def echoes(g):
    tokens = torch.randint(24, (BATCH, 14), generator=g)
    return tokens, tokens.roll(2, 1)


def tag(model, batch):
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


# ---- encoder-decoder attention with masks, written by hand


class Attention(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.drop = heads, nn.Dropout(dropout)
        self.q, self.kv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x, memory, hidden):
        b, t, c = x.shape
        s = memory.shape[1]
        q = self.q(x).reshape(b, t, self.heads, -1).transpose(1, 2)
        k, v = self.kv(memory).reshape(b, s, 2, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        scores = torch.einsum("bhtd,bhsd->bhts", q, k) * (q.shape[-1] ** -0.5)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return self.out((self.drop(weights) @ v).transpose(1, 2).reshape(b, t, c))


class Seq2Seq(nn.Module):
    def __init__(self, dropout, width=32, heads=4, length=12):
        super().__init__()
        self.source, self.target = nn.Embedding(40, width, padding_idx=0), nn.Embedding(40, width)
        self.position = nn.Parameter(0.1 * torch.randn(length, width))
        self.encode, self.look_back, self.look_across = (Attention(width, heads, dropout) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.ff = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(2 * width, width)
        )
        self.head = nn.Linear(width, 40)

    def forward(self, source, target):
        hidden = (source == 0)[:, None, None, :]
        x = self.source(source) + self.position
        memory = self.norms[0](x + self.encode(x, x, hidden))
        later = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool, device=target.device).triu(1)
        y = self.target(target) + self.position
        y = self.norms[1](y + self.look_back(y, y, later))
        y = self.norms[2](y + self.look_across(y, memory, hidden))
        return self.head(self.norms[3](y + self.ff(y)))


@seeded
def translations(g):
    source = torch.randint(3, 40, (BATCH, 12), generator=g) * padded_mask(g, BATCH, 12)
    target = source.flip(1)
    first = torch.full((BATCH, 1), 2)
    return source, torch.cat([first, target[:, :-1]], 1), target


def translate(model, batch):
    logits = model(batch[0], batch[1])
    return F.cross_entropy(logits.transpose(1, 2), batch[2], ignore_index=0, label_smoothing=0.05)


# ---- a recommender: many embeddings, gather, index_select, pairwise products (DLRM)


class Recommender(nn.Module):
    def __init__(self, dropout, width=12):
        super().__init__()
        self.tables = nn.ModuleDict(
            {name: nn.Embedding(size, width) for name, size in {"user": 60, "item": 90, "shop/region": 11}.items()}
        )
        self.dense = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, width), nn.ReLU())
        self.history = nn.Parameter(0.1 * torch.randn(40, width))
        self.register_buffer("pairs", torch.tensor([[0, 0, 0, 0, 1, 1, 1, 2, 2, 3], [1, 2, 3, 4, 2, 3, 4, 3, 4, 4]]))
        self.top = nn.Sequential(nn.Linear(width + 10, 16), nn.LeakyReLU(0.1), nn.Dropout(dropout), nn.Linear(16, 1))

    def forward(self, dense, user, item, shop, seen, last):
        x = self.dense(dense)
        history = self.history.index_select(0, seen.flatten()).view(*seen.shape, -1)  # (B,H,C)
        final = history.gather(1, last[:, None, None].expand(-1, 1, history.shape[2])).squeeze(1)
        t = self.tables
        features = torch.stack(
            [x, t["user"](user), t["item"](item), t["shop/region"](shop), final + history.mean(1)], 1
        )  # (B,5,C)
        products = torch.bmm(features, features.transpose(1, 2)).flatten(1)  # (B,25)
        chosen = products[:, 5 * self.pairs[0] + self.pairs[1]]
        return self.top(torch.cat([x, chosen], 1)).squeeze(1)


@seeded
def clicks(g):
    def ids(count, *shape):
        return torch.randint(count, shape, generator=g)

    user, item = ids(60, 16), ids(90, 16)
    return (
        torch.randn(16, 5, generator=g),
        user,
        item,
        ids(11, 16),
        ids(40, 16, 7),
        ids(7, 16),
        ((user + item) % 3 == 0).float(),
    )


def predict_clicks(model, batch):
    return F.binary_cross_entropy_with_logits(model(*batch[:-1]), batch[-1])


# ---- nn.MultiheadAttention and nn.TransformerEncoderLayer as PyTorch ships them


class ShippedAttention(nn.Module):
    def __init__(self, dropout, width=32):
        super().__init__()
        self.embed = nn.Embedding(40, width)
        self.attention = nn.MultiheadAttention(width, 4, dropout=dropout, batch_first=True)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 40)

    def forward(self, tokens, kept):
        x = self.embed(tokens)
        y, _ = self.attention(x, x, x, key_padding_mask=~kept, need_weights=False)
        return self.head(self.norm(x + y))


class ShippedEncoder(nn.Module):
    def __init__(self, dropout, width=32):
        super().__init__()
        self.embed = nn.Embedding(40, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 2 * width, dropout=dropout, batch_first=True, activation=activation, norm_first=norm_first
            )
            for activation, norm_first in (("relu", False), ("gelu", True))
        )
        self.head = nn.Linear(width, 40)

    def forward(self, tokens, kept):
        x = self.embed(tokens)
        causal = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        x = self.layers[0](x, src_key_padding_mask=~kept)
        return self.head(self.layers[1](x, src_mask=causal, is_causal=True))


@seeded
def padded_text(g):
    tokens, kept = torch.randint(1, 40, (BATCH, 12), generator=g), padded_mask(g, BATCH, 12)
    return tokens * kept, kept, torch.where(kept, tokens.roll(1, 1), -100)


def tag_padded(model, batch):
    return F.cross_entropy(model(batch[0], batch[1]).flatten(0, 1), batch[2].flatten())


# ---- one-dimensional convolutions, PReLU, ELU, maximum over time


class Waves(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.conv1, self.act1 = nn.Conv1d(2, 12, 5, padding=2), nn.PReLU(12)
        self.conv2, self.norm = nn.Conv1d(12, 16, 3, dilation=2, padding="same"), nn.InstanceNorm1d(16, affine=True)
        self.drop, self.head = nn.Dropout1d(dropout), nn.Linear(32, 5)

    def forward(self, x):  # (N,2,T)
        x = F.avg_pool1d(self.act1(self.conv1(x)), 2)
        x = self.drop(F.elu(self.norm(self.conv2(x))))
        return self.head(torch.cat([x.amax(2), x.mean(2)], 1))


@seeded
def waves(g):
    labels = torch.randint(5, (BATCH,), generator=g)
    angle = torch.arange(32) / 32 * 6.2832 * (labels[:, None] + 1)
    clean = torch.stack([angle.sin(), angle.cos()], 1)
    return clean + 0.1 * torch.randn(BATCH, 2, 32, generator=g), labels


TASKS = {
    **{name: importlib.import_module(name).TASK for name in EXAMPLES},
    "mobile": Task(Mobile, images_and_labels, classify, sgd),
    "denoiser": Task(Denoiser, noisy_images, denoise, adamw),
    "gru": Task(GruTagger, echoes, tag, adamw, clip=0.25),
    "seq2seq": Task(Seq2Seq, translations, translate, adamw, micro_batches=2),
    "recommender": Task(Recommender, clicks, predict_clicks, sgd),
    "attention": Task(ShippedAttention, padded_text, tag_padded, adamw),
    "encoder_layer": Task(ShippedEncoder, padded_text, tag_padded, adamw),
    "waves": Task(Waves, waves, classify, adamw),
}


def nudge(model, seed=1):
    """Moves every nonzero weight one ulp up or down, by a seeded sign: the one-ulp twin."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            up = torch.rand(p.shape, generator=generator) < 0.5
            moved = torch.nextafter(p, torch.where(up, torch.inf, -torch.inf))
            p.copy_(torch.where(p == 0, p, moved))


def train(task, steps, amp="none", dropout=0.1, capture=None, scale=2.0**16, twin=False):
    """The loop of the examples, on the CPU. Returns the loss of every step, its micro-batches' mean."""
    torch.manual_seed(0)
    model = task.make_model(dropout)
    if twin:
        nudge(model)
    torch.manual_seed(1)  # dropout of a twin is the same
    return training_loop.train(task, model, steps, amp, capture=capture, captured_steps=steps, scale=scale)
