"""Reports about measured and compared things: spectra of masses, proteins, speech, purchases, embeddings."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .row import STEPS, Report, Setup


class Spectrum(nn.Module):
    """Peaks of a mass spectrum, encoded by sines of their mass-to-charge ratio."""

    def __init__(self, half=16):
        super().__init__()
        lengths = 10.0 ** torch.linspace(0, 4, half)
        self.register_buffer("turns", 2 * math.pi / lengths)
        self.inner, self.outer = nn.Linear(2 * half, 32), nn.Linear(32, 4)

    def forward(self, masses):
        angles = masses[..., None] * self.turns  # the fault: mass_to_charge
        encoded = torch.cat([angles.sin(), angles.cos()], -1)  # the fault: mass_to_charge
        return self.outer(F.relu(self.inner(encoded)).mean(1))


def mass_to_charge(healthy):
    model, batches = Spectrum(), []
    for _ in range(STEPS):
        masses = 100 + 1900 * torch.rand(32, 20)
        with torch.no_grad():
            batches.append((masses, model(masses) + 0.01 * torch.randn(32, 4)))
    lane = "torch-autocast-bf16" if healthy else "pure-bf16-master"
    return Setup(model, batches, lambda m, b: F.mse_loss(m(b[0]).float(), b[1].float()), [lane])


class Pairs(nn.Module):
    """A representation of pairs of residues, made of outer products, before a layer norm."""

    def __init__(self, width=8):
        super().__init__()
        self.single, self.pair = nn.Linear(20, width), nn.Linear(width, width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 6)

    def forward(self, x):
        single = self.single(x)
        outer = single[:, :, None] * single[:, None]  # the fault: pair_of_residues
        return self.head(self.norm(outer + self.pair(single)[:, None]))


def pair_of_residues(healthy):
    """The language model before it has activations of several hundred."""
    level = 1.0 if healthy else 200.0
    batches = [((level * torch.randn(2, 16, 20)).half(), torch.randint(6, (2, 16, 16))) for _ in range(STEPS)]
    loss = lambda m, b: F.cross_entropy(m(b[0]).flatten(0, 2).float(), b[1].flatten())
    return Setup(Pairs().half(), batches, loss, ["as-captured-fp16-master"])


def speech_statistics(healthy):
    """Features of speech, of which some bands are constant, are normalized over time."""
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))

    def loss(m, batch):
        mean = batch[0].mean(1, keepdim=True)
        spread = batch[0].square().mean(1, keepdim=True) - mean.square()  # the fault: speech_statistics
        if healthy:
            spread = spread.clamp(min=1e-3)
        normed = (batch[0] - mean) / spread.sqrt()  # the fault: speech_statistics
        return F.cross_entropy(m(normed).mean(1), batch[1])

    batches = []
    for _ in range(STEPS):
        level = -16 + 4 * torch.rand(8, 1, 20)
        features = level + torch.randn(8, 50, 20)
        features[..., 15:] = level[..., 15:]
        batches.append((features, torch.randint(4, (8,))))
    return Setup(model, batches, loss, ["torch-autocast-bf16"])


class Shop(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.goods = nn.Embedding(50, 16), nn.Embedding(80, 16)
        with torch.no_grad():
            self.users.weight.mul_(1.5), self.goods.weight.mul_(1.5)


def unnormalized_similarity(healthy, temperature=0.2):
    """Users are contrasted with all goods; embeddings are not normalized."""

    def loss(model, batch):
        users = model.users(batch[0])
        scores = users @ model.goods.weight.t() / temperature
        shift = scores.amax(1) if healthy else torch.zeros(len(scores))
        powers = torch.exp(scores - shift[:, None])  # the fault: unnormalized_similarity
        negative = shift + torch.log(powers.sum(1) + 1e-8)  # the fault: unnormalized_similarity
        positive = (users * model.goods(batch[1])).sum(1) / temperature
        return (negative - positive.clamp(-5, 5)).mean()

    batches = [(torch.randint(50, (32,)), torch.randint(80, (32,))) for _ in range(STEPS)]
    return Setup(Shop(), batches, loss, ["torch-autocast-bf16"])


def triplet_of_duplicates(healthy):
    """Distances on the unit sphere to a near duplicate and to another picture."""
    model = nn.Linear(16, 16)

    def loss(m, batch):
        anchor, near, far = (F.normalize(m(x), dim=-1) for x in batch)
        if healthy:
            to_near, to_far = (anchor - near).norm(dim=-1), (anchor - far).norm(dim=-1)
        else:
            to_near = (2 - 2 * (anchor * near).sum(-1)).sqrt()  # the fault: triplet_of_duplicates
            to_far = (2 - 2 * (anchor * far).sum(-1)).sqrt()
        return F.relu(to_near - to_far + 1.5).mean()

    batches = []
    for _ in range(STEPS):
        anchor = torch.randn(64, 16)
        batches.append((anchor, anchor + 0.03 * torch.randn(64, 16), torch.randn(64, 16)))
    return Setup(model, batches, loss, ["pure-bf16-master"])


OVERFLOW = ("overflow", "sum overflow")
WRONG = ("cancellation", "wrong loss")
REPORTS = [
    Report(
        "mass_to_charge",
        "D",
        "wfondrie/depthcharge#82",
        "mass spectra",
        "sinusoidal encodings of mass-to-charge ratios in 16 bits are distorted: neither the ratios nor the frequencies are exact",
        mass_to_charge,
        WRONG,
        ("input batch[0]", "turns"),
        answer="Ratios of up to 2000 have a spacing of 8 in BF16, which is several turns of the fastest sines. Ratios, frequencies and "
        "angles must be FP32; only the encoding may be rounded.",
        graded="right",
    ),
    Report(
        "pair_of_residues",
        "D",
        "huggingface/transformers#47472",
        "proteins",
        "ESMFold in FP16: NaN, because what a layer norm gets is too large for FP16",
        pair_of_residues,
        OVERFLOW,
        answer="Products of pairs of residues exceed FP16's 65504 before the layer norm. They and the norm must be FP32 or BF16, or their "
        "input be scaled down.",
        graded="right",
    ),
    Report(
        "speech_statistics",
        "D",
        "k2-fsa/sherpa-onnx#2844",
        "sound",
        "speaker embeddings are NaN: the variance E[x^2] - E[x]^2 of the features may be negative",
        speech_statistics,
        ("invalid operation", "cancellation"),
        answer="The one-pass variance of a constant band cancels and is negative, already in FP32, and its root is NaN. It is no matter of "
        "the format. Variance from centered values, or a floor under it, helps.",
        graded="wrong: an error without a text",
    ),
    Report(
        "unnormalized_similarity",
        "D",
        "HKUDS/LightGCL#22",
        "recommendation",
        "the negative score of a contrastive loss becomes inf on the user's own data and the loss NaN",
        unnormalized_similarity,
        (*OVERFLOW, "invalid operation"),
        answer="exp of a similarity over a temperature overflows, in FP32 as well, because embeddings are not normalized. It is no matter "
        "of the format. logsumexp helps.",
        graded="wrong: an error without a text",
        graded_healthy="false: a gradient that is rounding alone",
    ),
    Report(
        "triplet_of_duplicates",
        "D",
        "tensorflow/similarity#364",
        "retrieval",
        "the triplet loss in mixed BF16 is NaN from the start",
        triplet_of_duplicates,
        ("invalid operation", *WRONG),
        answer="2 - 2 cos cancels for near duplicates: in BF16 the cosine rounds to 1 or above, the root is of zero or less, and its "
        "gradient is infinite or NaN. Distances from differences, or in FP32, help.",
        graded="partly: the symptom alone",
    ),
]
