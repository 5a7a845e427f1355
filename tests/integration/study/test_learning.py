"""Every built-in model learns, in FP32 and under BF16 autocast: the short runs of learning.py."""

import learning
import pytest


@pytest.mark.parametrize("run", learning.SHORT, ids=lambda run: run.name)
def test_learns(lockstep, request, tmp_path, run):
    spec = f"mnist:{request.getfixturevalue('mnist')}" if run.data == "mnist" else ""
    losses_alone = ["--twins", 0, "--statistics-every", 0]
    found, cpu_seconds = learning.learn(lockstep, run, tmp_path / "run.h5", spec, *losses_alone)
    for lane, measured in found.items():
        print(f"{run.name} {lane}: {run.figure[0]} {measured:.4f}, wanted {run.figure[1]}, {cpu_seconds:.0f} s of CPU")
        assert learning.reached(run.figure, measured)
