"""The loop that the scripts of this folder share: an ordinary one, and the three lines for Lockstep.

Autocast with GradScaler, micro-batches, clipping, a learning rate schedule.
"""

import argparse
import contextlib
import dataclasses
from collections.abc import Callable

import torch
from torch import nn


@dataclasses.dataclass(frozen=True)
class Task:
    """What a script trains."""

    make_model: Callable  # (dropout) -> module
    make_batches: Callable  # (count) -> iterator of tuples of tensors
    loss_of: Callable  # (model, batch) -> loss, the mean over the batch
    make_optimizer: Callable  # (model, steps) -> optimizer, schedule
    micro_batches: int = 1  # per step
    clip: float = 1.0  # the largest norm of all gradients


def train(task, model, steps, amp="bf16", device="cpu", capture=None, captured_steps=8, scale=2.0**16):
    """Returns the loss of every step, the mean over its micro-batches."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "none": None}[amp]
    model.to(device).train()
    optimizer, schedule = task.make_optimizer(model, steps)
    scaler = torch.amp.GradScaler(device, init_scale=scale, enabled=dtype is not None)
    cap = None
    if capture:
        import lockstep_capture  # line 1 of 3

        cap = lockstep_capture.Capture(  # line 2
            capture,
            model,
            optimizer,
            task.loss_of,
            scaler=scaler,
            steps=captured_steps,
            autocast=None if dtype is None else str(dtype).removeprefix("torch."),
        )

    losses = [0.0] * steps
    for i, batch in enumerate(task.make_batches(steps * task.micro_batches)):
        batch = tuple(part.to(device) for part in batch)
        with cap.step(batch) if cap else contextlib.nullcontext():  # line 3
            with torch.autocast(device, dtype, enabled=dtype is not None):
                loss = task.loss_of(model, batch)
            scaler.scale(loss / task.micro_batches).backward()
            losses[i // task.micro_batches] += loss.item() / task.micro_batches
            if (i + 1) % task.micro_batches == 0:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), task.clip)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                schedule.step()
    return losses


def main(task, description):
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--amp", choices=["bf16", "fp16", "none"], help="bf16 on the CPU, else fp16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--capture", metavar="FILE", help="record the first 8 steps for Lockstep")
    args = parser.parse_args()
    torch.manual_seed(0)
    losses = train(
        task,
        task.make_model(),
        args.steps,
        args.amp or ("bf16" if args.device == "cpu" else "fp16"),
        args.device,
        args.capture,
    )
    for step in range(0, args.steps, 5):
        print(f"step {step:3d}  loss {losses[step]:.4f}")
    print(f"last      loss {losses[-1]:.4f}")
