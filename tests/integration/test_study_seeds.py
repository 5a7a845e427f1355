"""Study: what the formats do over several seeds, beside what one ulp and another seed do.

Writes docs/study/seeds.md when LOCKSTEP_STUDY_DIR is set (`./dev study` sets it).
"""

import os
import pathlib

import h5py
import numpy as np

LANES = ["fp32", "twin", "torch-autocast-fp16", "torch-autocast-bf16", "tf32", "pure-fp16"]
SEEDS = [1, 2, 3, 4, 5]
STEPS = 400


def test_lenet_on_mnist_over_seeds(lockstep, mnist, tmp_path):
    accuracy = {lane: [] for lane in LANES}
    loss = {lane: [] for lane in LANES}
    died = {lane: [] for lane in LANES}
    for seed in SEEDS:
        path = tmp_path / f"{seed}.h5"
        lockstep("replay", "lenet", "--data", f"mnist:{mnist}", "--steps", STEPS, "--batch", 64,
                 "--seed", seed, "--lanes", ",".join(LANES), "-o", path)
        with h5py.File(path, "r") as file:
            for lane in LANES:
                group = file["lanes"][lane]
                accuracy[lane].append(float(group["eval/accuracy"][-1]))
                loss[lane].append(float(np.mean(group["loss"][STEPS - STEPS // 10:STEPS])))
                died[lane].append(int(group.attrs["died_at"]))
    rows = ["# Seeds: `lenet` on MNIST, free-running lanes", "",
            f"{len(SEEDS)} seeds, {STEPS} steps of batch 64, SGD 0.05 with momentum 0.9, the first "
            "8000 digits to train, 2000 held out.", "Loss: mean over the last tenth of the steps. "
            "Differences are to the `fp32` lane of the same seed, so the", "`twin` row (FP32, every "
            "weight moved by one ulp at step 0) is what chaos alone makes. Repeat: `./dev study`.",
            "", "| lane | held-out, mean | least | most | loss, mean | loss difference, mean | "
            "its standard deviation | stopped |", "|---|---|---|---|---|---|---|---|"]
    for lane in LANES:
        alive = [i for i in range(len(SEEDS)) if np.isfinite(accuracy[lane][i])]
        stopped = f"{sum(d >= 0 for d in died[lane])} of {len(SEEDS)}"
        if len(alive) < 2:
            rows.append(f"| {lane} | - | - | - | - | - | - | {stopped} |")
            continue
        a = np.array(accuracy[lane])[alive] * 100
        d = (np.array(loss[lane]) - np.array(loss["fp32"]))[alive]
        rows.append(f"| {lane} | {a.mean():.2f} % | {a.min():.2f} % | {a.max():.2f} % | "
                    f"{np.array(loss[lane])[alive].mean():.4f} | {d.mean():+.4f} | "
                    f"{d.std(ddof=1):.4f} | {stopped} |")
    print("\n".join(rows))
    folder = os.environ.get("LOCKSTEP_STUDY_DIR")
    if folder:
        pathlib.Path(folder, "seeds.md").write_text("\n".join(rows) + "\n")
    assert min(accuracy["fp32"]) >= 0.96
