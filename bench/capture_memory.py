"""Measures a GPT capture with dropout: file size, and memory while it is made, verified and replayed.

    python bench/capture_memory.py build/release/lockstep [--steps 2,8,32] [--context 256] [--batch 16] [--size 2x64]

The network is examples/pytorch/gpt.py with longer texts, so that masks need more space than weights. With
`--size 4x256` (layers x width), weights need more space than masks. Each program runs in its own process; the table
shows the peak resident memory of that process or of one that it started. The first row is the loop without a capture.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

import h5py

ROOT = pathlib.Path(__file__).resolve().parents[1]
TRAIN = """
import sys
sys.path[:0] = sys.argv[1:3]
import gpt, torch, training_loop
torch.set_num_threads(1)
torch.manual_seed(0)
gpt.CONTEXT, gpt.BATCH, layers, width, steps = map(int, sys.argv[3:8])
training_loop.train(gpt.TASK, gpt.GPT(layers, width), steps, capture=sys.argv[8] if len(sys.argv) > 8 else None,
                    captured_steps=steps)
"""


def peak(arguments):
    """MiB: the larger of the process and the children that it waited for."""
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(map(str, arguments[:3]))}: ended with status {status}")
    return usage.ru_maxrss / 1024


def parameter_count(path):
    with h5py.File(path) as file:
        return sum(dataset.size for dataset in file["params"].values())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lockstep")
    parser.add_argument("--steps", default="2,8,32")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", default="2x64", help="layers x width")
    args = parser.parse_args()
    train = [
        sys.executable,
        "-c",
        TRAIN,
        ROOT / "python",
        ROOT / "examples" / "pytorch",
        str(args.context),
        str(args.batch),
        *args.size.split("x"),
    ]
    print(
        "| steps | file | bytes per parameter | loop with capture | verify | replay, 2 lanes |\n|---|---|---|---|---|---|"
    )
    print(f"| 2 | none | | {peak([*train, '2']):.0f} MiB | | |")
    for steps in args.steps.split(","):
        with tempfile.TemporaryDirectory() as folder:
            path, run = pathlib.Path(folder) / "gpt.lscap.h5", pathlib.Path(folder) / "run.h5"
            captured = peak([*train, steps, path])
            verified = peak([args.lockstep, "verify", path])
            replayed = peak(
                [args.lockstep, "replay", path, "--lanes", "fp32,torch-autocast-bf16-cpu", "--quiet", "-o", run]
            )
            size = path.stat().st_size
            per_parameter = size / parameter_count(path)
        print(
            f"| {steps} | {size / 2**20:.1f} MiB | {per_parameter:.1f} | {captured:.0f} MiB | {verified:.0f} MiB | "
            f"{replayed:.0f} MiB |",
            flush=True,
        )


if __name__ == "__main__":
    main()
