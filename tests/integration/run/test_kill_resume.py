"""kill -9 at random moments: the file reads up to the last complete step, and --resume ends with the
bits of a run that was never stopped."""

import json
import random
import subprocess
import time

import h5py
from conftest import assert_same_run
from unsealed import shorten, unseal

ARGS = [
    "replay",
    "mlp",
    "--data",
    "synthetic:500",
    "--steps",
    "60",
    "--batch",
    "16",
    "--lanes",
    "fp32,torch-autocast-fp16@cuda-host,pure-fp16",
    "--checkpoint-every",
    "7",
    "--eval-every",
    "10",
    "--seed",
    "3",
]


def steps_complete(path):
    with h5py.File(path, "r") as file:
        steps = int(file.attrs["steps_complete"])
        for lane in file["lanes"]:
            assert file["lanes"][lane]["loss"].shape[0] >= steps
            file["lanes"][lane]["counts/count"][:steps]
            file["lanes"][lane]["moments/sum_sq"][:steps]
        return steps


KILLS = 12  # test_kills.py has 25 of five commands, `./dev study kills` a thousand


def test_kills_of_one_run(lockstep, binary_dir, tmp_path):
    """Kills between the first and the last step; a file under its final name always reads."""
    whole = tmp_path / "whole.h5"
    begin = time.monotonic()
    lockstep(*ARGS, "-o", whole)
    duration = time.monotonic() - begin
    rng = random.Random(20260101)
    kills, before_first, after_last, attempts = 0, 0, 0, 0
    while kills < KILLS:
        attempts += 1
        assert attempts <= 5 * KILLS, "the kills must hit the middle of runs"
        path = tmp_path / f"killed-{attempts}.h5"
        process = subprocess.Popen(
            [str(binary_dir / "lockstep"), *ARGS, "-o", str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(rng.uniform(0.02, 1.0) * duration)
        process.kill()
        process.wait()
        if not path.exists():
            before_first += 1  # killed before the file was made
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
    print(f"{kills} runs killed between step 1 and 59 and resumed; {before_first} killed earlier, {after_last} later")


def test_kills_in_every_seed(lockstep, binary_dir, tmp_path):
    """Runs of three seeds killed at any moment end as those that were never stopped."""
    args = ["30" if arg == "60" else arg for arg in ARGS] + ["--seeds", "3"]
    whole = tmp_path / "whole.h5"
    begin = time.monotonic()
    lockstep(*args, "-o", whole)
    duration = time.monotonic() - begin
    rng = random.Random(20260102)
    killed_in, attempts = {1: 0, 2: 0, 3: 0}, 0
    while sum(killed_in.values()) < 12 or min(killed_in.values()) == 0:
        attempts += 1
        assert attempts <= 100, f"the kills must hit every seed: {killed_in}"
        path = tmp_path / f"killed-{attempts}.h5"
        process = subprocess.Popen(
            [str(binary_dir / "lockstep"), *args, "-o", str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(rng.uniform(0.02, 1.0) * duration)
        process.kill()
        process.wait()
        if not path.exists():
            continue
        steps_complete(path)
        with h5py.File(path, "r") as file:
            seeds = 1 + len(file.get("seeds", {}))
            last = file[f"seeds/{2 + seeds}"] if seeds > 1 else file
            done = seeds == 3 and last.attrs["steps_complete"] == 30
        killed_in[seeds] += not done
        lockstep("replay", "--resume", path)
        assert assert_same_run(whole, path) > 150
        path.unlink()
    print(f"killed in the first, second and third seed: {killed_in}")


def test_resume_detects_other_bits(lockstep, tmp_path):
    """A recorded step that does not match what is recomputed is an error, not a silent overwrite."""
    path = tmp_path / "run.h5"
    lockstep(*ARGS, "-o", path)
    with h5py.File(path, "r+") as file:
        shorten(file, 59)
        hashes = file["lanes/fp32/bits_hash"]
        hashes[58, 5] = hashes[58, 5] ^ 1
    done = lockstep("replay", "--resume", path, code=2)
    assert "lanes/fp32/bits_hash: step 58: the checksum does not fit" in done.stderr
    with h5py.File(path, "r+") as file:
        unseal(file)
    done = lockstep("replay", "--resume", path, code=2)
    assert "step 58, lane fp32" in done.stderr and "bits_hash" in done.stderr


def test_resume_compares_graphs_as_json(lockstep, tmp_path):
    """The layout of the recorded graph's text does not matter, its content does."""
    whole, path = tmp_path / "whole.h5", tmp_path / "run.h5"
    lockstep(*ARGS, "-o", whole)
    lockstep(*ARGS, "-o", path)
    with h5py.File(path, "r+") as file:
        shorten(file, 58)
        graph = json.loads(file["graph"][()])
        unseal(file)
        file.move("graph", "original")
        write_graph(file, json.dumps(graph, indent=4, sort_keys=True))
    lockstep("replay", "--resume", path)
    lockstep("check", path, "--baseline", whole, "--exact")
    with h5py.File(path, "r+") as file:
        del file["graph"]
        file.move("original", "graph")
    assert assert_same_run(whole, path) > 50
    with h5py.File(path, "r+") as file:
        shorten(file, 58)
        del file["graph"]
        write_graph(file, json.dumps(graph | {"name": "another"}))
    assert "the step graph differs" in lockstep("replay", "--resume", path, code=2).stderr


def write_graph(file, text):
    file.create_dataset("graph", data=text.encode(), dtype=h5py.string_dtype("utf-8", len(text) + 1))
