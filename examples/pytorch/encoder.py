"""A Hugging Face style encoder in plain PyTorch, and the three lines for Lockstep.

    python examples/pytorch/encoder.py --capture encoder.lscap.h5
    lockstep verify encoder.lscap.h5
    lockstep replay encoder.lscap.h5 --lanes fp32,torch-autocast-bf16,torch-autocast-fp16 -o encoder.h5

What it shows: padding masks as additive -FLT_MAX, exact gelu, LayerNorm with eps 1e-12, masked-token
loss with ignore_index and a tied decoder, AdamW, linear warmup and decay, two micro-batches per step,
clipping, autocast with GradScaler. Synthetic text, seconds on a CPU.
The loop, with the three lines, is in training_loop.py.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from training_loop import Task, main

VOCABULARY, LENGTH, BATCH = 64, 24, 8
PAD, MASK, IGNORED, EPS = 0, 1, -100, 1e-12


class Embeddings(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.word_embeddings = nn.Embedding(VOCABULARY, width, padding_idx=PAD)
        self.position_embeddings = nn.Embedding(LENGTH, width)
        self.token_type_embeddings = nn.Embedding(2, width)
        self.LayerNorm, self.dropout = nn.LayerNorm(width, eps=EPS), nn.Dropout(dropout)
        self.register_buffer("position_ids", torch.arange(LENGTH).expand(1, -1), persistent=False)

    def forward(self, input_ids, token_type_ids):
        x = self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids)
        x = x + self.position_embeddings(self.position_ids[:, : input_ids.shape[1]])
        return self.dropout(self.LayerNorm(x))


class Layer(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.output, self.attention_norm = nn.Linear(width, width), nn.LayerNorm(width, eps=EPS)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm, self.dropout = nn.LayerNorm(width, eps=EPS), nn.Dropout(dropout)

    def split(self, x):  # (B,T,C) -> (B,heads,T,C/heads)
        return x.view(*x.shape[:2], self.heads, -1).permute(0, 2, 1, 3)

    def forward(self, x, mask):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1]) + mask
        context = torch.matmul(self.dropout(F.softmax(scores, dim=-1)), v)
        context = context.permute(0, 2, 1, 3).contiguous().view(x.shape)
        x = self.attention_norm(self.dropout(self.output(context)) + x)
        return self.norm(self.dropout(self.down(F.gelu(self.up(x)))) + x)


class Encoder(nn.Module):
    def __init__(self, dropout, layers=2, width=64, heads=4):
        super().__init__()
        self.embeddings = Embeddings(width, dropout)
        self.layer = nn.ModuleList(Layer(width, heads, dropout) for _ in range(layers))
        self.transform, self.transform_norm = nn.Linear(width, width), nn.LayerNorm(width, eps=EPS)
        self.decoder = nn.Linear(width, VOCABULARY)
        self.decoder.weight = self.embeddings.word_embeddings.weight  # tied
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, input_ids, attention_mask, token_type_ids):
        mask = attention_mask[:, None, None, :].to(torch.float32)
        mask = (1.0 - mask) * torch.finfo(torch.float32).min
        x = self.embeddings(input_ids, token_type_ids)
        for layer in self.layer:
            x = layer(x, mask)
        return self.decoder(self.transform_norm(F.gelu(self.transform(x))))


def make_model(dropout=0.1):
    return Encoder(dropout)


def make_batches(count, seed=0):
    """Yields (ids, attention mask, token types, labels), each (B,T): repeating words, some hidden."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        word = torch.randint(2, VOCABULARY, (BATCH, 3), generator=generator)
        text = word.repeat(1, LENGTH // 3)
        length = torch.randint(LENGTH // 2, LENGTH + 1, (BATCH, 1), generator=generator)
        kept = torch.arange(LENGTH) < length
        hidden = (torch.rand(BATCH, LENGTH, generator=generator) < 0.2) & kept
        hidden[:, 0] = True  # every sequence has at least one hidden token
        ids = torch.where(hidden, MASK, text).where(kept, torch.tensor(PAD))
        types = (torch.arange(LENGTH) >= LENGTH // 2).long().expand(BATCH, -1).contiguous()
        yield ids, kept.long(), types, torch.where(hidden, text, IGNORED)


def loss_of(model, batch):
    ids, attention_mask, types, labels = batch
    logits = model(ids, attention_mask, types)
    return F.cross_entropy(logits.view(-1, VOCABULARY), labels.view(-1), ignore_index=IGNORED)


def make_optimizer(model, steps):
    plain = [p for n, p in model.named_parameters() if "bias" in n or "norm" in n.lower()]
    decayed = [p for n, p in model.named_parameters() if not ("bias" in n or "norm" in n.lower())]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}], lr=5e-3, eps=1e-8
    )
    warmup = max(1, steps // 10)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, max(0.0, (steps - step) / steps))
    )


TASK = Task(make_model, make_batches, loss_of, make_optimizer, micro_batches=2, clip=1.0)

if __name__ == "__main__":
    main(TASK, __doc__)
