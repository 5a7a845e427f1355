"""Measures what capturing examples/pytorch/gpt.py costs: seconds per step without, within and after, and file size.

    python bench/capture_overhead.py [--steps 40] [--captured 8]

All kinds of step are timed in one process, on one thread; the table shows medians. Steps after the captured ones run
alternately inside and outside a block, so that a busy machine affects both equally. Verify steps (by default the first)
compute FP32 and FP64 reference gradients and are listed separately.
"""

import argparse
import pathlib
import statistics
import sys
import tempfile
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "examples" / "pytorch")]

import gpt  # noqa: E402
import lockstep_capture  # noqa: E402


def timed_steps(steps, captured, path):
    """Seconds of each optimizer step of gpt.py's loop in BF16; capturing the first `captured` ones to path."""
    torch.manual_seed(0)
    model = gpt.make_model().train()
    optimizer, schedule = gpt.make_optimizer(model, steps)
    scaler = torch.amp.GradScaler("cpu")
    seconds, begin = [], time.perf_counter()
    cap = (
        lockstep_capture.Capture(
            path, model, optimizer, gpt.loss_of, scaler=scaler, autocast="bfloat16", steps=captured
        )
        if path
        else None
    )
    setup = time.perf_counter() - begin
    begin = time.perf_counter()
    for i, batch in enumerate(gpt.make_batches(steps * gpt.TASK.micro_batches)):

        def body():
            with torch.autocast("cpu", torch.bfloat16):
                loss = gpt.loss_of(model, batch)
            scaler.scale(loss / gpt.TASK.micro_batches).backward()
            if (i + 1) % gpt.TASK.micro_batches == 0:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), gpt.TASK.clip)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                schedule.step()

        after = len(seconds) - captured
        if cap and (after < 0 or after % 2):
            with cap.step(batch):
                body()
        else:
            body()
        if (i + 1) % gpt.TASK.micro_batches == 0:
            now = time.perf_counter()
            seconds.append(now - begin)
            begin = now
    return setup, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=208)
    parser.add_argument("--captured", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "gpt.lscap.h5"
        timed_steps(args.steps, 0, None)  # warm-up
        _, plain = timed_steps(args.steps, 0, None)
        setup, with_capture = timed_steps(args.steps, args.captured, path)
        size = path.stat().st_size
    inside, after = with_capture[: args.captured], with_capture[args.captured :]
    verify = sorted({0, args.captured // 2, args.captured - 1})
    others = [t for i, t in enumerate(inside) if i not in verify]
    ms = 1000
    rows = [
        ("plain step", f"{ms * statistics.median(plain):.2f} ms"),
        ("captured step", f"{ms * statistics.median(others):.2f} ms"),
        ("captured verify step", ", ".join(f"{ms * inside[i]:.0f}" for i in verify) + " ms"),
        ("all captured steps", f"{sum(inside):.2f} s for {args.captured}, {sum(inside) / args.captured:.3f} s each"),
        ("Capture(...)", f"{setup:.3f} s"),
        ("step after the window, in a block", f"{ms * statistics.median(after[1::2]):.2f} ms"),
        ("step after the window, outside a block", f"{ms * statistics.median(after[::2]):.2f} ms"),
        ("file", f"{size / 2**20:.2f} MiB, {size / 2**10 / args.captured:.0f} KiB per step"),
    ]
    print("| what | cost |\n|---|---|")
    for name, value in rows:
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
