"""A character LSTM in plain PyTorch, and the three lines that bring it into Lockstep.

    python examples/pytorch/lstm.py --capture lstm.lscap.h5
    lockstep verify lstm.lscap.h5
    lockstep replay lstm.lscap.h5 --lanes fp32,torch-autocast-bf16,torch-autocast-fp16 -o lstm.h5

What it shows: nn.LSTM with dropout between its layers, Adam, exponential schedule, tight clipping,
two micro-batches per step, autocast with GradScaler. Synthetic text, seconds on a CPU.
"""

import argparse
import contextlib

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, CONTEXT, BATCH, MICRO_BATCHES, CLIP = 32, 24, 8, 2, 0.25


class CharLSTM(nn.Module):
    def __init__(self, dropout, embedding=32, hidden=64, layers=2):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, embedding)
        self.rnn = nn.LSTM(embedding, hidden, layers, batch_first=True, dropout=dropout)
        self.drop, self.head = nn.Dropout(dropout), nn.Linear(hidden, VOCABULARY)

    def forward(self, tokens):  # (B,T) -> (B,T,V)
        output, _ = self.rnn(self.embed(tokens))
        return self.head(self.drop(output))


def make_model(dropout=0.1):
    return CharLSTM(dropout)


def make_batches(count, seed=0):
    """Yields (tokens, next tokens), each (B,T): a word of four characters over and over."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        word = torch.randint(VOCABULARY, (BATCH, 4), generator=generator)
        text = word.repeat(1, CONTEXT // 4 + 1)[:, :CONTEXT + 1]
        yield text[:, :-1].contiguous(), text[:, 1:].contiguous()


def loss_of(model, batch):
    tokens, targets = batch
    return F.cross_entropy(model(tokens).transpose(1, 2), targets)  # (B,V,T) against (B,T)


def make_optimizer(model, steps):
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)


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
