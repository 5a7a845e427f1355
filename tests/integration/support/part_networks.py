"""Small networks whose modules are captured as parts, and the loops around them."""

import contextlib
import json

import torch
import torch.nn.functional as F

VOCABULARY, WIDTH = 50, 32


class Attention(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.head_width = width // heads
        self.q, self.k, self.v, self.o = (torch.nn.Linear(width, width) for _ in range(4))

    def forward(self, x, mask=None):
        q, k, v = (layer(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.o(y.transpose(1, 2).flatten(2))


class Block(torch.nn.Module):
    def __init__(self, width=WIDTH, dropout=0.0):
        super().__init__()
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.attention = Attention(width, 4)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.drop = torch.nn.Dropout(dropout)

    def forward(self, x, *, scale=1.0, mask=None):
        x = x + self.attention(self.ln_1(x), mask)
        return x + scale * self.drop(self.down(F.gelu(self.up(self.ln_2(x)))))


class Network(torch.nn.Module):
    def __init__(self, blocks=3, dropout=0.0, repeat=1):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = torch.nn.ModuleList(Block(dropout=dropout) for _ in range(blocks))
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)
        self.repeat = repeat

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            for _ in range(self.repeat):
                x = block(x, scale=0.5)
        return self.head(x)


def loss_of(model, tokens):
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())


def network(seed=1, **options):
    torch.manual_seed(seed)
    return Network(**options)


def train(
    model, optimizer, parts=None, *, steps=3, micro=1, autocast=None, scaler=None, rows=3, tokens=9, seed=7, clip=True
):
    """The weights at the end. parts: None to train without a capture."""
    torch.manual_seed(seed)
    for _ in range(steps):
        for number in range(micro):
            batch = torch.randint(0, VOCABULARY, (rows, tokens + 1))
            with parts.step(batch) if parts is not None else contextlib.nullcontext():
                with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
                    loss = loss_of(model, batch) / micro
                (loss if scaler is None else scaler.scale(loss)).backward()
                if number + 1 < micro:
                    continue
                if scaler is None:
                    if clip:
                        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                else:
                    scaler.step(optimizer)
                    scaler.update()
                optimizer.zero_grad()
    return [weight.detach().clone() for weight in model.parameters()]


def rows_of(folder, rank=0):
    """The parts that a rank's list has, by module; of the last step."""
    index = json.loads((folder / f"rank{rank}" / "parts.json").read_text(encoding="utf-8"))
    return {row["module"]: row for row in index["parts"]}


def file_of(folder, module, rank=0, step=0):
    return folder / f"rank{rank}" / f"step{step:06d}" / f"{module}.lscap.h5"
