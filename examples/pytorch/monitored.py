"""A monitor next to a capture that waits: a sensor drifts, and at about step 1500 its values leave FP16.

    python examples/pytorch/monitored.py

The alarm comes before the NaN and names the layer. docs/monitor.md walks through the output.
"""

import os

import lockstep_capture
import torch
import torch.nn.functional as F

STEPS = int(os.environ.get("STEPS", "1600"))
OCTAVE = float(os.environ.get("OCTAVE", "104.3"))  # steps in which the values double


class Sensor(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.norm, self.head = torch.nn.Linear(32, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 4)

    def forward(self, x):
        return self.head(F.gelu(self.norm(self.encode(x))))


def batch_of(step):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(64, 32, generator=generator).clamp(-3, 3) * 2.0 ** (step / OCTAVE)
    return x, torch.randint(4, (64,), generator=generator)


def loss_of(model, batch):
    x, target = batch
    return F.cross_entropy(model(x), target)


def main():
    torch.manual_seed(0)
    model = Sensor()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    monitor = lockstep_capture.Monitor("live.h5", model, optimizer, scaler=scaler, every=50)
    cap = lockstep_capture.Capture(
        "late.lscap.h5",
        model,
        optimizer,
        loss_of,
        scaler=scaler,
        autocast="float16",
        when="fault",
        times=1,
        report=True,
    )
    for step in range(STEPS):
        batch = batch_of(step)
        with monitor.step(batch), cap.step(batch):
            with torch.autocast("cpu", torch.float16):
                loss = loss_of(model, batch)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    cap.finish()
    monitor.finish()


if __name__ == "__main__":
    main()
