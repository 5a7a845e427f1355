"""Reports about attention, generated text and distillation."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .row import STEPS, Report, Setup

VOCABULARY, WIDTH = 32, 32


class Padded(nn.Module):
    """Causal attention over sequences padded on the left; the mask is added to the scores, which are all near -34."""

    def __init__(self, share):
        super().__init__()
        self.share, self.tokens = share, nn.Embedding(VOCABULARY, WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        with torch.no_grad():
            self.tokens.weight.mul_(0.1)
            self.query.bias.fill_(2.0), self.key.bias.fill_(-3.0)

    def forward(self, tokens, padding):
        x = self.tokens(tokens)
        scores = self.query(x) @ self.key(x).transpose(-1, -2) / math.sqrt(WIDTH)
        future = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
        least = self.share * torch.finfo(scores.dtype).min
        mask = torch.zeros_like(scores).masked_fill(future | padding[:, None], least)
        weights = F.softmax(scores + mask, -1)  # the fault: row_of_padding
        return self.head(weights @ self.value(x))


def row_of_padding(healthy):
    batches = []
    for _ in range(STEPS):
        tokens, wanted = torch.randint(1, VOCABULARY, (8, 12)), torch.randint(1, VOCABULARY, (8, 12))
        padding = torch.arange(12) < torch.randint(1, 5, (8, 1))
        tokens[padding], wanted[padding] = 0, -100
        batches.append((tokens, padding, wanted))
    model = Padded(0.5 if healthy else 1.0).half()
    loss = lambda m, b: F.cross_entropy(m(*b[:2]).flatten(0, 1).float(), b[2].flatten())
    return Setup(model, batches, loss, ["as-captured-fp16-master"])


def mixture_floor(healthy, temperature=0.05):
    """Distillation by the Jensen-Shannon divergence at a low temperature: probabilities far below FP16's least."""
    model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 16))

    def divergence(m, batch):
        student, teacher = (F.log_softmax(logits / temperature, -1) for logits in (m(batch[0]), batch[1]))
        if healthy:
            mixture = torch.logaddexp(student, teacher) - math.log(2)
        else:
            mean = 0.5 * (student.exp() + teacher.exp())
            mixture = mean.clamp(min=1e-12).log()  # the fault: mixture_floor
        to_student = (student.exp() * (student - mixture)).sum(-1)  # the fault: mixture_floor
        return 0.5 * (to_student + (teacher.exp() * (teacher - mixture)).sum(-1)).mean()

    batches = [(torch.randn(32, 24), torch.randn(32, 16)) for _ in range(STEPS)]
    return Setup(model, batches, divergence, ["half"], torch.optim.SGD(model.parameters(), lr=0.02))


class Generator(nn.Module):
    """Draws soft tokens by adding Gumbel noise to logits, for a discriminator that reads their embeddings."""

    def __init__(self):
        super().__init__()
        self.logits, self.read = nn.Linear(16, VOCABULARY), nn.Linear(VOCABULARY, 8, bias=False)
        self.judge = nn.Linear(8, 1)

    def forward(self, x, draws):
        noise = -draws.log()  # the fault: gumbel_noise
        soft = F.softmax(self.logits(x) + noise, -1)  # the fault: gumbel_noise
        return self.judge(torch.tanh(self.read(soft))).squeeze(-1)


def gumbel_noise(healthy):
    """draws are exponential; the least of half a billion is about 2e-9."""
    batches = []
    for _ in range(STEPS):
        draws = torch.empty(64, VOCABULARY).exponential_()
        draws[0, 0] = 2e-9
        draws = draws.clamp(min=1e-4) if healthy else draws
        batches.append((torch.randn(64, 16), draws, torch.randint(2, (64,)).float()))
    model = Generator()
    loss = lambda m, b: F.binary_cross_entropy_with_logits(m(*b[:2]), b[2])
    return Setup(model, batches, loss, ["half"], torch.optim.SGD(model.parameters(), lr=1.0))


OVERFLOW = ("overflow", "sum overflow")
REPORTS = [
    Report(
        "row_of_padding",
        "C",
        "huggingface/transformers#17306",
        "language",
        "FP16: sequences padded on the left give NaN when the mask holds torch.finfo(dtype).min",
        row_of_padding,
        (*OVERFLOW, "invalid operation"),
        answer="FP16's least number, -65504, plus a score below -16 overflows to -inf where the mask is added. A row that is "
        "masked altogether is -inf throughout, and its softmax is NaN. A mask a little above the least number helps.",
        graded="partly: from the fourth line on",
    ),
    Report(
        "mixture_floor",
        "C",
        "MakazhanAlpamys/Soup#719",
        "language",
        "distillation by the Jensen-Shannon divergence at a low temperature: in FP16 the loss is NaN",
        mixture_floor,
        ("invalid operation",),
        answer="Probabilities underflow to zero in FP16, and so does the clamp's floor, 1e-12. The log of the mixture is -inf and "
        "0 times inf is NaN. The mixture must be formed in the log domain or in FP32, or the floor must be larger.",
        graded="right",
        graded_healthy="false: FP32's gradient of logaddexp was NaN",
    ),
    Report(
        "gumbel_noise",
        "C",
        "pytorch/pytorch#41663",
        "language",
        "gumbel_softmax of FP16 logits is NaN now and then; in FP32 never",
        gumbel_noise,
        ("invalid operation", "storage underflow"),
        ("batch[1]",),
        answer="The smallest exponential draws are zero in FP16. Their log is -inf, the noise is +inf, and the softmax gives NaN. "
        "Draws and log must be FP32, or the draws clamped.",
        graded="right",
    ),
]
