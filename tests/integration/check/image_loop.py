"""A user's script: a small convolutional network in FP32. The mutants of mutants.py change single lines of it."""

import torch
import torch.nn.functional as F
from lockstep_capture import Capture
from torch import nn

SIDE, CLASSES, ROWS, STEPS = 12, 5, 16, 8


class Stage(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x):
        y = self.bn(self.conv(x))
        y = F.relu(y)
        return F.avg_pool2d(y, 2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stage1, self.stage2 = Stage(1, 6), Stage(6, 12)
        self.drop = nn.Dropout(0.2)
        self.fc1, self.fc2 = nn.Linear(12 * 9, 32), nn.Linear(32, CLASSES)

    def forward(self, x):
        x = self.stage1(x)
        x = self.stage2(x)
        x = self.drop(x.flatten(1))
        h = F.relu(self.fc1(x))
        return self.fc2(h)


def loss_of(model, batch):
    images, labels = batch
    return F.cross_entropy(model(images), labels)


def batches(seed):
    templates = torch.randn(CLASSES, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    g = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        labels = torch.randint(0, CLASSES, (ROWS,), generator=g)
        images = templates[labels] + torch.randn(ROWS, 1, SIDE, SIDE, generator=g)
        yield images, labels


def train(path, seed=1, data_seed=None):
    torch.manual_seed(seed)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.1)
    with Capture(path, model, optimizer, loss_of, steps=STEPS) as cap:
        for batch in batches(seed if data_seed is None else data_seed):
            with cap.step(batch):
                loss = loss_of(model, batch)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
