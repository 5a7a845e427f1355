"""Compares steps of a captured GPT with PyTorch's own: FP32 and three emulated lanes, all statistics and errors.

    python bench/capture_step.py build/release/lockstep [--size 8x512] [--context 128] [--batch 8] [--turns 3] [--threads 1]

The network is examples/pytorch/gpt.py in FP32, with two micro-batches and AdamW; 8x512 (layers x width) has 25 million
parameters. Both programs run in turns; Lockstep replays a capture of three steps. The time of a step is that of a run of
four steps less that of a run of one, so that starting, reading the capture and the evaluation hardly count. Sums of
products are not sampled.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "examples" / "pytorch")]

import gpt  # noqa: E402
import training_loop  # noqa: E402

LANES = "fp32,torch-autocast-fp16,torch-autocast-bf16,tf32"
CAPTURED_STEPS = 3


def seconds_of_training(model, steps):
    begin = time.perf_counter()
    training_loop.train(gpt.TASK, model, steps, amp="none")
    return time.perf_counter() - begin


def seconds_of_replay(lockstep, capture, run, lanes, steps, threads):
    begin = time.perf_counter()
    subprocess.run(
        [
            lockstep,
            "replay",
            capture,
            "--lanes",
            lanes,
            "--cycle",
            "--steps",
            str(steps),
            "--twins",
            "0",
            "--sums-every",
            "0",
            "--threads",
            str(threads),
            "--quiet",
            "--overwrite",
            "-o",
            run,
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lockstep")
    parser.add_argument("--size", default="8x512", help="layers x width")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    gpt.CONTEXT, gpt.BATCH = args.context, args.batch
    model = gpt.GPT(*map(int, args.size.split("x")))
    parameters = sum(p.numel() for p in model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        capture, run = pathlib.Path(folder) / "gpt.lscap.h5", pathlib.Path(folder) / "run.h5"
        training_loop.train(gpt.TASK, model, CAPTURED_STEPS, amp="none", capture=capture, captured_steps=CAPTURED_STEPS)
        seconds = {"PyTorch": [], "fp32": [], LANES: []}
        for _ in range(args.turns):
            short, long = 1, 4
            seconds["PyTorch"].append(
                (seconds_of_training(model, long) - seconds_of_training(model, short)) / (long - short)
            )
            for lanes in ("fp32", LANES):
                took = [
                    seconds_of_replay(args.lockstep, capture, run, lanes, steps, args.threads)
                    for steps in (short, long)
                ]
                seconds[lanes].append((took[1] - took[0]) / (long - short))
    median = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"{parameters / 1e6:.1f} million parameters, {args.threads} threads; median of {args.turns} turns\n")
    print("| what | s per step | over PyTorch's |\n|---|---|---|")
    for name, value in median.items():
        print(f"| {name} | {value:.2f} | {value / median['PyTorch']:.2f} |")


if __name__ == "__main__":
    main()
