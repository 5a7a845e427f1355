"""Every command that Lockstep prints, typed as it is printed: it repeats the run, bit for bit. And a run with another
option is never called a regression of the first."""

import json
import os
import subprocess

import h5py
import numpy as np
import pytest
import tiny_capture as tiny
from conftest import assert_same_run, datasets
from unsealed import unseal

MODEL = [
    "mlp",
    "--data",
    "synthetic:100",
    "--size",
    "hidden1=12,hidden2=8",
    "--batch",
    8,
    "--steps",
    4,
    "--checkpoint-every",
    2,
]
# Runs of a built-in model: options that no other test prints, several to a run.
MODEL_OPTIONS = {
    "nudge": ["--nudge", 5],
    "draws": ["--seed", 3, "--seeds", 2, "--twins", 2],
    "loop": [
        "--accumulate",
        2,
        "--workers",
        2,
        "--clip-norm",
        0.5,
        "--clip-norm-type",
        "inf",
        "--freeze",
        "fc2",
        "--lr",
        0.1,
        "--optimizer-args",
        "nesterov=1,dampening=0",
        "--schedule",
        "cosine:warmup=1",
        "--group",
        "fc*:optimizer=adam,lr=1e-3",
    ],
    "recording": [
        "--statistics",
        "health",
        "--statistics-every",
        3,
        "--histogram-every",
        2,
        "--sums-every",
        2,
        "--eval-every",
        2,
        "--eval-examples",
        16,
        "--eval-policy",
        "fp32",
    ],
    "synced": ["--mode", "synced", "--twins", 0, "--statistics-every", 0],
}
CAPTURE_OPTIONS = {
    "order": ["--captured-order", "2,0,1", "--steps", 5, "--seed", 4],
    "cycle": ["--cycle", "--steps", 6, "--nudge", 9],
    "change": ["--change", "lr=0.001,clip_norm=0.5", "--eval-batch-norm", "bn"],
    "eps": ["--batch-norm-eps", 0.01],
}


@pytest.fixture(scope="module")
def capture(tmp_path_factory):
    """A path that a shell would take apart."""
    folder = tmp_path_factory.mktemp("my runs")
    return tiny.write(folder / "net.lscap.h5", tiny.make(steps=3, clip=0.5, optimizer="Adam"))


@pytest.fixture
def type_in(binary_dir, tmp_path):
    """Gives the lines to a shell in a folder of its own, as a user would paste them; returns the folder."""

    def run(lines, code=0, folder="again"):
        (tmp_path / folder).mkdir(exist_ok=True)
        path = f"{binary_dir}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-e"],
            input=lines,
            text=True,
            capture_output=True,
            cwd=tmp_path / folder,
            env=os.environ | {"PATH": path},
        )
        assert done.returncode == code, f"{lines}\n{done.stdout}\n{done.stderr}"
        return tmp_path / folder

    return run


def command_in(text, sentence):
    """The indented lines after a sentence, to the first that does not go on."""
    lines = []
    for line in text[text.index(sentence) + len(sentence) :].splitlines()[1:]:
        if lines or line.strip():
            lines.append(line)
        if lines and not line.endswith("\\"):
            break
    assert lines and lines[0].startswith("  lockstep "), text
    return "\n".join(lines) + "\n"


def report_command(lockstep, folder):
    return command_in(lockstep("report", "run.h5", cwd=folder).stdout, "To repeat it:")


def repeats(lockstep, type_in, folder, subject, options):
    """The command that made a run, and the one written from its options, as reports show it of other commands' runs."""
    lockstep("replay", *subject, "--lanes", "fp32,pure-fp16", *options, "-o", "run.h5", "--quiet", cwd=folder)
    assert_same_run(folder / "run.h5", type_in(report_command(lockstep, folder)) / "run.h5")
    with h5py.File(folder / "run.h5", "r+") as file:
        file.attrs["command_line"] = "lockstep recommend"
        unseal(file)
    again = type_in(report_command(lockstep, folder), folder="written") / "run.h5"
    assert_same_run(folder / "run.h5", again)
    lockstep("check", again, "--baseline", folder / "run.h5", "--exact", "--strict")


@pytest.mark.parametrize("name", MODEL_OPTIONS)
def test_a_report_s_command_repeats_a_model_s_run(lockstep, type_in, tmp_path, name):
    repeats(lockstep, type_in, tmp_path, MODEL, MODEL_OPTIONS[name])


def test_a_report_s_command_repeats_a_run_of_several_losses(lockstep, type_in, tmp_path):
    vae = ["vae", "--size", "hidden=16,latent=4", "--data", "synthetic:100", "--batch", 8, "--steps", 2]
    repeats(lockstep, type_in, tmp_path, vae, ["--backward", "per-loss"])


@pytest.mark.parametrize("name", CAPTURE_OPTIONS)
def test_a_report_s_command_repeats_a_capture_s_run(lockstep, type_in, tmp_path, capture, name):
    repeats(lockstep, type_in, tmp_path, [capture], CAPTURE_OPTIONS[name])


@pytest.mark.parametrize(
    "options", [["--nudge", 5, "--seeds", 2], ["--freeze", "fc2", "--statistics", "health"]], ids=["draws", "loop"]
)
def test_recommend_s_command_repeats_the_reference(lockstep, type_in, tmp_path, options):
    lockstep("replay", *MODEL, *options, "-o", "run.h5", "--quiet", cwd=tmp_path)
    advice = lockstep("recommend", "run.h5", "-o", "policy.toml", cwd=tmp_path).stdout
    type_in(command_in(advice, "To see what it does:"), folder=".")
    run, verified = datasets(tmp_path / "run.h5"), datasets(tmp_path / "verify.h5")
    names = [name for name in run if "lanes/fp32/" in name and not name.endswith("seconds")]
    assert len(names) > 20
    for name in names:
        assert np.array_equal(run[name], verified[name], equal_nan=run[name].dtype.kind == "f"), name


def test_what_replay_and_baseline_print_next(lockstep, type_in, tmp_path):
    said = lockstep("replay", *MODEL, "--nudge", 5, "-o", "a run.h5", cwd=tmp_path).stdout
    type_in(command_in(said, "Next:"), folder=".")
    said = lockstep(
        "baseline", "record", *MODEL[:-2], "--workers", 2, "--members", 4, "-o", "b 1.json", cwd=tmp_path
    ).stdout
    type_in(command_in(said, "Next:").replace("\n", " --json check.json\n"), folder=".")
    assert json.loads((tmp_path / "check.json").read_text())["verdict"] == "identical"


def test_another_option_is_named_and_no_regression(lockstep, tmp_path):
    lockstep("baseline", "record", *MODEL[:-2], "--members", 4, "-o", "b.json", "--quiet", cwd=tmp_path)
    plain = [*MODEL, "--lanes", "fp32,torch-autocast-fp16,torch-autocast-bf16", "--twins", 0, "--quiet"]
    lockstep("replay", *plain, "-o", "plain.h5", cwd=tmp_path)
    changed = {
        "nudge": (["--nudge", 1001], 0),
        "seeds": (["--seeds", 2], 0),
        "eval policy": (["--eval-policy", "fp32"], 3),
        "mode": (["--mode", "synced"], 3),
    }
    for name, (options, code) in changed.items():
        lockstep("replay", *plain, *options, "-o", "other.h5", "--overwrite", cwd=tmp_path)
        said = lockstep("check", "other.h5", "--baseline", "plain.h5", "--exact", cwd=tmp_path, code=3).stdout
        assert f"{name}: " in said and "REGRESSION" not in said
        said = lockstep("check", "other.h5", "--baseline", "b.json", cwd=tmp_path, code=code).stdout
        assert f"{name}: " in said and "REGRESSION" not in said


def test_another_option_of_a_capture_is_named_and_no_regression(lockstep, tmp_path, capture):
    lockstep("baseline", "record", capture, "--members", 4, "-o", "b.json", "--quiet", cwd=tmp_path)
    plain = [capture, "--lanes", "fp32,torch-autocast-fp16,torch-autocast-bf16", "--twins", 0, "--steps", 3, "--quiet"]
    lockstep("replay", *plain, "-o", "plain.h5", cwd=tmp_path)
    for name, options in {
        "captured order": ["--captured-order", "2,0,1"],
        "cycle": ["--cycle"],
        "decisions": ["--decisions", "own"],
        "changed numbers of the loop": ["--change", "lr=0.3"],
    }.items():
        lockstep("replay", *plain, *options, "-o", "other.h5", "--overwrite", cwd=tmp_path)
        for more in ["plain.h5", "--exact"], ["b.json"]:
            said = lockstep("check", "other.h5", "--baseline", *more, cwd=tmp_path, code=3).stdout
            assert f"{name}: " in said and "REGRESSION" not in said
