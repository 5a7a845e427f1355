"""Captures of a small network with one planted layer, which 16 bits or FP8 spoil."""

import torch
from lockstep_capture import Capture
from torch import nn


class Large(nn.Module):
    """A product that exceeds FP16's largest number, scaled back in FP32's reach."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)

    def forward(self, x):
        return (x * 4000) @ (self.weight * 400) / 1.6e6


class Cancels(nn.Module):
    """Adds a number and takes it away: x keeps only the digits that fit next to those of 4096."""

    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x):
        return (self.inner(x) + 4096.0) - 4096.0


class Narrow(nn.Module):
    """A linear layer of values near 12: E4M3 keeps little more than their integers, BF16 four bits more."""

    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x):
        return (self.inner(x * 0.3 + 12) - self.inner.weight.sum(1) * 12) * 3.3


class Net(nn.Module):
    def __init__(self, middle):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(16, 32), middle, nn.Linear(32, 4)

    def forward(self, x):
        return self.last(torch.relu(self.middle(torch.relu(self.first(x)))))


class Backward(nn.Module):
    """Passes its input on exactly; the gradient is the difference of two large products, 2048 dy - 2047 dy.

    In BF16 each product is rounded to 8 bits, so the layer before it, if that is in BF16, gets noise for a gradient.
    """

    def forward(self, x):
        large, less = x * 2048.0, x * 2047.0
        return x.detach() + (large - large.detach()) - (less - less.detach())


class Times(nn.Module):
    """Exact in every format: no score finds fault with it."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


class Hidden(nn.Module):
    """Layers without fault, some of which move the loss more, and one whose gradient is spoilt by the layer after it."""

    def __init__(self, layers=5, pairs=6):
        super().__init__()
        self.before = nn.Sequential(
            *(nn.Sequential(nn.Linear(16 if i == 0 else 32, 32), nn.ReLU()) for i in range(layers - 1))
        )
        self.victim, self.backward = nn.Linear(32, 32), Backward()
        self.between, self.last = nn.Linear(32, 32), nn.Linear(32, 4)
        self.exact = nn.Sequential(*(Times(2.0 if i % 2 == 0 else 0.5) for i in range(2 * pairs)))

    def forward(self, x):
        x = torch.relu(self.backward(self.victim(self.before(x))))
        return self.last(self.exact(torch.relu(self.between(x))))


def loss_of(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def adam(parameters):
    return torch.optim.Adam(parameters, 3e-3)


def captured(path, middle, optimizer=adam, steps=8):
    """The path of a capture of Net with this layer in the middle, on a task that it learns."""
    torch.manual_seed(0)
    return captured_model(path, Net(middle(32)), optimizer, steps)


def captured_model(path, model, optimizer=adam, steps=8):
    truth = torch.randn(16, 4)
    optimizer = optimizer(model.parameters())
    with Capture(str(path), model, optimizer, loss_of, steps=steps, verify=[]) as capture:
        for _ in range(steps):
            x = torch.randn(64, 16)
            batch = x, (x @ truth).argmax(1)
            with capture.step(batch):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
    return path


KINDS = {"fine": lambda width: nn.Linear(width, width), "large": Large, "cancels": Cancels, "narrow": Narrow}
