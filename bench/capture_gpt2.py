"""What capturing, verifying and replaying a GPT-2 of 124 or 355 million parameters takes.

    build/venv/bin/python bench/capture_gpt2.py build/release/lockstep [--medium] [--batch 8x128] [--threads 2] [--bf16]

Random weights from Transformers' configuration, AdamW, 8 steps on short random texts. 124 million need 10 GB of memory
and 5 GB of disk; where memory or disk have less, the capture's refusal is printed. Every row is a process of its own; memory is its peak resident memory, or that of a process that it started.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
STEPS = 8


def train(path, size, threads, bf16, medium):
    """Prints parameters and seconds of each step; path: the capture to write, or "-"."""
    sys.path.insert(0, str(ROOT / "python"))
    os.environ["HF_HUB_OFFLINE"] = "1"
    import contextlib

    import lockstep_capture
    import torch
    import transformers

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    rows, length = map(int, size.split("x"))
    sizes = {"n_embd": 1024, "n_layer": 24, "n_head": 16} if medium else {}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_positions=max(length, 128), **sizes)).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    texts = [torch.randint(0, model.config.vocab_size, (rows, length)) for _ in range(STEPS)]

    def loss_of(network, x):
        return network(input_ids=x, labels=x).loss

    capture = (
        None
        if path == "-"
        else lockstep_capture.Capture(
            path, model, optimizer, loss_of, steps=STEPS, autocast="bfloat16" if bf16 else None
        )
    )
    seconds = []
    try:
        for x in texts:
            begin = time.perf_counter()
            with capture.step(x) if capture else contextlib.nullcontext():
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    loss = loss_of(model, x)
                loss.backward()
                optimizer.step()
            seconds.append(time.perf_counter() - begin)
    except lockstep_capture.CaptureError as refusal:
        sys.exit(f"step {len(seconds)}: {refusal}")
    print(sum(p.numel() for p in model.parameters()), *seconds)


def run(*command):
    """Output, seconds, bytes of memory."""
    begin = time.perf_counter()
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(map(str, command))}: ended with status {status}")
    return output, time.perf_counter() - begin, usage.ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lockstep", help="the program")
    parser.add_argument("--batch", default="8x128", help="texts x tokens [8x128]")
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch [2]")
    parser.add_argument("--bf16", action="store_true", help="train under BF16 autocast")
    parser.add_argument("--medium", action="store_true", help="355 million parameters instead of 124 million")
    parser.add_argument("--train", metavar="PATH", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        return train(args.train, args.batch, args.threads, args.bf16, args.medium)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "gpt2.lscap.h5"
        own = [
            sys.executable,
            __file__,
            args.lockstep,
            "--batch",
            args.batch,
            "--threads",
            args.threads,
            *(["--bf16"] if args.bf16 else []),
            *(["--medium"] if args.medium else []),
            "--train",
        ]
        parameters, *plain = map(float, run(*own, "-")[0].split())
        output, _, memory = run(*own, path)
        captured = [float(word) for word in output.split()[1:]]
        step = statistics.median(plain)
        added = sum(captured) - STEPS * step
        size = path.stat().st_size

        def per_parameter(amount):
            return f"{amount / parameters:.1f} bytes per parameter"

        print(f"| {parameters / 1e6:.0f} million parameters, {args.batch} | |\n|---|---|")
        print(f"| plain step | {step:.2f} s |")
        print(f"| {STEPS} steps captured | {added:.0f} s more = {added / step:.1f} plain steps |")
        print(f"| loop's memory | {per_parameter(memory)} |\n| file | {per_parameter(size)} |", flush=True)
        _, seconds, memory = run(args.lockstep, "verify", path)
        print(f"| verify | {seconds:.0f} s, {per_parameter(memory - size)} over the file's |", flush=True)
        narrow = "torch-autocast-bf16-cpu" if args.bf16 else "torch-autocast-bf16"
        _, seconds, memory = run(
            args.lockstep,
            "replay",
            path,
            "--lanes",
            f"fp32,{narrow},torch-autocast-fp16",
            "--twins",
            0,
            "--steps",
            2,
            "--quiet",
            "-o",
            pathlib.Path(folder) / "run.h5",
        )
        print(f"| replay, 3 lanes, 2 steps | {seconds:.0f} s, {per_parameter(memory - size)} over the file's |")


if __name__ == "__main__":
    main()
