"""A run that started from another one's weights continues without that run once it has a checkpoint of its
own, and before that only from the weights it began with."""

import shutil

import h5py
import pytest
from conftest import assert_same_run
from unsealed import shorten

ARGS = [
    "replay",
    "mlp",
    "--data",
    "synthetic:300",
    "--batch",
    "16",
    "--steps",
    "12",
    "--quiet",
    "--checkpoint-every",
    "5",
]


@pytest.fixture()
def runs(lockstep, tmp_path):
    """source.h5, other.h5 (another seed) and whole.h5, which started from source.h5."""
    for seed, name in ((2, "source"), (3, "other")):
        lockstep(*ARGS, "--seed", seed, "-o", tmp_path / f"{name}.h5")
    start = tmp_path / "source.h5.state"
    for name in ("whole", "part"):
        lockstep(*ARGS, "--lanes", "fp32,torch-autocast-bf16", "--start-from", start, "-o", tmp_path / f"{name}.h5")
    return tmp_path


def cut(path, checkpoints):
    """As a kill after step 11 would leave it, with the checkpoint after step 10 or with none."""
    with h5py.File(path, "r+") as file:
        shorten(file, 11)
    if not checkpoints:
        for end in (".state", ".state.1"):
            path.with_name(path.name + end).unlink()


def test_goes_on_from_its_own_checkpoint(lockstep, runs):
    for path in runs.glob("source.h5*"):
        path.unlink()
    cut(runs / "part.h5", checkpoints=True)
    lockstep("replay", "--resume", runs / "part.h5", "--quiet")
    assert assert_same_run(runs / "whole.h5", runs / "part.h5") > 50


def test_begins_again_from_the_weights_it_began_with(lockstep, runs):
    part, start = runs / "part.h5", runs / "source.h5.state"
    cut(part, checkpoints=False)
    kept = runs / "kept"
    shutil.move(start, kept)
    assert "source.h5.state" in lockstep("replay", "--resume", part, code=2).stderr
    shutil.copy(runs / "other.h5.state", start)
    error = lockstep("replay", "--resume", part, code=2).stderr
    assert "source.h5.state" in error and "the run began with" in error
    shutil.copy(kept, start)
    lockstep("replay", "--resume", part, "--quiet")
    assert assert_same_run(runs / "whole.h5", part) > 50


@pytest.mark.parametrize("lane", ["", ":fp32"])
def test_a_run_does_not_delete_its_own_start(lockstep, runs, lane):
    files = [runs / "source.h5", runs / "source.h5.state", runs / "source.h5.state.1"]
    before = [path.read_bytes() for path in files]
    for start in files[1:]:
        done = lockstep(*ARGS, "--overwrite", "--start-from", f"{start}{lane}", "-o", files[0], code=2)
        assert "deletes it" in done.stderr
    assert [path.read_bytes() for path in files] == before
