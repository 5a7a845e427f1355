"""Baselines are made of good runs, change with a reason, and are read as text from strangers."""

import json
import os
import pathlib
import re
import signal
import subprocess
import time

import jsonschema
import pytest
import tiny_capture

SOURCE = pathlib.Path(__file__).resolve().parents[3]

QUICK = ["mlp", "--steps", 4, "--batch", 16, "--lanes", "fp32,pure-fp16", "--members", 3, "--quiet"]


@pytest.fixture(scope="module")
def good(lockstep, tmp_path_factory):
    path = tmp_path_factory.mktemp("baselines") / "good.json"
    lockstep("baseline", "record", *QUICK, "--seeds", 4, "-o", path)
    return path


@pytest.fixture
def copy(good, tmp_path):
    path = tmp_path / "mlp.json"
    path.write_text(good.read_text())
    return path


def test_a_run_that_breaks_is_no_baseline(lockstep, tmp_path):
    done = lockstep("baseline", "record", *QUICK, "--lr", 1e30, "-o", tmp_path / "dead.json", code=1)
    assert "fp32 holds NaN or infinite values" in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_accepted_baseline_is_replaced_with_a_reason_only_and_keeps_its_history(lockstep, copy):
    assert "exists" in lockstep("baseline", "record", *QUICK, "-o", copy, code=2).stderr
    assert "--reason" in lockstep("baseline", "record", *QUICK, "-o", copy, "--overwrite", code=2).stderr
    lockstep("baseline", "record", *QUICK, "-o", copy, "--overwrite", "--reason", "smaller ensemble")
    assert [entry["reason"] for entry in json.loads(copy.read_text())["history"]] == ["recorded", "smaller ensemble"]


def test_propose_and_approve(lockstep, copy):
    assert "another model" in lockstep("baseline", "propose", copy, "lenet", "--quiet", code=1).stderr
    assert "0 numbers of" in lockstep("baseline", "propose", copy, "--quiet").stdout
    assert "--reason" in lockstep("baseline", "approve", copy, code=2).stderr
    assert (
        "matches no key" in lockstep("baseline", "approve", copy, "--reason", "r", "--keys", "no/such", code=2).stderr
    )
    lockstep("baseline", "approve", copy, "--reason", "one lane", "--keys", "pure-fp16/*")
    lockstep("baseline", "approve", copy, "--reason", "the rest")  # the proposal is still there
    assert not copy.with_name("mlp.json.proposed").exists()
    assert [entry["keys"] for entry in json.loads(copy.read_text())["history"]] == ["*", "pure-fp16/*", "*"]
    assert "IDENTICAL" in lockstep("check", "mlp", "--baseline", copy).stdout


def test_a_proposal_is_for_the_baseline_as_it_was(lockstep, copy):
    lockstep("baseline", "propose", copy, "--quiet")
    before = copy.read_text()
    copy.write_text(before.replace('"reason":"recorded"', '"reason":"edited"'))
    assert copy.read_text() != before
    error = lockstep("baseline", "approve", copy, "--reason", "r", code=2).stderr
    assert "which has changed since" in error and "baseline propose" in error
    copy.write_text(before)
    lockstep("baseline", "approve", copy, "--reason", "r")


def test_record_takes_no_options_that_do_nothing(lockstep, tmp_path):
    text = lockstep("baseline", "record", "--help").stdout
    for name, value in {
        "--twins": 1,
        "--nudge": 0,
        "--eval-every": 5,
        "--eval-examples": 5,
        "--eval-policy": "own",
        "--checkpoint-every": 5,
        "--resume": "x.h5",
    }.items():
        assert name not in text
        error = lockstep("baseline", "record", *QUICK, name, value, "-o", tmp_path / "b.json", code=2).stderr
        assert f"{name}: " in error and "leave it out" in error
    assert not list(tmp_path.iterdir()) and "--members" in text and "twin" not in text


def test_few_members_are_warned_of(lockstep, good, tmp_path):
    few = lockstep("baseline", "record", *QUICK, "-o", tmp_path / "few.json").stderr
    assert few == "Warning: 4 runs from weights moved by one ulp make wide limits: a small regression may pass.\n"
    assert not lockstep(
        "baseline", "record", *QUICK[:-3], "--members", 5, "--quiet", "-o", tmp_path / "more.json"
    ).stderr
    assert "4 runs from weights moved by one ulp make wide limits" in " ".join(
        lockstep("check", "mlp", "--baseline", good).stdout.split()
    )


def test_a_huge_file_is_no_baseline(lockstep, tmp_path):
    huge = tmp_path / "huge.json"
    with open(huge, "wb") as file:
        file.truncate((64 << 20) + 1)
    error = lockstep("check", "mlp", "--baseline", huge, code=2).stderr
    assert "huge.json': has more than 64 MiB" in error


def test_an_unfinished_run_is_no_baseline(lockstep, binary_dir, tmp_path):
    run = subprocess.Popen(
        [binary_dir / "lockstep", "replay", "mlp", "--steps", "100000", "-o", "part.h5", "--quiet"], cwd=tmp_path
    )
    try:
        deadline = time.time() + 60
        while not (tmp_path / "part.h5").exists() and time.time() < deadline:
            time.sleep(0.1)
        time.sleep(1)
    finally:
        run.send_signal(signal.SIGINT)
        run.wait(60)
    done = lockstep("check", "part.h5", "--baseline", "part.h5", cwd=tmp_path, code=2)
    assert "of 100000 steps are recorded" in done.stderr and "--resume" in done.stderr


def test_a_stopped_recording_leaves_nothing(binary_dir, tmp_path):
    run = subprocess.Popen(
        [binary_dir / "lockstep", "baseline", "record", "mlp", "--steps", "100000", "-o", "b.json", "--quiet"],
        cwd=tmp_path,
    )
    deadline = time.time() + 60
    while not list(tmp_path.glob("b.json.runs/*")) and time.time() < deadline:
        time.sleep(0.1)
    assert list(tmp_path.glob("b.json.runs/*"))
    run.send_signal(signal.SIGINT)
    assert run.wait(60) == 128 + signal.SIGINT
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "edit, says",
    [
        (lambda j: j["ensembles"]["ulps"].update(runs=-7), "do not fit together"),
        (lambda j: j.update(steps=2**62), "do not fit together"),
        (lambda j: j.update(options=5), "not a whole baseline"),
        (lambda j: j.update(options={}), "not a whole baseline"),
        (lambda j: j.update(version=2), "version 2"),
        (lambda j: j.update(format="other"), "not a baseline"),
        (
            lambda j: j["ensembles"]["ulps"]["lanes"]["fp32"]["magnitude"].update({"999999": [1, 1]}),
            "do not fit together",
        ),
        (
            lambda j: next(iter(j["ensembles"]["ulps"]["lanes"]["fp32"]["magnitude"].values())).__setitem__(1, -5),
            "do not fit together",
        ),
    ],
)
def test_odd_baselines_are_refused(lockstep, copy, edit, says):
    content = json.loads(copy.read_text())
    edit(content)
    copy.write_text(json.dumps(content))
    assert says in lockstep("check", "mlp", "--baseline", copy, code=2).stderr


def test_files_that_are_no_baseline(lockstep, copy, tmp_path):
    copy.write_text(copy.read_text()[:1000])
    assert "not a whole baseline" in lockstep("check", "mlp", "--baseline", copy, code=2).stderr
    copy.write_text("[" * 200_000)
    assert "nested deeper" in lockstep("check", "mlp", "--baseline", copy, code=2).stderr
    assert "no such file" in lockstep("check", "mlp", "--baseline", tmp_path / "none.json", code=2).stderr


def with_environment(path, to, **environment):
    content = json.loads(path.read_text())
    content["environment"].update(environment)
    to.write_text(json.dumps(content))


def test_a_folder_s_baseline_is_chosen_by_environment_and_policies(lockstep, good, tmp_path):
    folder = tmp_path / "baselines"
    said = lockstep("baseline", "record", *[word for word in QUICK if word != "--quiet"], "-o", f"{folder}/").stdout
    (here,) = folder.iterdir()
    assert re.fullmatch(r"mlp\.[0-9a-f]{8}-[0-9a-f]{8}\.baseline\.json", here.name) and here.name in said
    assert "exists" in lockstep("baseline", "record", *QUICK, "-o", folder, code=2).stderr
    with_environment(here, folder / "a.json", compiler="another")
    with_environment(here, folder / "b.json", compiler="another", kernels="others")
    (folder / "c.json").write_text("{}")
    lockstep("replay", *QUICK[:-3], "--twins", 0, "--quiet", "-o", tmp_path / "run.h5")
    for subject in ("mlp", tmp_path / "run.h5"):  # the exact one
        text = lockstep("check", subject, "--baseline", folder).stdout
        assert "IDENTICAL" in text and str(here) in text and "fits best" not in text
    here.rename(tmp_path / "away.json")
    for subject in ("mlp", tmp_path / "run.h5"):  # the nearest, and it says so
        lines = lockstep("check", subject, "--baseline", folder).stdout.splitlines()
        text = " ".join(lines[:8])
        assert f"Of the baselines in {folder}, a.json fits best; it was recorded with another compiler." in text
    result = json.loads(lockstep("check", "mlp", "--baseline", folder, "--json", "-").stdout)
    assert "a.json" in result["baseline"] and "fits best" in result["baseline_note"]
    with_environment(folder / "a.json", folder / "d.json")  # as good as a.json
    error = lockstep("check", "mlp", "--baseline", folder, code=2).stderr
    assert "a.json" in error and "d.json fit equally well" in error
    # A damaged baseline is an error, not passed over.
    (folder / "e.baseline.json").write_text("<<<<<<<\n")
    assert "e.baseline.json" in lockstep("check", "mlp", "--baseline", folder, code=2).stderr
    (folder / "e.baseline.json").unlink()
    (folder / "e.json").write_text((folder / "a.json").read_text()[:2000])
    assert "e.json" in lockstep("check", "mlp", "--baseline", folder, code=2).stderr
    (folder / "e.json").unlink()
    os.mkfifo(folder / "f.json")
    # Nothing comparable: another model, other lanes.
    result = json.loads(lockstep("check", "vae", "--baseline", folder, "--json", "-", code=3).stdout)
    jsonschema.validate(result, json.loads((SOURCE / "docs" / "check.schema.json").read_text()))
    assert "none of the baselines in" in result["headline"] and len(result["remarks"]) == 4
    lockstep(
        "replay",
        "mlp",
        "--batch",
        16,
        "--steps",
        4,
        "--lanes",
        "fp32,tf32",
        "--twins",
        0,
        "--quiet",
        "-o",
        tmp_path / "tf32.h5",
    )
    lockstep("check", tmp_path / "tf32.h5", "--baseline", folder, code=3)


def test_a_capture_chooses_from_a_folder(lockstep, tmp_path):
    capture = tmp_path / "tiny.lscap.h5"
    tiny_capture.write(capture, tiny_capture.make())
    record = ["baseline", "record", capture, "--lanes", "fp32,torch-autocast-bf16", "--members", 3, "--quiet", "-o"]
    lockstep(*record, f"{tmp_path}/baselines/")
    lockstep("baseline", "record", *QUICK, "-o", tmp_path / "baselines/")  # of another model
    text = lockstep("check", capture, "--baseline", tmp_path / "baselines").stdout
    assert "IDENTICAL" in text and "fits best" not in text


def test_of_recordings_at_the_same_time_one_wins_and_the_others_are_refused(binary_dir, tmp_path):
    for race in range(4):
        path = tmp_path / f"race{race}.json"
        command = [binary_dir / "lockstep", "baseline", "record", *map(str, QUICK), "-o", path]
        runs = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
        said = [run.communicate()[1] for run in runs]
        assert sorted(run.returncode for run in runs) == [0, 2, 2, 2], said
        for run, text in zip(runs, said, strict=True):
            assert run.returncode == 0 or "another program is writing it" in text or "exists" in text, text
        assert len(json.loads(path.read_text())["history"]) == 1
    assert len(list(tmp_path.iterdir())) == 4, "no folder of runs is left"
