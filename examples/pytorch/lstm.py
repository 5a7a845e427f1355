"""A character LSTM in plain PyTorch, and the three lines that bring it into Lockstep.

    python examples/pytorch/lstm.py --capture lstm.lscap.h5
    lockstep verify lstm.lscap.h5
    lockstep replay lstm.lscap.h5 --lanes fp32,torch-autocast-bf16,torch-autocast-fp16 -o lstm.h5

What it shows: nn.LSTM with dropout between its layers, Adam, exponential schedule, tight clipping,
two micro-batches per step, autocast with GradScaler. Synthetic text, seconds on a CPU.
The loop, with the three lines, is in training_loop.py.
"""

import torch
import torch.nn.functional as F
from torch import nn
from training_loop import Task, main

VOCABULARY, CONTEXT, BATCH = 32, 24, 8


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
        text = word.repeat(1, CONTEXT // 4 + 1)[:, : CONTEXT + 1]
        yield text[:, :-1].contiguous(), text[:, 1:].contiguous()


def loss_of(model, batch):
    tokens, targets = batch
    return F.cross_entropy(model(tokens).transpose(1, 2), targets)  # (B,V,T) against (B,T)


def make_optimizer(model, steps):
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)


TASK = Task(make_model, make_batches, loss_of, make_optimizer, micro_batches=2, clip=0.25)

if __name__ == "__main__":
    main(TASK, __doc__)
