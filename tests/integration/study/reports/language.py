"""Reports about language models, retrieval and recommendation."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .row import STEPS, Report, Setup

VOCABULARY, WIDTH = 64, 32


def tokens(batch=8, length=16):
    return [
        (torch.randint(VOCABULARY, (batch, length)), torch.randint(VOCABULARY, (batch, length))) for _ in range(STEPS)
    ]


def next_token(model, batch):
    return F.cross_entropy(model(batch[0]).flatten(0, 1).float(), batch[1].flatten())


class FeedForward(nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.norm, self.wi = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.wo = nn.Linear(4 * WIDTH, WIDTH, bias=False)
        with torch.no_grad():
            self.wo.weight.mul_(gain)

    def forward(self, x):
        hidden = F.relu(self.wi(self.norm(x)))
        return x + self.wo(hidden)  # the fault: feed_forward_output


def feed_forward_output(healthy):
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH),
        FeedForward(1.0),
        FeedForward(1.0 if healthy else 1e6),
        nn.LayerNorm(WIDTH),
        nn.Linear(WIDTH, VOCABULARY),
    )
    return Setup(model, tokens(), next_token, ["torch-autocast-fp16"])


class RootMeanSquare(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        power = x.pow(2).mean(-1, keepdim=True)  # the fault: square_in_a_norm
        return self.weight * (x * torch.rsqrt(power + 1e-6))


def square_in_a_norm(healthy):
    embedding = nn.Embedding(VOCABULARY, WIDTH)
    with torch.no_grad():
        embedding.weight.mul_(1.0 if healthy else 500.0)
    model = nn.Sequential(embedding, RootMeanSquare(), nn.Linear(WIDTH, VOCABULARY))
    return Setup(model, tokens(), next_token, ["half"])


class Ranker(nn.Module):
    """Scores of documents for queries, brought to [0, 1] for each query."""

    def __init__(self, eps):
        super().__init__()
        self.eps, self.encoder = eps, nn.Linear(24, WIDTH)

    def forward(self, queries, documents):
        query, document = self.encoder(queries), self.encoder(documents)
        scores = torch.matmul(document, query[..., None]).squeeze(-1)
        least, most = scores.amin(-1, keepdim=True), scores.amax(-1, keepdim=True)
        return (scores - least) / (most - least + self.eps)  # the fault: guard_below_fp16


def guard_below_fp16(healthy):
    batches = []
    for _ in range(STEPS):
        documents, teacher = torch.randn(8, 4, 24), torch.randn(8, 4)
        documents[0], teacher[0] = documents[0, :1], 0.0  # four equal documents, which the teacher scores equally
        batches.append((torch.randn(8, 24), documents, F.softmax(teacher, -1)))

    def distill(model, batch):
        return F.kl_div(F.log_softmax(model(*batch[:2]), -1), batch[2], reduction="batchmean")

    return Setup(Ranker(1e-3 if healthy else 1e-8), batches, distill, ["torch-autocast-fp16"])


def fine_tuned_in_bf16(healthy):
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH), FeedForward(1.0), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    return Setup(model, tokens(), next_token, ["pure-bf16-master" if healthy else "pure-bf16"], optimizer)


class Rotary(nn.Module):
    """Attention in which only the distance of two tokens matters. narrow: the angles have the format of the model."""

    def __init__(self, narrow, dim=16):
        super().__init__()
        self.narrow, self.dim = narrow, dim
        self.register_buffer("inv_freq", 10000.0 ** (-torch.arange(0, dim, 2).float() / dim))
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def angles(self, x):
        if self.narrow:
            positions = torch.arange(x.shape[1]).type_as(self.inv_freq)  # the fault: rotary_angles
            return torch.outer(positions, self.inv_freq)  # the fault: rotary_angles
        steps = torch.arange(0, self.dim, 2, dtype=torch.float32) / self.dim
        return torch.outer(torch.arange(x.shape[1], dtype=torch.float32), torch.pow(10000.0, -steps))

    def forward(self, x):
        angles = self.angles(x)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)  # the fault: rotary_angles

        def turned(t):
            first, second = t.chunk(2, -1)
            return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

        query, key = turned(self.query(x)), turned(self.key(x))
        scores = query @ key.transpose(-1, -2) / math.sqrt(self.dim)
        return F.softmax(scores, -1) @ self.value(x)


def rotary_angles(healthy):
    model = Rotary(narrow=not healthy)
    with torch.no_grad():
        for layer in (model.query, model.key):
            layer.bias.fill_(2.0)
        model.value.weight.mul_(4.0)
    batches = []
    for _ in range(STEPS):
        x = torch.randn(1, 1024, 16)
        with torch.no_grad():
            batches.append((x, model(x) + 0.05 * torch.randn(1, 1024, 16)))
    return Setup(model, batches, lambda m, b: F.mse_loss(m(b[0]).float(), b[1].float()), ["pure-bf16-master"])


class WideAndDeep(nn.Module):
    """Click prediction from the codes of ten fields."""

    def __init__(self):
        super().__init__()
        self.wide, self.deep = nn.Embedding(1000, 1), nn.Embedding(1000, 8)
        self.hidden, self.last = nn.Linear(80, 64), nn.Linear(64, 1)
        for layer in (self.hidden, self.last, self.deep):
            nn.init.normal_(layer.weight, std=0.01)

    def forward(self, codes):
        hidden = F.relu(self.hidden(self.deep(codes).flatten(1)))
        return self.last(hidden).squeeze(-1) + self.wide(codes).sum((1, 2))


def clicks_of_a_large_batch(healthy):
    batches = [(torch.randint(1000, (4096, 10)), (torch.rand(4096) < 0.05).float()) for _ in range(STEPS)]

    def loss(model, batch):
        return F.binary_cross_entropy_with_logits(model(batch[0]).float(), batch[1].float())

    lane = "torch-autocast-fp16" if healthy else "pure-fp16-master"
    return Setup(WideAndDeep(), batches, loss, [lane])


def expanded_distance(healthy):
    """Distances of near duplicates to their originals, by |x|^2 + |y|^2 - 2xy or by differences."""
    model = nn.Linear(16, 16)
    with torch.no_grad():
        model.weight.copy_(2 * torch.eye(16)), model.bias.zero_()

    def loss(m, batch):
        x, y = m(batch[0]), m(batch[1])
        if healthy:
            return (x - y).square().sum(-1).sqrt().mean()
        squares = (x * x).sum(-1) + (y * y).sum(-1)  # the fault: expanded_distance
        square = squares - 2 * (x * y).sum(-1)  # the fault: expanded_distance
        return square.sqrt().mean()  # the fault: expanded_distance

    batches = []
    for _ in range(STEPS):
        x = torch.randn(64, 16)
        batches.append((x, x + 0.02 * torch.randn(64, 16)))
    return Setup(model, batches, loss, ["half"])


OVERFLOW = ("overflow", "sum overflow")
WRONG = ("cancellation", "wrong loss")
REPORTS = [
    Report(
        "feed_forward_output",
        "A",
        "huggingface/transformers#5651",
        "language",
        "T5 under FP16 (O1): NaN after 34 steps; the output of wo, 66246, is above 65504",
        feed_forward_output,
        OVERFLOW,
        graded="partly: names wo and its weight, which the rebuilt network made too large; LayerNorm has no running statistics",
    ),
    Report(
        "square_in_a_norm",
        "A",
        "pytorch/pytorch#133085",
        "language",
        "RMSNorm of an FP16 model: wrong results, the square of the input overflows",
        square_in_a_norm,
        OVERFLOW,
        graded="right: the square, its size and fp16's limit",
    ),
    Report(
        "guard_below_fp16",
        "A",
        "lightonai/pylate#239",
        "retrieval",
        "distillation under FP16 autocast: NaN, the guard 1e-8 is 0 and equal scores give 0/0",
        guard_below_fp16,
        ("invalid operation",),
        graded="right: 0/0 because the sum with the guard became zero",
    ),
    Report(
        "fine_tuned_in_bf16",
        "A",
        "meta-pytorch/torchtune#2254",
        "language",
        "fine-tuning in BF16 with a learning rate of 2e-5 converges far worse than in FP32",
        fine_tuned_in_bf16,
        ("lost updates",),
        ("weights are too coarse",),
        graded="right: updates too small for bf16 weights",
    ),
    Report(
        "rotary_angles",
        "B",
        "EleutherAI/gpt-neox#1003",
        "language",
        "rotary tables built in the model's 16-bit format: angles of late positions are wrong by up to 1",
        rotary_angles,
        WRONG,
        ("inv_freq",),
        graded="wrong: the tables are constants of the capture, so the lane's loss is 0.003 where PyTorch's in bf16 is 0.63",
        graded_healthy="true: PyTorch's own loss in bf16 is 22 % higher, too",
    ),
    Report(
        "clicks_of_a_large_batch",
        "B",
        "NVIDIA-Merlin/HugeCTR#393",
        "recommendation",
        "wide and deep with use_mixed_precision: batches of 10752, the AUC stays near 0.6",
        clicks_of_a_large_batch,
        ("no scaler", "no gradient", "underflow"),
        ("no loss scale", "whole gradient became zero", "to underflow"),
        graded="right: gradients vanish without a loss scale; a scaler was tried and helps",
    ),
    Report(
        "expanded_distance",
        "B",
        "NVIDIA/cuvs#991",
        "retrieval",
        "nearest neighbours with FP16 products: negative squared distances, NaN after sqrt",
        expanded_distance,
        ("invalid operation", *WRONG),
        graded="right: the difference became zero by rounding the sum of squares, under sqrt",
    ),
]
