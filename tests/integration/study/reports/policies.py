"""Reports about reinforcement learning of language models and agents."""

import torch
import torch.nn.functional as F
from torch import nn

from .row import STEPS, Report, Setup

VOCABULARY, WIDTH = 64, 32


class Writer(nn.Module):
    """A policy over tokens that is sure of itself: logits with a deviation of about 6."""

    def __init__(self):
        super().__init__()
        self.tokens, self.inner = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.logits = nn.Linear(WIDTH, VOCABULARY)
        with torch.no_grad():
            self.logits.weight.mul_(20)

    def forward(self, tokens):
        return self.logits(torch.tanh(self.inner(self.tokens(tokens))))


def of_actions(logits, actions):
    return F.log_softmax(logits, -1).gather(-1, actions[..., None]).squeeze(-1)  # the fault: sequence_ratio


def sequence_ratio(healthy):
    """The policy that wrote the answers is the policy that is trained, so that the ratio should be 1."""
    model, batches = Writer(), []
    for _ in range(STEPS):
        tokens = torch.randint(VOCABULARY, (64, 128))
        with torch.no_grad():
            logits = model(tokens)
            actions = torch.distributions.Categorical(logits=logits).sample()
            batches.append((tokens, actions, of_actions(logits, actions), 0.5 + torch.rand(64)))

    def surrogate(m, batch):
        tokens, actions, before, advantage = batch
        after = of_actions(m(tokens), actions).sum(-1)  # the fault: sequence_ratio
        ratio = (after - before.sum(-1)).exp()  # the fault: sequence_ratio
        return -(ratio * advantage).mean()

    lane = "torch-autocast-fp16" if healthy else "pure-bf16-master"
    return Setup(model, batches, surrogate, [lane], torch.optim.SGD(model.parameters(), lr=1e-6))


WRONG = ("cancellation", "wrong loss")
REPORTS = [
    Report(
        "sequence_ratio",
        "C",
        "huggingface/transformers#31267",
        "reinforcement learning",
        "BF16: the ratio of a sequence's probabilities under the same policy is 1.06 to 12 instead of 1; FP16 is far closer",
        sequence_ratio,
        WRONG,
        ("input batch[2]",),
        answer="The difference of two sums of log-probabilities cancels. It is wrong by the rounding of log-probabilities, logits "
        "and sums to BF16, and exp makes it a factor. Log-probabilities and their sums must be FP32; FP16 logits help.",
    ),
]
