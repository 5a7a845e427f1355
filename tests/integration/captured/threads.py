"""What people asked in issue threads about low precision, each as a small model or a command.

CASES are data; test_threads.py runs them and reads the first screen of `lockstep report`. A case is a loop captured
from PyTorch (`network`) or a built-in model (`built_in`). A case with neither is answered by its text alone.
"""

import dataclasses
import functools

import torch
import torch.nn.functional as F
from lockstep_capture import Capture

nn = torch.nn
WIDTH, CLASSES, STEPS = 16, 4, 8
FP16, BF16, HALF = "torch-autocast-fp16", "torch-autocast-bf16", "half"
SCALER = 'extends = "torch-autocast-fp16:2.12"\n[loss_scale]\n'
DEEPSPEED = SCALER + 'kind = "deepspeed"\n'


class Net(nn.Module):
    """A block between two healthy layers."""

    def __init__(self, block):
        super().__init__()
        self.embed, self.block, self.head = nn.Linear(WIDTH, WIDTH), block, nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(self.block(torch.relu(self.embed(x))))


class Block(nn.Module):
    """A linear layer and a function of its output."""

    def __init__(self, function):
        super().__init__()
        self.fc, self.function = nn.Linear(WIDTH, WIDTH), function

    def forward(self, x):
        return self.function(self.fc(x))


class Attention(nn.Module):
    """Queries and keys of 600 times their input; the product is divided only afterwards."""

    FACTOR = 600

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4, 4, bias=False) for _ in range(3))
        with torch.no_grad():
            for layer in (self.q, self.k):
                layer.weight.copy_(torch.eye(4) * self.FACTOR)

    def forward(self, x):
        x = x.view(-1, 4, 4)
        scores = self.q(x) @ self.k(x).transpose(1, 2)
        return (torch.softmax(scores.float() * (0.5 / self.FACTOR**2), -1) @ self.v(x)).flatten(1)


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.classes, self.boxes = (nn.Linear(WIDTH, n) for n in (WIDTH, CLASSES, WIDTH))

    def forward(self, x):
        x = torch.relu(self.body(x))
        return self.classes(x), self.boxes(x)


def ratio(y):
    nothing = torch.relu(-torch.relu(y))
    return y + nothing / (nothing + 1e-8)


def norm(y):
    y = y * 1e-4
    return y * torch.rsqrt((y * y).mean(-1, keepdim=True) + 1e-10)


def root(y):
    return torch.sqrt(torch.sigmoid(y) * 1e-9) * 1e4


def stream(y):
    return F.layer_norm(1e3 * y + torch.tanh(y), (WIDTH,))


def loss_of(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def loss_times(factor, model, batch):
    return loss_of(model, batch) * factor


def two_losses(model, batch):
    classes, boxes = model(batch[0])
    return F.cross_entropy(classes, batch[1]) + 1e8 * F.mse_loss(boxes, batch[0])


@dataclasses.dataclass
class Network:
    """A PyTorch loop of STEPS steps."""

    model: object  # makes a model, or a block of Net
    loss: object = loss_of
    lr: float = 0.01
    autocast: str = None
    outlier: int = -1  # the step whose batch is 1000 times as large

    def capture(self, path):
        torch.manual_seed(1)
        model = self.model()
        model = model if isinstance(model, TwoHeads) else Net(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.lr)
        dice = torch.Generator().manual_seed(2)
        dtype = None if self.autocast is None else getattr(torch, self.autocast)
        recorder = Capture(path, model, optimizer, self.loss, steps=STEPS, autocast=self.autocast)
        for step in range(STEPS):
            images = torch.randn(8, WIDTH, generator=dice) * (1000 if step == self.outlier else 1)
            batch = (images, torch.randint(0, CLASSES, (8,), generator=dice))
            with recorder.step(batch), torch.autocast("cpu", dtype, enabled=dtype is not None):
                self.loss(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
        return path


@dataclasses.dataclass
class Case:
    row: int  # of the list of threads
    threads: str
    question: str
    shown: str  # the model or the command, for the page
    says: dict = dataclasses.field(default_factory=dict)  # lane -> what its lines must contain, in this order
    answered: str = "yes"  # "no": the lines do not contain what they should
    network: Network = None
    built_in: tuple = ()
    options: tuple = ()
    policies: dict = dataclasses.field(default_factory=dict)  # name of a lane's policy file -> its text
    example: str = ""  # a lane of examples/policies
    silent: tuple = ()  # what no lane's lines may contain
    command: tuple = ()  # a command whose lines are read instead; RUN, AGAIN and CAPTURE are its files
    quoted_lines: int = 2  # of such a command: from the first of its words on


LONGER = ("--cycle", "--steps", 40)
TANH = functools.partial(Block, torch.tanh)
SHORT_LENET = ("lenet", "--optimizer", "adam", "--batch", 32, "--steps", 10)
MLP = ("mlp", "--size", "hidden1=32,hidden2=16", "--batch", 32)

CASES = [
    Case(
        1,
        "apex#963",
        "Which layer overflows first?",
        "attention, q and k 600 times their input",
        {FP16: ("broke at step 0", "block matmul", "fp16 ends at 65504"), BF16: ("no finding",)},
        network=Network(Attention),
    ),
    Case(
        1,
        "apex#179",
        "Which gradient overflows first?",
        "a fixed scale of 2^24, not checked",
        {"static.toml": ("broke at step 0", "cross_entropy", "its gradient", "fp16 ends at 65504")},
        network=Network(TANH),
        policies={"static.toml": SCALER + 'kind = "static-unchecked"\ninit_scale = 16777216\n'},
    ),
    Case(
        1,
        "pytorch#40497",
        "Which eps is too small for FP16?",
        "`x / (x + 1e-8)` at x = 0",
        {HALF: ("broke at step 0", "block", "became zero")},
        network=Network(lambda: Block(ratio)),
    ),
    Case(
        1,
        "pytorch#40497",
        "Which eps is too small for FP16?",
        "an RMS norm by hand, eps 1e-10",
        {HALF: ("broke at step 0", "block rsqrt", "became zero")},
        network=Network(lambda: Block(norm)),
    ),
    Case(
        2,
        "apex#318",
        "Why does the scale fall to 0?",
        "the attention above, 40 steps",
        {FP16: ("broke at step 0", "block matmul", "fp16 ends at 65504")},
        network=Network(Attention),
        options=LONGER,
    ),
    Case(
        2,
        "pytorch#157436",
        "Why does the scale fall to 0?",
        "a root of numbers that vanish",
        {FP16: ("block sqrt", "became zero")},
        network=Network(lambda: Block(root)),
        options=LONGER,
    ),
    Case(
        2,
        "DeepSpeed#1599",
        "Why does it stop at the smallest scale?",
        "a loss times 10^8, DeepSpeed's scaler",
        {"deepspeed.toml": ("gave up", "fell from 2^16 to 1", "because of cross_entropy")},
        options=LONGER,
        network=Network(TANH, functools.partial(loss_times, 1e8), lr=1e-10),
        policies={"deepspeed.toml": DEEPSPEED},
    ),
    Case(
        3,
        "apex#452",
        "May the scale be below 1?",
        "the same loss, with and without a floor of 1",
        {
            "no-floor.toml": ("fell from 2^16 to 2^-9", "cross_entropy"),
            "floor.toml": ("40", "skipped", "fell from 2^16 to 1,", "cross_entropy"),
        },
        options=LONGER,
        policies={"no-floor.toml": SCALER, "floor.toml": SCALER + "min_scale = 1\n"},
        network=Network(TANH, functools.partial(loss_times, 1e8), lr=1e-10),
    ),
    Case(
        4,
        "Swin#47, DeepSpeed#931",
        'Is "Gradient overflow. Skipping step" normal?',
        "mlp, a first scale of 2^32",
        {"large.toml": ("is fine", "17 of 120 steps skipped")},
        built_in=(*MLP, "--steps", 120),
        policies={"large.toml": SCALER + "init_scale = 4294967296\nmax_scale = inf\n"},
    ),
    Case(
        5,
        "pytorch#67590",
        "Was the step skipped?",
        "one batch is 1000 times as large",
        {FP16: ("step 4 skipped", "2^16 to 2^15", "no finding")},
        network=Network(lambda: Block(torch.relu), lr=1e-4, outlier=4),
    ),
    Case(
        6,
        "Open-Rig3R#35",
        "Why does the loss stand still?",
        "a loss of 10^-6, FP16 without a scaler",
        {"torch-autocast-fp16-cpu": ("No loss scale although gradients vanish", "energy")},
        network=Network(TANH, functools.partial(loss_times, 1e-6), autocast="float16"),
    ),
    Case(
        6,
        "gpt-neox#477",
        "How much of it became zero?",
        "a factor of 10^-9 in FP16",
        {HALF: ("block mul", "loses all of its energy to underflow")},
        network=Network(lambda: Block(lambda y: y * 1e-9)),
    ),
    Case(
        7,
        "wandb#9092",
        "Are these gradients still scaled?",
        "mlp, clipping before `unscale_`",
        {"clip-before-unscale.toml": ("clipped to 1 while still scaled", "holds the loss scale 2^16")},
        built_in=(*MLP, "--steps", 40, "--clip-norm", 1),
        example="clip-before-unscale.toml",
    ),
    Case(
        8,
        "TensorRT#4027",
        "Which layers need FP32?",
        "`lockstep recommend` on the attention's run",
        {"": ("block stays in fp32", "matmul", "reaches 2^20")},
        answered="`recommend`",
        network=Network(Attention),
        command=("recommend", "RUN"),
    ),
    Case(
        9,
        "torchtune#2254",
        "Why do BF16 weights not learn?",
        "lr = 10^-6",
        {"pure-bf16": ("update energy is lost", "bf16 weights are too coarse"), BF16: ("no finding",)},
        network=Network(TANH, lr=1e-6),
    ),
    Case(
        10,
        "torchtitan#3190",
        "Where do two runs differ first?",
        "a branch on a stream 1000 times as large",
        {BF16: ("block add", "loses all of its energy in bf16")},
        network=Network(lambda: Block(stream)),
    ),
    Case(
        11,
        "HF#34053",
        "Is the loss scale kept on resume?",
        "`lockstep replay --resume` keeps its own, bit for bit; checkpoints of other programs are not read",
        answered="no",
    ),
    Case(
        12,
        "lm-eval-harness#1883",
        "How far may numbers differ in CI?",
        "`lockstep check` of mlp, 1 and 2 threads",
        {"": ("Hashes", "compared exactly", "losses to a relative 6.93e-14")},
        answered="`check`",
        built_in=(*MLP, "--steps", 5),
        command=("check", "RUN", "--baseline", "AGAIN", "--exact"),
    ),
    Case(
        13,
        "apex#179",
        "Which of the losses overflows?",
        "two heads, one loss times 10^8",
        {FP16: ("skipped", "because of boxes linear_backward")},
        network=Network(TwoHeads, two_losses, lr=1e-12),
        options=LONGER,
    ),
    Case(
        14,
        "Paddle#37021",
        "What is infinite: the loss?",
        "vae, squares summed in FP16",
        {"fp16-masters.toml": ("loss.reconstruction mse_loss", "2.2e5", "65504")},
        example="fp16-masters.toml",
        built_in=("vae", "--size", "hidden=32", "--batch", 256, "--steps", 10, "--optimizer", "adam"),
    ),
    Case(
        14,
        "DeepSpeed#2911",
        "Infinite or NaN?",
        "lenet with Adam in FP16",
        {HALF: ("broke at step 0", "the update becomes infinite")},
        built_in=SHORT_LENET,
        silent=("NaN or infinite",),
    ),
    Case(
        14,
        "DeepSpeed#2911",
        "Why does BF16 speak of a loss scale?",
        "the same, BF16 autocast",
        {BF16: ("is fine",)},
        built_in=SHORT_LENET,
        silent=("scale",),
    ),
    Case(
        14,
        "DeepSpeed#3008",
        "Why is it 65536 after a skip, too?",
        "mlp, a hysteresis of 2",
        {"hysteresis.toml": ("is fine", "skip", "hysteresis")},
        answered="no",
        built_in=(*MLP, "--steps", 120),
        policies={"hysteresis.toml": DEEPSPEED + "init_scale = 16777216\n"},
    ),
    Case(
        15,
        "pytorch#88929",
        "Which dtype did each op run in?",
        "`lockstep explain CAPTURE --policy P`",
        {"": ("embed ", "linear", "fp32 -> fp16", "cross_entropy", "fp32")},
        answered="`explain`",
        network=Network(TANH),
        quoted_lines=1,
        command=("explain", "CAPTURE", "--policy", FP16),
    ),
    Case(
        16,
        "TE#2801",
        "How do the scales of FP8 and FP4 blocks spread?",
        "they are not recorded; the ranges of every tensor are (`moments/abs_max`, `exponent_histogram_50`)",
        answered="no",
    ),
    Case(
        17,
        "Lightning#9799",
        "Infinities in the first steps: a fault?",
        "a first scale of 2^20",
        {"large.toml": ("steps 0, 1 and 2 skipped", "no finding")},
        network=Network(TANH),
        policies={"large.toml": SCALER + "init_scale = 1048576\n"},
    ),
    Case(
        17,
        "Lightning#9799",
        "Infinities in the first steps: a fault?",
        "a first scale of 2^24: 7 of 8 steps skipped",
        {"large.toml": ("no finding", "skip")},
        answered="no",
        network=Network(TANH),
        policies={"large.toml": SCALER + "init_scale = 16777216\n"},
    ),
]
