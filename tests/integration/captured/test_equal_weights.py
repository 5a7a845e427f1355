"""Judged where weights are equal: cancellation, steep functions, rounded inputs, poles, faults that FP32 has as well.

Every fault has a healthy counterpart, the same network without it, in which nothing may be found.
"""

import copy
import re

import lockstep_capture
import pytest
import torch
import torch.nn.functional as F

STEPS = 4


class Features(torch.nn.Module):
    """A linear layer on what `features` makes of the batch's first tensor."""

    def __init__(self, features, width, out=1):
        super().__init__()
        self.features, self.head = features, torch.nn.Linear(width, out)

    def forward(self, x):
        return self.head(self.features(x)).squeeze(-1)


def regression(model, batches, dtype=None):
    return model, batches, lambda m, b: F.mse_loss(m(b[0]).float(), b[1].float())


def clock(hours):
    """A network that has converged to sin(t); bf16 times above 256 have steps of 2 and more."""
    model = Features(lambda t: torch.stack([t.sin(), t.cos()], -1), 2)
    with torch.no_grad():
        model.head.weight.copy_(torch.tensor([[1.0, 0.0]])), model.head.bias.zero_()
    times = [torch.rand(64) * hours for _ in range(STEPS)]
    return regression(model, [(t, t.sin() + 0.02 * torch.randn(64)) for t in times])


def offset(far):
    """Coordinates `far` away are moved to the origin and compared there."""

    class Move(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.shift = torch.nn.Linear(3, 3)
            torch.nn.init.normal_(self.shift.weight, std=0.01)

        def forward(self, x, turn, origin):
            return (x + self.shift(x - origin)) @ turn - origin @ turn

    turn = torch.linalg.qr(torch.randn(3, 3))[0]
    origin = far * torch.ones(3)
    inner = [torch.randn(40, 3) for _ in range(STEPS)]
    batches = [(x + origin, turn, origin, x @ turn + 0.05 * torch.randn(40, 3)) for x in inner]
    return Move(), batches, lambda m, b: ((m(*b[:3]) - b[3]) ** 2).mean()


def variance(mean):
    """E[x^2] - E[x]^2 of values around `mean`."""

    def normed(x):
        first, second = x.mean(-1, keepdim=True), (x * x).mean(-1, keepdim=True)
        return (x - first) * ((second - first * first).clamp(min=0) + 1e-5).rsqrt()

    model = torch.nn.Sequential(torch.nn.Linear(8, 32), Features(normed, 32, 4))
    with torch.no_grad():
        model[0].weight.mul_(0.2), model[0].bias.fill_(mean)
    batches = [(torch.randn(16, 8), torch.randint(4, (16,))) for _ in range(STEPS)]
    return model, batches, lambda m, b: F.cross_entropy(m(b[0]).float(), b[1])


def ratio(length):
    """The ratio of two policies: exp of a difference of sums of log-probabilities."""
    model = torch.nn.Linear(16, 32)
    old = copy.deepcopy(model)
    with torch.no_grad():
        old.weight.add_(5e-3 * torch.randn(32, 16))

    def loss(m, b):
        def log_probability(policy):
            chosen = F.log_softmax(policy(b[0]), -1).gather(-1, b[1][..., None])
            return chosen.squeeze(-1).to(policy.weight.dtype).sum(-1)

        return -((log_probability(m) - b[2]).exp() * b[3]).mean()

    batches = []
    for _ in range(STEPS):
        x, action = torch.randn(8, length, 16), torch.randint(32, (8, length))
        with torch.no_grad():
            before = F.log_softmax(old(x), -1).gather(-1, action[..., None]).squeeze(-1).sum(-1)
        batches.append((x, action, before, 1 + 0.1 * torch.randn(8)))
    return model, batches, loss


def slope(step):
    """A derivative by finite differences."""

    def difference(m, b):
        x, wanted = b
        return ((m(x + step) - m(x)) / step).sub(wanted).square().mean()

    model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    return model, [(torch.randn(32, 4), torch.randn(32, 1)) for _ in range(STEPS)], difference


def certain(logit, function):
    """Probabilities near 1 where the function of 1 - p, or of p, has its pole."""
    model = torch.nn.Linear(4, 1)
    with torch.no_grad():
        model.weight.fill_(logit / 4), model.bias.zero_()
    batches = [(1 + 0.1 * torch.randn(64, 4),) for _ in range(STEPS)]
    return model, batches, lambda m, b: function(m(b[0]).sigmoid()).mean() * 1e-2


def log_of_rest(p):
    return -torch.log(1 - p)


def log1p_of_negative(p):
    return -torch.log1p(-p)


def atanh(p):
    return torch.atanh(p)


def angle(p):
    return torch.acos(p)


def sine(p):
    return torch.sqrt(1 - p * p)


CANCELS, AMPLIFIES = "cancellation", "amplifies"
CASES = {
    "a rounded input": (lambda: clock(1000), lambda: clock(1), "pure-bf16-master", AMPLIFIES, "input batch[0]"),
    "there and back": (lambda: offset(1000), lambda: offset(0.5), "tf32", CANCELS, "matmul"),
    "one-pass variance": (lambda: variance(30), lambda: variance(0), "torch-autocast-bf16", CANCELS, "sub"),
    "a ratio of policies": (lambda: ratio(500), lambda: ratio(1), "pure-bf16", CANCELS, "sub"),
    "finite differences": (lambda: slope(1e-3), lambda: slope(1.0), "torch-autocast-bf16", CANCELS, "sub"),
}
POLES = {
    "log(1 - p)": log_of_rest,
    "log1p(-p)": log1p_of_negative,
    "atanh(p)": atanh,
    "acos(p)": angle,
    "sqrt(1 - p^2)": sine,
}


def debugged(made, program, lane, tmp_path, **options):
    model, batches, loss = made
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    found = lockstep_capture.debug(
        model,
        optimizer,
        batches,
        loss,
        lanes=[lane],
        steps=len(batches),
        program=program,
        keep=tmp_path / "kept",
        **options,
    )
    return found, {one["name"]: one for one in found.lanes}[lane]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_loss_is_named_with_its_rounding(binary_dir, tmp_path, name):
    made, _, lane, kind, place = CASES[name]
    found, told = debugged(made(), binary_dir / "lockstep", lane, tmp_path)
    assert told["findings"][0]["kind"] == "cancellation", found.text
    first = found.text.partition("\n\n")[0].replace("\n", " ")
    assert kind in first and place in first and "test_equal_weights.py:" in first, first
    assert f"{lane} is wrong at equal weights." in first
    assert re.search("Tried: .* removes? the fault: ", first), first
    assert "may use" not in found.text, "advice by range contradicts the finding"


@pytest.mark.parametrize("name", CASES)
def test_the_healthy_counterpart_has_no_finding(binary_dir, tmp_path, name):
    _, healthy, lane, _, _ = CASES[name]
    found, told = debugged(healthy(), binary_dir / "lockstep", lane, tmp_path)
    kinds = [finding["kind"] for finding in told["findings"]]
    assert not {"cancellation", "wrong loss"} & set(kinds), found.text
    assert f"{lane} agrees with fp32 at equal weights" in found.text.replace("\n", " "), found.text


@pytest.mark.parametrize("name", POLES)
def test_a_pole_is_met_by_rounding(binary_dir, tmp_path, name):
    program = binary_dir / "lockstep"
    found, told = debugged(certain(7, POLES[name]), program, "pure-bf16", tmp_path)
    first = found.text.partition("\n\n")[0].replace("\n", " ")
    assert told["findings"][0]["kind"] == "invalid operation", found.text
    assert (
        "by rounding the result of sigmoid" in first or "became 1" in first or "rounding the result of mul" in first
    ), first
    assert re.search("Tried: .* removes? the fault: ", first), first


def test_what_is_nan_in_fp32_too_is_no_matter_of_the_format(binary_dir, tmp_path):
    batches = [(torch.randn(8, 4), torch.randn(8)) for _ in range(STEPS)]
    batches[2][0].zero_()
    model = Features(lambda x: (x - x.mean(0)) / (x - x.mean(0)).square().sum(0).sqrt(), 4)
    found, told = debugged(regression(model, batches), binary_dir / "lockstep", "torch-autocast-bf16", tmp_path)
    screen = found.text.replace("\n", " ")
    assert screen.startswith("fp32 broke at step 2. ") and "div" in screen.partition("torch-autocast-bf16")[0]
    assert "is zero" in screen.partition("torch-autocast-bf16")[0], screen
    assert "torch-autocast-bf16 broke at step 2. So does fp32: the format is not the cause." in screen
    assert told["findings"] == []


def test_nan_from_the_first_step_on_is_no_matter_of_the_format(binary_dir, tmp_path):
    """No step is left for `verify`, and the loss scale falls because FP32 has the fault as well."""
    model = torch.nn.Linear(4, 4)
    batches = [(torch.randn(8, 4),) for _ in range(STEPS)]
    made = model, batches, lambda m, b: ((y := m(b[0]).float()) * (y - y) / (y - y).abs()).mean()
    found, told = debugged(made, binary_dir / "lockstep", "torch-autocast-fp16", tmp_path)
    screen = found.text.replace("\n", " ")
    assert screen.startswith("fp32 broke at step 0. div"), screen
    assert "all 4 steps skipped. So does fp32: the format is not the cause." in screen, screen
    assert "Not verified: `lockstep verify` had no step to judge: PyTorch's own loss is not finite there." in screen
    assert "Do not trust" not in screen and not found.faithful and told["findings"] == []


def test_a_capture_without_a_step_to_verify_says_so(binary_dir, tmp_path):
    model = torch.nn.Linear(4, 4)
    made = model, [(torch.randn(8, 4),) for _ in range(STEPS)], lambda m, b: m(b[0]).square().mean()
    found, _ = debugged(made, binary_dir / "lockstep", "torch-autocast-bf16", tmp_path, verify=[])
    assert found.text.endswith("Not verified: `lockstep verify` had no step to judge.") and not found.faithful


def test_a_gradient_that_is_nan_in_pytorch_too_is_verified(binary_dir, tmp_path):
    model = torch.nn.Linear(4, 4, bias=False)
    batches = [(torch.randn(8, 4) * torch.tensor([1.0] * 4 + [0.0] * 4)[:, None],) for _ in range(STEPS)]
    made = model, batches, lambda m, b: m(b[0]).square().sum(1).sqrt().mean()
    found, _ = debugged(made, binary_dir / "lockstep", "torch-autocast-bf16", tmp_path)
    assert found.faithful and found.text.startswith("fp32 broke at step 0. sqrt_backward"), found.text


class Tokens(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.head(x * torch.rsqrt(self.inner(x).var(-1, keepdim=True) * 0 + 1e-12))


def test_the_lane_that_shows_the_cause_comes_before_pytorchs_own_run(binary_dir, tmp_path):
    batches = [(torch.randn(8, 8).half(), torch.randint(8, (8,))) for _ in range(STEPS)]
    made = Tokens().half(), batches, lambda m, b: F.cross_entropy(m(b[0]).float(), b[1])
    found, _ = debugged(made, binary_dir / "lockstep", "as-captured-fp16-master", tmp_path)
    first, *others = found.text.replace("\n", " ").split("  ")
    assert first.startswith("as-captured-fp16-master") and "rsqrt" in first, found.text
    assert "captured broke" in found.text and "may show the cause." in found.text.replace("\n", " "), found.text


def test_a_lane_that_goes_wrong_before_fp32_comes_first(binary_dir, tmp_path):
    """exp(15) is beyond FP16, exp(100) beyond FP32, in the last step alone."""
    batches = [(torch.ones(4, 4), torch.tensor(power)) for power in (15.0, 15.0, 15.0, 100.0)]
    made = torch.nn.Linear(4, 4), batches, lambda m, b: (0.01 * m(b[0]) + b[1]).exp().mean()
    found, _ = debugged(made, binary_dir / "lockstep", "half", tmp_path)
    assert found.text.startswith("half") and "fp16 ends at 65504" in found.text.partition("\n\n")[0], found.text
    assert "\n\nfp32 broke at step 3." in found.text and "twin broke" not in found.text, found.text


def test_gradients_that_cancel_but_for_rounding_have_not_vanished(binary_dir, tmp_path):
    """The largest logit is subtracted and added again: its gradient is 1 less a sum of 1."""
    model = torch.nn.Linear(8, 16)

    def loss(m, b):
        logits = 5 * m(b[0])
        largest = logits.amax(1)
        return (largest + (logits - largest[:, None]).exp().sum(1).log() - logits[:, 0]).mean()

    batches = [(torch.randn(16, 8),) for _ in range(STEPS)]
    found, told = debugged((model, batches, loss), binary_dir / "lockstep", "torch-autocast-bf16", tmp_path)
    assert told["findings"] == [], found.text


def test_what_is_made_of_rounding_alone_has_not_vanished(binary_dir, tmp_path):
    """The same of products, whose gradient adds that of the largest one: a sum with nothing but rounding in it."""
    users, goods = torch.nn.Embedding(50, 16), torch.nn.Embedding(80, 16)
    model = torch.nn.ModuleList([users, goods])

    def loss(m, b):
        scores = 7.5 * m[0](b[0]) @ m[1].weight.t()
        shift = scores.amax(1)
        return (shift + torch.log(torch.exp(scores - shift[:, None]).sum(1))).mean()

    batches = [(torch.randint(50, (32,)),) for _ in range(STEPS)]
    found, told = debugged((model, batches, loss), binary_dir / "lockstep", "torch-autocast-bf16", tmp_path)
    assert told["findings"] == [], found.text


def test_an_operand_that_leaves_the_domain_is_named(binary_dir, tmp_path):
    """E[x^2] - E[x]^2 is negative in BF16."""
    model = torch.nn.Linear(64, 64, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.eye(64))

    def loss(m, b):
        y = m(b[0])
        return ((y * y).mean(1) - y.mean(1) * y.mean(1)).sqrt().mean()

    batches = [(30 + torch.randn(32, 64),) for _ in range(STEPS)]
    found, told = debugged((model, batches, loss), binary_dir / "lockstep", "pure-bf16-master", tmp_path)
    first = found.text.partition("\n\n")[0].replace("\n", " ")
    assert told["findings"][0]["kind"] == "invalid operation", found.text
    assert "becomes NaN because the input of sqrt" in first and "became negative by rounding" in first, first


def test_running_statistics_stay_broken_after_a_skipped_step(binary_dir, tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4))
    batches = [(torch.randn(32, 8), torch.randint(4, (32,))) for _ in range(STEPS)]
    batches[2][0].mul_(1e6)
    made = model, batches, lambda m, b: F.cross_entropy(m(b[0]), b[1])
    found, told = debugged(made, binary_dir / "lockstep", "torch-autocast-fp16", tmp_path)
    first = found.text.partition("\n\n")[0].replace("\n", " ")
    assert "step 2 skipped" in first and "Running statistics of 1 are not finite" in first, first


def test_what_fp32_loses_too_is_no_finding_of_a_lane(binary_dir, tmp_path):
    model = torch.nn.Linear(8, 4)
    batches = [(torch.randn(32, 8), torch.randint(4, (32,))) for _ in range(STEPS)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=1e-2)
    found = lockstep_capture.debug(
        model, optimizer, batches, lambda m, b: F.cross_entropy(m(b[0]), b[1]), lanes=["torch-autocast-bf16", "pure-bf16"],
        steps=STEPS, program=binary_dir / "lockstep", keep=tmp_path / "kept",
    )  # fmt: skip
    lanes = {lane["name"]: [finding["kind"] for finding in lane["findings"]] for lane in found.lanes}
    assert lanes["torch-autocast-bf16"] == [], "1 - lr decay is 1 in fp32 as well"
    assert "lost constant" in lanes["pure-bf16"] or "lost updates" in lanes["pure-bf16"]
