"""Small networks with one numerical fault each, planted by hand, and the lanes in which it must be found, or must not be.

Every network has a healthy layer before and after the planted one. FAULTS are captured from PyTorch, BUILT_IN are
arguments of `lockstep replay`.
"""

import dataclasses

import torch
import torch.nn.functional as F
from lockstep_capture import Capture

nn = torch.nn
WIDTH, CLASSES = 16, 4
STEPS = 12
FP16, BF16, HALF, MASTERS = "torch-autocast-fp16", "torch-autocast-bf16", "half", "apex-o2"


class Net(nn.Module):
    def __init__(self, planted):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.planted = planted
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.last(self.planted(torch.relu(self.first(x))))


class After(nn.Module):
    """A linear layer and something done to its output."""

    def __init__(self, body):
        super().__init__()
        self.fc, self.body = nn.Linear(WIDTH, WIDTH), body

    def forward(self, x):
        return self.body(self.fc(x))


class Before(nn.Module):
    """The same, before the layer; a norm takes the size out again."""

    def __init__(self, body):
        super().__init__()
        self.fc, self.norm, self.body = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), body

    def forward(self, x):
        return self.norm(self.fc(self.body(x)))


class Attention(nn.Module):
    """Queries and keys of `factor` times their inputs, and a mask that is added to the scores."""

    def __init__(self, factor=1.0, fill=0.0):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4, 4, bias=False) for _ in range(3))
        with torch.no_grad():
            for layer in (self.q, self.k):
                layer.weight.copy_(torch.eye(4) * factor)
        self.shrink = 0.5 / factor**2
        self.register_buffer("mask", torch.triu(torch.full((4, 4), fill), 1))

    def forward(self, x):
        x = x.view(-1, 4, 4)
        scores = self.q(x) @ self.k(x).transpose(1, 2)
        scores = scores.float() * self.shrink + self.mask
        return (torch.softmax(scores, -1) @ self.v(x)).flatten(1)


def large_weights():
    layer = After(lambda y: y * 1e-6)
    with torch.no_grad():
        layer.fc.weight.mul_(1e6)
    return layer


class SlowNorm(nn.Module):
    """A batch norm whose running variance begins far from what it sees and moves little with every batch."""

    def __init__(self):
        super().__init__()
        self.fc, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH, momentum=1e-3)

    def forward(self, x):
        return self.norm(self.fc(x) * 0.1)


class Stored(nn.Module):
    """A linear layer, and a body that is given a stored value: a parameter, a buffer or a plain tensor."""

    def __init__(self, kind, number, body):
        super().__init__()
        self.fc, self.body = nn.Linear(WIDTH, WIDTH), body
        value = torch.full((WIDTH,), number)
        if kind == "buffer":
            self.register_buffer("value", value)
        else:
            self.value = nn.Parameter(value) if kind == "weight" else value

    def forward(self, x):
        return self.body(self.fc(x), self.value)


def divided_by_eps(y, eps):
    nothing = torch.relu(-torch.relu(y))
    return y + nothing / (nothing + eps)


def large_variance():
    layer = After(nn.BatchNorm1d(WIDTH))
    layer.body.running_var.fill_(1e6)
    return layer


def norm_by_hand(y):
    y = y * 1e-4
    return y * torch.rsqrt((y * y).mean(-1, keepdim=True) + 1e-10)


@dataclasses.dataclass
class Fault:
    name: str
    planted: object
    fires: dict  # lane -> (kinds that may come first, layer, None: any)
    silent: tuple = ()
    optimizer: type = torch.optim.SGD
    lr: float = 0.01
    data_scale: float = 1.0
    replay: tuple = ()  # further options of the replay


def found(*kinds, layer="planted"):
    return kinds, layer


FAULTS = [
    Fault("nothing", lambda: After(torch.tanh), {}, (FP16, BF16, MASTERS)),
    Fault(
        "activation beyond 65504",
        lambda: Before(lambda x: x * 3e5),
        {FP16: found("overflow"), HALF: found("overflow")},
        (BF16,),
    ),
    Fault("attention scores beyond 65504", lambda: Attention(factor=600.0), {FP16: found("overflow")}, (BF16,)),
    Fault(
        "square before a norm",
        lambda: After(lambda y: F.layer_norm((y * 300) ** 2, (WIDTH,))),
        {HALF: found("overflow")},
        (FP16, BF16),
    ),
    Fault(
        "exp beyond the range",
        lambda: After(lambda y: torch.log(torch.exp(y + 13))),
        {HALF: found("overflow")},
        (FP16, BF16),
    ),
    Fault("a mask of -1e9", lambda: Attention(fill=-1e9), {}, (FP16, BF16, MASTERS)),
    Fault("a mask of -inf", lambda: Attention(fill=-float("inf")), {}, (FP16, BF16, MASTERS)),
    Fault("a mask of -FLT_MAX", lambda: Attention(fill=torch.finfo(torch.float32).min), {}, (FP16, BF16, MASTERS)),
    Fault("a mask of -1e4", lambda: Attention(fill=-1e4), {}, (FP16, BF16, MASTERS)),
    Fault(
        "log of a number that vanishes",
        lambda: After(lambda y: torch.log(torch.sigmoid(y) * 1e-9) * 0.1),
        {FP16: found("invalid operation"), HALF: found("invalid operation")},
        (BF16,),
    ),
    Fault(
        "divisor that vanishes",
        lambda: After(lambda y: y / (torch.sigmoid(y) * 1e-9) * 1e-9),
        {HALF: found("invalid operation")},
        (BF16,),
    ),
    Fault("variance that vanishes", lambda: After(norm_by_hand), {HALF: found("invalid operation")}, (BF16,)),
    Fault(
        "root of a number that vanishes",
        lambda: After(lambda y: torch.sqrt(torch.sigmoid(y) * 1e-9) * 1e4),
        {FP16: found("invalid operation"), HALF: found("invalid operation")},
        (BF16,),
    ),
    Fault(
        "tanh without slope",
        lambda: After(lambda y: torch.tanh(5 + 0.1 * y)),
        {FP16: found("no gradient"), BF16: found("no gradient"), HALF: found("no gradient")},
        ("tf32",),
    ),
    Fault(
        "a branch next to a large stream",
        lambda: After(lambda y: F.layer_norm(1e3 * y + torch.tanh(y), (WIDTH,))),
        {BF16: found("swamping")},
        ("tf32",),
    ),
    Fault(
        "a large offset",
        lambda: After(lambda y: F.layer_norm(y + 1e4, (WIDTH,))),
        dict.fromkeys((FP16, BF16, HALF), found("swamping", "cancellation")),
        ("tf32",),
    ),
    Fault(
        "a running variance that does not move",
        SlowNorm,
        {"pure-bf16-master": found("swamping")},
        (BF16, "half"),
        replay=("--cycle", "--steps", 160),
    ),
    Fault("activations vanish", lambda: After(lambda y: y * 1e-9), {HALF: found("forward underflow")}, ()),
    Fault("weights too large to store", large_weights, {HALF: found("storage overflow")}, (BF16,)),
    Fault(
        "inputs too large to store",
        lambda: After(torch.tanh),
        {HALF: found("storage overflow", layer="first")},
        (BF16,),
        lr=1e-14,
        data_scale=1e5,
    ),
    Fault(
        "a constant too large to store",
        lambda: Stored("constant", 1e5, lambda y, c: y + y * c * 1e-6),
        {HALF: found("storage overflow")},
        (FP16, BF16),
    ),
    Fault(
        "a buffer too large to store",
        lambda: Stored("buffer", 1e5, lambda y, c: y + y * c * 1e-6),
        {HALF: found("storage overflow")},
        (FP16, BF16),
    ),
    Fault("a running variance too large to store", large_variance, {HALF: found("storage overflow")}, (FP16, BF16)),
    Fault(
        "an eps that vanishes when stored",
        lambda: Stored("constant", 1e-8, divided_by_eps),
        {HALF: found("invalid operation")},
        (BF16,),
    ),
    Fault(
        "an eps that vanishes without harm",
        lambda: Stored("constant", 1e-8, lambda y, c: y / (y * y + 1 + c)),
        {},
        (MASTERS, FP16, BF16),
    ),
    Fault(
        "a weight that vanishes when stored",
        lambda: Stored("weight", 1e-8, lambda y, w: y + y * w),
        {HALF: found("storage underflow")},
        (FP16, BF16),
    ),
    Fault(
        "a constant that vanishes when stored",
        lambda: Stored("constant", 1e-8, lambda y, c: y + y * c),
        {HALF: found("storage underflow")},
        (FP16, BF16),
    ),
    Fault(
        "updates too small for bf16",
        lambda: After(torch.tanh),
        {"pure-bf16": found("lost updates", layer=None)},
        (FP16, BF16, "pure-bf16-kahan", "pure-bf16-stochastic", "pure-bf16-master"),
        lr=1e-6,
    ),
    Fault(
        "adam's squares vanish",
        lambda: After(torch.tanh),
        {HALF: found("invalid operation", layer=None)},
        (FP16, BF16, MASTERS),
        optimizer=torch.optim.Adam,
        lr=1e-4,
    ),
    Fault(
        "adam's squares overflow",
        lambda: After(lambda y: y * 2e4),
        {HALF: found("state overflow", layer=None)},
        (BF16,),
        optimizer=torch.optim.Adam,
        lr=1e-9,
    ),
]

ADAM = ("--optimizer", "adam", "--batch", "32", "--steps", "10")
POLICY = "examples/policies/"
# name, arguments, fires, silent
BUILT_IN = [
    ("adam in fp16", ("lenet", *ADAM), {"half": found("invalid operation", layer=None)}, ("apex-o1", "apex-o2")),
    (
        "bf16 weights stand still",
        (
            "gpt",
            "--size",
            "layers=1,width=256,context=16,dropout=0",
            "--batch",
            2,
            "--steps",
            6,
            "--optimizer",
            "adamw",
            "--lr",
            "6e-4",
        ),
        {"pure-bf16": found("lost updates", layer=None)},
        ("torch-autocast-bf16",),
    ),
    (
        "sums of a batch norm",
        ("resnet20", "--size", "width=4", "--batch", 64, "--steps", 2),
        {POLICY + "bn-sums-fp16.toml": found("sum overflow", layer="bn1")},
        (FP16,),
    ),
    (
        "a sum of squares",
        ("vae", "--size", "hidden=32", "--batch", 256, "--steps", 10, "--optimizer", "adam"),
        {POLICY + "fp16-masters.toml": found("overflow", layer="loss.reconstruction")},
        (POLICY + "fp16-masters-vae.toml",),
    ),
    (
        "too many micro-batches for bf16",
        (
            "mlp",
            "--size",
            "hidden1=8,hidden2=8",
            "--data",
            "synthetic:50",
            "--batch",
            40,
            "--accumulate",
            600,
            "--steps",
            1,
            "--lr",
            "1e-3",
        ),
        {"pure-bf16-master": found("swamping", layer=None)},
        ("pure-fp16-master", BF16),
    ),
    (
        "fp16 sums swallow terms",
        ("lenet", "--steps", 20),
        {"pure-fp16": found("swamping", "underflow", layer="conv1")},
        (FP16, BF16, "tf32"),
    ),
]


def loss_of(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def capture(fault, path):
    """A loop of STEPS steps over a network of FAULTS, in FP32."""
    torch.manual_seed(1)
    model = Net(fault.planted())
    optimizer = fault.optimizer(model.parameters(), lr=fault.lr)
    dice = torch.Generator().manual_seed(2)
    recorder = Capture(path, model, optimizer, loss_of, steps=STEPS)
    for _ in range(STEPS):
        batch = (
            torch.randn(8, WIDTH, generator=dice) * fault.data_scale,
            torch.randint(0, CLASSES, (8,), generator=dice),
        )
        with recorder.step(batch):
            loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    return path


def capture_without_scaler(path):
    """A loop under FP16 autocast whose loss is tiny and whose author forgot the GradScaler."""
    torch.manual_seed(1)
    model = Net(After(torch.tanh))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def tiny_loss(model, batch):
        return loss_of(model, batch) * 1e-6

    recorder = Capture(path, model, optimizer, tiny_loss, steps=STEPS, autocast="float16")
    for _ in range(STEPS):
        batch = (torch.randn(8, WIDTH), torch.randint(0, CLASSES, (8,)))
        with recorder.step(batch), torch.autocast("cpu", dtype=torch.float16):
            tiny_loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    return path
