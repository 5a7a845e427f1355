"""A small U-Net in plain PyTorch, and the three lines that bring it into Lockstep.

    python examples/pytorch/unet.py --capture unet.lscap.h5
    lockstep verify unet.lscap.h5
    lockstep replay unet.lscap.h5 --lanes fp32,torch-autocast-bf16,torch-autocast-fp16 -o unet.h5

What it shows: transposed convolutions, skip connections, channel dropout at the bottom, a class per
pixel, AdamW, one-cycle schedule, two micro-batches per step, clipping, autocast with GradScaler.
Synthetic images, seconds on a CPU.
The loop, with the three lines, is in training_loop.py.
"""

import torch
import torch.nn.functional as F
from torch import nn
from training_loop import Task, main

CLASSES, SIZE, BATCH = 4, 16, 6


def two_convolutions(inputs, channels):
    return nn.Sequential(
        nn.Conv2d(inputs, channels, 3, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, dropout, width=8):
        super().__init__()
        self.down1, self.down2 = two_convolutions(3, width), two_convolutions(width, 2 * width)
        self.bottom, self.drop = two_convolutions(2 * width, 4 * width), nn.Dropout2d(dropout)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.merge2 = two_convolutions(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.merge1 = two_convolutions(2 * width, width)
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x):  # (N,3,H,W) -> (N,classes,H,W)
        wide = self.down1(x)
        half = self.down2(F.max_pool2d(wide, 2))
        x = self.drop(self.bottom(F.max_pool2d(half, 2)))
        x = self.merge2(torch.cat([half, self.up2(x)], dim=1))
        return self.head(self.merge1(torch.cat([wide, self.up1(x)], dim=1)))


def make_model(dropout=0.1):
    return UNet(dropout)


def make_batches(count, seed=0):
    """Yields (images (N,3,H,W), classes (N,H,W)): each a coloured rectangle with noise on top."""
    generator = torch.Generator().manual_seed(seed)
    row, column = torch.arange(SIZE)[:, None], torch.arange(SIZE)[None, :]
    for _ in range(count):
        corner = torch.randint(SIZE // 2, (2, BATCH, 1, 1), generator=generator)
        extent = torch.randint(4, SIZE // 2 + 1, (2, BATCH, 1, 1), generator=generator)
        inside = (
            (row >= corner[0])
            & (row < corner[0] + extent[0])
            & (column >= corner[1])
            & (column < corner[1] + extent[1])
        )
        colour = torch.randint(1, CLASSES, (BATCH, 1, 1), generator=generator)
        classes = inside * colour
        images = 0.3 * torch.randn(BATCH, 3, SIZE, SIZE, generator=generator)
        yield images + F.one_hot(classes, CLASSES)[..., 1:].permute(0, 3, 1, 2), classes


def loss_of(model, batch):
    images, classes = batch
    return F.cross_entropy(model(images), classes)


def make_optimizer(model, steps):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps + 1)


TASK = Task(make_model, make_batches, loss_of, make_optimizer, micro_batches=2, clip=1.0)

if __name__ == "__main__":
    main(TASK, __doc__)
