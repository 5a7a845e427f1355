"""The modules that plant a fault: in FP32 each is harmless, in a low format one known operation of it is not.

Numbers in comments: FP16 ends at 65504, its least subnormal number is 2^-24 = 6.0e-8, half of which rounds to 0;
an FP16 number near 2^14 has an ulp of 16, a BF16 number there one of 128.
"""

import torch
from torch import nn
from torch.nn import functional as F


class Gain(nn.Module):
    """y = factor x"""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


class HandNorm(nn.Module):
    """An RMS norm written by hand on x times a gain: the squares overflow where |x gain| > 256."""

    def __init__(self, gain):
        super().__init__()
        self.gain = gain

    def forward(self, x):
        z = x * self.gain
        return z * torch.rsqrt((z * z).mean(-1, keepdim=True) + 1e-3)


class Exponential(nn.Module):
    """y = x + weight exp(shift - |x|): e^12 = 1.6e5 overflows in FP16."""

    def __init__(self, shift, weight):
        super().__init__()
        self.shift, self.weight = shift, weight

    def forward(self, x):
        return x + torch.exp(self.shift - x.abs()) * self.weight


class Mean(nn.Module):
    """y = x + weight mean(base + |x|): the sum overflows, the mean fits."""

    def __init__(self, base):
        super().__init__()
        self.base = base

    def forward(self, x):
        return x + (x.detach().abs() + self.base).mean(-1, keepdim=True) * (0.1 / self.base)


class Difference(nn.Module):
    """y = x + weight (w z), z = base + |x|, w = +1 in the first half and -1 in the second: the sum passes through
    base n / 2 on the way to a small result."""

    def __init__(self, base, features):
        super().__init__()
        self.base = base
        self.register_buffer("w", torch.ones(1, features))
        self.w[:, features // 2 :] = -1

    def forward(self, x):
        return x + F.linear(x.detach().abs() + self.base, self.w) * (0.1 / self.base)


class Stored(nn.Module):
    """y = x + (x stored) undo, `stored` about 1 / undo: a buffer, a parameter that is not trained, or a constant."""

    def __init__(self, how, features, magnitude):
        super().__init__()
        self.how, self.undo = how, 0.3 / magnitude
        value = magnitude * (1 + torch.rand(features))
        if how == "buffer":
            self.register_buffer("stored", value)
        elif how == "weight":
            self.stored = nn.Parameter(value, requires_grad=False)
        else:
            self.__dict__["stored"] = value

    def forward(self, x):
        return x + (x.detach() * self.stored) * self.undo


class LogOfProbability(nn.Module):
    """y = x + weight log softmax(sharp x), not fused: a probability below 3e-8 rounds to 0 in FP16, log 0 = -inf."""

    def __init__(self, sharp):
        super().__init__()
        self.sharp = sharp

    def forward(self, x):
        scores = torch.clamp(x.detach() * self.sharp, -20, 20)
        return x + torch.log(torch.softmax(scores, -1)) * 1e-3


class LogOfRest(nn.Module):
    """y = x + weight log(1 - sigmoid(z)), z up to 12: sigmoid rounds to 1 from 8.3 (FP16), 6.2 (BF16)."""

    def __init__(self, sharp):
        super().__init__()
        self.sharp = sharp

    def forward(self, x):
        return x + torch.log(1 - torch.sigmoid(torch.clamp(x.detach() * self.sharp, -12, 12))) * 1e-3


class ZeroRows(nn.Module):
    """y = x + z / (sum |z| + eps) with rows of z that are padding: 0 / eps in FP32, 0 / 0 where eps is rounded to 0."""

    def __init__(self, eps, tensor):
        super().__init__()
        if tensor:
            self.register_buffer("eps", torch.tensor([eps]))
        else:
            self.eps = eps

    def forward(self, x):
        keep = torch.ones(x.shape[0], *[1] * (x.dim() - 1))
        keep[: x.shape[0] // 4] = 0
        z = x.detach() * keep.to(x.dtype)
        return x + z / (z.abs().sum(-1, keepdim=True) + self.eps)


class TinySquares(nn.Module):
    """y = x + weight (a x)^2: with a = 1e-5 the squares are 1e-10, zero in FP16, and the weight 1 / a^2."""

    def __init__(self, a):
        super().__init__()
        self.a = a

    def forward(self, x):
        z = x.detach() * self.a
        return x + (z * z) * (0.3 / self.a**2)


class TinyKernel(nn.Module):
    """y = x + weight exp(-distance - x^2): e^-20 = 2e-9, zero in FP16."""

    def __init__(self, distance):
        super().__init__()
        self.distance = distance
        self.weight = 0.3 * float(torch.exp(torch.tensor(distance)))

    def forward(self, x):
        z = torch.tanh(x.detach())
        return x + torch.exp(z * z * -1.0 - self.distance) * self.weight


class Amplifier(nn.Module):
    """y = x; the gradient of x is (1 + k) that of y. z - z.detach() is 0, its derivative 1."""

    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        z = x * self.k
        return x + (z - z.detach())


class LongSum(nn.Module):
    """y = x + weight times a sum of `length` products that are all positive and alike: a chain of p bits stops growing
    at about 2^p of them."""

    def __init__(self, features, length):
        super().__init__()
        self.repeats = -(-length // features)
        self.register_buffer("w", torch.full((1, self.repeats * features), 1 / length))

    def forward(self, x):
        z = x.detach().abs() * 0.2 + 1
        return x + F.linear(torch.cat([z] * self.repeats, -1), self.w) * 0.3


class Offset(nn.Module):
    """y = (x + offset) - offset: x is lost where it is below half an ulp of the offset."""

    def __init__(self, offset, tensor, features):
        super().__init__()
        if tensor:
            self.register_buffer("offset", torch.full((features,), float(offset)))
        else:
            self.offset = float(offset)

    def forward(self, x):
        return (x + self.offset) - self.offset


class WideFactor(nn.Module):
    """y = x + weight linear(gain x): a factor of the product is larger than FP8's 448."""

    def __init__(self, features, gain):
        super().__init__()
        self.gain, self.linear = gain, nn.Linear(features, features)

    def forward(self, x):
        return x + self.linear(x * self.gain) * (0.3 / self.gain)


class Before(nn.Module):
    """Features in raw units: model(x factor)."""

    def __init__(self, model, factor):
        super().__init__()
        self.factor, self.model = factor, model

    def forward(self, x):
        return self.model(x * self.factor)


class Variance(nn.Module):
    """y = x + weight (z - mean) / root(mean z^2 - (mean z)^2), z = x + base: the difference of two numbers near base^2
    is negative or zero where their ulp is larger than the variance."""

    def __init__(self, base):
        super().__init__()
        self.base = base

    def forward(self, x):
        z = torch.tanh(x.detach()) * 0.5 + self.base
        mean = z.mean(-1, keepdim=True)
        variance = (z * z).mean(-1, keepdim=True) - mean * mean
        return x + (z - mean) / torch.sqrt(variance + 0.02) * 0.1


class Stream(nn.Module):
    """A residual stream with a large constant: four small adds to it, then the constant is taken off."""

    def __init__(self, offset, features):
        super().__init__()
        self.register_buffer("offset", torch.full((features,), float(offset)))

    def forward(self, x):
        stream = self.offset
        for weight in (0.5, 0.3, 0.2, 0.1):
            stream = stream + torch.tanh(x * weight)
        return x + (stream - self.offset)
