"""Reports about images: attention in detectors, quantized latents, noise schedules, flow, style."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .row import STEPS, Report, Setup


class AreaAttention(nn.Module):
    """Attention over the positions of an image, whose features have a deviation of about 130."""

    def __init__(self, scaled_first, width=32):
        super().__init__()
        self.scaled_first, self.width = scaled_first, width
        self.stem, self.norm = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.qkv, self.head = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, 4, 1)
        with torch.no_grad():
            self.norm.weight.fill_(130.0)
            self.head.weight.mul_(0.02)

    def forward(self, x):
        query, key, value = self.qkv(self.norm(self.stem(x))).flatten(2).chunk(3, 1)
        if self.scaled_first:
            scores = (query * self.width**-0.5).transpose(-2, -1) @ key
        else:
            scores = (query.transpose(-2, -1) @ key) * self.width**-0.5  # the fault: query_times_key
        mixed = value @ F.softmax(scores, -1).transpose(-2, -1)
        return self.head(mixed[..., None]).squeeze(-1)


def query_times_key(healthy):
    batches = [(torch.randn(8, 3, 8, 8), torch.randint(4, (8, 64))) for _ in range(STEPS)]
    return Setup(AreaAttention(healthy), batches, lambda m, b: F.cross_entropy(m(b[0]), b[1]), ["torch-autocast-fp16"])


class ScalarQuantizer(nn.Module):
    """Finite scalar quantization: the digits of a latent form the index of its code."""

    def __init__(self, levels):
        super().__init__()
        self.register_buffer("scale", torch.tensor([(level - 1) / 2 for level in levels]))
        self.register_buffer("basis", torch.tensor([math.prod(levels[:i]) for i in range(len(levels))]).float())
        self.encode, self.decode = nn.Linear(len(levels), len(levels)), nn.Linear(16, 12)
        self.codes = nn.Embedding(math.prod(levels) + 8, 16)  # 8 spare codes: 999 becomes 1000 in BF16
        with torch.no_grad():
            self.encode.weight.copy_(torch.eye(len(levels))), self.encode.bias.zero_()

    def forward(self, x):
        digits = torch.round((self.encode(x).clamp(-1, 1) + 1) * self.scale)
        index = (digits * self.basis).sum(-1)  # the fault: code_index
        return self.decode(self.codes(index.to(torch.int64)))  # the fault: code_index


def code_index(healthy):
    """Latents lie near the middle of their code's cell, so that only the index can go wrong."""
    levels = [4, 4, 4] if healthy else [8, 5, 5, 5]
    model, batches = ScalarQuantizer(levels), []
    for _ in range(STEPS):
        digits = torch.stack([torch.randint(level, (256,)) for level in levels], -1)
        x = digits / model.scale - 1 + 0.02 * torch.randn(256, len(levels))
        with torch.no_grad():
            batches.append((x, model(x) + 0.05 * torch.randn(256, 12)))
    return Setup(model, batches, lambda m, b: F.mse_loss(m(b[0]), b[1]), ["pure-bf16-master"])


class Anchored(nn.Module):
    """Boxes (x, y, width, height) as corrections of anchors, which are zero at first."""

    def __init__(self):
        super().__init__()
        self.inner, self.correction = nn.Linear(16, 32), nn.Linear(32, 4)
        nn.init.zeros_(self.correction.weight), nn.init.zeros_(self.correction.bias)

    def forward(self, x, anchor):
        return anchor * (1 + self.correction(F.relu(self.inner(x))))


def complete_overlap(box, wanted, eps):
    """CIoU: overlap less a penalty for the distance of the centres and one for the shape."""
    left, right = box[:, :2] - box[:, 2:] / 2, box[:, :2] + box[:, 2:] / 2
    wanted_left, wanted_right = wanted[:, :2] - wanted[:, 2:] / 2, wanted[:, :2] + wanted[:, 2:] / 2
    sides = (torch.minimum(right, wanted_right) - torch.maximum(left, wanted_left)).clamp(min=0)
    both = sides[:, 0] * sides[:, 1]
    overlap = both / (box[:, 2] * box[:, 3] + wanted[:, 2] * wanted[:, 3] - both + eps)
    hull = torch.maximum(right, wanted_right) - torch.minimum(left, wanted_left)
    apart = (box[:, :2] - wanted[:, :2]).square().sum(-1) / (hull.square().sum(-1) + eps)
    turned = torch.atan(wanted[:, 2] / wanted[:, 3]) - torch.atan(box[:, 2] / box[:, 3])
    shape = 4 / math.pi**2 * turned.square()
    with torch.no_grad():
        share = shape / ((1 + eps) - overlap + shape)  # the fault: equal_boxes
    return overlap - apart - share * shape


def equal_boxes(healthy):
    """Half of the anchors are exactly the boxes that are wanted."""
    eps, batches = 1e-3 if healthy else 1e-9, []
    for _ in range(STEPS):
        anchor = torch.tensor([0.5, 0.5, 0.25, 0.5]).repeat(32, 1)
        wanted = anchor.clone()
        wanted[16:] *= 0.75 + 0.5 * torch.rand(16, 4)
        batches.append((torch.randn(32, 16), anchor, wanted))
    loss = lambda m, b: (1 - complete_overlap(m(*b[:2]), b[2], eps)).mean()
    return Setup(Anchored(), batches, loss, ["torch-autocast-fp16"])


class Scheduled(nn.Module):
    """Refines a first guess of the noise. The share of the image that each step keeps is a buffer of the model."""

    def __init__(self, width=8):
        super().__init__()
        rates = torch.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2
        self.register_buffer("alphas_cumprod", torch.cumprod(1 - rates, 0))
        self.inner, self.outer = nn.Linear(2 * width + 1, 32), nn.Linear(32, width)
        with torch.no_grad():
            self.outer.weight.mul_(0.02), self.outer.bias.zero_()

    def forward(self, noisy, first, step):
        kept = self.alphas_cumprod[step].float()[:, None]
        sigma = ((1 - kept) / kept).sqrt()  # the fault: stored_noise_schedule
        x = torch.cat([noisy, first, sigma], -1).to(self.inner.weight.dtype)
        guess = first + self.outer(F.silu(self.inner(x))).float()
        return noisy - sigma * guess, sigma


def stored_noise_schedule(healthy):
    model, batches = Scheduled(), []
    exact = model.alphas_cumprod.clone()
    model.half()
    if healthy:
        model.alphas_cumprod = exact
    for _ in range(STEPS):
        clean, noise, step = torch.randn(64, 8), torch.randn(64, 8), torch.randint(20, (64,))
        sigma = ((1 - exact[step]) / exact[step]).sqrt()[:, None]
        batches.append((clean + sigma * noise, noise + 0.02 * torch.randn(64, 8), step, clean))

    def loss(m, batch):
        restored, sigma = m(*batch[:3])
        return ((restored - batch[3]) / sigma).square().mean()

    return Setup(model, batches, loss, ["as-captured-fp16-master"])


class Flow(nn.Module):
    """One update of an estimated optical flow, judged by the second image at the places that it points to."""

    def __init__(self):
        super().__init__()
        self.update = nn.Conv2d(2, 2, 1)
        nn.init.zeros_(self.update.weight), nn.init.zeros_(self.update.bias)

    def forward(self, first, second, places, before):
        flow = before + self.update(torch.cat([first, second], 1)).permute(0, 2, 3, 1)
        x, y = (places + flow).unbind(-1)  # the fault: pixel_coordinates
        x, y = 2 * x / (first.shape[-1] - 1) - 1, 2 * y / (first.shape[-2] - 1) - 1  # the fault: pixel_coordinates
        target = torch.stack([x, y], -1)
        return F.grid_sample(second, target, align_corners=True, padding_mode="border")  # the fault: pixel_coordinates


def pixel_coordinates(healthy):
    width, height, batches = 32 if healthy else 1024, 8, []
    rows, columns = torch.meshgrid(torch.arange(float(height)), torch.arange(float(width)), indexing="ij")
    places = torch.stack([columns, rows], -1)[None]
    for _ in range(STEPS):
        second, before = torch.randn(1, 1, height, width), 0.1 + 0.3 * torch.rand(1, height, width, 2)
        target = 2 * (places + before) / torch.tensor([width - 1.0, height - 1.0]) - 1
        first = F.grid_sample(second, target, align_corners=True, padding_mode="border")
        batches.append((first + 0.03 * torch.randn_like(first), second, places, before))
    model = Flow()
    loss = lambda m, b: F.mse_loss(m(*b), b[0])
    return Setup(model, batches, loss, ["half"], torch.optim.SGD(model.parameters(), lr=0.1))


class Styled(nn.Module):
    """An image made from another, and its features in a fixed network. Pixels have a deviation of about 60."""

    def __init__(self):
        super().__init__()
        self.make = nn.Conv2d(3, 3, 3, padding=1)
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        for layer in (self.first, self.second):
            layer.requires_grad_(False)
            layer.weight.mul_(2)

    def features(self, image):
        return F.relu(self.second(F.relu(self.first(image)))).flatten(2)

    def forward(self, image):
        return self.features(image + self.make(image))


def gram_matrix(healthy):
    def gram(features):
        count = features.shape[1] * features.shape[2]
        if healthy:
            features = features / count**0.5
            return features @ features.transpose(1, 2)
        return torch.bmm(features, features.transpose(1, 2)) / count  # the fault: gram_matrix

    model, batches = Styled(), []
    for _ in range(STEPS):
        with torch.no_grad():
            batches.append((60 * torch.randn(1, 3, 32, 32), gram(model.features(60 * torch.randn(1, 3, 32, 32)))))
    loss = lambda m, b: 1e-4 * F.mse_loss(gram(m(b[0])), b[1])
    parameters = [p for p in model.parameters() if p.requires_grad]
    return Setup(model, batches, loss, ["torch-autocast-fp16"], torch.optim.Adam(parameters, lr=1e-3))


def loss_of_all_pixels(healthy):
    size = 16 if healthy else 288
    model = nn.Conv2d(1, 6, 1)
    batches = [(torch.randn(1, 1, size, size), torch.randint(6, (1, size, size))) for _ in range(STEPS)]
    loss = lambda m, b: F.cross_entropy(m(b[0]), b[1])  # the fault: loss_of_all_pixels
    return Setup(model, batches, loss, ["pure-fp16-master"], torch.optim.SGD(model.parameters(), lr=0.1))


def lost_decay(healthy):
    model = nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64))
    batches = [(torch.randn(64, 64), torch.randn(64, 64)) for _ in range(STEPS)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.01)
    lane = "torch-autocast-bf16" if healthy else "pure-bf16"
    return Setup(model, batches, lambda m, b: F.mse_loss(m(b[0]), b[1]), [lane], optimizer)


OVERFLOW = ("overflow", "sum overflow")
WRONG = ("cancellation", "wrong loss")
REPORTS = [
    Report(
        "query_times_key",
        "C",
        "ultralytics/ultralytics#24990",
        "detection",
        "attention under AMP: the unscaled product of queries and keys overflows in some batches, NaN after the softmax",
        query_times_key,
        OVERFLOW,
        answer="The product of queries and keys exceeds 65504 before it is scaled. The remedy is to scale the queries first, which "
        "changes nothing in FP32, or this product in BF16 or FP32.",
        graded="right",
        graded_healthy="true: its gradients overflow, too",
    ),
    Report(
        "code_index",
        "C",
        "lucidrains/vector-quantize-pytorch#114",
        "image generation",
        "finite scalar quantization of 1000 codes in BF16 uses only half of the codes",
        code_index,
        ("flipped decisions", *WRONG),
        answer="The index of a code is summed up in BF16, which has no odd numbers above 256 and only every fourth above 512, so that "
        "other codes are looked up. The index must be formed in FP32 or in integers.",
        graded="wrong: no finding",
    ),
    Report(
        "equal_boxes",
        "C",
        "ultralytics/yolov5#2376",
        "detection",
        "CIoU of a predicted box that equals the target is NaN, in FP32 and in FP16",
        equal_boxes,
        ("invalid operation",),
        answer="0/0 in the weight of the shape penalty, in FP32 as well: 1 + 1e-9 is 1, so that nothing protects the division of "
        "equal boxes. It is no matter of the format; a larger eps helps.",
        graded="wrong: an error without a text",
    ),
    Report(
        "stored_noise_schedule",
        "C",
        "AUTOMATIC1111/stable-diffusion-webui#14071",
        "diffusion",
        "model.half() rounds alphas_cumprod as well, and the samples differ noticeably from full precision",
        stored_noise_schedule,
        WRONG,
        ("alphas_cumprod",),
        answer="1 - alphas_cumprod cancels: near 1 the buffer is stored in FP16 with a spacing of 5e-4, so that sigma is wrong by "
        "several percent at the first steps. The buffer alphas_cumprod must stay FP32.",
        graded="wrong: no finding",
    ),
    Report(
        "pixel_coordinates",
        "C",
        "princeton-vl/RAFT#54",
        "optical flow",
        "why coordinates and flow are kept in FP32 under mixed precision: rounding them to FP16 hurts",
        pixel_coordinates,
        WRONG,
        ("input batch[2]", "grid_sample"),
        answer="Pixel coordinates up to 1023 have a spacing of 0.5 in FP16, normalized ones of up to 0.25 pixels, so that the second "
        "image is sampled at wrong places. Coordinates must be FP32.",
        graded="right",
        graded_healthy="true: its coordinates are FP16, too",
    ),
    Report(
        "gram_matrix",
        "C",
        "NVIDIA/apex#402",
        "style transfer",
        "O1: the Gram matrix of the features by bmm is always NaN",
        gram_matrix,
        OVERFLOW,
        answer="The Gram matrix sums products over all pixels and exceeds 65504 before it is divided by their number. The remedy is to "
        "divide the features first, or this product in BF16 or FP32.",
        graded="right",
    ),
    Report(
        "loss_of_all_pixels",
        "C",
        "pytorch/pytorch#29429",
        "segmentation",
        "NLLLoss of FP16 images with reduction='mean' is NaN; without reduction it is fine",
        loss_of_all_pixels,
        (*OVERFLOW, "swamping", *WRONG),
        answer="The mean over 82944 pixels is a sum in FP16 that is divided afterwards: it overflows or stops growing. The reduction of "
        "the loss must be FP32.",
        graded="right",
    ),
    Report(
        "lost_decay",
        "C",
        "Nerogar/OneTrainer#996",
        "image generation",
        "AdamW on BF16 weights: weight decay has no effect",
        lost_decay,
        ("lost constant",),
        ("decay",),
        answer="1 - lr * weight_decay = 0.99999 is 1 in BF16, so that the weights do not decay. It helps to update in FP32, with master "
        "weights or stochastic rounding.",
        graded="right",
    ),
]
