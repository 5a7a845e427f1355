"""What a monitor costs: time in its own functions in a measured step and in others, memory, and the file. The figures of
docs/monitor.md.

    LOCKSTEP=build/ci/lockstep python bench/monitor.py [--tokens 512]

GPT-2, 124 million parameters in FP32, random weights, AdamW, clipping.
"""

import argparse
import os
import pathlib
import resource
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))

import torch
from lockstep_capture import Monitor
from lockstep_capture.monitor.taps import Taps
from transformers import GPT2Config, GPT2LMHeadModel

EVERY = 3
OWN = {
    "activations": (Taps, "_take_output"),
    "attention": (Taps, "take_logits"),
    "weight gradients": (Taps, "take_gradients"),
    "their finiteness": (Taps, "note_gradients"),
    "weights": (Taps, "take_weights"),
    "updates and states": (Taps, "take_updates"),
    "begin of a block": (Monitor, "_begin"),
    "end of a step": (Monitor, "_end"),
}


def timed(spent, name, owner, function):
    original = getattr(owner, function)

    def call(*args, **kwargs):
        start = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - start

    setattr(owner, function, call)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=512)
    tokens = parser.parse_args().tokens
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randint(0, 50257, (1, tokens))
    spent = {}
    for name, (owner, function) in OWN.items():
        timed(spent, name, owner, function)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "live.h5")
        with Monitor(path, model, optimizer, every=EVERY, quiet=True) as monitor:
            for step in range(2 * EVERY):
                spent.clear()
                start = time.perf_counter()
                with monitor.step(x):
                    model(input_ids=x, labels=x).loss.backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                parts = ", ".join(f"{name} {1e3 * seconds:.1f}" for name, seconds in spent.items())
                kind = "measured" if step % EVERY == 0 else "not measured"
                own = sum(spent.values())
                print(
                    f"step {step}, {kind}: {time.perf_counter() - start:.2f} s, of these {1e3 * own:.1f} ms own: {parts}"
                )
        print(f"file: {os.path.getsize(path) / 1e6:.2f} MB, 2 steps measured")
    print(f"memory at most: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


if __name__ == "__main__":
    main()
