"""A GPT that trains under FSDP2 on several ranks, and the three lines that capture two of its blocks and the head.

    torchrun --standalone --nproc_per_node=2 examples/pytorch/fsdp2.py parts
    lockstep verify parts
    lockstep replay parts/rank0/step000003/blocks.0.lscap.h5 --lanes fp32,fp8-current -o block.h5

What it shows: fully_shard with a BF16 policy, modules chosen by pattern, three steps that pass before the captured one,
a folder for each rank. Runs on a CPU (gloo) in seconds; synthetic text.
"""

import argparse

import lockstep_capture
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

VOCABULARY, LENGTH, BATCH, WIDTH, HEADS, BLOCKS, STEPS = 64, 32, 4, 64, 4, 4, 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.ln_1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.ln_f, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))


def batch_of(generator):
    """Counting up from a random letter: something to learn."""
    start = torch.randint(VOCABULARY, (BATCH, 1), generator=generator)
    return (start + torch.arange(LENGTH + 1)) % VOCABULARY


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", help="for the parts; new or empty")
    folder = parser.parse_args().folder
    dist.init_process_group("gloo")
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = GPT()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    parts = lockstep_capture.Parts(folder, model, ["blocks.{0,3}", "head"], optimizer=optimizer, skip=3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(STEPS):
        tokens = batch_of(generator)
        with parts.step(tokens):
            loss = F.cross_entropy(model(tokens[:, :-1]).float().flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step}  loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
