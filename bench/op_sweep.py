"""Finds speed cliffs: every op of real networks, in the FP32 lane, against PyTorch on one thread.

    ./dev bench ops, or python bench/op_sweep.py build/release/lockstep [--only TEXT] [--limit 3]

Each row is one op of a real network at a real shape, as a captured training step: forward, backward to weights and input,
SGD. Both times are the least of several steps. Rows above the limit are printed again at the end, the slowest first; exit
code 1 if one is above CLIFF.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import time

import h5py
import torch
from torch import nn
from torch.nn import functional as F

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))

import lockstep_capture  # noqa: E402

STEPS = 5
CLIFF = 10


class Op(nn.Module):
    """A function of the input after a weight that broadcasts, so that gradients reach the op's input."""

    def __init__(self, function, *modules):
        super().__init__()
        self.before, self.function = nn.Parameter(torch.ones(1)), function
        self.inside = nn.ModuleList(modules)

    def forward(self, x, *more):
        y = self.function(self.before * x, *more, *self.inside)
        return (y[0] if isinstance(y, tuple) else y).square().mean()


def module(of):
    return lambda: Op(lambda x, m: m(x), of())


def function(of):
    return lambda: Op(of)


def conv(kind, *arguments, **more):
    return module(lambda: getattr(nn, kind)(*arguments, **more))


def attend(x):
    q, k, v = (part.unflatten(-1, (8, 64)).transpose(1, 2) for part in x.chunk(3, -1))
    return F.scaled_dot_product_attention(q, k, v)


def ids(count, *shape):
    return lambda: torch.randint(count, shape)


# name: (the op, its input's shape, further inputs)
ROWS = {
    "conv1d 1 to 130, 128/32: STFT front end": (conv("Conv1d", 1, 130, 128, stride=32), (4, 1, 2048)),
    "conv1d 1 to 130, 128/128": (conv("Conv1d", 1, 130, 128, stride=128), (4, 1, 2048)),
    "conv1d 1 to 130, 9": (conv("Conv1d", 1, 130, 9), (4, 1, 2048)),
    "conv1d 1 to 130, 32/32": (conv("Conv1d", 1, 130, 32, stride=32), (4, 1, 2048)),
    "conv1d 1 to 512, 10/5: wav2vec2, first": (conv("Conv1d", 1, 512, 10, stride=5, bias=False), (2, 1, 8000)),
    "conv1d 512 to 512, 3/2: wav2vec2": (conv("Conv1d", 512, 512, 3, stride=2, bias=False), (1, 512, 799)),
    "conv1d 512, 128, groups 16: wav2vec2 positions": (
        conv("Conv1d", 512, 512, 128, padding=64, groups=16),
        (1, 512, 99),
    ),
    "conv1d 80 to 384, 3: Whisper": (conv("Conv1d", 80, 384, 3, padding=1), (1, 80, 1500)),
    "conv1d 256, 31 depthwise: Conformer": (conv("Conv1d", 256, 256, 31, padding=15, groups=256), (2, 256, 400)),
    "conv1d 1 to 402, 400/160: mel spectrogram": (conv("Conv1d", 1, 402, 400, stride=160), (1, 1, 16000)),
    "conv1d 64, 3, dilation 512: WaveNet": (conv("Conv1d", 64, 128, 3, dilation=512), (1, 64, 4000)),
    "conv_transpose1d 256 to 128, 16/8: HiFi-GAN": (
        conv("ConvTranspose1d", 256, 128, 16, stride=8, padding=4),
        (1, 256, 200),
    ),
    "conv2d 3 to 64, 7/2: ResNet-50, first": (conv("Conv2d", 3, 64, 7, stride=2, padding=3), (1, 3, 224, 224)),
    "conv2d 64, 3: ResNet-50": (conv("Conv2d", 64, 64, 3, padding=1), (1, 64, 56, 56)),
    "conv2d 256 to 64, 1: ResNet-50": (conv("Conv2d", 256, 64, 1), (1, 256, 56, 56)),
    "conv2d 128, 3/2": (conv("Conv2d", 128, 128, 3, stride=2, padding=1), (1, 128, 56, 56)),
    "conv2d 144, 3 depthwise: MobileNet": (conv("Conv2d", 144, 144, 3, padding=1, groups=144), (2, 144, 56, 56)),
    "conv2d 96, 7 depthwise: ConvNeXt": (conv("Conv2d", 96, 96, 7, padding=3, groups=96), (2, 96, 56, 56)),
    "conv2d 240, 5/2 depthwise: EfficientNet": (
        conv("Conv2d", 240, 240, 5, stride=2, padding=2, groups=240),
        (2, 240, 28, 28),
    ),
    "conv2d 3 to 384, 16/16: ViT": (conv("Conv2d", 3, 384, 16, stride=16), (2, 3, 224, 224)),
    "conv2d 3 to 96, 4/4: Swin": (conv("Conv2d", 3, 96, 4, stride=4), (2, 3, 224, 224)),
    "conv2d 1 to 32, 41x11/2: DeepSpeech": (
        conv("Conv2d", 1, 32, (41, 11), stride=2, padding=(20, 5)),
        (1, 1, 161, 200),
    ),
    "conv2d 128, groups 32: ResNeXt": (conv("Conv2d", 128, 128, 3, padding=1, groups=32), (1, 128, 56, 56)),
    "conv2d 256, 3, dilation 12: DeepLab": (conv("Conv2d", 256, 64, 3, padding=12, dilation=12), (1, 256, 33, 33)),
    "conv_transpose2d 128 to 64, 2/2: U-Net": (conv("ConvTranspose2d", 128, 64, 2, stride=2), (1, 128, 56, 56)),
    "linear 768 to 3072": (conv("Linear", 768, 3072), (256, 768)),
    "linear 768 to 50257, no bias": (conv("Linear", 768, 50257, bias=False), (32, 768)),
    "attention 8x64, 256 tokens": (function(attend), (2, 256, 3 * 512)),
    "lstm 256": (conv("LSTM", 256, 256), (64, 8, 256)),
    "gru 256": (conv("GRU", 256, 256), (64, 8, 256)),
    "layer_norm 768": (conv("LayerNorm", 768), (2048, 768)),
    "rms_norm 768": (conv("RMSNorm", 768), (2048, 768)),
    "group_norm 32 of 256": (conv("GroupNorm", 32, 256), (4, 256, 32, 32)),
    "batch_norm 64": (conv("BatchNorm2d", 64), (16, 64, 56, 56)),
    "softmax 1024": (function(lambda x: x.softmax(-1)), (2048, 1024)),
    "log_softmax 32000": (function(lambda x: x.log_softmax(-1)), (64, 32000)),
    "gelu": (function(F.gelu), (2048, 1024)),
    "silu": (function(F.silu), (2048, 1024)),
    "relu": (function(F.relu), (2048, 1024)),
    "exp": (function(torch.exp), (2048, 1024)),
    "tanh": (function(torch.tanh), (2048, 1024)),
    "pow 1.5": (function(lambda x: x.abs().pow(1.5)), (2048, 1024)),
    "max_pool2d 3/2": (function(lambda x: F.max_pool2d(x, 3, 2, 1)), (8, 64, 112, 112)),
    "avg_pool2d 2": (function(lambda x: F.avg_pool2d(x, 2)), (8, 64, 112, 112)),
    "avg_pool1d 5/1": (function(lambda x: F.avg_pool1d(x, 5, 1, 2)), (8, 64, 4096)),
    "adaptive_avg_pool2d 1": (function(lambda x: F.adaptive_avg_pool2d(x, 1)), (16, 256, 56, 56)),
    "adaptive_avg_pool2d 7": (function(lambda x: F.adaptive_avg_pool2d(x, 7)), (16, 256, 56, 56)),
    "mean of rows": (function(lambda x: x.mean(-1)), (2048, 1024)),
    "sum of columns": (function(lambda x: x.sum(0)), (2048, 1024)),
    "var of rows": (function(lambda x: x.var(-1)), (2048, 1024)),
    "cumsum": (function(lambda x: x.cumsum(-1)), (2048, 1024)),
    "logsumexp": (function(lambda x: x.logsumexp(-1)), (2048, 1024)),
    "amax": (function(lambda x: x.amax(-1)), (2048, 1024)),
    "transpose": (function(lambda x: x.transpose(1, 2).contiguous()), (16, 512, 256)),
    "cat": (function(lambda x: torch.cat([x, x], 1)), (16, 512, 256)),
    "pad": (function(lambda x: F.pad(x, (2, 2, 2, 2))), (8, 64, 112, 112)),
    "roll": (function(lambda x: x.roll((3, 3), (1, 2))), (8, 56, 56, 96)),
    "upsample bilinear": (function(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")), (4, 64, 64, 64)),
    "upsample nearest": (function(lambda x: F.interpolate(x, scale_factor=2)), (4, 64, 64, 64)),
    "pixel_shuffle": (function(lambda x: F.pixel_shuffle(x, 2)), (4, 256, 64, 64)),
    "embedding 768": (lambda: Op(lambda x, at, m: m(at) * x, nn.Embedding(30000, 768)), (1,), ids(30000, 8, 256)),
    "index_select": (function(lambda x, at: x.index_select(0, at)), (4096, 256), ids(4096, 16384)),
    "index_add": (function(lambda x, at: torch.zeros(512, 256).index_add(0, at, x)), (16384, 256), ids(512, 16384)),
    "gather": (function(lambda x, at: x.gather(1, at)), (4096, 256), ids(256, 4096, 256)),
    "scatter_add": (
        function(lambda x, at: torch.zeros(4096, 256).scatter_add(1, at, x)),
        (4096, 256),
        ids(256, 4096, 256),
    ),
    "where": (function(lambda x: torch.where(x > 0, x, 0.1 * x)), (2048, 1024)),
    "dropout": (function(lambda x: F.dropout(x, 0.1)), (2048, 1024)),
    "broadcast add and mul": (function(lambda x: (x + x[:, :1]) * x[:1]), (2048, 1024)),
    "cross_entropy 32000": (lambda: Op(lambda x, t: F.cross_entropy(x, t)), (64, 32000), ids(32000, 64)),
    "grid_sample": (
        function(lambda x, at: F.grid_sample(x, at, align_corners=False)),
        (2, 32, 64, 64),
        lambda: 2 * torch.rand(2, 64, 64, 2) - 1,
    ),
    "unfold": (function(lambda x: F.unfold(x, 3, padding=1)), (2, 32, 56, 56)),
    "einsum": (function(lambda x: torch.einsum("bnd,bmd->bnm", x, x)), (8, 256, 64)),
    "einsum of four axes": (function(lambda x: torch.einsum("bhqd,bhkd->bhqk", x, x)), (2, 8, 128, 64)),
    "matmul of a batch": (function(lambda x: x @ x.transpose(1, 2)), (16, 256, 64)),
    "matmul with a vector": (function(lambda x: x @ x[0]), (2048, 1024)),
    "outer product": (function(lambda x: torch.outer(x, x)), (1500,)),
    "conv3d 16 to 32, 3": (conv("Conv3d", 16, 32, 3, padding=1), (1, 16, 16, 28, 28)),
    "conv3d 3 to 64, 3x7x7/1x2x2: R(2+1)D": (
        conv("Conv3d", 3, 64, (3, 7, 7), stride=(1, 2, 2), padding=(1, 3, 3)),
        (1, 3, 8, 56, 56),
    ),
    "avg_pool3d 2": (function(lambda x: F.avg_pool3d(x, 2)), (1, 32, 16, 56, 56)),
    "instance_norm": (conv("InstanceNorm2d", 64, affine=True), (4, 64, 64, 64)),
    "normalize": (function(lambda x: F.normalize(x, dim=-1)), (2048, 1024)),
    "norm of rows": (function(lambda x: x.norm(dim=-1)), (2048, 1024)),
    "cosine_similarity": (function(lambda x: F.cosine_similarity(x[:, None], x[None], dim=-1)), (64, 256)),
    "cdist": (function(lambda x: torch.cdist(x, x)), (256, 64)),
    "std of columns": (function(lambda x: x.std(0)), (2048, 1024)),
    "mean of an image": (function(lambda x: x.mean((2, 3))), (16, 256, 56, 56)),
    "prod": (function(lambda x: (1 + 0.01 * x).prod(-1)), (2048, 64)),
    "cumprod": (function(lambda x: (1 + 0.01 * x).cumprod(-1)), (2048, 64)),
    "max of columns": (function(lambda x: x.max(0).values), (2048, 1024)),
    "sort": (function(lambda x: x.sort(-1).values), (512, 512)),
    "topk 50": (function(lambda x: x.topk(50, -1).values), (512, 512)),
    "tril": (function(lambda x: x.tril()), (16, 256, 256)),
    "masked_fill": (function(lambda x: x.masked_fill(x > 1, -1e4)), (2048, 1024)),
    "clamp": (function(lambda x: x.clamp(-1, 1)), (2048, 1024)),
    "sin and cos: rotary table": (function(lambda x: torch.cat([x.sin(), x.cos()], -1)), (2048, 512)),
    "atan2": (function(lambda x: torch.atan2(x, x.roll(1, 0))), (1024, 512)),
    "erf": (function(torch.erf), (2048, 1024)),
    "softplus": (function(F.softplus), (2048, 1024)),
    "mish": (function(F.mish), (2048, 1024)),
    "glu": (function(F.glu), (2048, 1024)),
    "prelu": (conv("PReLU", 64), (8, 64, 56, 56)),
    "bce_with_logits": (lambda: Op(lambda x: F.binary_cross_entropy_with_logits(x, x.sigmoid())), (2048, 1024)),
    "huber_loss": (lambda: Op(lambda x: F.huber_loss(x, x.roll(1, 0))), (2048, 1024)),
    "kl_div": (
        lambda: Op(lambda x: F.kl_div(x.log_softmax(-1), x.flip(0).softmax(-1), reduction="batchmean")),
        (512, 1024),
    ),
    "ctc_loss": (
        lambda: Op(lambda x, t: F.ctc_loss(x.log_softmax(-1), t, (100,) * 8, (20,) * 8)),
        (100, 8, 64),
        lambda: torch.randint(1, 64, (8, 20)),
    ),
    "upsample bicubic": (function(lambda x: F.interpolate(x, scale_factor=2, mode="bicubic")), (2, 32, 48, 48)),
    "repeat_interleave: heads of grouped queries": (
        function(lambda x: x.repeat_interleave(4, 1)),
        (2, 8, 256, 64),
    ),
    "expand and sum": (function(lambda x: (x[:, None] - x[None]).abs().sum(-1)), (256, 64)),
    "stack": (function(lambda x: torch.stack([x, -x], -1)), (2048, 512)),
    "slices of steps": (function(lambda x: x[..., ::2] * x[..., 1::2]), (2048, 1024)),
    "embedding_bag": (
        lambda: Op(lambda x, at, m: m(at) * x, nn.EmbeddingBag(30000, 64)),
        (1,),
        ids(30000, 512, 32),
    ),
    "transformer layer 256": (
        module(lambda: nn.TransformerEncoderLayer(256, 4, 1024, 0.0, batch_first=True)),
        (4, 128, 256),
    ),
    "weight_norm conv1d": (
        module(lambda: torch.nn.utils.parametrizations.weight_norm(nn.Conv1d(64, 64, 5, padding=2))),
        (2, 64, 1000),
    ),
    "spectral_norm linear": (
        module(lambda: torch.nn.utils.parametrizations.spectral_norm(nn.Linear(512, 512))),
        (64, 512),
    ),
}


def loss_of(model, batch):
    return model(*batch)


def seconds_of(row, lockstep, folder):
    make, shape, *more = row
    torch.manual_seed(0)
    model = make()
    batch = [torch.randn(shape), *(each() for each in more)]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    own = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        own.append(time.perf_counter() - begin)
    capture, run = folder / "op.lscap.h5", folder / "op.h5"
    lockstep_capture.capture(capture, model, optimizer, [tuple(batch)] * 2, loss_of, steps=2)
    call = [lockstep, "replay", capture, "--lanes", "fp32", "--twins", "0", "--statistics", "none", "--cycle"]
    call += ["--steps", str(STEPS), "--threads", "1", "--quiet", "--overwrite", "-o", run]
    subprocess.run([str(part) for part in call], check=True)
    with h5py.File(run) as file:
        return min(own), min(file["lanes/fp32/seconds"][:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lockstep")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--limit", type=float, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name, row in ROWS.items():
            if arguments.only not in name:
                continue
            own, theirs = seconds_of(row, arguments.lockstep, pathlib.Path(folder))
            found.append((theirs / own, name))
            print(f"{theirs / own:6.2f} x  {1e3 * theirs:8.2f} ms for {1e3 * own:8.2f}  {name}", flush=True)
    slow = sorted((row for row in found if row[0] > arguments.limit), reverse=True)
    print(
        f"{len(slow)} of {len(found)} above {arguments.limit:g} x:",
        *(f"{ratio:.1f} x {name}" for ratio, name in slow),
        sep="\n",
    )
    return int(any(ratio > CLIFF for ratio, _ in slow))


if __name__ == "__main__":
    sys.exit(main())
