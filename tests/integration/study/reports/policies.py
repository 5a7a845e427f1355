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


def of_reference(model, tokens, actions, spread):
    """Log-probabilities of another policy, which differ from the model's by `spread`."""
    with torch.no_grad():
        exact = F.log_softmax(model(tokens), -1).gather(-1, actions[..., None]).squeeze(-1)
    return exact + spread * torch.randn_like(exact)


def third_estimate(model, batch, limit=None):
    """The third estimator of KL: r - 1 - log r, never negative."""
    tokens, actions, reference = batch
    own = F.log_softmax(model(tokens), -1).gather(-1, actions[..., None]).squeeze(-1)
    ratio = reference - own  # the fault: near_policies
    if limit is not None:
        ratio = ratio.clamp(-limit, limit)
    power = ratio.exp()  # the fault: drifted_policies
    return (power - ratio - 1).mean()  # the fault: near_policies


def small_writer():
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, VOCABULARY)
    )
    tokens = [torch.randint(VOCABULARY, (16, 32)) for _ in range(STEPS)]
    return model, [(t, torch.randint(VOCABULARY, (16, 32))) for t in tokens]


def drifted_policies(healthy):
    model, batches = small_writer()
    batches = [(t, a, of_reference(model, t, a, 4.0).half()) for t, a in batches]
    loss = lambda m, b: third_estimate(m, b, 8.0 if healthy else None)
    return Setup(model.half(), batches, loss, ["as-captured-fp16-master"])


def near_policies(healthy):
    model, batches = small_writer()
    batches = [(t, a, of_reference(model, t, a, 0.02)) for t, a in batches]
    lane = "torch-autocast-fp16" if healthy else "pure-bf16-master"
    return Setup(model, batches, third_estimate, [lane])


def group_baseline(healthy):
    """Advantages within groups of four answers whose rewards differ by one ulp of BF16."""
    model, batches = small_writer()

    def loss(m, batch):
        tokens, actions, reward = batch
        centered = reward - reward.mean(-1, keepdim=True)  # the fault: group_baseline
        advantage = centered / (centered.square().mean(-1, keepdim=True).sqrt() + 1e-4)  # the fault: group_baseline
        own = F.log_softmax(m(tokens), -1).gather(-1, actions[..., None]).squeeze(-1).mean(-1)
        return -((advantage.flatten() + 0.1) * own).mean()

    rewards = [1 + 2.0**-7 * (torch.rand(4, 4) < 0.3).float() for _ in range(STEPS)]
    lane = "torch-autocast-bf16" if healthy else "pure-bf16-master"
    return Setup(model, [(*b, r) for b, r in zip(batches, rewards, strict=True)], loss, [lane])


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
        graded="right",
    ),
    Report(
        "drifted_policies",
        "D",
        "NVIDIA-NeMo/RL#876",
        "reinforcement learning",
        "the KL penalty of GRPO, exp(r) - r - 1, gives NaN or inf when policy and reference have drifted apart",
        drifted_policies,
        ("overflow", "sum overflow"),
        answer="exp of a log-ratio above 11 exceeds FP16's 65504. The penalty must be formed in FP32, or the log-ratio be clamped.",
        graded="partly: names exp, as a fault of FP32 alone",
    ),
    Report(
        "near_policies",
        "D",
        "unslothai/unsloth-zoo#1240",
        "reinforcement learning",
        "the KL penalty exp(r) - r - 1 of two near policies is zero or negative",
        near_policies,
        WRONG,
        ("input batch[2]",),
        answer="exp(r) - r - 1 cancels for small r, and so does r itself, a difference of log-probabilities rounded to BF16. Log-"
        "probabilities and penalty must be FP32; expm1(r) - r helps in FP32.",
        graded="right",
    ),
    Report(
        "group_baseline",
        "D",
        "OpenRLHF/OpenRLHF#1334",
        "reinforcement learning",
        "rewards in BF16: the baseline of a group is rounded away, and advantages are 0, 0, 0, 2 in place of -0.5, -0.5, -0.5, 1.5",
        group_baseline,
        WRONG,
        answer="Reward less the group's mean cancels: the mean is rounded to BF16, to which the rewards' differences are one ulp. "
        "Advantages must be formed in FP32.",
        graded="right",
    ),
]
