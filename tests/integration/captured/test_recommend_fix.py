"""`lockstep recommend --fix LANE`: the fix it names removes the planted fault, and what it says about it."""

import json
import re
import signal
import subprocess
import time

import hand_planted as planted
import pytest

FAULTS = {fault.name: fault for fault in planted.FAULTS}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return tmp_path_factory.mktemp("captures")


@pytest.fixture
def captures(recorded, tmp_path):
    """captures(NAME): a file in the test's own folder, where its search is kept, too."""

    def capture(name):
        path = recorded / f"{re.sub('[^a-z0-9]+', '_', name)}.h5"
        if not path.exists():
            planted.capture_without_scaler(path) if name == "no scaler" else planted.capture(FAULTS[name], path)
        (tmp_path / path.name).symlink_to(path)
        return tmp_path / path.name

    return capture


def fix(lockstep, capture, lane, folder, *options, code=0):
    done = lockstep("recommend", capture, "--fix", lane, "--json", *options, code=code, cwd=folder)
    return json.loads(done.stdout)


def report(lockstep, folder, capture, *options):
    """The lane fix.toml of a replay, as a user would run it."""
    lockstep(
        "replay",
        capture,
        "--cycle",
        "--steps",
        60,
        "--lanes",
        "fp32,fix.toml",
        "--quiet",
        *options,
        "-o",
        "run.h5",
        cwd=folder,
    )
    found = json.loads(lockstep("report", "run.h5", "--format", "json", cwd=folder).stdout)
    return next(one for one in found["lanes"] if one["name"] == "fix.toml")


@pytest.mark.parametrize(
    "name,lane,words,line",
    [
        ("square before a norm", "half", "planted pow in fp32", 'op = "pow"'),
        ("weights too large to store", "half", "weight planted.fc.weight kept in fp32", 'point = "storage"'),
        ("adam's squares overflow", "half", "optimizer state and arithmetic in fp32", 'state = "fp32"'),
        ("a large offset", "torch-autocast-bf16", "planted add in fp32", 'op = "add"'),
        ("no scaler", "torch-autocast-fp16", "a dynamic loss scale (GradScaler)", 'kind = "torch-dynamic"'),
    ],
)
def test_the_fix_removes_the_fault(lockstep, captures, tmp_path, name, lane, words, line):
    capture = captures(name)
    found = fix(lockstep, capture, lane, tmp_path, "-o", "fix.toml")
    chosen = found["tried"][found["fix"]]
    assert found["answer"] == "fixed" and [edit["words"] for edit in chosen["edits"]] == [words]
    assert found["sentence"].startswith(
        (
            f"Fixed: {words} removes the fault ({found['finding']}): loss ",
            f"Finding removed: {words} ({found['finding']}): loss ",
        )
    )
    assert chosen["gap"] <= chosen["tolerance"] and line in chosen["edits"][0]["toml"]
    after = report(lockstep, tmp_path, capture)
    assert after["loss"] == chosen["loss"]
    assert found["before"]["findings"][0] not in [one["kind"] for one in after["findings"]]


def test_the_text_says_fix_lines_and_what_else_was_tried(lockstep, captures, tmp_path):
    capture = captures("log of a number that vanishes")
    text = lockstep("recommend", capture, "--fix", "half", "--quiet", cwd=tmp_path).stdout
    assert text.startswith("Fixed: planted log and mul in fp32 removes the fault (planted log (hand_planted.py:")
    assert '    [[rule]]\n    compute = "fp32"\n    layer = "planted"\n    op = "log"\n' in text
    assert "    x = op(x.float())  # planted mul (hand_planted.py:" in text and "torch.autocast(" not in text
    assert re.search(r"as it is +NaN +- +broke +invalid operation", text)
    assert re.search(r"planted log in fp32 +NaN", text) and re.search(r"\* planted log and mul in fp32 +1\.42", text)
    assert "Untested, because no key of a policy, option or rewrite of this graph does it: a larger eps." in text
    again = lockstep("recommend", capture, "--fix", "half", "--quiet", cwd=tmp_path).stdout
    assert re.search(r"replays read from \S+/log_of_a_number_that_vanishes\.recommend", again.replace("\n", " "))
    assert again.splitlines()[:3] == text.splitlines()[:3]


def test_a_rewrite_of_the_graph_is_run_as_well(lockstep, captures, tmp_path):
    """The factor on attention scores goes to the queries; a replay with the same option does the same."""
    capture = captures("attention scores beyond 65504")
    found = fix(lockstep, capture, "half", tmp_path)
    tried = next(one for one in found["tried"] if one["edits"][0].get("rewrites"))
    (text,) = tried["edits"][0]["rewrites"]
    assert text.startswith("scale_first:n") and tried["gone"] and not tried["findings"]
    lockstep(
        "replay",
        capture,
        "--cycle",
        "--steps",
        60,
        "--lanes",
        "fp32,half",
        "--rewrite",
        text,
        "--quiet",
        "-o",
        "run.h5",
        cwd=tmp_path,
    )
    lane = json.loads(lockstep("report", "run.h5", "--format", "json", cwd=tmp_path).stdout)["lanes"]
    half = next(one for one in lane if one["name"] == "half")
    assert half["loss"] == tried["loss"] and not half["findings"]


def test_a_number_of_the_loop_is_changed(lockstep, captures, tmp_path):
    """Clipping keeps Adam's squares small; the captured loop does not clip."""
    capture = captures("adam's squares overflow")
    found = fix(lockstep, capture, "half", tmp_path)
    clipped = next(one for one in found["tried"] if one["edits"][0].get("changes"))
    assert clipped["edits"][0]["changes"] == {"clip_norm": 1.0} and "state overflow" not in clipped["findings"]
    said = lockstep("replay", capture, "--change", "momentum=0.5", "-o", "x.h5", code=2, cwd=tmp_path).stderr
    assert "--change momentum: its optimizer, adam, has no such number" in said


def test_a_run_file_says_model_options_and_policy(lockstep, captures, tmp_path):
    policy = tmp_path / "mine.toml"
    policy.write_text('extends = "torch-autocast-fp16"\n[[rule]]\nlayer = "fc2"\nloss_scale = 16777216.0\n')
    lockstep(
        "replay",
        "mlp",
        "--size",
        "hidden1=16,hidden2=16",
        "--data",
        "synthetic:400",
        "--batch",
        16,
        "--steps",
        36,
        "--lanes",
        "fp32,mine.toml",
        "--quiet",
        "-o",
        "run.h5",
        cwd=tmp_path,
    )
    policy.unlink()
    found = fix(lockstep, "run.h5", "mine.toml", tmp_path)
    assert found["answer"] == "fixed" and found["steps"] == 36
    assert found["tried"][found["fix"]]["edits"][0]["words"] == "fc2 in fp32"
    capture = captures("square before a norm")
    moved = tmp_path / "moved.h5"
    moved.write_bytes(capture.read_bytes())
    lockstep("replay", "moved.h5", "--lanes", "fp32,half", "--quiet", "-o", "captured.h5", cwd=tmp_path)
    assert fix(lockstep, "captured.h5", "half", tmp_path, "--steps", 60)["answer"] == "fixed"
    moved.unlink()
    said = lockstep("recommend", "captured.h5", "--fix", "half", code=2, cwd=tmp_path).stderr
    assert "its capture 'moved.h5' is not there" in said and "name the capture" in said


def test_where_nothing_is_wrong_or_nothing_helps_it_says_so(lockstep, captures, tmp_path):
    fine = fix(lockstep, captures("nothing"), planted.FP16, tmp_path)
    assert fine["answer"] == "nothing_wrong" and fine["sentence"].startswith(
        "Nothing to fix: torch-autocast-fp16 has no finding; but fp32 itself"
    )
    capture = captures("square before a norm")
    none = fix(lockstep, capture, "half", tmp_path, "--budget", 0, "-o", "fix.toml", code=3)
    assert none["answer"] == "nothing_helped" and "--budget" in none["sentence"]
    assert not (tmp_path / "fix.toml").exists()
    for lane, said in (("fp32", "has no policy to change"), ("halff", "did you mean 'half'?")):
        assert said in lockstep("recommend", capture, "--fix", lane, code=2, cwd=tmp_path).stderr
    said = lockstep("recommend", capture, "--fix", "half", "--prove", "--formats", "fp16", code=2, cwd=tmp_path).stderr
    assert "--prove: not with --fix" in said and "--formats: not with --fix" in said


def test_a_stopped_fix_goes_on(lockstep, binary_dir, captures, tmp_path):
    options = ["--fix", "half", "--steps", "400"]
    capture = captures("square before a norm")
    process = subprocess.Popen(
        [str(binary_dir / "lockstep"), "recommend", str(capture), *options, "--quiet"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    folder = tmp_path / f"{capture.stem}.recommend"
    while not list(folder.glob("*.h5")):
        assert process.poll() is None
        time.sleep(0.005)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, said = process.communicate()
    assert process.returncode == 130 and not output and "The same command goes on from there." in said
    assert fix(lockstep, capture, *options[1:2], tmp_path, *options[2:])["answer"] == "fixed"
