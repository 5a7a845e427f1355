"""What `lockstep recommend` tells the user to type next, typed as it is printed."""

import os
import subprocess

import h5py
import pytest
import tiny_capture as tiny


@pytest.fixture(scope="module")
def capture(tmp_path_factory):
    """A path that a shell would take apart."""
    folder = tmp_path_factory.mktemp("my runs")
    return tiny.write(folder / "net.lscap.h5", tiny.make(steps=4, accumulate=2, clip=0.5, optimizer="Adam"))


@pytest.fixture
def type_in(binary_dir, tmp_path):
    """Gives the lines to a shell, as a user would paste them."""

    def run(lines):
        path = f"{binary_dir}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-e"], input=lines, text=True, capture_output=True, cwd=tmp_path, env=os.environ | {"PATH": path}
        )
        assert done.returncode == 0, f"{lines}\n{done.stdout}\n{done.stderr}"

    return run


def losses(path, lane):
    with h5py.File(path) as run:
        return list(run[f"lanes/{lane}/loss"])


def commands(text):
    """The indented lines after a sentence, which are the last."""
    return text[text.index("\n  lockstep ") + 1 :]


@pytest.mark.parametrize(
    "options",
    [
        ("--steps", 3),
        ("--steps", 6, "--cycle", "--mode", "synced", "--seed", 3, "--sums-every", 2, "--histogram-every", 1),
    ],
    ids=["part", "cycle"],
)
def test_the_replay_of_a_capture_runs_as_printed(lockstep, type_in, tmp_path, capture, options):
    lockstep("replay", capture, *options, "--lanes", "fp32", "-o", tmp_path / "run.h5", "--quiet")
    (tmp_path / "verify.h5").write_text("somebody's file")
    advice = lockstep("recommend", "run.h5", "-o", "policy.toml", cwd=tmp_path).stdout
    type_in(commands(advice))
    with h5py.File(tmp_path / "verify-2.h5") as file:
        assert set(file["lanes"]) >= {"fp32", "policy.toml"}
    assert losses(tmp_path / "verify-2.h5", "fp32") == losses(tmp_path / "run.h5", "fp32")
    assert "--batch" not in commands(advice) and ("--cycle" in commands(advice)) == ("--cycle" in options)


def test_a_model_of_another_size_runs_as_printed(lockstep, type_in, tmp_path):
    lockstep(
        "replay",
        "mlp",
        "--size",
        "hidden1=24",
        "--data",
        "synthetic:100",
        "--steps",
        2,
        "--batch",
        4,
        "--sums-every",
        1,
        "-o",
        tmp_path / "run.h5",
        "--quiet",
    )
    type_in(commands(lockstep("recommend", "run.h5", "-o", "policy.toml", cwd=tmp_path).stdout))
    assert losses(tmp_path / "verify.h5", "fp32") == losses(tmp_path / "run.h5", "fp32")
