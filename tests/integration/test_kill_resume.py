"""kill -9 at random moments: the file reads up to the last complete step, and --resume ends with the
bits of a run that was never stopped."""

import random
import subprocess
import time

import h5py
import pytest

from conftest import assert_same_run

ARGS = ["replay", "mlp", "--data", "synthetic:500", "--steps", "60", "--batch", "16",
        "--lanes", "fp32,torch-autocast-fp16,pure-fp16", "--checkpoint-every", "7",
        "--eval-every", "10", "--seed", "3"]


def steps_complete(path):
    with h5py.File(path, "r") as file:
        steps = int(file.attrs["steps_complete"])
        for lane in file["lanes"]:
            assert file["lanes"][lane]["loss"].shape[0] >= steps
            file["lanes"][lane]["counts/count"][:steps]
            file["lanes"][lane]["moments/sum_sq"][:steps]
        return steps


@pytest.mark.parametrize("kills", [50])
def test_fifty_kills(lockstep, binary_dir, tmp_path, kills):
    whole = tmp_path / "whole.h5"
    begin = time.monotonic()
    lockstep(*ARGS, "-o", whole)
    duration = time.monotonic() - begin
    rng = random.Random(20260101)
    interrupted = 0
    for attempt in range(kills):
        path = tmp_path / f"killed-{attempt}.h5"
        process = subprocess.Popen([str(binary_dir / "lockstep"), *ARGS, "-o", str(path)],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.02, 1.0) * duration)
        process.kill()
        process.wait()
        if not path.exists():
            continue                       # killed before the file was made
        try:
            steps = steps_complete(path)
        except (OSError, KeyError):
            # Killed while the empty file was being laid out: nothing was recorded yet, and the
            # program must say so in its own words.
            done = lockstep("report", path, code=2)
            assert "step" in done.stderr or "not a" in done.stderr or "damaged" in done.stderr
            continue
        if steps == 0:
            continue
        interrupted += steps < 60
        lockstep("report", path)
        lockstep("replay", "--resume", path)
        assert steps_complete(path) == 60
        assert assert_same_run(whole, path) > 50
        path.unlink()
    print(f"{interrupted} of {kills} runs were stopped between step 1 and 59 and resumed")
    assert interrupted >= kills // 3, "the kills must hit the middle of runs"


def test_resume_detects_other_bits(lockstep, tmp_path):
    """A recorded step that does not match what is recomputed is an error, not a silent overwrite."""
    path = tmp_path / "run.h5"
    lockstep(*ARGS, "-o", path)
    with h5py.File(path, "r+") as file:
        file.attrs["steps_complete"] = type(file.attrs["steps_complete"])(59)
        hashes = file["lanes/fp32/bits_hash"]
        hashes[58, 5] = hashes[58, 5] ^ 1
    done = lockstep("replay", "--resume", path, code=2)
    assert "58" in done.stderr and "fp32" in done.stderr
