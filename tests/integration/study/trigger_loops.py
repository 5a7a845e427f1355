"""Loops of some hundred steps with one planted cause, and healthy ones, for Capture(when="fault"): planted(), healthy().

A loop is a network, a batch for each step and what happens from a step on. All of it is in the model and the batch, so that
a step function can repeat it; the machine's faults are in the loop alone.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F

CLASSES = 8


class Mlp(nn.Module):
    def __init__(self, width=48, norm=True):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(16, width), nn.Linear(width, width), nn.Linear(width, CLASSES)
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()

    def forward(self, x):
        return self.head(F.relu(self.second(self.norm(F.gelu(self.first(x))))))


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, stride=2)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, CLASSES)

    def forward(self, x):
        y = F.relu(self.norm(self.first(x.unflatten(1, (1, 4, 4)))))
        return self.head(self.second(y).mean((2, 3)))


class Attention(nn.Module):
    """Scores by hand, so that they are values of the format."""

    def __init__(self, width=32):
        super().__init__()
        self.embed, self.q, self.k, self.v = nn.Linear(4, width), *(nn.Linear(width, width) for _ in range(3))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        y = self.embed(x.unflatten(1, (4, 4)))
        scores = torch.matmul(self.q(y), self.k(y).transpose(1, 2)) / math.sqrt(y.shape[-1])
        return self.head((scores.softmax(-1) @ self.v(y)).mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.head = nn.GRU(4, 24, batch_first=True), nn.Linear(24, CLASSES)

    def forward(self, x):
        return self.head(self.cells(x.unflatten(1, (4, 4)))[0][:, -1])


MODELS = {"mlp": Mlp, "convolutions": Convolutions, "attention": Attention, "recurrent": Recurrent}


def loss_of(model, batch):
    x, y = batch
    return F.cross_entropy(model(x).float(), y)


def masked_loss(model, batch):
    x, y = batch
    each = F.cross_entropy(model(x).float(), y, reduction="none")
    mask = (x[:, 0] > -50).float()
    return (each * mask).sum() / mask.sum()


def log_loss(model, batch):
    x, y = batch
    return -model(x).float().softmax(-1).gather(1, y[:, None]).log().mean()


def exp_loss(model, batch):
    x, y = batch
    return loss_of(model, batch) + 1e-30 * model(x).float().exp().mean()


def spread_loss(model, batch):
    """A variance as a difference of squares."""
    x, y = batch
    z = model(x[:, :16]).float() + x.mean(1, keepdim=True)
    return loss_of(model, batch) + 1e-3 * (z.square().mean() - z.mean().square()).sqrt()


def scaled_input_loss(model, batch):
    x, y = batch
    return F.cross_entropy(model((x - x.mean(0)) / x.std(0)).float(), y)


@dataclasses.dataclass
class Planted:
    name: str
    kind: str  # what it is: data, format, machine
    at: int  # the step
    model: str = "mlp"
    half: str = ""  # autocast's dtype
    step_fn: Callable = loss_of
    batch: Callable = lambda batch, step: batch  # from the step on, if it is only then: `once`
    once: bool = True
    change: Callable = lambda loop, step: None  # of the model or the optimizer, before each step from `at` on
    break_gradients: Callable = lambda loop: None  # in the step, before the optimizer
    clip: float = 0.0
    later: int = 0  # steps after `at` within which the trigger is right
    says: str = ""  # in the answer
    optimizer: str = "adamw"

    @functools.cached_property
    def steps(self):
        return self.at + self.later + 20


def batch_of(step, seed, rows=32):
    """Classes that can be learned."""
    generator = torch.Generator().manual_seed(100003 * seed + step)
    x = torch.randn(rows, 16, generator=generator)
    weights = torch.randn(16, CLASSES, generator=torch.Generator().manual_seed(seed))
    return x, (x @ weights).argmax(1)


class Loop:
    def __init__(self, planted, seed):
        torch.manual_seed(seed)
        self.planted, self.seed = planted, seed
        self.model = MODELS[planted.model]()
        made = {"adamw": torch.optim.AdamW, "sgd": functools.partial(torch.optim.SGD, momentum=0.9)}
        self.optimizer = made[planted.optimizer](self.model.parameters(), lr=3e-3)
        self.dtype = {"": None, "fp16": torch.float16, "bf16": torch.bfloat16}[planted.half]
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if planted.half == "fp16" else None
        self.broken = False

    def train(self, capture=None):
        planted, losses = self.planted, []
        for step in range(planted.steps):
            if step >= planted.at:
                with torch.no_grad():
                    planted.change(self, step)
            batch = batch_of(step, self.seed)
            if step == planted.at or (step > planted.at and not planted.once):
                batch = planted.batch(batch, step)
            if capture is None:
                losses.append(self.body(batch, step))
            else:
                with capture.step(batch):
                    losses.append(self.body(batch, step))
        return losses, [p.detach().clone() for p in self.model.parameters()]

    def body(self, batch, step):
        with torch.autocast("cpu", dtype=self.dtype, enabled=self.dtype is not None):
            loss = self.planted.step_fn(self.model, batch)
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        if step == self.planted.at:
            self.planted.break_gradients(self)
        if self.planted.clip:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.planted.clip)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad()
        return loss.item()


def put(value, row=0, column=0):
    def changed(batch, step):
        x, y = batch[0].clone(), batch[1]
        x[row, column] = value
        return x, y

    return changed


def times(factor):
    return lambda batch, step: (batch[0] * factor, batch[1])


def labels(make):
    return lambda batch, step: (batch[0], make(batch[1]))


def grows(path, factor):
    """A weight that grows in each step, as in a run that diverges slowly."""

    def change(loop, step):
        loop.model.get_parameter(path).mul_(factor)

    return change


def jumps(path, factor):
    def change(loop, step):
        if step == loop.planted.at:
            loop.model.get_parameter(path).mul_(factor)

    return change


def learns_at(rate):
    def change(loop, step):
        for group in loop.optimizer.param_groups:
            group["lr"] = rate

    return change


def flips(path, bit):
    """One bit of one element of a gradient: a product that went wrong."""

    def broken(loop):
        with torch.no_grad():
            loop.model.get_parameter(path).grad.view(torch.int32).view(-1)[7] ^= 1 << bit

    return broken


def planted():
    made = [
        # Data: FP32 does it, too.
        Planted("NaN in a batch", "data", 300, batch=put(math.nan)),
        Planted("NaN in a batch, FP16", "data", 500, half="fp16", batch=put(math.nan)),
        Planted("NaN in a batch, BF16, clipped", "data", 700, "attention", "bf16", batch=put(math.nan), clip=1.0),
        Planted("infinity in a batch", "data", 450, "convolutions", batch=put(math.inf, 3, 2)),
        Planted("infinity in a batch, recurrent", "data", 350, "recurrent", batch=put(-math.inf, 3, 2)),
        Planted("labels that are all ignored", "data", 900, batch=labels(lambda y: torch.full_like(y, -100))),
        Planted(
            "all ignored, FP16", "data", 400, "attention", "fp16", batch=labels(lambda y: torch.full_like(y, -100))
        ),
        Planted("shifted labels", "data", 600, batch=labels(lambda y: (y + 1) % CLASSES), once=False, later=2),
        Planted("shifted labels, BF16", "data", 500, "mlp", "bf16", batch=labels(lambda y: (y + 1) % CLASSES), later=2),
        Planted("an empty mask", "data", 320, step_fn=masked_loss, batch=times(-1e9)),
        Planted("a batch in other units", "data", 550, "attention", batch=times(1e4)),
        Planted("a batch in other units, BF16", "data", 380, "recurrent", "bf16", batch=times(-300.0)),
        Planted("a constant feature", "data", 610, step_fn=scaled_input_loss, batch=lambda b, s: (b[0] * 0 + 1, b[1])),
        Planted("a learning rate that jumps", "data", 420, change=learns_at(3.0), later=4),
        Planted(
            "a learning rate that jumps, SGD", "data", 330, "mlp", change=learns_at(50.0), later=4, optimizer="sgd"
        ),
        Planted("a weight that jumps", "data", 480, "mlp", change=jumps("head.weight", 60.0), later=1),
        Planted("a broken worker's zeros", "data", 650, batch=lambda b, s: (b[0] * 0, (b[1] + 3) % CLASSES), later=1),
    ]
    fp16 = functools.partial(Planted, half="fp16")
    made += [
        # Format: only the narrow lane does it. Attention that saturates and a head that grows spoil FP32 before they overflow.
        fp16("a row beyond FP16", "format", 500, batch=times(1e5), says="first"),
        fp16("a row beyond FP16, clipped", "format", 310, batch=times(3e5), clip=1.0, says="first"),
        fp16("a row beyond FP16, convolutions", "format", 440, "convolutions", batch=times(2e5), says="first"),
        fp16("a row beyond FP16, recurrent", "format", 360, "recurrent", batch=times(1e6), says="cells"),
        fp16("activations that grow", "format", 300, "mlp", change=grows("first.weight", 1.02), later=700),
        fp16(
            "activations that grow, convolutions",
            "format",
            350,
            "convolutions",
            change=grows("first.weight", 1.02),
            later=700,
        ),
        fp16("attention logits that grow", "data", 300, "attention", change=grows("q.weight", 1.02), later=700),
        fp16("attention logits that grow, keys", "format", 420, "attention", change=grows("k.weight", 1.02), later=700),
        fp16("a head that grows", "data", 500, "recurrent", change=grows("head.weight", 1.02), later=700),
        fp16("a weight that jumps", "format", 700, "mlp", change=jumps("second.weight", 1e6), later=1),
        fp16(
            "gradients that overflow from a step on",
            "format",
            400,
            "attention",
            change=jumps("head.weight", 3e4),
            later=8,
        ),
        Planted(
            "a logarithm of what FP32 rounds to zero",
            "format",
            390,
            step_fn=log_loss,
            change=jumps("head.weight", 300.0),
            later=1,
        ),
        Planted(
            "an exponential beyond FP32", "format", 520, step_fn=exp_loss, change=jumps("head.weight", 30.0), later=1
        ),
        Planted(
            "a variance that FP32 rounds below zero",
            "order",
            340,
            step_fn=spread_loss,
            batch=lambda b, s: (b[0] + 3e5, b[1]),
            once=False,
            later=12,
        ),
    ]
    made += [
        # The machine: the step taken again is another.
        Planted(
            "a flipped bit in a gradient",
            "machine",
            400,
            break_gradients=flips("first.weight", 30),
            says="first.weight",
            later=0,
        ),
        Planted(
            "a flipped bit in a gradient, convolutions",
            "machine",
            320,
            "convolutions",
            break_gradients=flips("second.weight", 30),
            says="second.weight",
        ),
        Planted(
            "a flipped bit in a gradient, recurrent",
            "machine",
            510,
            "recurrent",
            break_gradients=flips("cells.weight_hh_l0", 30),
            says="cells.weight_hh_l0",
        ),
        Planted(
            "a flipped bit in a gradient, BF16",
            "machine",
            370,
            "attention",
            "bf16",
            break_gradients=flips("v.weight", 30),
            says="v.weight",
        ),
        Planted(
            "a flipped bit in a gradient, clipped",
            "machine",
            560,
            "mlp",
            break_gradients=flips("second.weight", 30),
            clip=1.0,
        ),
        Planted(
            "a flipped bit in a bias's gradient",
            "machine",
            450,
            "mlp",
            break_gradients=flips("head.bias", 30),
            says="head.bias",
        ),
        Planted(
            "a flipped bit in a gradient, SGD",
            "machine",
            300,
            "mlp",
            break_gradients=flips("head.weight", 30),
            says="head.weight",
            optimizer="sgd",
        ),
        Planted(
            "a flipped bit in a gradient, attention",
            "machine",
            430,
            "attention",
            break_gradients=flips("embed.weight", 30),
            says="embed.weight",
        ),
        Planted(
            "a flipped bit, FP16", "machine", 380, "mlp", "fp16", break_gradients=flips("first.weight", 30), clip=1.0
        ),
    ]
    return made


def healthy():
    """(a loop without a cause, its seed): 200."""
    made = []
    for seed in range(10):
        for model in MODELS:
            for half in ("", "bf16", "fp16"):
                clip = 1.0 if seed % 2 else 0.0
                optimizer = "sgd" if seed % 3 == 2 else "adamw"
                made.append((Planted("healthy", "", 380, model, half, clip=clip, optimizer=optimizer), seed))
        for step_fn in (masked_loss, log_loss, scaled_input_loss, exp_loss, spread_loss):
            made.append((Planted("healthy", "", 380, step_fn=step_fn), seed))
        made += [(Planted("healthy", "", 580, model), 50 + seed) for model in ("mlp", "attention", "recurrent")]
    return made
