"""A lane's bits depend on neither threads nor vector width: whole run files are compared."""

import pathlib

import pytest

from conftest import assert_same_run

LANES = ("fp32,torch-autocast-fp16,torch-autocast-bf16,tf32,pure-fp16,fp64,twin,"
         "fp8-delayed,fp8-current,mxfp8,nvfp4")


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
        lockstep("replay", model, *options, "--lanes", lanes, "--simd", simd, "--threads", threads,
                 "--checkpoint-every", 2, "-o", path)
        paths.append(path)
    for path in paths[1:]:
        assert assert_same_run(paths[0], path) > 50


def test_another_seed_differs(lockstep, tmp_path):
    """The comparison can fail: another seed gives another file."""
    for seed in (1, 2):
        lockstep("replay", "mlp", "--data", "synthetic:500", "--steps", 2, "--batch", 16,
                 "--seed", seed, "-o", tmp_path / f"{seed}.h5")
    with pytest.raises(AssertionError):
        assert_same_run(tmp_path / "1.h5", tmp_path / "2.h5")
