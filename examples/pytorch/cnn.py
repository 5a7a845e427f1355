"""A small residual CNN in plain PyTorch, and the three lines that bring it into Lockstep.

    python examples/pytorch/cnn.py --capture cnn.lscap.h5
    lockstep verify cnn.lscap.h5
    lockstep replay cnn.lscap.h5 --lanes fp32,torch-autocast-bf16,torch-autocast-fp16 -o cnn.h5

What it shows: batch norm, in-place relu, residual connections, dropout before the classifier, SGD
with Nesterov momentum and weight decay, step schedule, two micro-batches per step, clipping, autocast
with GradScaler. Synthetic images, seconds on a CPU.
The loop, with the three lines, is in training_loop.py.
"""

import torch
import torch.nn.functional as F
from torch import nn
from training_loop import Task, main

CLASSES, SIZE, BATCH = 10, 16, 16


class ResidualBlock(nn.Module):
    def __init__(self, inputs, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != channels:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += self.shortcut(x)
        return self.relu(y)


class CNN(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        )
        self.layer1, self.layer2 = ResidualBlock(16, 16, 1), ResidualBlock(16, 32, 2)
        self.pool, self.drop = nn.AdaptiveAvgPool2d(1), nn.Dropout(dropout)
        self.fc = nn.Linear(32, CLASSES)

    def forward(self, x):  # (N,3,H,W) -> (N,classes)
        x = self.layer2(self.layer1(self.stem(x)))
        return self.fc(self.drop(torch.flatten(self.pool(x), 1)))


def make_model(dropout=0.1):
    return CNN(dropout)


def make_batches(count, seed=0):
    """Yields (images (N,3,H,W), labels (N)): the phase of a wave gives the class, with noise on top."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.arange(SIZE) / SIZE
    for _ in range(count):
        labels = torch.randint(CLASSES, (BATCH,), generator=generator)
        frequency = (labels % 5 + 1).float()[:, None, None]
        wave = torch.sin(6.2832 * frequency * place).expand(-1, SIZE, -1)
        wave = torch.where((labels >= 5)[:, None, None], wave.transpose(1, 2), wave)
        noise = 0.3 * torch.randn(BATCH, 3, SIZE, SIZE, generator=generator)
        yield wave[:, None] + noise, labels


def loss_of(model, batch):
    images, labels = batch
    return F.cross_entropy(model(images), labels, label_smoothing=0.1)


def make_optimizer(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, max(1, steps // 3), gamma=0.3)


TASK = Task(make_model, make_batches, loss_of, make_optimizer, micro_batches=2, clip=5.0)

if __name__ == "__main__":
    main(TASK, __doc__)
