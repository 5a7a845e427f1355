"""kill -9 at random moments: the file reads up to the last complete step, and --resume ends with the
bits of a run that was never stopped."""

import random
import subprocess
import time

import h5py

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


def test_fifty_kills(lockstep, binary_dir, tmp_path):
    """50 kills between the first and the last step; a file under its final name always reads."""
    whole = tmp_path / "whole.h5"
    begin = time.monotonic()
    lockstep(*ARGS, "-o", whole)
    duration = time.monotonic() - begin
    rng = random.Random(20260101)
    kills, before_first, after_last, attempts = 0, 0, 0, 0
    while kills < 50:
        attempts += 1
        assert attempts <= 250, "the kills must hit the middle of runs"
        path = tmp_path / f"killed-{attempts}.h5"
        process = subprocess.Popen([str(binary_dir / "lockstep"), *ARGS, "-o", str(path)],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.02, 1.0) * duration)
        process.kill()
        process.wait()
        if not path.exists():
            before_first += 1              # killed before the file was made
            continue
        steps = steps_complete(path)
        if steps == 60:
            after_last += 1
            path.unlink()
            continue
        kills += steps > 0
        before_first += steps == 0
        lockstep("report", path, code=0 if steps > 0 else 2)
        lockstep("replay", "--resume", path)
        assert steps_complete(path) == 60
        assert assert_same_run(whole, path) > 50
        path.unlink()
    print(f"{kills} runs killed between step 1 and 59 and resumed; "
          f"{before_first} killed earlier, {after_last} later")


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
