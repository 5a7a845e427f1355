"""A small GPT in plain PyTorch, and the three lines that bring its training into Lockstep.

    python examples/pytorch/gpt.py --capture gpt.lscap.h5
    lockstep verify gpt.lscap.h5
    lockstep replay gpt.lscap.h5 --lanes fp32,torch-autocast-bf16,torch-autocast-fp16 -o gpt.h5

What it shows: tied head, causal attention with dropout, AdamW with two parameter groups, warmup and
cosine, two micro-batches per step, clipping, autocast with GradScaler. Synthetic text, seconds on a CPU.
The loop, with the three lines, is in training_loop.py.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from training_loop import Task, main

VOCABULARY, CONTEXT, BATCH = 48, 32, 8


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.resid_dropout = nn.Dropout(dropout)

    def attention(self, x):
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, self.heads, c // self.heads).transpose(1, 2) for part in self.c_attn(x).split(c, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0)
        return self.c_proj(y.transpose(1, 2).reshape(b, t, c))

    def forward(self, x):
        x = x + self.resid_dropout(self.attention(self.ln_1(x)))
        return x + self.resid_dropout(self.proj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh")))


class GPT(nn.Module):
    def __init__(self, layers=2, width=64, heads=4, dropout=0.1):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight  # tied
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02 if "proj" not in name else 0.02 / math.sqrt(2 * layers))

    def forward(self, tokens):  # (B,T) -> (B,T,V)
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        x = self.drop(x)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def make_model(dropout=0.1):
    return GPT(dropout=dropout)


def make_batches(count, seed=0):
    """Yields (tokens, next tokens), each (B,T): walks round a ring, each with a stride of its own."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        start = torch.randint(VOCABULARY, (BATCH, 1), generator=generator)
        stride = torch.randint(1, 5, (BATCH, 1), generator=generator)
        walk = (start + stride * torch.arange(CONTEXT + 1)) % VOCABULARY
        yield walk[:, :-1].contiguous(), walk[:, 1:].contiguous()


def loss_of(model, batch):
    tokens, targets = batch
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def make_optimizer(model, steps):
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=3e-3, betas=(0.9, 0.95)
    )
    warmup = max(1, steps // 5)

    def factor(step):
        if step < warmup:
            return (step + 1) / warmup
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


TASK = Task(make_model, make_batches, loss_of, make_optimizer, micro_batches=2, clip=1.0)

if __name__ == "__main__":
    main(TASK, __doc__)
