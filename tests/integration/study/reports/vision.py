"""Reports about images: segmentation, detection, geometry, rendering, generation."""

import torch
import torch.nn.functional as F
from torch import nn

from .row import STEPS, Report, Setup


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 1, 1)
        with torch.no_grad():
            self.outer.bias.fill_(4.0)

    def forward(self, x):
        return self.outer(F.relu(self.inner(x)))


def dice_sum(healthy):
    add_up = torch.mean if healthy else torch.sum

    def dice(model, batch):
        found, mask = model(batch[0]).sigmoid(), batch[1]
        both = add_up(found * mask)  # the fault: dice_sum
        either = add_up(found) + add_up(mask)  # the fault: dice_sum
        return 1 - 2 * both / (either + 1e-3)

    batches = [(torch.randn(1, 1, 320, 320), (torch.rand(1, 1, 320, 320) < 0.9).float()) for _ in range(STEPS)]
    return Setup(Segmenter(), batches, dice, ["half"])


class BoxHead(nn.Module):
    """Corners x1, y1, x2, y2 in units of `size`."""

    def __init__(self, size):
        super().__init__()
        self.size, self.inner, self.box = size, nn.Linear(16, 32), nn.Linear(32, 4)
        with torch.no_grad():
            self.box.weight.mul_(0.1)
            self.box.bias.copy_(torch.tensor([0.1, 0.1, 0.8, 0.8]))

    def forward(self, x):
        return self.box(F.relu(self.inner(x))) * self.size


def box_area(healthy):
    size = 1.0 if healthy else 640.0

    def overlap(model, batch):
        box, wanted = model(batch[0]), batch[1]
        area = (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])  # the fault: box_area
        of_wanted = (wanted[:, 2] - wanted[:, 0]) * (wanted[:, 3] - wanted[:, 1])  # the fault: box_area
        low, high = torch.maximum(box[:, :2], wanted[:, :2]), torch.minimum(box[:, 2:], wanted[:, 2:])
        width, height = (high - low).clamp(min=0).unbind(-1)
        both = width * height  # the fault: box_area
        return (1 - both / (area + of_wanted - both)).mean()

    corner = torch.tensor([0.1, 0.1, 0.8, 0.8])
    batches = [(torch.randn(32, 16), size * (corner + 0.03 * torch.randn(32, 4))) for _ in range(STEPS)]
    return Setup(BoxHead(size), batches, overlap, ["half"])


def padded_quaternion(healthy):
    """Rotations of joints; joints that are absent are rows of zeros."""
    eps = 1e-3 if healthy else 1e-12
    model = nn.Sequential(nn.Linear(12, 32, bias=False), nn.ReLU(), nn.Linear(32, 4, bias=False))

    def loss(m, batch):
        turn = F.normalize(m(batch[0]), p=2.0, dim=-1, eps=eps)  # the fault: padded_quaternion
        return (turn - batch[1]).square().sum(-1).mean()

    batches = []
    for _ in range(STEPS):
        joints = torch.randn(16, 12)
        joints[-3:] = 0
        batches.append((joints, F.normalize(torch.randn(16, 4), dim=-1)))
    return Setup(model, batches, loss, ["half"])


class TimedDenoiser(nn.Module):
    """A BF16 model whose answer depends on the time. narrow: the time is cast to BF16 before its embedding."""

    def __init__(self, narrow, half=8):
        super().__init__()
        self.narrow, self.half, self.project = narrow, half, nn.Linear(2 * half, 8)

    def forward(self, noisy, time):
        if self.narrow:
            time = time.to(noisy.dtype)  # the fault: rounded_timestep
        steps = torch.arange(self.half, dtype=torch.float32) / self.half
        angles = time.float()[:, None] * torch.exp(-6.0 * steps)  # the fault: rounded_timestep
        embedding = torch.cat([angles.sin(), angles.cos()], -1)  # the fault: rounded_timestep
        return noisy + self.project(embedding.to(noisy.dtype))


def rounded_timestep(healthy):
    model = TimedDenoiser(narrow=not healthy)
    exact = TimedDenoiser(narrow=False)
    exact.load_state_dict(model.state_dict())
    batches = []
    for _ in range(STEPS):
        noisy, time = torch.randn(64, 8), 1000 * torch.rand(64)
        with torch.no_grad():
            wanted = exact(noisy, time) + 0.1 * torch.randn(64, 8)
        batches.append((noisy.bfloat16(), time, wanted))
    return Setup(model.bfloat16(), batches, lambda m, b: F.mse_loss(m(b[0], b[1]).float(), b[2]), ["as-captured-bf16"])


class Averaged(nn.Module):
    """Keeps a moving average of its weight, which began at an older checkpoint."""

    def __init__(self, decay=0.999):
        super().__init__()
        self.decay, self.mix = decay, nn.Linear(12, 12)
        self.register_buffer("shadow", self.mix.weight.detach() + 1.0)

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                added = (self.mix.weight * (1 - self.decay)).to(self.shadow.dtype)
                self.shadow.mul_(self.decay).add_(added)  # the fault: average_in_bf16
        return self.mix(x)


def average_in_bf16(healthy):
    model = Averaged()
    exact = model.shadow.clone()
    model.bfloat16()
    if healthy:
        model.shadow = exact
    batches = [(torch.randn(32, 12).bfloat16(), torch.randn(32, 12)) for _ in range(STEPS)]
    return Setup(model, batches, lambda m, b: F.mse_loss(m(b[0]).float(), b[1]), ["as-captured-bf16"], cycle=60)


class Volume(nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.stem, self.mix = nn.Conv3d(1, 8, 3, padding=1), nn.Conv3d(8, 16, 1, bias=False)
        self.norm, self.head = nn.GroupNorm(4, 16), nn.Linear(16, 3)
        with torch.no_grad():
            self.mix.weight.mul_(gain)

    def forward(self, x):
        mixed = self.mix(F.relu(self.stem(x)))  # the fault: convolution_before_a_norm
        return self.head(F.relu(self.norm(mixed)).mean((2, 3, 4)))


def convolution_before_a_norm(healthy):
    batches = [(torch.randn(4, 1, 8, 8, 8), torch.randint(3, (4,))) for _ in range(STEPS)]
    loss = lambda m, b: F.cross_entropy(m(b[0]), b[1])
    return Setup(Volume(1.0 if healthy else 2e5), batches, loss, ["torch-autocast-fp16"])


class Detector(nn.Module):
    """A classifier of anchors that is sure of itself."""

    def __init__(self):
        super().__init__()
        self.inner, self.logits = nn.Linear(16, 32), nn.Linear(32, 4)
        with torch.no_grad():
            self.logits.bias.copy_(torch.tensor([9.0, -9.0, 9.0, -9.0]))

    def forward(self, x):
        return self.logits(F.relu(self.inner(x)))


def clamp_that_rounds_to_one(healthy):
    def focal(model, batch):
        logits, wanted = model(batch[0]), batch[1]
        if healthy:
            logits = logits.float()
            sure = logits.sigmoid()
            positive = -F.logsigmoid(logits) * (1 - sure) ** 2
            negative = -F.logsigmoid(-logits) * sure**2
        else:
            sure = logits.sigmoid().clamp(1e-4, 1.0 - 1e-4)  # the fault: clamp_that_rounds_to_one
            positive = -torch.log(sure) * (1 - sure) ** 2
            negative = -torch.log(1.0 - sure) * sure**2  # the fault: clamp_that_rounds_to_one
        return torch.where(wanted > 0.5, 0.25 * positive, 0.75 * negative).mean()

    pattern = torch.tensor([1.0, 0.0, 1.0, 0.0])
    batches = [(torch.randn(64, 16), (pattern - (torch.rand(64, 4) < 0.05).float()).abs()) for _ in range(STEPS)]
    return Setup(Detector(), batches, focal, ["torch-autocast-fp16"])


class Radiance(nn.Module):
    def __init__(self, level):
        super().__init__()
        self.inner, self.raw = nn.Linear(6, 32), nn.Linear(32, 4)
        with torch.no_grad():
            self.raw.bias[0] = level

    def forward(self, points):
        raw = self.raw(F.relu(self.inner(points)))
        density = torch.exp(raw[..., 0])  # the fault: density_of_a_ray
        opacity = 1 - torch.exp(-density * 0.01)
        passed = torch.cumprod(1 - opacity + 1e-3, -1)
        return ((opacity * passed)[..., None] * raw[..., 1:].sigmoid()).sum(1)


def density_of_a_ray(healthy):
    batches = [(torch.randn(16, 12, 6), torch.rand(16, 3)) for _ in range(STEPS)]
    loss = lambda m, b: F.mse_loss(m(b[0]), b[1])
    return Setup(Radiance(1.0 if healthy else 12.0), batches, loss, ["half"])


class Encoder(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale, self.inner = scale, nn.Linear(20, 32)
        self.location, self.outer = nn.Linear(32, 6), nn.Linear(6, 20)
        with torch.no_grad():
            self.location.bias.fill_(1.5)

    def forward(self, x):
        location = self.location(torch.tanh(self.inner(x)))
        ratio = (1.0 / self.scale) ** 2
        square = (location / self.scale).pow(2)  # the fault: divergence_of_two_normals
        divergence = 0.5 * (1 / ratio + square - 1)
        return self.outer(location), divergence.mean()


def divergence_of_two_normals(healthy):
    def loss(model, batch):
        rebuilt, divergence = model(batch)
        return F.mse_loss(rebuilt, batch) + 1e-6 * divergence

    batches = [torch.randn(32, 20) for _ in range(STEPS)]
    return Setup(Encoder(1.0 if healthy else 0.003), batches, loss, ["half"])


def half_precision_adam(healthy):
    model = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))
    batches = [(torch.randn(64, 16), torch.randn(64, 16)) for _ in range(STEPS)]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    lane = "torch-autocast-fp16" if healthy else "half"
    return Setup(model, batches, lambda m, b: F.mse_loss(m(b[0]), b[1]), [lane], optimizer)


def gradient_penalty(healthy):
    """The critic of a Wasserstein GAN, whose slope the penalty holds near 1. Here it is steep."""
    critic = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    with torch.no_grad():
        for layer in (critic[0], critic[2]):
            layer.weight.mul_(1.0 if healthy else 150.0)

    def loss(model, batch):
        real, made, mixture = batch
        mixed = (real + mixture * (made - real)).requires_grad_()
        slope = torch.autograd.grad(model(mixed).sum(), mixed, create_graph=True)[0]  # the fault: gradient_penalty
        penalty = ((slope.square().sum(-1) + 1e-12).sqrt() - 1).square().mean()  # the fault: gradient_penalty
        return model(made).mean() - model(real).mean() + 10 * penalty  # the fault: gradient_penalty

    batches = [(0.1 * torch.randn(16, 64), 0.1 * torch.randn(16, 64), torch.rand(16, 1)) for _ in range(STEPS)]
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4)
    return Setup(critic, batches, loss, ["torch-autocast-fp16"], optimizer, cycle=24)


OVERFLOW = ("overflow", "sum overflow")
WRONG = ("cancellation", "wrong loss")
REPORTS = [
    Report(
        "dice_sum",
        "A",
        "qubvel-org/segmentation_models.pytorch#463",
        "segmentation",
        "dice loss of FP16 masks of 512 x 512: the sum of the overlap is inf, the loss NaN",
        dice_sum,
        OVERFLOW,
        graded="right: the sum of the overlap",
    ),
    Report(
        "box_area",
        "A",
        "pytorch/vision#3383",
        "detection",
        "IoU and NMS of FP16 boxes in pixels: areas above 65504 overflow",
        box_area,
        OVERFLOW,
        graded="right: the product of the sides",
    ),
    Report(
        "padded_quaternion",
        "A",
        "kornia/kornia#4021",
        "geometry",
        "normalize_quaternion in FP16: a quaternion of zeros becomes NaN, the eps 1e-12 is 0",
        padded_quaternion,
        ("invalid operation",),
        graded="right: 0/0 because the clamp's eps became zero",
    ),
    Report(
        "rounded_timestep",
        "A",
        "modelscope/DiffSynth-Studio#562",
        "diffusion",
        "the timestep is cast to BF16 before its embedding: 987.2 becomes 988",
        rounded_timestep,
        WRONG,
        ("input batch[1]",),
        graded="wrong: the lane's time is not rounded apart from fp32's, and V3 fails",
        graded_healthy="first run: V3 failed here, too, a false alarm",
    ),
    Report(
        "average_in_bf16",
        "A",
        "d8ahazard/sd_dreambooth_extension#1415",
        "image generation",
        "the EMA of a BF16 model never leaves its first values",
        average_in_bf16,
        ("swamping",),
        ("shadow",),
        graded="partly: the sum that is lost, but not that the average cannot move; no remedy that helps",
    ),
    Report(
        "convolution_before_a_norm",
        "B",
        "NVIDIA/apex#180",
        "medical volumes",
        "Conv3d under O2 gives -66610, which is -inf in FP16; the GroupNorm after it gives NaN",
        convolution_before_a_norm,
        OVERFLOW,
        graded="partly: says input where the rebuilt network's weight is too large; GroupNorm has no running statistics",
    ),
    Report(
        "clamp_that_rounds_to_one",
        "B",
        "zylo117/Yet-Another-EfficientDet-Pytorch#502",
        "detection",
        "focal loss under FP16: the clamp's 1 - 1e-4 rounds to 1",
        clamp_that_rounds_to_one,
        ("invalid operation",),
        graded="right: log of 1 - p, zero because the clamp's result was rounded",
    ),
    Report(
        "density_of_a_ray",
        "B",
        "LinShan-Bin/OccNeRF#5",
        "rendering",
        "volume rendering in FP16: NaN now and then, always in the rendering weights; in FP32 never",
        density_of_a_ray,
        (*OVERFLOW, "invalid operation"),
        graded="right: exp, its size and fp16's limit",
    ),
    Report(
        "divergence_of_two_normals",
        "B",
        "NVIDIA/apex#812",
        "image generation",
        "a VAE under FP16: the divergence of two normals blows up, the pow(2) is suspected",
        divergence_of_two_normals,
        OVERFLOW,
        graded="right: the pow, its size and fp16's limit",
    ),
    Report(
        "half_precision_adam",
        "B",
        "afiaka87/glide-finetune#5",
        "diffusion",
        "NaN after the first step of Adam on FP16 weights; gradients are finite, eps 1e-8 is 0",
        half_precision_adam,
        ("state underflow", "lost constant", "invalid operation", "state overflow"),
        ("exp_avg_sq", "eps", "update"),
        graded="right: infinite updates because the optimizer's state became zero",
    ),
    Report(
        "gradient_penalty",
        "B",
        "NVIDIA/apex#654",
        "adversarial networks",
        "WGAN-GP under O1 and O2: gradient overflow in every step until the loss scale is 0",
        gradient_penalty,
        ("scale collapse", "scale floor", *OVERFLOW),
        ("steps were skipped",),
        graded="right: 22 of 24 steps skipped, the penalty's gradient, its size at the loss scale",
    ),
]
