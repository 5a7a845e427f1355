"""Small networks of many families, cut into the parts whose effect on the loss is predicted: test_study_parts.py.

Every operation but the loss is inside a part, so that a policy can keep all layers but one part's in FP32.
"""

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, CLASSES = 48, 10


class Residual(nn.Module):
    """x + body(norm(x))."""

    def __init__(self, norm, body):
        super().__init__()
        self.norm, self.body = norm, body

    def forward(self, x):
        return x + self.body(self.norm(x))


class Attention(nn.Module):
    def __init__(self, width, heads, causal, kv_heads=None):
        super().__init__()
        self.heads, self.kv_heads, self.causal, self.size = heads, kv_heads or heads, causal, width // heads
        self.q, self.o = nn.Linear(width, width), nn.Linear(width, width)
        self.k, self.v = (nn.Linear(width, self.kv_heads * self.size) for _ in range(2))

    def forward(self, x):
        q = self.q(x).unflatten(-1, (self.heads, self.size)).transpose(1, 2)
        k, v = (m(x).unflatten(-1, (self.kv_heads, self.size)).transpose(1, 2) for m in (self.k, self.v))
        if self.kv_heads != self.heads:
            k, v = (t.repeat_interleave(self.heads // self.kv_heads, dim=1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.o(y.transpose(1, 2).flatten(2))


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class SwiGLU(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(width, hidden), nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """All experts on all tokens, mixed by the router's probabilities."""

    def __init__(self, width, count):
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(mlp(width, 2 * width) for _ in range(count))

    def forward(self, x):
        shares = F.softmax(self.router(x), dim=-1)
        y = shares[..., :1] * self.experts[0](x)
        for i in range(1, len(self.experts)):
            y = y + shares[..., i : i + 1] * self.experts[i](x)
        return y


class Recurrence(nn.Module):
    """h_t = a h_{t-1} + u_t with a decay for each channel, gated: a state space with a diagonal matrix, written as the
    product with its kernel."""

    def __init__(self, width, length):
        super().__init__()
        self.inside, self.gate, self.out = (nn.Linear(width, width) for _ in range(3))
        self.decay = nn.Parameter(torch.linspace(-1, 2, width))
        distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
        self.register_buffer("distance", distance.clamp(min=0).float())
        self.register_buffer("past", (distance >= 0).float())

    def forward(self, x):
        u = self.inside(x).transpose(1, 2)  # B C T
        rate = F.softplus(-self.decay)[:, None, None]
        kernel = torch.exp(-rate * self.distance) * self.past * (1 - torch.exp(-rate))  # C T T
        h = (kernel @ u.unsqueeze(-1)).squeeze(-1).transpose(1, 2)
        return self.out(h * torch.sigmoid(self.gate(x)))


class Mixing(nn.Module):
    """An MLP across the tokens."""

    def __init__(self, tokens):
        super().__init__()
        self.inner = mlp(tokens, 2 * tokens)

    def forward(self, x):
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


class Embedding(nn.Module):
    def __init__(self, width, length, vocabulary=VOCABULARY, norm=False):
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Parameter(0.02 * torch.randn(length, width))
        self.project = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()

    def forward(self, tokens):
        return self.norm(self.project(self.token(tokens)) + self.place)


class Patches(nn.Module):
    def __init__(self, width, size=4, channels=3, image=16):
        super().__init__()
        self.size, self.project = size, nn.Linear(channels * size * size, width)
        self.place = nn.Parameter(0.02 * torch.randn((image // size) ** 2, width))

    def forward(self, x):
        b, c, h, w = x.shape
        s = self.size
        x = x.view(b, c, h // s, s, w // s, s).permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        return self.project(x) + self.place


class Pooled(nn.Module):
    """The mean over the tokens, or over height and width, and a linear layer."""

    def __init__(self, width, classes=CLASSES):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x):
        x = x.mean((2, 3)) if x.ndim == 4 else x.mean(1)
        return self.out(self.norm(x))


class Pooled1d(Pooled):
    def forward(self, x):
        return self.out(self.norm(x.mean(2)))


class ConvBlock(nn.Module):
    def __init__(self, width, norm, stride=1, inputs=None):
        super().__init__()
        inputs = inputs or width
        self.first, self.second = nn.Conv2d(inputs, width, 3, stride, 1), nn.Conv2d(width, width, 3, 1, 1)
        self.norms = nn.ModuleList(norm(width) for _ in range(2))
        self.short = nn.Identity() if stride == 1 and inputs == width else nn.Conv2d(inputs, width, 1, stride)

    def forward(self, x):
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.short(x) + self.norms[1](self.second(y)))


class Conv1dBlock(nn.Module):
    def __init__(self, inputs, width, stride, kernel=5):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(inputs, width, kernel, stride, kernel // 2), nn.GroupNorm(4, width)

    def forward(self, x):
        return F.gelu(self.norm(self.conv(x)))


class Down(nn.Module):
    def __init__(self, inputs, width):
        super().__init__()
        self.block = ConvBlock(width, lambda c: nn.GroupNorm(4, c), 2, inputs)

    def forward(self, x):
        return self.block(x)


class Up(nn.Module):
    def __init__(self, inputs, skip, width):
        super().__init__()
        self.block = ConvBlock(width, lambda c: nn.GroupNorm(4, c), 1, inputs + skip)

    def forward(self, x, skip):
        return self.block(torch.cat([F.interpolate(x, scale_factor=2, mode="nearest"), skip], 1))


class Recurrent(nn.Module):
    """One recurrent layer; its output alone."""

    def __init__(self, kind, inputs, width):
        super().__init__()
        self.rnn = kind(inputs, width, batch_first=True)

    def forward(self, x):
        return self.rnn(x)[0]


class Tables(nn.Module):
    """Embeddings of categories, next to each other, with the numbers."""

    def __init__(self, fields, width, rows=30):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(fields))
        self.numbers = nn.Linear(16, width)

    def forward(self, categories, numbers):
        found = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        return torch.cat([*found, self.numbers(numbers)], 1)


def mlp(width, hidden, out=None):
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, out or width))


class Chain(nn.Module):
    """Parts one after the other."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x


class UNet(nn.Module):
    def __init__(self, width, channels, classes):
        super().__init__()
        self.first = ConvBlock(width, lambda c: nn.GroupNorm(4, c), 1, channels)
        self.down1, self.down2 = Down(width, 2 * width), Down(2 * width, 2 * width)
        self.up2, self.up1 = Up(2 * width, 2 * width, 2 * width), Up(2 * width, width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        a = self.first(x)
        b = self.down1(a)
        c = self.down2(b)
        return self.head(self.up1(self.up2(c, b), a))


class Recommender(nn.Module):
    def __init__(self, fields, width, hidden, depth, outputs):
        super().__init__()
        self.tables = Tables(fields, width)
        wide = width * (fields + 1)
        self.inner = nn.ModuleList(
            nn.Sequential(nn.Linear(wide if i == 0 else hidden, hidden), nn.ReLU()) for i in range(depth)
        )
        self.head = nn.Linear(hidden, outputs)

    def forward(self, categories, numbers):
        x = self.tables(categories, numbers)
        for part in self.inner:
            x = part(x)
        return self.head(x)


# Tasks that can be learned in some hundred steps. batch(generator) gives (inputs..., target).
def text(rows, length):
    """Each token follows from the one before by a fixed map, or one time in four by chance."""

    def batch(g):
        tokens = torch.randint(0, VOCABULARY, (rows, length + 1), generator=g)
        noise = torch.rand(rows, length + 1, generator=g) < 0.25
        for t in range(1, length + 1):
            follows = (tokens[:, t - 1] * 5 + 7) % VOCABULARY
            tokens[:, t] = torch.where(noise[:, t], tokens[:, t], follows)
        return tokens[:, :-1], tokens[:, 1:]

    return batch


def masked_text(rows, length):
    """The right token at every place, a third of which is replaced by token 0."""
    make = text(rows, length)

    def batch(g):
        tokens, _ = make(g)
        return torch.where(torch.rand(tokens.shape, generator=g) < 0.33, torch.zeros_like(tokens), tokens), tokens

    return batch


def pictures(rows, image=16, noise=1.5):
    """Ten fixed pictures under noise."""
    fixed = torch.randn(CLASSES, 3, image, image, generator=torch.Generator().manual_seed(11))

    def batch(g):
        label = torch.randint(0, CLASSES, (rows,), generator=g)
        return fixed[label] + noise * torch.randn(rows, 3, image, image, generator=g), label

    return batch


def masks(rows, image=16):
    """Which pixels a smooth field marks, seen through noise."""

    def batch(g):
        field = F.interpolate(torch.randn(rows, 1, 4, 4, generator=g), size=image, mode="bilinear")
        label = (field[:, 0] > 0).long() + (field[:, 0] > 0.7).long()
        return field.expand(-1, 3, -1, -1) + 0.7 * torch.randn(rows, 3, image, image, generator=g), label

    return batch


def waves(rows, length=128):
    """Ten frequencies under noise."""

    def batch(g):
        label = torch.randint(0, CLASSES, (rows,), generator=g)
        phase = 6.28 * torch.rand(rows, 1, generator=g)
        t = torch.arange(length)[None, :]
        wave = torch.sin(t * (0.1 + 0.12 * label[:, None]) + phase)
        return (wave + torch.randn(rows, length, generator=g))[:, None, :], label

    return batch


def vectors(rows, width, outputs=CLASSES, kind="class"):
    """A fixed random network's answer: its largest output, its outputs, or the input itself."""
    g0 = torch.Generator().manual_seed(12)
    first, second = torch.randn(width, 24, generator=g0), torch.randn(24, outputs, generator=g0)
    few = torch.randn(8, width, generator=g0)

    def batch(g):
        if kind == "itself":
            x = torch.randn(rows, 8, generator=g) @ few / 8**0.5 + 0.3 * torch.randn(rows, width, generator=g)
            return x, x
        x = torch.randn(rows, width, generator=g)
        y = torch.tanh(x @ first / width**0.5) @ second
        noise = torch.randn(y.shape, generator=g)
        return x, (y + 1.5 * noise).argmax(1) if kind == "class" else y / 5 + 0.5 * noise

    return batch


def clicks(rows, fields, outputs):
    g0 = torch.Generator().manual_seed(13)
    scores, numbers = torch.randn(fields, 30, outputs, generator=g0), torch.randn(16, outputs, generator=g0)

    def batch(g):
        c = torch.randint(0, 30, (rows, fields), generator=g)
        x = torch.randn(rows, 16, generator=g)
        y = sum(scores[i, c[:, i]] for i in range(fields)) + 0.5 * x @ numbers
        return c, x, (y + torch.randn(y.shape, generator=g)).argmax(1)

    return batch


def cross_entropy(y, target):
    """A mean over all labels; classes are on the last axis, or on the second of pictures."""
    if y.ndim == 3:
        return F.cross_entropy(y.flatten(0, 1), target.flatten())
    return F.cross_entropy(y, target)


@dataclasses.dataclass(frozen=True)
class Network:
    family: str
    variant: str
    make: Callable[[], nn.Module]
    batch: Callable
    parts: tuple[str, ...]
    loss_over: str = "tokens"  # of what the loss is a mean: Parts(..., loss_over=)
    loss: Callable = cross_entropy

    @property
    def name(self):
        return f"{self.family} {self.variant}"


def chain(family, variant, parts, batch, loss_over="tokens", loss=cross_entropy):
    """parts: a function that makes them, since their weights are drawn."""
    names = tuple(f"parts.{i}" for i in range(len(parts())))
    return Network(family, variant, lambda: Chain(*parts()), batch, names, loss_over, loss)


def head(width, outputs=VOCABULARY, norm=nn.LayerNorm):
    return nn.Sequential(norm(width), nn.Linear(width, outputs))


def transformer(width, heads, causal, norm=nn.LayerNorm, feed=None, kv_heads=None):
    feed = feed or (lambda: mlp(width, 4 * width))
    return nn.Sequential(
        Residual(norm(width), Attention(width, heads, causal, kv_heads)), Residual(norm(width), feed())
    )


def blocks(count, make):
    return [make() for _ in range(count)]


def networks():
    found = []
    rows, length = 8, 32
    for width, depth in ((32, 3), (48, 3), (64, 2)):
        found.append(
            chain(
                "gpt",
                f"{depth} x {width}",
                lambda w=width, d=depth: [
                    Embedding(w, length),
                    *blocks(d, lambda: transformer(w, 4, True)),
                    head(w),
                ],
                text(rows, length),
            )
        )
    for width, depth, kv in ((32, 3, 2), (48, 3, 1), (64, 2, 4)):
        found.append(
            chain(
                "llama",
                f"{depth} x {width}",
                lambda w=width, d=depth, k=kv: [
                    Embedding(w, length),
                    *blocks(d, lambda: transformer(w, 4, True, RMSNorm, lambda: SwiGLU(w, 2 * w), k)),
                    head(w, norm=RMSNorm),
                ],
                text(rows, length),
            )
        )
    for width, depth in ((32, 3), (48, 3), (64, 2)):
        found.append(
            chain(
                "encoder",
                f"{depth} x {width}",
                lambda w=width, d=depth: [
                    Embedding(w, length, norm=True),
                    *blocks(d, lambda: transformer(w, 4, False)),
                    head(w),
                ],
                masked_text(rows, length),
            )
        )
    for width, depth in ((32, 3), (48, 2), (64, 2)):
        found.append(
            chain(
                "experts",
                f"{depth} x {width}",
                lambda w=width, d=depth: [
                    Embedding(w, length),
                    *blocks(d, lambda: transformer(w, 4, True, feed=lambda: Experts(w, 3))),
                    head(w),
                ],
                text(rows, length),
            )
        )
    for width, depth in ((32, 3), (48, 3), (64, 2)):
        found.append(
            chain(
                "state space",
                f"{depth} x {width}",
                lambda w=width, d=depth: [
                    Embedding(w, length),
                    *blocks(d, lambda: Residual(RMSNorm(w), Recurrence(w, length))),
                    head(w, norm=RMSNorm),
                ],
                text(rows, length),
            )
        )
    for kind, width, depth in ((nn.LSTM, 48, 2), (nn.LSTM, 32, 3), (nn.GRU, 48, 2), (nn.GRU, 32, 3)):
        found.append(
            chain(
                kind.__name__.lower(),
                f"{depth} x {width}",
                lambda k=kind, w=width, d=depth: [
                    Embedding(w, length),
                    *blocks(d, lambda: Recurrent(k, w, w)),
                    head(w),
                ],
                text(rows, length),
            )
        )
    for width, depth in ((32, 3), (48, 3), (64, 2)):
        found.append(
            chain(
                "vit",
                f"{depth} x {width}",
                lambda w=width, d=depth: [
                    Patches(w),
                    *blocks(d, lambda: transformer(w, 4, False)),
                    Pooled(w),
                ],
                pictures(32),
                "rows",
            )
        )
    for width, depth in ((32, 3), (48, 3), (64, 2)):
        found.append(
            chain(
                "mixer",
                f"{depth} x {width}",
                lambda w=width, d=depth: [
                    Patches(w),
                    *blocks(
                        d,
                        lambda: nn.Sequential(
                            Residual(nn.LayerNorm(w), Mixing(16)), Residual(nn.LayerNorm(w), mlp(w, 2 * w))
                        ),
                    ),
                    Pooled(w),
                ],
                pictures(32),
                "rows",
            )
        )
    for width, norm in ((16, nn.BatchNorm2d), (16, lambda c: nn.GroupNorm(4, c)), (24, nn.BatchNorm2d)):
        found.append(
            chain(
                "resnet",
                f"{width}, {'batch' if norm is nn.BatchNorm2d else 'group'} norm",
                lambda w=width, n=norm: [
                    ConvBlock(w, n, 1, 3),
                    ConvBlock(w, n),
                    ConvBlock(2 * w, n, 2, w),
                    Pooled(2 * w),
                ],
                pictures(16),
                "rows",
            )
        )
    for width, kernel in ((16, 5), (32, 5), (16, 9)):
        found.append(
            chain(
                "conv1d audio",
                f"{width}, kernel {kernel}",
                lambda w=width, k=kernel: [
                    Conv1dBlock(1, w, 2, k),
                    Conv1dBlock(w, w, 2, k),
                    Conv1dBlock(w, 2 * w, 2, k),
                    Pooled1d(2 * w),
                ],
                waves(16, 64),
                "rows",
            )
        )
    for width, classes in ((8, 3), (12, 3), (16, 3)):
        found.append(
            Network(
                "u-net",
                f"{width}",
                lambda w=width, c=classes: UNet(w, 3, c),
                masks(2),
                ("first", "down1", "down2", "up2", "up1", "head"),
            )
        )
    for width, depth in ((32, 3), (64, 3), (128, 2)):
        found.append(
            chain(
                "mlp",
                f"{depth} x {width}",
                lambda w=width, d=depth: [
                    nn.Sequential(nn.Linear(32, w), nn.ReLU()),
                    *blocks(d, lambda: nn.Sequential(nn.Linear(w, w), nn.ReLU())),
                    nn.Linear(w, CLASSES),
                ],
                vectors(128, 32),
                "rows",
            )
        )
    for fields, width, depth in ((4, 16, 2), (8, 16, 3), (4, 32, 3)):
        found.append(
            Network(
                "recommender",
                f"{fields} fields of {width}",
                lambda f=fields, w=width, d=depth: Recommender(f, w, 64, d, 4),
                clicks(128, fields, 4),
                ("tables", *(f"inner.{i}" for i in range(depth)), "head"),
                "rows",
            )
        )
    for width, code in ((64, 8), (48, 4), (96, 16)):
        found.append(
            chain(
                "autoencoder",
                f"{width} to {code}",
                lambda w=width, c=code: [
                    nn.Sequential(nn.Linear(64, w), nn.GELU()),
                    nn.Sequential(nn.Linear(w, c), nn.Tanh()),
                    nn.Sequential(nn.Linear(c, w), nn.GELU()),
                    nn.Linear(w, 64),
                ],
                vectors(128, 64, kind="itself"),
                "rows",
                F.mse_loss,
            )
        )
    return found
