"""What a training step costs, in numbers that no other program on the machine disturbs: instructions (callgrind counts
those of a run of two steps, with its evaluation and its records; half of them are one step's) and the most memory that
the run holds at once (massif). Both are compared with tests/golden/step_costs.json:
a change of 2 % up or down fails, so that a gain is written down as well.

LOCKSTEP_REWRITE_GOLDEN=1 writes the file anew. Valgrind knows AVX2 and no AVX-512: every machine runs the same kernels.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest
from conftest import SOURCE

TABLE = SOURCE / "tests" / "golden" / "step_costs.json"
TOLERANCE = 0.02
STEPS = 2
# One model per kind of hot loop, with the statistics of every step.
WORKS = {
    "mlp": ["mlp", "--data", "synthetic:64", "--batch", "32", "--lanes", "fp32,torch-autocast-fp16,tf32"],
    "lenet": ["lenet", "--data", "synthetic:64", "--batch", "8", "--lanes", "fp32,torch-autocast-fp16"],
    "gpt": ["gpt", "--size", "layers=1,width=32,context=32", "--batch", "2", "--lanes", "fp32,torch-autocast-fp16"],
    "lstm": ["lstm", "--size", "layers=1,embedding=32,hidden=64,context=16", "--batch", "4", "--lanes", "fp32"],
}


@pytest.fixture(scope="module")
def program(binary_dir):
    if shutil.which("valgrind") is None:
        pytest.skip("no valgrind")
    cache = dict(re.findall(r"^(\w+):\w+=(.*)$", (binary_dir / "CMakeCache.txt").read_text(), re.MULTILINE))
    compiler = subprocess.run(
        [cache["CMAKE_CXX_COMPILER"], "--version"], capture_output=True, text=True, check=True
    ).stdout
    if cache["CMAKE_BUILD_TYPE"] != "Release" or cache.get("LOCKSTEP_SANITIZE") or not re.search(r"\) 12\.", compiler):
        pytest.skip("the costs are those of a Release build by GCC 12")
    if "avx2" not in pathlib.Path("/proc/cpuinfo").read_text():
        pytest.skip("no AVX2")
    return binary_dir / "lockstep"


def costs(program, folder, work):
    """{"instructions": of a step, "bytes": at most at once}."""
    replay = [
        str(program),
        "replay",
        *work,
        "--steps",
        str(STEPS),
        "--twins",
        "0",
        "--eval-examples",
        "1",
        "--sums-every",
        "0",
        "--threads",
        "1",
        "--quiet",
        "--overwrite",
        "-o",
        str(folder / "run.h5"),
    ]
    counted, held = folder / "callgrind.out", folder / "massif.out"
    for tool in (
        ["--tool=callgrind", f"--callgrind-out-file={counted}", "--toggle-collect=lockstep::LockstepRun::run*"],
        ["--tool=massif", f"--massif-out-file={held}", "--time-unit=B", "--peak-inaccuracy=0", "--depth=1"],
    ):
        subprocess.run(["valgrind", "-q", *tool, *replay], check=True, capture_output=True, text=True)
    instructions = int(re.search(r"^summary: (\d+)", counted.read_text(), re.MULTILINE)[1])
    sizes = [int(size) for size in re.findall(r"^mem_heap_B=(\d+)", held.read_text(), re.MULTILINE)]
    return {"instructions": instructions // STEPS, "bytes": max(sizes)}


@pytest.mark.parametrize("name", WORKS)
def test_a_step_costs_what_it_did(program, tmp_path, name):
    found = costs(program, tmp_path, WORKS[name])
    known = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    if os.environ.get("LOCKSTEP_REWRITE_GOLDEN"):
        TABLE.write_text(json.dumps(known | {name: found}, indent=2, sort_keys=True) + "\n")
        return
    assert name in known, f"{TABLE}: no row '{name}'; LOCKSTEP_REWRITE_GOLDEN=1 writes it"
    changed = {
        what: f"{count} where {known[name][what]} is recorded ({count / known[name][what] - 1:+.1%})"
        for what, count in found.items()
        if abs(count / known[name][what] - 1) > TOLERANCE
    }
    assert not changed, f"{name}: {changed}; if that is meant, LOCKSTEP_REWRITE_GOLDEN=1 writes {TABLE} anew"
