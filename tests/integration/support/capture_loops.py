"""Small models and ordinary training loops for the tests of captures."""

import contextlib

import h5py
import numpy as np
import torch
import torch.nn.functional as F
from lockstep_capture import Capture

torch.set_num_threads(1)
nn = torch.nn


class Images(nn.Module):
    """Convolution, batch_norm, dropout, pooling, a linear layer."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.drop, self.fc = nn.Dropout(0.2), nn.Linear(64, 5)

    def forward(self, images):
        x = F.max_pool2d(torch.relu(self.bn(self.conv(images))), 2)
        return self.fc(self.drop(x.flatten(1)))


class Classifier(nn.Module):
    """Images as a Trainer takes them: a dictionary with the loss."""

    def __init__(self):
        super().__init__()
        self.net = Images()

    def forward(self, images, labels):
        logits = self.net(images)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Text(nn.Module):
    """A small GPT: embedding tied to the head, causal attention, dropout."""

    def __init__(self, width=8, heads=2, layers=1, classes=11, dropout=0.1):
        super().__init__()
        self.embed = nn.Embedding(classes, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 2 * width, dropout, batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(width, classes, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        mask = torch.triu(torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool), 1)
        for block in self.blocks:
            x = block(x, src_mask=mask)
        return self.head(x)


def image_loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def text_loss(model, batch):
    return F.cross_entropy(model(batch["tokens"]).flatten(0, 1), batch["labels"].flatten())


def image_batches(count, size=6, seed=1):
    g = torch.Generator().manual_seed(seed)
    return [(torch.randn(size, 1, 8, 8, generator=g), torch.randint(0, 5, (size,), generator=g)) for _ in range(count)]


def text_batches(count, size=3, length=6, seed=2, classes=11):
    g = torch.Generator().manual_seed(seed)
    return [
        {name: torch.randint(0, classes, (size, length), generator=g) for name in ("tokens", "labels")}
        for _ in range(count)
    ]


def train(
    model, optimizer, loss_fn, batches, cap=None, *, scaler=None, dtype=None, accumulate=1, clip=None, scheduler=None
):
    """An ordinary loop; `cap.step` around its body where a capture is given. Returns the losses."""
    losses = []
    for i, batch in enumerate(batches):
        with cap.step(batch) if cap is not None else contextlib.nullcontext():
            with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                loss = loss_fn(model, batch)
                if accumulate > 1:
                    loss = loss / accumulate
            (loss if scaler is None else scaler.scale(loss)).backward()
            if (i + 1) % accumulate == 0:
                if clip is not None:
                    if scaler is not None:
                        scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                if scaler is None:
                    optimizer.step()
                else:
                    scaler.step(optimizer)
                    scaler.update()
                optimizer.zero_grad()
                if scheduler is not None:
                    scheduler.step()
        losses.append(float(loss.detach()))
    return losses


class Loop:
    """A model with its optimizer, and the parts of a loop's body. path None: without a capture."""

    def __init__(self, path, model=None, optimizer=torch.optim.SGD, steps=2, **options):
        torch.manual_seed(3)
        self.model = model or Images()
        self.optimizer = optimizer(self.model.parameters(), lr=0.1)
        self.cap = (
            None if path is None else Capture(path, self.model, self.optimizer, image_loss, steps=steps, **options)
        )

    def block(self, batch):
        return contextlib.nullcontext() if self.cap is None else self.cap.step(batch)

    def backward(self, batch):
        loss = image_loss(self.model, batch)
        loss.backward()
        return float(loss.detach())

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()

    def __call__(self, batch):
        with self.block(batch):
            loss = self.backward(batch)
            self.step()
        return loss


def steps_in(path):
    """How many steps the file says, how many it has, and whether it has the final state."""
    with h5py.File(path) as file:
        return int(file.attrs["n_steps"]), len(file["steps"]), "final" in file


def gradients_of(file, step):
    """The HDF5 group of a step's gradients. Those that equal the FP32 reference bit for bit are stored once, there."""
    recorded = file[f"steps/{step:06d}"]
    return file[f"verify/{step:06d}/ref32/grads"] if recorded.attrs.get("grads_are_ref32") else recorded["grads"]


def grads64(step):
    """By name, of a verify step: those stored in FP64, and those as what FP32 lacks."""
    found = {name: data[()] for name, data in step["ref64/grads"].items()}
    rests = step["ref64/rests"].items() if "rests" in step["ref64"] else ()
    return found | {name: step[f"ref32/grads/{name}"][()].astype(np.float64) + rest[()] for name, rest in rests}


class UnknownOptimizer(torch.optim.Optimizer):
    """An optimizer that Lockstep does not know."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p -= group["lr"] * p.grad.sign()
