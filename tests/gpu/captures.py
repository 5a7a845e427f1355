"""Captures of lenet, resnet20 and gpt, trained by PyTorch on the GPU: autocast in FP16 with a GradScaler.

    python tests/gpu/captures.py FOLDER [--device cpu] [--steps 4]

Writes FOLDER/lenet.lscap.h5, resnet20.lscap.h5 and gpt.lscap.h5. `lockstep verify` proves them on any machine: gate V7
replays the captured run and compares its losses and gradients. Needs torch and h5py; gpt is the network of
examples/pytorch/gpt.py.
"""

import argparse
import pathlib
import sys

import torch
import torch.nn.functional as F
from torch import nn

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples/pytorch"), str(ROOT / "python")]
import gpt  # noqa: E402  (from the examples)
from training_loop import Task, train  # noqa: E402


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):  # (N,1,28,28) -> (N,10)
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class ResidualBlock(nn.Module):
    def __init__(self, inputs, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.shortcut = (
            nn.Identity()
            if stride == 1
            else nn.Sequential(nn.Conv2d(inputs, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))
        )

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def resnet20():
    """(N,3,32,32) -> (N,10), 20 layers."""
    stages = [
        (16, 16, 1),
        (16, 16, 1),
        (16, 16, 1),
        (16, 32, 2),
        (32, 32, 1),
        (32, 32, 1),
        (32, 64, 2),
        (64, 64, 1),
        (64, 64, 1),
    ]
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        *(ResidualBlock(*stage) for stage in stages),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def images(channels, size, batch):
    """Batches of (images (N,channels,size,size), labels (N)): a wave per class under noise."""

    def batches(count, seed=0):
        generator = torch.Generator().manual_seed(seed)
        place = torch.arange(size) / size
        for _ in range(count):
            labels = torch.randint(10, (batch,), generator=generator)
            wave = torch.sin(6.2832 * (labels + 1)[:, None] * place)[:, None, None, :]
            yield wave + 0.3 * torch.randn(batch, channels, size, size, generator=generator), labels

    return batches


def image_loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def momentum(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, max(1, steps))


TASKS = {
    "lenet": Task(lambda dropout=0.0: LeNet(), images(1, 28, 32), image_loss, momentum),
    "resnet20": Task(lambda dropout=0.0: resnet20(), images(3, 32, 32), image_loss, momentum),
    "gpt": gpt.TASK,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, task in TASKS.items():
        torch.manual_seed(0)
        path = args.folder / f"{name}.lscap.h5"
        losses = train(task, task.make_model(), args.steps, "fp16", args.device, str(path), args.steps)
        print(
            f"{name}: losses {' '.join(f'{loss:.4f}' for loss in losses)}, {path.stat().st_size / 2**20:.1f} MiB",
            flush=True,
        )


if __name__ == "__main__":
    main()
