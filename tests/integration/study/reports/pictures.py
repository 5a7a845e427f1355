"""Reports about pictures: stored statistics, norms, decoders, clustering of features, adapters, codebooks."""

import torch
import torch.nn.functional as F
from torch import nn

from .row import STEPS, Report, Setup


class FrozenNorm(nn.Module):
    """A batch norm with stored statistics."""

    def __init__(self, count, spread):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(count)), nn.Parameter(torch.zeros(count))
        self.register_buffer("running_mean", torch.zeros(count))
        self.register_buffer("running_var", torch.full((count,), spread))

    def forward(self, x):
        mean, spread = self.running_mean, self.running_var
        return F.batch_norm(x, mean, spread, self.weight, self.bias, False)  # the fault: stored_variance


def stored_variance(healthy):
    """Pixels of 0 to 255 give a convolution outputs with a variance of 1e5."""
    level, spread = (1.0, 1.5) if healthy else (255.0, 1e5)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), FrozenNorm(8, spread), nn.ReLU(), nn.Flatten())
    model.append(nn.Linear(8 * 64, 4))
    with torch.no_grad():
        model[0].weight.mul_(4)
    batches = [(level * torch.rand(16, 3, 8, 8), torch.randint(4, (16,))) for _ in range(STEPS)]
    loss = lambda m, b: F.cross_entropy(m(b[0]), b[1])
    return Setup(model, batches, loss, ["half"], torch.optim.SGD(model.parameters(), lr=0.05))


class Translator(nn.Module):
    """Image to image with an instance norm of its own."""

    def __init__(self, averages):
        super().__init__()
        self.averages, self.inner, self.outer = averages, nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 1, 1)

    def forward(self, x):
        x = F.softplus(self.inner(x) + 2)
        if self.averages:
            mean = x.mean((2, 3), keepdim=True)
        else:
            mean = x.sum((2, 3), keepdim=True) / (x.shape[2] * x.shape[3])  # the fault: instance_norm_sum
        centered = x - mean
        return self.outer(centered * torch.rsqrt(centered.square().mean((2, 3), keepdim=True) + 1e-3))


def instance_norm_sum(healthy):
    batches = [(torch.randn(1, 1, 224, 224).half(), torch.randn(1, 1, 224, 224)) for _ in range(STEPS)]
    loss = lambda m, b: F.mse_loss(m(b[0]).float(), b[1])
    return Setup(Translator(healthy).half(), batches, loss, ["as-captured-fp16-master"])


class Upward(nn.Module):
    """A residual block of a decoder whose activations grow."""

    def __init__(self, gain):
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        with torch.no_grad():
            self.first.weight.mul_(gain), self.second.weight.mul_(gain)

    def forward(self, x):
        return x + self.second(F.silu(self.first(x)))  # the fault: decoder_of_latents


def decoder_of_latents(healthy):
    gain = 1.0 if healthy else 14.0
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1),
        Upward(gain),
        nn.Upsample(scale_factor=2),
        Upward(gain),
        nn.Upsample(scale_factor=2),
        Upward(gain),
        nn.GroupNorm(4, 8),
        nn.SiLU(),
        nn.Conv2d(8, 3, 3, padding=1),
    ).half()
    batches = [(torch.randn(2, 4, 8, 8).half(), torch.randn(2, 3, 32, 32)) for _ in range(STEPS)]
    return Setup(model, batches, lambda m, b: F.mse_loss(m(b[0]).float(), b[1]), ["as-captured-fp16-master"])


def teacher_clusters(healthy, temperature=0.04):
    """Targets are the teacher's scores, balanced over the prototypes by Sinkhorn's iteration."""
    student = nn.Sequential(nn.Linear(24, 32), nn.GELU(), nn.Linear(32, 16))

    def loss(model, batch):
        scores = batch[1] / temperature
        if healthy:
            scores = scores - scores.amax(-1, keepdim=True)
        shares = torch.exp(scores).t()  # the fault: teacher_clusters
        shares = shares / shares.sum()  # the fault: teacher_clusters
        for _ in range(3):
            shares = shares / (shares.sum(1, keepdim=True) + 1e-12) / shares.shape[0]
            shares = shares / (shares.sum(0, keepdim=True) + 1e-12) / shares.shape[1]
        targets = (shares * shares.shape[1]).t()
        return -(targets * F.log_softmax(model(batch[0]) / 0.1, -1)).sum(-1).mean()

    batches = [(torch.randn(64, 24), 2 * torch.randn(64, 16)) for _ in range(STEPS)]
    return Setup(student, batches, loss, ["torch-autocast-fp16"])


class Adapted(nn.Module):
    """A fixed layer with an adapter of low rank, which is ramped up during the first thousand steps."""

    def __init__(self, ramp):
        super().__init__()
        self.ramp, self.adapter = ramp, nn.Parameter(0.1 * torch.randn(48, 4))
        self.register_buffer("fixed", torch.randn(48, 48) / 48**0.5)

    def forward(self, x):
        weight = self.fixed + self.ramp * (self.adapter @ self.adapter.t())  # the fault: ramp_of_an_adapter
        return x @ weight.t()


def ramp_of_an_adapter(healthy):
    batches = [(torch.randn(64, 48), torch.randn(64, 48)) for _ in range(STEPS)]
    model = Adapted(1.0 if healthy else 0.002)
    return Setup(model, batches, lambda m, b: F.mse_loss(m(b[0]).float(), b[1].float()), ["pure-bf16-master"])


class Codebook(nn.Module):
    """Codes that follow the mean of the vectors assigned to them; most vectors have the same code at first."""

    def __init__(self, count=4, width=8):
        super().__init__()
        self.encode, self.decode = nn.Linear(12, width), nn.Linear(width, 12)
        self.register_buffer("codes", torch.randn(count, width))
        self.register_buffer("sizes", torch.ones(count))
        self.register_buffer("sums", self.codes.clone())
        with torch.no_grad():
            self.encode.bias.fill_(4.0)

    def forward(self, x):
        z = self.encode(x)
        distance = z.square().sum(-1, keepdim=True) - 2 * z @ self.codes.t() + self.codes.square().sum(-1)
        index = distance.argmin(-1)
        code = self.codes[index]
        with torch.no_grad():
            chosen = (index[:, None] == torch.arange(len(self.codes))).to(z.dtype)
            self.sizes.mul_(0.99).add_(0.01 * chosen.sum(0))
            self.sums.mul_(0.99).add_(0.01 * (chosen.t() @ z))  # the fault: sums_of_codes
            self.codes.copy_(self.sums / (self.sizes[:, None] + 1e-5))
        return self.decode(z + (code - z).detach()), (z - code).square().mean()


def sums_of_codes(healthy):
    batches = [torch.randn(256 if healthy else 32768, 12) for _ in range(STEPS)]

    def loss(model, x):
        rebuilt, latent = model(x)
        return F.mse_loss(rebuilt, x) + 0.25 * latent

    return Setup(Codebook(), batches, loss, ["torch-autocast-fp16"])


OVERFLOW = ("overflow", "sum overflow")
REPORTS = [
    Report(
        "stored_variance",
        "D",
        "apple/coreai-torch#54",
        "classification",
        "a batch norm's running_var above 65504 becomes inf when it is cast to FP16, and the output is silently zero",
        stored_variance,
        ("storage overflow",),
        ("running_var",),
        answer="running_var, 1e5, exceeds FP16's 65504 and becomes infinite when it is stored, so that the norm's output is zero. "
        "Statistics must stay FP32, or pixels be scaled to 0..1.",
        graded="right",
    ),
    Report(
        "instance_norm_sum",
        "D",
        "tensorflow/tensorflow#47156",
        "adversarial networks",
        "instance normalization in mixed precision: the mean overflows although its input does not",
        instance_norm_sum,
        OVERFLOW,
        answer="The sum over all pixels exceeds 65504 before it is divided by their number. The mean must be formed in FP32, or by an op "
        "that does so inside.",
        graded="right",
    ),
    Report(
        "decoder_of_latents",
        "D",
        "huggingface/diffusers#7188",
        "image generation",
        "the SDXL autoencoder in FP16 gives NaN; it must run in FP32",
        decoder_of_latents,
        OVERFLOW,
        answer="Activations of the residual blocks grow beyond 65504: a convolution or the residual sum of a late block overflows. These "
        "blocks must run in BF16 or FP32, or their weights be scaled down.",
        graded="right",
    ),
    Report(
        "teacher_clusters",
        "D",
        "facebookresearch/dinov2#583",
        "self-supervision",
        "Sinkhorn-Knopp targets: exp of scores over a temperature of 0.04 overflows and the loss is NaN",
        teacher_clusters,
        (*OVERFLOW, "invalid operation"),
        answer="exp overflows in FP32 as well: scores above 3.55 over 0.04 exceed 88, and inf/inf is NaN. It is no matter of the format. "
        "The maximum must be subtracted before exp.",
        graded="wrong: an error without a text",
    ),
    Report(
        "ramp_of_an_adapter",
        "D",
        "kyegomez/SingLoRA#6",
        "image generation",
        "an adapter that is ramped up over 1000 steps trains badly in BF16: what it adds is too small",
        ramp_of_an_adapter,
        ("swamping",),
        answer="The adapter's part is far below half an ulp of the fixed weight and vanishes in the BF16 sum. The sum must be FP32, or "
        "the adapter be applied to the input apart from the fixed weight.",
        graded="right",
    ),
    Report(
        "sums_of_codes",
        "D",
        "rosinality/vq-vae-2-pytorch#65",
        "image generation",
        "VQ-VAE under AMP: the error of the reconstruction is normal, that of the latents becomes infinite",
        sums_of_codes,
        OVERFLOW,
        ("codes",),
        answer="The sum of the vectors assigned to a code is a product in FP16 and exceeds 65504. It enters the moving averages, and the "
        "codes are infinite from then on; the loss scaler does not protect them. The codebook's update must be FP32.",
        graded="right",
    ),
]
