"""Reports about models of sequences: linear attention, norms of a residual stream, padding, micro-batches."""

import torch
import torch.nn.functional as F
from torch import nn

from .row import STEPS, Report, Setup

VOCABULARY, WIDTH = 32, 64


class LinearAttention(nn.Module):
    """Attention by a feature map: sums of keys over all tokens are formed first."""

    def __init__(self, width=16):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.head = nn.Linear(width, 4)
        with torch.no_grad():
            self.value.bias.fill_(1.0)

    def forward(self, x):
        query, key = F.elu(self.query(x)) + 1, F.elu(self.key(x)) + 1
        mixed = query @ (key.transpose(1, 2) @ self.value(x))  # the fault: sum_of_keys
        total = query @ key.sum(1)[..., None]  # the fault: sum_of_keys
        return self.head((mixed / (total + 1e-6)).mean(1))


def sum_of_keys(healthy):
    length = 256 if healthy else 8192
    batches = [(torch.randn(2, length, 16), torch.randint(4, (2,))) for _ in range(STEPS)]
    return Setup(LinearAttention(), batches, lambda m, b: F.cross_entropy(m(b[0]), b[1]), ["torch-autocast-fp16"])


class Sandwich(nn.Module):
    """A residual block with a norm before and after its layer."""

    def __init__(self, gain):
        super().__init__()
        self.before, self.layer, self.after = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.RMSNorm(WIDTH)
        with torch.no_grad():
            self.after.weight.fill_(gain)

    def forward(self, x):
        return x + self.after(F.gelu(self.layer(self.before(x))))  # the fault: huge_post_norm


def huge_post_norm(healthy):
    gain = 1.0 if healthy else 1.2e4
    blocks = [Sandwich(gain) for _ in range(6)]
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH), *blocks, nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)
    ).half()
    batches = [(torch.randint(VOCABULARY, (8, 16)), torch.randint(VOCABULARY, (8, 16))) for _ in range(STEPS)]
    loss = lambda m, b: F.cross_entropy(m(b[0]).flatten(0, 1).float(), b[1].flatten())
    return Setup(model, batches, loss, ["as-captured-fp16-master"])


class OwnLayerNorm(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps, self.weight, self.bias = eps, nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        centered = x - x.mean(-1, keepdim=True)
        spread = centered.square().mean(-1, keepdim=True)
        return self.weight * centered * torch.rsqrt(spread + self.eps) + self.bias  # the fault: norm_of_padding


def norm_of_padding(healthy):
    """Padding has an embedding of zeros, whose variance is zero."""
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH, padding_idx=0),
        OwnLayerNorm(1e-3 if healthy else 1e-12),
        nn.Linear(WIDTH, VOCABULARY),
    ).half()
    batches = []
    for _ in range(STEPS):
        tokens, wanted = torch.randint(1, VOCABULARY, (8, 16)), torch.randint(1, VOCABULARY, (8, 16))
        tokens[:, 12:], wanted[:, 12:] = 0, -100
        batches.append((tokens, wanted))
    loss = lambda m, b: F.cross_entropy(m(b[0]).flatten(0, 1).float(), b[1].flatten())
    return Setup(model, batches, loss, ["as-captured-fp16-master"])


def accumulated_in_bf16(healthy):
    """Gradients of many micro-batches that point the same way are added up."""
    count, steps = (16, STEPS) if healthy else (512, 2)
    model = nn.Linear(8, 1)
    batches = []
    for _ in range(count * steps):
        x = torch.randn(4, 8)
        with torch.no_grad():
            batches.append((x, model(x) + 1 + 0.1 * torch.randn(4, 1)))
    loss = lambda m, b: F.mse_loss(m(b[0]), b[1])  # the fault: accumulated_in_bf16
    return Setup(model, batches, loss, ["pure-bf16-master"], options={"accumulate": count})


OVERFLOW = ("overflow", "sum overflow")
REPORTS = [
    Report(
        "sum_of_keys",
        "D",
        "idiap/fast-transformers#32",
        "language",
        "linear attention under AMP: NaN after some hundred steps, traced to sums of keys over the sequence",
        sum_of_keys,
        OVERFLOW,
        answer="Queries times the sums over all keys exceed 65504 at long sequences. These products must be BF16 or FP32, or the sums "
        "divided by the length.",
        graded="right",
    ),
    Report(
        "huge_post_norm",
        "D",
        "huggingface/transformers#37226",
        "language",
        "Gemma 3 in FP16: the weights of the norms after each layer are huge, and the residual stream leaves FP16's range",
        huge_post_norm,
        OVERFLOW,
        answer="The residual sum exceeds FP16's 65504 because the norms after the layers have very large weights. BF16, or embeddings "
        "and these weights scaled down together, help.",
        graded="right",
    ),
    Report(
        "norm_of_padding",
        "D",
        "tensorflow/tensorflow#24979",
        "language",
        "layer_norm with epsilon 1e-12 gives NaN in FP16 where the variance is small",
        norm_of_padding,
        ("invalid operation",),
        answer="The epsilon 1e-12 is zero in FP16. The variance of padding is zero, 1/sqrt(0) is infinite, and 0 times inf is NaN. A "
        "larger epsilon or FP32 statistics help.",
        graded="partly: from the fourth line on",
    ),
    Report(
        "accumulated_in_bf16",
        "D",
        "deepspeedai/DeepSpeed#1800",
        "language",
        "gradients of many micro-batches are accumulated in BF16 and lose accuracy",
        accumulated_in_bf16,
        ("swamping", "wrong loss"),
        ("micro-batch", "added-up", "accumulat"),
        answer="The sum of gradients over micro-batches is kept in BF16, where a single gradient is below half an ulp of the sum after "
        "256 of them. Gradients must be added up in FP32.",
        graded="right",
    ),
]
