"""Reports about measurements and models of nature: volumes, sound, fields, molecules, proteins, pooled points."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .row import STEPS, Report, Setup


class Segmenter(nn.Module):
    """Volumes through a convolution and a group norm that squares in the format of its input."""

    def __init__(self, groups=4):
        super().__init__()
        self.groups, self.stem, self.head = groups, nn.Conv3d(1, 8, 3, padding=1), nn.Conv3d(8, 3, 1)
        with torch.no_grad():
            self.stem.weight.mul_(4)

    def forward(self, x):
        x = self.stem(x)
        grouped = x.reshape(x.shape[0], self.groups, -1)
        centered = grouped - grouped.mean(-1, keepdim=True)
        spread = (centered * centered).mean(-1, keepdim=True)  # the fault: group_norm_square
        normed = centered / (spread + 1e-5).sqrt()
        return self.head(F.relu(normed.reshape(x.shape)))


def group_norm_square(healthy):
    level = 1.0 if healthy else 255.0
    batches = [(level * torch.rand(2, 1, 8, 8, 8), torch.randint(3, (2, 8, 8, 8))) for _ in range(STEPS)]
    model = Segmenter()
    loss = lambda m, b: F.cross_entropy(m(b[0]), b[1])
    return Setup(model, batches, loss, ["half"], torch.optim.SGD(model.parameters(), lr=0.5))


class Field(nn.Module):
    """A velocity over the plane that is steep near a wall."""

    def __init__(self, steep):
        super().__init__()
        self.first, self.inner, self.out = nn.Linear(2, 32), nn.Linear(32, 32), nn.Linear(32, 1)
        with torch.no_grad():
            self.first.weight.mul_(steep)

    def forward(self, point):
        return self.out(torch.tanh(self.inner(torch.tanh(self.first(point)))))


def second_derivative(healthy):
    def residual(model, batch):
        point = batch.clone().requires_grad_()
        slope = torch.autograd.grad(model(point).sum(), point, create_graph=True)[0]  # the fault: second_derivative
        curve = torch.autograd.grad(slope[:, 1].sum(), point, create_graph=True)[0]  # the fault: second_derivative
        return (slope[:, 0] - 0.01 * curve[:, 1]).square().mean()

    batches = [0.02 * torch.rand(256, 2) for _ in range(STEPS)]
    return Setup(Field(1.0 if healthy else 1500.0), batches, residual, ["torch-autocast-fp16"])


class Pooled(nn.Module):
    """Features of points, averaged over four clusters."""

    def __init__(self):
        super().__init__()
        self.message, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x, cluster):
        sent = self.message(x)
        total = torch.zeros(4, 8).to(sent.dtype).index_add(0, cluster, sent)
        ones = torch.ones(x.shape[0], 1).to(sent.dtype)
        count = torch.zeros(4, 1).to(sent.dtype).index_add(0, cluster, ones)  # the fault: mean_over_points
        return self.head(total / count)  # the fault: mean_over_points


def mean_over_points(healthy):
    model, points, batches = Pooled(), 1024 if healthy else 32768, []
    with torch.no_grad():
        model.message.bias.fill_(0.05)
    for _ in range(STEPS):
        x, cluster = torch.randn(points, 4), torch.arange(points) % 4
        with torch.no_grad():
            batches.append((x.half(), cluster, model(x, cluster) + 0.01 * torch.randn(4, 3)))
    loss = lambda m, b: F.mse_loss(m(*b[:2]).float(), b[2])
    return Setup(model.half(), batches, loss, ["as-captured-fp16-master"])


class Potential(nn.Module):
    """The energy of a cluster of atoms as a sum over pairs, and its forces."""

    def __init__(self, atoms=6):
        super().__init__()
        self.register_buffer("centres", torch.linspace(0.5, 4.0, 16))
        self.inner, self.outer = nn.Linear(16, 32), nn.Linear(32, 1)
        self.pairs = [(i, j) for i in range(atoms) for j in range(i)]

    def forward(self, place):
        first, second = zip(*self.pairs, strict=True)
        apart = place[:, list(first)] - place[:, list(second)]
        distance = (apart.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        radial = torch.exp(-4 * (distance - self.centres).square())
        return self.outer(torch.tanh(self.inner(radial))).sum()  # the fault: forces_in_tf32

    def forces(self, place):
        place = place.clone().requires_grad_()
        return torch.autograd.grad(-self(place), place, create_graph=True)[0]  # the fault: forces_in_tf32


def forces_in_tf32(healthy):
    """Forces of an accurate calculation, or with an error far above that of TF32."""
    model, batches = Potential(), []
    for _ in range(STEPS):
        place = 1.5 * torch.randn(32, 6, 3)
        wanted = model.forces(place).detach()
        batches.append((place, wanted + (0.1 if healthy else 3e-5) * torch.randn_like(wanted)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    return Setup(model, batches, lambda m, b: F.mse_loss(m.forces(b[0]), b[1]), ["tf32"], optimizer)


class Folded(nn.Module):
    """Places of residues, in angstrom."""

    def __init__(self, size):
        super().__init__()
        self.size, self.inner, self.place = size, nn.Linear(16, 32), nn.Linear(32, 3, bias=False)

    def forward(self, x):
        place = self.size * self.place(torch.tanh(self.inner(x)))
        apart = place[:, :, None] - place[:, None]
        square = apart.square().sum(-1)  # the fault: squared_distances
        return (square + 1e-2).sqrt()


def squared_distances(healthy):
    """The largest proteins are longer than 256 angstrom."""
    size, batches = 10.0 if healthy else 400.0, []
    for _ in range(STEPS):
        place = size * 0.3 * torch.randn(2, 24, 3)
        batches.append((torch.randn(2, 24, 16), torch.cdist(place, place)))
    model = Folded(size)
    loss = lambda m, b: (m(b[0]) - b[1]).abs().mean()
    return Setup(model, batches, loss, ["half"], torch.optim.SGD(model.parameters(), lr=5e-3))


class Enhancer(nn.Module):
    """A filter of waves; magnitudes of a windowed transform are compared."""

    def __init__(self, least, window=32):
        super().__init__()
        self.least, bins = least, window // 2
        angles = 2 * math.pi * torch.outer(torch.arange(bins), torch.arange(window)) / window
        hann = torch.hann_window(window)
        self.register_buffer("kernels", torch.cat([angles.cos() * hann, angles.sin() * hann])[:, None])
        self.filter = nn.Conv1d(1, 1, 9, padding=4, bias=False)

    def magnitude(self, wave):
        real, imaginary = F.conv1d(wave, self.kernels, stride=16).chunk(2, 1)
        return (real**2 + imaginary**2 + self.least) ** 0.5  # the fault: silent_spectrum

    def forward(self, wave):
        return self.magnitude(self.filter(wave))


def silent_spectrum(healthy):
    """Recordings with a stretch of digital silence."""
    model, batches = Enhancer(1e-6 if healthy else 0.0), []
    for _ in range(STEPS):
        wave = 0.1 * torch.randn(8, 1, 512)
        wave[..., 256:] = 0
        with torch.no_grad():
            batches.append((wave, model.magnitude(wave)))
    return Setup(model, batches, lambda m, b: F.l1_loss(m(b[0]), b[1]), ["torch-autocast-bf16"])


OVERFLOW = ("overflow", "sum overflow")
WRONG = ("cancellation", "wrong loss")
REPORTS = [
    Report(
        "group_norm_square",
        "C",
        "neuroneural/brainchop-cli#56",
        "medical volumes",
        "FP16: outputs of a convolution above 256 overflow where GroupNorm squares them; the segmentation is garbage",
        group_norm_square,
        OVERFLOW,
        answer="The element-wise square inside the group norm exceeds 65504 because its input exceeds 256. The norm's statistics "
        "must be FP32, or the input scaled down, which the norm undoes.",
        graded="right",
    ),
    Report(
        "second_derivative",
        "C",
        "NVIDIA/physicsnemo-sym#160",
        "physics",
        "physics-informed network under AMP: the second derivative exceeds 65504 near a corner and the loss is infinite",
        second_derivative,
        (*OVERFLOW, "scale collapse", "scale floor"),
        answer="Second derivatives exceed FP16's 65504 in the forward pass, so that the scaler of the loss cannot help. Derivatives in "
        "BF16 or FP32, or scaled down before they are formed, help.",
        graded="right",
    ),
    Report(
        "mean_over_points",
        "C",
        "rusty1s/pytorch_scatter#269",
        "graphs",
        "scatter with reduce='mean' of FP16 values over many elements is several times too large",
        mean_over_points,
        ("swamping", *WRONG),
        answer="The mean is a sum divided by a count of ones, and the count is summed up in FP16, where it stops at 2048. Sum and count "
        "must be FP32.",
        graded="wrong: no finding",
    ),
    Report(
        "forces_in_tf32",
        "C",
        "torchmd/torchmd-net#327",
        "molecules",
        "interatomic potential: TF32 was on by default and affects the accuracy of forces too greatly",
        forces_in_tf32,
        (*WRONG, "drift"),
        ("inner", "outer"),
        answer="A fitted potential needs forces to more digits than TF32 keeps: the products of the linear layers round their inputs to "
        "11 bits, and the loss is many times FP32's at equal weights. Turn TF32 off, at least for these layers.",
        graded="right",
    ),
    Report(
        "squared_distances",
        "C",
        "aqlaboratory/openfold#19",
        "proteins",
        "FP16 training: the losses on distances become NaN; squared distances are among the largest activations",
        squared_distances,
        OVERFLOW,
        answer="Squared distances of residues more than 256 angstrom apart exceed FP16's 65504 and become infinite. Distances must be "
        "formed in FP32 or BF16, or in a larger unit than angstrom.",
        graded="right",
    ),
    Report(
        "silent_spectrum",
        "C",
        "speechbrain/speechbrain#181",
        "sound",
        "enhancement with a loss on magnitudes, power=0.5: the loss becomes NaN now and then",
        silent_spectrum,
        ("invalid operation",),
        answer="The gradient of a square root at zero, where the recording is silent: 1/0, times 0 is NaN. FP32 has it as well, so it is "
        "no matter of the format. A small constant under the root helps.",
        graded="partly: opens with NOT FAITHFUL",
    ),
]
