"""A lane's bits depend on neither threads nor vector width: whole run files are compared."""

import pathlib

import pytest

from conftest import assert_same_run

LANES = "fp32,torch-autocast-fp16,torch-autocast-bf16,tf32,pure-fp16,fp64,twin"


def instruction_sets():
    flags = pathlib.Path("/proc/cpuinfo").read_text()
    sets = ["scalar"]
    sets += ["avx2"] if " avx2 " in flags and " fma " in flags else []
    sets += ["avx512"] if " avx512bw " in flags and " avx512dq " in flags else []
    return sets


@pytest.mark.parametrize("model,steps,batch,lanes", [
    ("mlp", 6, 16, LANES),
    ("lenet", 2, 3, LANES),
])
def test_threads_and_instruction_sets(lockstep, tmp_path, model, steps, batch, lanes):
    sets = instruction_sets()
    if len(sets) < 3:
        print(f"SKIPPED: this CPU offers only {sets}")
    runs = [(simd, threads) for simd in sets for threads in (1, 2)]
    paths = []
    for simd, threads in runs:
        path = tmp_path / f"{simd}-{threads}.h5"
        lockstep("replay", model, "--data", "synthetic:500", "--steps", steps, "--batch", batch,
                 "--lanes", lanes, "--simd", simd, "--threads", threads, "--eval-every", 2,
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
