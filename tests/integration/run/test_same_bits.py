"""A lane's bits depend on neither threads nor vector width: whole run files are compared."""

import pathlib

import h5py
import numpy as np
import pytest
from conftest import assert_same_run

LANES = "fp32,torch-autocast-fp16,torch-autocast-bf16,tf32,pure-fp16,fp64,twin,fp8-delayed,fp8-current,mxfp8,nvfp4,fp8-blockwise-torchao"


def instruction_sets():
    flags = pathlib.Path("/proc/cpuinfo").read_text()
    sets = ["scalar"]
    sets += ["avx2"] if " avx2 " in flags and " fma " in flags else []
    sets += ["avx512"] if " avx512bw " in flags and " avx512dq " in flags else []
    return sets


# Evaluation after two steps where the held-out set is small; sizes small enough for scalar loops.
FEW_LANES = "fp32,torch-autocast-fp16,pure-fp16"
# Every format and two tensor cores: sums in blocks of products of their own.
HARDWARE_LANES = LANES + ",torch-autocast-fp16@hopper,tf32@ampere"
TEXT = ["--data", "grammar:10000"]
CASES = {
    "mlp": (LANES, ["--data", "synthetic:500", "--steps", 6, "--batch", 16, "--eval-every", 2]),
    "lenet": (LANES, ["--data", "synthetic:500", "--steps", 2, "--batch", 3, "--eval-every", 2]),
    "resnet20": (HARDWARE_LANES, ["--data", "shapes:50", "--batch", 1, "--size", "width=4"]),
    "unet": (FEW_LANES, ["--data", "shapes:50", "--batch", 2, "--size", "width=8"]),
    "detector": (FEW_LANES, ["--data", "shapes:50", "--batch", 2, "--size", "width=8"]),
    "vae": (FEW_LANES, ["--data", "synthetic:50", "--batch", 4, "--size", "hidden=50"]),
    "vit": (FEW_LANES, ["--data", "shapes:50", "--batch", 2, "--size", "layers=1,width=32"]),
    "gpt": (HARDWARE_LANES, [*TEXT, "--batch", 2, "--size", "layers=1,width=32,context=40"]),
    "bert": (FEW_LANES, [*TEXT, "--batch", 2, "--size", "layers=1,width=32,context=40"]),
    "lstm": (FEW_LANES, [*TEXT, "--batch", 2, "--size", "embedding=16,hidden=40,context=24"]),
}


@pytest.mark.parametrize("model", CASES)
def test_threads_and_instruction_sets(lockstep, tmp_path, model):
    lanes, options = CASES[model]
    if "--steps" not in options:
        options = ["--steps", 1, *options]
    sets = instruction_sets()
    if len(sets) < 3:
        print(f"SKIPPED: this CPU offers only {sets}")
    runs = [(simd, threads) for simd in sets for threads in (1, 2)]
    paths = []
    for simd, threads in runs:
        path = tmp_path / f"{simd}-{threads}.h5"
        lockstep(
            "replay",
            model,
            *options,
            "--lanes",
            lanes,
            "--simd",
            simd,
            "--threads",
            threads,
            "--checkpoint-every",
            2,
            "-o",
            path,
        )
        paths.append(path)
    for path in paths[1:]:
        assert assert_same_run(paths[0], path) > 50


# The order of an all-reduce's sums is the policy's: one lane per order and format.
ALL_REDUCE = """name = "{order}-{format}"
extends = "torch-autocast-fp16:2.12"
[all_reduce]
format = "{format}"
order = "{order}"
divide = "after"
"""


def test_all_reduce(lockstep, tmp_path):
    lanes = ["fp32", "torch-autocast-bf16"]
    for order, number in [("ring", "fp16"), ("tree", "fp16"), ("tree", "fp32")]:
        lanes.append(f"{order}-{number}.toml")
        (tmp_path / lanes[-1]).write_text(ALL_REDUCE.format(order=order, format=number))
    paths = []
    for simd, threads in [(simd, threads) for simd in instruction_sets() for threads in (1, 2)]:
        paths.append(tmp_path / f"{simd}-{threads}.h5")
        lockstep(
            "replay",
            "lenet",
            "--data",
            "synthetic:500",
            "--steps",
            2,
            "--batch",
            6,
            "--workers",
            3,
            "--lanes",
            ",".join(lanes),
            "--simd",
            simd,
            "--threads",
            threads,
            "-o",
            paths[-1],
            cwd=tmp_path,
        )
    for path in paths[1:]:
        assert assert_same_run(paths[0], path) > 50
    with h5py.File(paths[0], "r") as file:
        reduced = np.array([b"all_reduce" in op for op in file["sites/op"][()]])
        assert reduced.sum() >= 20, "two sites per gradient"
        hashes = {lane: file["lanes"][lane]["bits_hash"][()][:, reduced] for lane in file["lanes"]}
    for a in lanes[2:]:
        for b in lanes[2:]:
            assert a == b or not np.array_equal(hashes[a], hashes[b]), (a, b)


def test_one_worker_is_none(lockstep, tmp_path):
    """--workers 1 adds no site and changes no bit; --workers 2 does both."""
    for name, words in {"none": [], "1": ["--workers", 1], "2": ["--workers", 2]}.items():
        lockstep(
            "replay",
            "lenet",
            "--data",
            "synthetic:500",
            "--steps",
            2,
            "--batch",
            4,
            "--lanes",
            FEW_LANES + ",fp64,twin",
            *words,
            "-o",
            tmp_path / f"{name}.h5",
        )
    assert assert_same_run(tmp_path / "none.h5", tmp_path / "1.h5") > 50
    with pytest.raises(AssertionError):
        assert_same_run(tmp_path / "1.h5", tmp_path / "2.h5")


def test_another_seed_differs(lockstep, tmp_path):
    """The comparison can fail: another seed gives another file."""
    for seed in (1, 2):
        lockstep(
            "replay",
            "mlp",
            "--data",
            "synthetic:500",
            "--steps",
            2,
            "--batch",
            16,
            "--seed",
            seed,
            "-o",
            tmp_path / f"{seed}.h5",
        )
    with pytest.raises(AssertionError):
        assert_same_run(tmp_path / "1.h5", tmp_path / "2.h5")
