"""The real digits, with the command the README gives (400 steps, five lanes)."""

import h5py
import numpy as np

LANES = ["fp32", "torch-autocast-fp16", "torch-autocast-bf16", "tf32", "pure-fp16"]
LOW = LANES[1:4]


def test_lenet_on_mnist(lockstep, mnist, tmp_path):
    path = tmp_path / "mnist.h5"
    lockstep("replay", "lenet", "--data", f"mnist:{mnist}", "--steps", 400, "--batch", 64,
             "--lanes", ",".join(LANES), "-o", path)
    with h5py.File(path, "r") as file:
        accuracy = {lane: float(file["lanes"][lane]["eval/accuracy"][-1]) for lane in LANES}
        print("held-out accuracy:", {k: round(v, 4) for k, v in accuracy.items()})
        assert accuracy["fp32"] >= 0.96
        for lane in LOW:
            assert abs(accuracy[lane] - accuracy["fp32"]) <= 0.01, lane
        assert np.nansum(file["lanes/pure-fp16/counts/to_zero"][()]) > 0
    report = lockstep("report", path).stdout
    assert "pure-fp16" in report and "underflow" in report
