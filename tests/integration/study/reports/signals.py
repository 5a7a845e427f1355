"""Reports about sound, series, physics, control and graphs."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .row import STEPS, Report, Setup


class LogMel(nn.Module):
    """A classifier of sounds on log-mel powers; the transform is a convolution with fixed kernels."""

    def __init__(self, least, window=64, bands=12):
        super().__init__()
        self.least, bins = least, window // 2
        angles = 2 * math.pi * torch.outer(torch.arange(bins), torch.arange(window)) / window
        hann = torch.hann_window(window)
        self.register_buffer("kernels", torch.cat([angles.cos() * hann, angles.sin() * hann])[:, None])
        self.register_buffer("mel", torch.rand(bins, bands) / bins)
        self.norm, self.head = nn.BatchNorm1d(bands), nn.Linear(bands, 5)

    def forward(self, wave):
        real, imaginary = F.conv1d(wave[:, None], self.kernels, stride=32).chunk(2, 1)
        power = (real**2 + imaginary**2).transpose(1, 2)
        mel = torch.matmul(power, self.mel)  # the fault: quiet_log_mel
        mel = torch.clamp(mel, min=self.least)  # the fault: quiet_log_mel
        level = 10 * torch.log10(mel)  # the fault: quiet_log_mel
        return self.head(self.norm(level.transpose(1, 2)).mean(-1))


def quiet_log_mel(healthy):
    batches = []
    for _ in range(STEPS):
        wave = 0.1 * torch.randn(8, 1024)
        wave[:, 512:] *= 1e-4  # nearly silent
        batches.append((wave, torch.randint(5, (8,))))
    model = LogMel(1e-4 if healthy else 1e-10)
    return Setup(model, batches, lambda m, b: F.cross_entropy(m(b[0]), b[1]), ["torch-autocast-fp16"])


class Wave(nn.Module):
    """u(x, t) of a wave that travels with speed `speed`: a sum of sines of phases k (x - speed t)."""

    def __init__(self, speed, near):
        super().__init__()
        self.phase, self.out = nn.Linear(2, 4), nn.Linear(4, 1, bias=False)
        if near:
            k = torch.arange(1.0, 5.0)
            with torch.no_grad():
                self.phase.weight.copy_(torch.stack([k, -speed * k], 1) * (1 + 1e-5 * torch.randn(4, 2)))
                self.phase.bias.zero_()

    def forward(self, point):
        phase = self.phase(point)  # the fault: stiff_convection
        return self.out(torch.sin(phase))  # the fault: stiff_convection


def stiff_convection(healthy):
    speed = 1.0 if healthy else 50.0
    model = Wave(speed, near=not healthy)

    def loss(m, batch):
        point = batch[0].clone().requires_grad_()
        u = m(point)
        slope = torch.autograd.grad(u.sum(), point, create_graph=True)[0]  # the fault: stiff_convection
        residual = slope[:, 1] + speed * slope[:, 0]  # the fault: stiff_convection
        return residual.square().mean() + (u.squeeze(-1) - batch[1]).square().mean()  # the fault: stiff_convection

    batches = []
    for _ in range(STEPS):
        point = torch.rand(128, 2) * torch.tensor([2 * math.pi, 1.0])
        exact = Wave(speed, near=True)
        exact.out.load_state_dict(model.out.state_dict())
        with torch.no_grad():
            k = torch.arange(1.0, 5.0)
            phase = (k * (point[:, :1] - speed * point[:, 1:]).double()).sin().float()
            batches.append((point, exact.out(phase).squeeze(-1)))
    return Setup(model, batches, loss, ["tf32"], torch.optim.Adam(model.parameters(), lr=1e-5))


class Policy(nn.Module):
    """Squashed normal actions; most are near the ends of their range."""

    def __init__(self, stable):
        super().__init__()
        self.stable, self.inner, self.mean = stable, nn.Linear(8, 32), nn.Linear(32, 2)
        with torch.no_grad():
            self.mean.bias.copy_(torch.tensor([4.0, -4.0]))

    def forward(self, seen, noise):
        mean = self.mean(torch.tanh(self.inner(seen)))
        drawn = mean + 0.5 * noise
        action = torch.tanh(drawn)
        if self.stable:
            before = drawn
            slope = 2 * (math.log(2) - drawn - F.softplus(-2 * drawn))
        else:
            held = torch.clamp(action, -1 + 1e-6, 1 - 1e-6)  # the fault: squashed_actions
            before = torch.atanh(held)  # the fault: squashed_actions
            slope = torch.log(1 - action.square() + 1e-6)
        normal = -0.5 * ((before - mean) / 0.5).square()
        return action, (normal - slope).sum(-1)


def squashed_actions(healthy):
    def loss(model, batch):
        action, log_probability = model(*batch[:2])
        return (0.2 * log_probability + (action - batch[2]).square().sum(-1)).mean()

    batches = [(torch.randn(64, 8), torch.randn(64, 2), torch.randn(64, 2).tanh()) for _ in range(STEPS)]
    return Setup(Policy(stable=healthy), batches, loss, ["pure-bf16-master"])


class Neighbours(nn.Module):
    def __init__(self):
        super().__init__()
        self.message, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        with torch.no_grad():
            self.message.bias.fill_(0.5)

    def forward(self, x, source, target):
        sent = torch.sigmoid(self.message(x))[source]
        summed = torch.zeros(x.shape[0], 8).to(sent.dtype).index_add(0, target, sent)  # the fault: sum_of_neighbours
        return self.head(torch.log1p(summed))


def sum_of_neighbours(healthy):
    """Sums over neighbours; the first 4 nodes of 512 have half of all edges."""
    nodes, edges = 512, 1024 if healthy else 32768
    batches = []
    for _ in range(STEPS):
        target = torch.randint(nodes, (edges,))
        target[: edges // 2] = torch.arange(edges // 2) % (nodes if healthy else 4)
        batches.append((torch.randn(nodes, 4), torch.randint(nodes, (edges,)), target, torch.randint(3, (nodes,))))
    return Setup(Neighbours(), batches, lambda m, b: F.cross_entropy(m(*b[:3]).float(), b[3]), ["pure-fp16"])


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.value, self.head = nn.Linear(2, 8), nn.Linear(8, 1)
        with torch.no_grad():
            self.value.weight.fill_(0.5)

    def forward(self, series, counts):
        context = self.value(series).cumsum(dim=-2)  # the fault: running_context
        return self.head(context / counts)


def running_context(healthy):
    level, length = (0.5 if healthy else 60.0), 2048
    counts = torch.arange(1.0, length + 1)[:, None]
    batches = [(level + torch.randn(2, length, 2), counts, torch.randn(2, length, 1)) for _ in range(STEPS)]
    model = Forecaster()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    return Setup(model, batches, lambda m, b: F.mse_loss(m(*b[:2]), b[2]), ["half"], optimizer)


class Scaled(nn.Module):
    """A forecast of the last values of a series that is first brought to mean 0 and deviation 1."""

    def __init__(self, length=48):
        super().__init__()
        self.inner, self.head = nn.Linear(length, 32), nn.Linear(32, 8)

    def forward(self, series):
        place = series.mean(-1, keepdim=True)
        scale = (series - place).square().mean(-1, keepdim=True).sqrt() + 1e-5  # the fault: level_of_a_series
        scaled = (series - place) / scale  # the fault: level_of_a_series
        return self.head(F.relu(self.inner(scaled)))


def level_of_a_series(healthy):
    level = 0.0 if healthy else 1e6
    model, batches = Scaled(), []
    for _ in range(STEPS):
        series = 100 * torch.randn(32, 48)
        with torch.no_grad():
            wanted = model(series) + 0.05 * torch.randn(32, 8)
        batches.append((level + series, wanted))
    return Setup(model, batches, lambda m, b: F.mse_loss(m(b[0]).float(), b[1].float()), ["pure-bf16-master"])


OVERFLOW = ("overflow", "sum overflow")
WRONG = ("cancellation", "wrong loss")
REPORTS = [
    Report(
        "quiet_log_mel",
        "A",
        "qiuqiangkong/audioset_tagging_cnn#17",
        "sound",
        "log-mel layer under FP16 autocast: NaN in its output now and then, never in FP32",
        quiet_log_mel,
        ("invalid operation",),
        graded="right: log of a clamp that became zero; fp32 for the log alone, untested, would not help",
    ),
    Report(
        "stiff_convection",
        "A",
        "miniHuiHui/PINN_FP64#2",
        "physics",
        "PINN of convection with speed 50: converges in FP32, the loss is stuck with TF32",
        stiff_convection,
        WRONG,
        ("input batch[0]", "phase.weight"),
        graded="right: the residual cancels, through inputs rounded to tf32",
    ),
    Report(
        "squashed_actions",
        "A",
        "ray-project/ray#14878",
        "reinforcement learning",
        "SAC: log-probabilities of saturated actions through atanh of a clamped tanh explode, then NaN",
        squashed_actions,
        ("invalid operation", *WRONG),
        graded="right: the clamp's limit became 1, where atanh has its pole",
    ),
    Report(
        "sum_of_neighbours",
        "B",
        "dmlc/dgl#4674",
        "graphs",
        "FP16 sums over neighbours stop at 2048 where FP32 has 6600",
        sum_of_neighbours,
        ("swamping", *WRONG),
        graded="wrong: names updates; the sum over neighbours is not named",
    ),
    Report(
        "running_context",
        "B",
        "huggingface/transformers#25431",
        "series",
        "Informer in FP16: the running sum of the values overflows unless it is formed in FP32",
        running_context,
        OVERFLOW,
        graded="right: the running sum",
    ),
    Report(
        "level_of_a_series",
        "B",
        "amazon-science/chronos-forecasting#532",
        "series",
        "BF16 scaling of series with a high level: levels of 1e6 lose a variation of 100",
        level_of_a_series,
        (*WRONG, "invalid operation", "swamping"),
        ("input batch[0]",),
        graded="right: cancellation, through inputs rounded to bf16; a remedy was tried and helps",
    ),
]
