"""What capturing parts costs: seconds and peak memory of the step, the files, `verify` and `replay`. The figures of docs/parts.md.

    python bench/parts.py 8b --tokens 256 --folder /large/disk --lockstep build/ci/lockstep
    python bench/parts.py gpt2 --tokens 512 --modules 'transformer.h.{0,5,11}' --folder /large/disk

1b, 8b, 70b: three blocks of that Llama configuration, random weights in BF16, as such a model is loaded. gpt2: all 124 million
parameters in FP32 with AdamW. Without --lockstep only the capture is measured. Memory of the capture includes the model's.
"""

import argparse
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))

import lockstep_capture
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

LLAMA = {  # hidden, intermediate, heads, heads of keys
    "1b": (2048, 8192, 32, 8),
    "8b": (4096, 14336, 32, 8),
    "70b": (8192, 28672, 64, 8),
}
LANES = "fp32,torch-autocast-bf16,fp8-rowwise@hopper,nvfp4"
LATER = 3  # steps after the captured one


def peak():
    """GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def model_of(name):
    if name == "gpt2":
        return GPT2LMHeadModel(GPT2Config())
    hidden, intermediate, heads, key_heads = LLAMA[name]
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
    start = time.time()
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return time.time() - start


def run(words):
    """Seconds, peak GB and text of a command."""
    start = time.time()
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    text = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{words}: {text}")
    return time.time() - start, used.ru_maxrss / 1e6, text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("config", choices=[*LLAMA, "gpt2"])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--modules", nargs="+", default=["model.layers.1"])
    parser.add_argument("--folder", required=True)
    parser.add_argument("--lockstep")
    parser.add_argument("--lanes", default=LANES)
    args = parser.parse_args()
    folder = pathlib.Path(args.folder) / "parts"
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(0)
    model = model_of(args.config)
    kind = torch.optim.AdamW if args.config == "gpt2" else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=1e-3)
    ids = torch.randint(0, 1024, (1, args.tokens))

    plain = statistics.median(take_step(model, optimizer, ids) for _ in range(LATER))
    before = peak()
    parts = lockstep_capture.Parts(folder, model, args.modules, optimizer=optimizer)
    start = time.time()
    with parts.step(ids):
        copied = take_step(model, optimizer, ids)
    traced = time.time() - start - copied
    captured = peak()
    later = []
    for _ in range(LATER):
        with parts.step(ids):
            later.append(take_step(model, optimizer, ids))
    files = sorted(folder.glob("rank0/*/*.lscap.h5"))
    size = sum(file.stat().st_size for file in files) / 1e9
    print(f"{args.config}, {args.tokens} tokens: {len(files)} parts, {size:.2f} GB")
    print(f"step {plain:.2f} s; with copies {copied:.2f} s; later {statistics.median(later):.2f} s")
    print(f"trace and files {traced:.1f} s; peak memory {before:.1f} GB before, {captured:.1f} GB with the capture")
    del model, optimizer
    if not args.lockstep:
        return
    for words in (
        ["verify", str(folder)],
        ["replay", str(folder), "--lanes", args.lanes, "-o", str(folder.with_name("run.h5")), "--overwrite"],
    ):
        seconds, memory, text = run([args.lockstep, *words])
        print(f"{words[0]} {seconds:.1f} s, {memory:.1f} GB\n{text}")


if __name__ == "__main__":
    main()
