"""A user's script: a small language model in mixed precision. The mutants of mutants.py change single lines of it."""

import math

import torch
import torch.nn.functional as F
from lockstep_capture import Capture
from torch import nn

WIDTH, HEADS, LENGTH, WORDS, ROWS = 16, 4, 8, 13, 8
STEPS, ACCUMULATE, CLIP = 8, 2, 0.5


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1))

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = (t.view(rows, length, HEADS, width // HEADS).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(2, 3)
        scores = scores / math.sqrt(width // HEADS)
        scores = scores.masked_fill(self.mask, -1e4)
        weights = F.softmax(scores, dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(rows, length, width))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        h = F.gelu(self.up(x))
        return self.drop(self.down(h))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = Mlp()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return x


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.3)

    def forward(self, words):
        x = self.embed(words) + self.place(torch.arange(LENGTH))
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        with torch.autocast("cpu", enabled=False):
            return self.head(x.float())


def loss_of(model, batch):
    logits = model(batch["words"])
    return F.cross_entropy(logits.flatten(0, 1), batch["next"].flatten())


def batches(seed):
    g = torch.Generator().manual_seed(seed)
    for _ in range(STEPS * ACCUMULATE):
        start, step = (torch.randint(1, WORDS, (ROWS, 1), generator=g) for _ in range(2))
        text = (start + step * torch.arange(LENGTH + 1)) % WORDS
        yield {"words": text[:, :-1].contiguous(), "next": text[:, 1:].contiguous()}


def train(path, seed=1, data_seed=None):
    torch.manual_seed(seed)
    model = Gpt()
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": 0.1},
            {"params": plain, "weight_decay": 0.0},
        ],
        lr=3e-3,
        betas=(0.9, 0.95),
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / 4))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with Capture(path, model, optimizer, loss_of, scaler=scaler, autocast="float16", steps=STEPS) as cap:
        for i, batch in enumerate(batches(seed if data_seed is None else data_seed)):
            with cap.step(batch):
                with torch.autocast("cpu", torch.float16):
                    loss = loss_of(model, batch)
                scaler.scale(loss / ACCUMULATE).backward()
                if (i + 1) % ACCUMULATE == 0:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
                    schedule.step()
