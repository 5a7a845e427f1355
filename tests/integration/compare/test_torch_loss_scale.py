"""The torch-dynamic scaler against torch.amp.GradScaler on random overflow sequences: scale and
growth tracker after every step, bit for bit."""

import subprocess

import numpy as np
import torch

SEQUENCES, STEPS = 1000, 100
torch.set_num_threads(1)


def random_spec(rng):
    """Numbers of all sizes: powers of two and others, scales that reach infinity and zero."""
    exponent = rng.choice([rng.uniform(-20, 30), rng.uniform(100, 127.9), rng.uniform(-149, -120)])
    scale = 2.0 ** (min(round(exponent), 127) if rng.random() < 0.5 else exponent)
    growth = rng.choice([2.0, 1 + rng.exponential(1.0) + 1e-3, 1.001])
    backoff = rng.choice([0.5, rng.uniform(0.01, 0.99), 0.999])
    return dict(
        init_scale=float(np.float32(scale)),
        growth_factor=float(growth),
        backoff_factor=float(backoff),
        growth_interval=int(rng.integers(1, 12)),
    )


def torch_trajectory(spec, overflows):
    """The real thing: unscale_ finds the infinity, step skips, update moves the scale."""
    scaler = torch.amp.GradScaler("cpu", **spec)
    scaler.scale(torch.tensor(1.0))  # creates its tensors
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    states = []
    for overflow in overflows:
        parameter.grad = torch.tensor([float("inf") if overflow else 0.0])
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        states.append((scaler._scale.item(), scaler._growth_tracker.item()))
    return states


def test_random_sequences_bit_for_bit(binary_dir):
    rng = np.random.default_rng(20)
    specs = [random_spec(rng) for _ in range(SEQUENCES)]
    overflows = [rng.random(STEPS) < rng.choice([0.02, 0.2, 0.7]) for _ in specs]
    lines = []
    for spec, found in zip(specs, overflows):
        keys = ",".join(f"{key}={value!r}" for key, value in spec.items())
        lines.append(f"kind='torch-dynamic',{keys};" + "".join("1" if f else "0" for f in found))
    done = subprocess.run(
        [str(binary_dir / "lockstep_scaler_tool")], input="\n".join(lines) + "\n", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    answers = done.stdout.splitlines()
    assert len(answers) == SEQUENCES
    zeros, capped, moved = 0, 0, 0
    for spec, found, answer in zip(specs, overflows, answers):
        ours = [
            (float.fromhex(scale), int(tracker)) for scale, tracker in (state.split(":") for state in answer.split())
        ]
        theirs = torch_trajectory(spec, found)
        assert ours == theirs, (spec, found)
        moved += len({scale for scale, _ in theirs}) > 1
        zeros += theirs[-1][0] == 0
        # A growth that would have been infinite leaves the scale and restarts the tracker.
        capped += any(
            a == b and t == 0 and not f and a * spec["growth_factor"] > 3.4028235e38
            for (a, _), (b, t), f in zip(theirs, theirs[1:], found[1:])
        )
    print(
        f"{SEQUENCES} sequences of {STEPS} steps equal; {moved} moved, {zeros} ended at scale 0, "
        f"{capped} met a growth to infinity"
    )
    assert moved > 900 and zeros > 10 and capped > 10
