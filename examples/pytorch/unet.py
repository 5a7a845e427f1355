"""A small U-Net in plain PyTorch, and the three lines that bring it into Lockstep.

    python examples/pytorch/unet.py --capture unet.lscap.h5
    lockstep verify unet.lscap.h5
    lockstep replay unet.lscap.h5 --lanes fp32,torch-autocast-bf16,torch-autocast-fp16 -o unet.h5

What it shows: transposed convolutions, skip connections, channel dropout at the bottom, a class per
pixel, AdamW, one-cycle schedule, two micro-batches per step, clipping, autocast with GradScaler.
Synthetic images, seconds on a CPU.
"""

import argparse
import contextlib

import torch
import torch.nn.functional as F
from torch import nn

CLASSES, SIZE, BATCH, MICRO_BATCHES, CLIP = 4, 16, 6, 2, 1.0


def two_convolutions(inputs, channels):
    return nn.Sequential(
        nn.Conv2d(inputs, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(inplace=True),
        nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(inplace=True))


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
        inside = ((row >= corner[0]) & (row < corner[0] + extent[0])
                  & (column >= corner[1]) & (column < corner[1] + extent[1]))
        colour = torch.randint(1, CLASSES, (BATCH, 1, 1), generator=generator)
        classes = inside * colour
        images = 0.3 * torch.randn(BATCH, 3, SIZE, SIZE, generator=generator)
        yield images + F.one_hot(classes, CLASSES)[..., 1:].permute(0, 3, 1, 2), classes


def loss_of(model, batch):
    images, classes = batch
    return F.cross_entropy(model(images), classes)


def make_optimizer(model, steps):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2,
                                                          total_steps=steps + 1)


def train(model, steps, amp="bf16", device="cpu", capture=None, captured_steps=8, scale=2.0**16):
    """An ordinary training loop. Returns the loss of every step, the mean over its micro-batches."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "none": None}[amp]
    model.to(device).train()
    optimizer, schedule = make_optimizer(model, steps)
    scaler = torch.amp.GradScaler(device, init_scale=scale, enabled=dtype is not None)
    cap = None
    if capture:  # line 1 and 2 of 3
        import lockstep_capture
        cap = lockstep_capture.Capture(
            capture, model, optimizer, loss_of, scaler=scaler, steps=captured_steps,
            autocast=None if dtype is None else str(dtype).removeprefix("torch."))

    losses = [0.0] * steps
    for i, batch in enumerate(make_batches(steps * MICRO_BATCHES)):
        batch = tuple(part.to(device) for part in batch)
        with cap.step(batch) if cap else contextlib.nullcontext():  # line 3
            with torch.autocast(device, dtype, enabled=dtype is not None):
                loss = loss_of(model, batch)
            scaler.scale(loss / MICRO_BATCHES).backward()
            losses[i // MICRO_BATCHES] += loss.item() / MICRO_BATCHES
            if (i + 1) % MICRO_BATCHES == 0:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), CLIP)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                schedule.step()
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--amp", choices=["bf16", "fp16", "none"], help="bf16 on the CPU, else fp16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--capture", metavar="FILE", help="record the first 8 steps for Lockstep")
    args = parser.parse_args()
    torch.manual_seed(0)
    losses = train(make_model(), args.steps, args.amp or ("bf16" if args.device == "cpu" else "fp16"),
                   args.device, args.capture)
    for step in range(0, args.steps, 5):
        print(f"step {step:3d}  loss {losses[step]:.4f}")
    print(f"last      loss {losses[-1]:.4f}")


if __name__ == "__main__":
    main()
