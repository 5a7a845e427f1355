"""A block of a Llama configuration captured in place in a model of three: seconds and peak memory of capture, file, verify,
replay. The figures of docs/parts.md.

    python bench/part_of_llama.py 8b --tokens 256 --folder /large/disk --lockstep build/ci/lockstep

Weights are random and BF16, as such a model is loaded. The model with its three blocks is in memory meanwhile: the figures of the
capture are its own, on top.
"""

import argparse
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))

import lockstep_capture
import torch
from transformers import LlamaConfig, LlamaForCausalLM

CONFIGS = {  # hidden, intermediate, heads, heads of keys
    "1b": (2048, 8192, 32, 8),
    "8b": (4096, 14336, 32, 8),
    "70b": (8192, 28672, 64, 8),
}
LANES = "fp32,torch-autocast-bf16,fp8-rowwise@hopper,nvfp4"


def peak():
    """GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def model_of(name):
    hidden, intermediate, heads, key_heads = CONFIGS[name]
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        num_hidden_layers=3,
        vocab_size=1024,
        attn_implementation="sdpa",
        use_cache=False,
    )
    torch.set_default_dtype(torch.bfloat16)
    return LlamaForCausalLM(config)


def take_step(model, optimizer, ids):
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def run(words):
    """Seconds and peak GB of a command."""
    start = time.time()
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    text = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{words}: {text}")
    return time.time() - start, used.ru_maxrss / 1e6, text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("config", choices=CONFIGS)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--lockstep", required=True)
    parser.add_argument("--lanes", default=LANES)
    parser.add_argument("--module", default="model.layers.1")
    args = parser.parse_args()
    folder = pathlib.Path(args.folder) / "parts"
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(0)
    model = model_of(args.config)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    ids = torch.randint(0, 1024, (1, args.tokens))

    start = time.time()
    take_step(model, optimizer, ids)
    plain, before = time.time() - start, peak()
    parts = lockstep_capture.Parts(folder, model, [args.module], optimizer=optimizer)
    start = time.time()
    with parts.step(ids):
        take_step(model, optimizer, ids)
        copied = time.time() - start
    total = time.time() - start
    file = next(folder.glob("rank0/*/*.lscap.h5"))
    block = sum(weight.numel() for weight in model.get_submodule(args.module).parameters())
    print(
        f"{args.config}, {args.module}: {block / 1e6:.0f} M parameters, {args.tokens} tokens, {file.stat().st_size / 1e9:.2f} GB"
    )
    print(f"step of three blocks {plain:.1f} s; with copies {copied:.1f} s; trace and file {total - copied:.1f} s")
    print(f"peak memory {before:.1f} GB before, {peak():.1f} GB with the capture")
    del model, optimizer
    for words in (
        ["verify", str(file)],
        ["replay", str(file), "--mode", "synced", "--lanes", args.lanes, "-o", str(folder / "run.h5"), "--overwrite"],
    ):
        seconds, memory, text = run([args.lockstep, *words])
        print(f"{words[0]} {seconds:.1f} s, {memory:.1f} GB\n{text}")


if __name__ == "__main__":
    main()
