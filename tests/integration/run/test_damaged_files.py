"""Files vouch for themselves: every reader refuses rows, descriptions and baselines that are not as they were written,
names the dataset, and reads what is whole if asked to. No answer changes silently after damage by chance."""

import dataclasses
import json
import re
import shutil
import subprocess
import urllib.request

import damage
import h5py
import numpy as np
import pytest
import tiny_capture as tiny
from conftest import assert_same_run
from lockstep_capture.read_run import RunFileError, read_run
from lockstep_capture.run_checksum import description_problem, first_damage
from unsealed import shorten, unseal

MODEL = ["mlp", "--size", "hidden1=16,hidden2=8", "--batch", "16"]
STEPS = 60
READERS = {
    "text": ["report", "run.h5"],
    "json": ["report", "run.h5", "--format", "json"],
    "html": ["report", "run.h5", "--format", "html"],
    "recommend": ["recommend", "run.h5", "--json"],
    "exact": ["check", "run.h5", "--exact", "--baseline", "good.h5"],
    "accepted": ["check", "good.h5", "--exact", "--baseline", "run.h5"],
}


@pytest.fixture(scope="module")
def good(lockstep, tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "run.h5"
    lockstep(
        "replay",
        *MODEL,
        "--steps",
        STEPS,
        "--lanes",
        "fp32,pure-fp16,autocast",
        "--sums-every",
        10,
        "-o",
        path,
        "--quiet",
    )
    return path


@pytest.fixture
def run(good, tmp_path):
    """A copy next to the original."""
    shutil.copy(good, tmp_path / "good.h5")
    return shutil.copy(good, tmp_path / "run.h5")


def change(path, name, row=None):
    """Another number, in the row or all rows, as a flipped bit makes it."""
    with h5py.File(path, "r+") as file:
        data = file[name]
        values = data[()]
        values.view(np.uint8).reshape(len(values), -1)[slice(None) if row is None else row, 0] ^= 1
        data[...] = values


ROWS = {
    "lanes/fp32/loss": 7,
    "lanes/fp32/seconds": 7,
    "lanes/autocast/counts/to_zero": 7,
    "lanes/autocast/moments/sum_sq": 7,
    "lanes/autocast/loss_scale/scale": 7,
}


@pytest.mark.parametrize("name", ROWS)
def test_a_changed_number_is_an_error_that_names_its_dataset(lockstep, run, name):
    change(run, name, ROWS[name])
    for reader in ("json", "exact") if name != "lanes/fp32/seconds" else ("json",):  # times are not compared
        error = lockstep(*READERS[reader], code=2, cwd=run.parent).stderr
        assert f"{name}: step 7: the checksum does not fit" in error and "--damaged" in error
    with pytest.raises(RunFileError, match=f"{name}: row 7: the checksum does not fit; 7 of 60 .* damaged=True"):
        read_run(run)


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_of_the_reference_compares(lockstep, run, reader):
    lockstep(*READERS[reader], cwd=run.parent)
    change(run, "lanes/fp32/moments/abs_max", 3)
    change(run, "lanes/fp32/exponent_histogram", 3)
    assert "is damaged: lanes/fp32/" in lockstep(*READERS[reader], code=2, cwd=run.parent).stderr


@pytest.mark.parametrize(
    "name",
    ["eval/loss", "sums/err_sq", "exponent_histogram_step", "exponent_histogram_50", "exponent_histogram_50_steps"],
)
def test_rows_of_every_kind_are_proven(lockstep, run, name):
    change(run, f"lanes/autocast/{name}")
    assert f"lanes/autocast/{name}: " in lockstep("verify", run, code=1).stdout
    with pytest.raises(RunFileError, match=f"lanes/autocast/{name}: row 0: the checksum does not fit"):
        read_run(run)


def shrink(file, name):
    data = file[name]
    data.resize(len(data) - 1, axis=0)


def set_type(file):
    values = file["lanes/autocast/counts/nan"][()]
    chunks, limits = file["lanes/autocast/counts/nan"].chunks, file["lanes/autocast/counts/nan"].maxshape
    del file["lanes/autocast/counts/nan"]
    file.create_dataset("lanes/autocast/counts/nan", data=values.astype(">u8"), chunks=chunks, maxshape=limits)
    file["lanes/autocast/counts/nan"][3] += 1


DESCRIPTIONS = {
    "fewer steps": lambda file: file.attrs.modify("steps_complete", np.int64(40)),
    "a lane that died": lambda file: file["lanes/autocast"].attrs.modify("died_at", np.int64(30)),
    "no checksum of it": lambda file: file.attrs.__delitem__("description_checksum"),
    "an older version": lambda file: file.attrs.modify("format_version", np.int64(3)),
    "no checksums": lambda file: file.__delitem__("lanes/autocast/checksums/samples"),
    "a quantity less": lambda file: file.__delitem__("lanes/autocast/gradient_norm"),
    "another name": lambda file: file.move("lanes/autocast/updates/stagnant_sq", "lanes/autocast/updates/stagnant_sr"),
    "an evaluation less": lambda file: shrink(file, "lanes/autocast/eval/steps_done"),
    "a histogram less": lambda file: shrink(file, "lanes/autocast/exponent_histogram_step"),
    "another site": lambda file: file["sites/layer"].__setitem__(0, b"x"),
    "another option": lambda file: file.attrs.modify("options", file.attrs["options"].replace(b"0.05", b"0.06")),
    "another type": set_type,
}


@pytest.mark.parametrize("what", DESCRIPTIONS)
def test_a_changed_description_is_an_error(lockstep, run, what):
    with h5py.File(run, "r+") as file:
        DESCRIPTIONS[what](file)
    assert re.search("does not fit|is missing|has .* rows, its checksums", lockstep("report", run, code=2).stderr)
    with pytest.raises(RunFileError):
        read_run(run)


def test_what_is_whole_is_read_if_asked_to(lockstep, run):
    whole = json.loads(lockstep("report", run, "--format", "json").stdout)
    change(run, "lanes/autocast/counts/to_zero", 31)
    change(run, "lanes/pure-fp16/loss", 42)
    done = lockstep("report", run, "--format", "json", "--damaged")
    assert (
        "lanes/autocast/counts/to_zero: step 31: the checksum does not fit. 31 steps before it are read" in done.stderr
    )
    report = json.loads(done.stdout)
    damage_text = "lanes/autocast/counts/to_zero: step 31: the checksum does not fit"
    assert report["steps"] == 31 and whole["steps"] == STEPS
    assert report["damage"] == damage_text and "damage" not in whole
    sentence = f"The run file is damaged: {damage_text}. This report is of the 31 steps before it."
    for form in ("text", "html", "markdown"):
        shown = lockstep("report", run, "--format", form, "--damaged").stdout
        assert sentence in re.sub(r"\s+", " ", re.sub("<[^>]*>|[*]{2}|\\\\", "", shown)), form
        assert (
            "file is damaged" not in lockstep("report", "good.h5", "--format", form, "--damaged", cwd=run.parent).stdout
        )
    with pytest.warns(UserWarning, match="row 31: the checksum does not fit; 31 of 60 steps are before it"):
        table = read_run(run, damaged=True)
    assert table.steps_complete == 31 and "to_zero" in table.damage
    assert table.steps.equals(read_run(run.parent / "good.h5").steps.groupby("lane", sort=False).head(31))
    done = lockstep("report", "good.h5", "--damaged", cwd=run.parent)
    assert "good.h5: no damage was found" in done.stderr


def test_python_and_the_program_agree_on_every_file(lockstep, good, tmp_path):
    """Lane names with escapes, several losses, scalers and seeds, a lane that died."""
    policy = tmp_path / "half.toml"
    policy.write_text('extends = "pure-fp16"\n')
    lanes = ["fp32", str(policy)]
    lockstep(
        "replay",
        "detector",
        "--steps",
        3,
        "--lanes",
        ",".join(lanes),
        "--seeds",
        2,
        "-o",
        tmp_path / "two.h5",
        "--quiet",
    )
    for path in (good, tmp_path / "two.h5"):
        lockstep("verify", path)
        with h5py.File(path) as file:
            for group in (file, *file.get("seeds", {}).values()):
                assert description_problem(group) == ""
                assert first_damage(group, int(group.attrs["steps_complete"]))[0] == ""


def test_files_of_earlier_versions_say_that_they_hold_no_checksums(lockstep, run):
    with h5py.File(run, "r+") as file:
        unseal(file)
    change(run, "lanes/fp32/seconds", 7)
    for reader in ("json", "exact", "recommend"):
        done = lockstep(*READERS[reader], cwd=run.parent)
        assert done.stderr.count("run.h5: an earlier version wrote it, without checksums") == 1, done.stderr
    with pytest.warns(UserWarning, match="without checksums"):
        assert read_run(run).steps_complete == STEPS


def test_damage_by_chance_changes_no_answer_without_a_word(binary_dir, tmp_path):
    """A sample of `./dev study damage`: each reader of each kind of file a few times."""
    capture = tiny.write(tmp_path / "net.h5", tiny.make(steps=4))
    campaign = damage.Campaign(binary_dir, tmp_path / "files", capture, seed=46)
    for number, reader in enumerate(campaign.chosen * 3):
        campaign.read_damaged(reader, list(damage.DAMAGES)[number % len(damage.DAMAGES)])
    print("\n" + campaign.table())
    assert not campaign.harmful, "\n".join(campaign.harmful)
    refused = sum(counts["named"] + counts["refused"] for counts in campaign.counts.values())
    assert refused > len(campaign.chosen)


def test_another_answer_and_a_crash_are_found():
    reader = damage.Reader("run file", "report", "run.h5", read=lambda folder: None)
    whole = damage.Answer(0, "loss 1")
    for found, outcome in (
        (whole, "same"),
        (damage.Answer(0, "loss 2", "note: another"), "silent"),
        (damage.Answer(1, "loss 1"), "silent"),
        (damage.Answer(2, "", "lanes/fp32/loss: step 3: the checksum does not fit"), "named"),
        (damage.Answer(2, "", "not an HDF5 file"), "refused"),
        (damage.Answer(2, "", "internal error: bad cast"), "crash"),
        (damage.Answer(-11, ""), "crash"),
    ):
        assert damage.outcome_of(reader, whole, found) == outcome, found
    merged = damage.Answer(0, '{"baseline_note": "merged or edited by hand, or is damaged"}')
    assert damage.outcome_of(reader, whole, merged) == "silent"
    assert damage.outcome_of(dataclasses.replace(reader, kind="baseline"), whole, merged) == "noted"


@pytest.fixture
def baseline(lockstep, tmp_path):
    path = tmp_path / "mlp.baseline.json"
    lockstep("baseline", "record", *MODEL, "--steps", 5, "--members", 2, "-o", path, "--quiet")
    return path


def test_a_baseline_that_was_edited_says_so(lockstep, baseline):
    check = ["check", "mlp", "--baseline", baseline, "--json", "-"]
    assert "baseline_note" not in json.loads(lockstep(*check).stdout)
    text = baseline.read_text()
    baseline.write_text(text.replace('"reason":"recorded"', '"reason":"merged"'))
    assert "merged or edited by hand, or is damaged" in json.loads(lockstep(*check).stdout)["baseline_note"]
    assert "merged or edited by hand" in lockstep("baseline", "diff", baseline, baseline).stderr
    baseline.write_text(re.sub(r'"checksum": "[0-9a-f]{16}",', "", text))
    assert "without a checksum" in json.loads(lockstep(*check).stdout)["baseline_note"]


def test_a_snapshot_that_is_damaged_is_not_shown(binary_dir, lockstep, tmp_path):
    lockstep("replay", *MODEL, "--steps", 3, "--lanes", "fp32", "-o", tmp_path / "run.h5", "--quiet")
    snapshot = tmp_path / "run.h5.progress.json"
    text = snapshot.read_text()
    for written, sentence in (
        (text, "The run has finished: 3 steps."),
        (text.replace('"steps":3', '"steps":7'), "is damaged"),
    ):
        snapshot.write_text(written)
        live = subprocess.Popen(
            [binary_dir / "lockstep", "report", "--live", tmp_path / "run.h5"], stdout=subprocess.PIPE
        )
        try:
            port = int(re.search(rb":(\d+)/", live.stdout.readline())[1])
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/snapshot.json", timeout=30) as answer:
                assert sentence in json.load(answer)["sentence"]
        finally:
            live.kill()
            live.wait()


def test_a_damaged_verification_of_a_capture_is_an_error(lockstep, tmp_path):
    tiny.write(tmp_path / "net.h5", tiny.make(steps=4))
    lockstep("replay", "net.h5", "--lanes", "fp32", "-o", "run.h5", "--quiet", cwd=tmp_path)
    lockstep("verify", "net.h5", cwd=tmp_path)
    path = tmp_path / "net.h5.verify.json"
    text = path.read_text()
    assert "passed: " in lockstep("report", "run.h5", cwd=tmp_path).stdout
    for other in (text.replace("PASS", "PESS", 1), text[:100], text[20:]):
        path.write_text(other)
        for command in (["report", "run.h5"], ["replay", "net.h5", "--lanes", "fp32", "-o", "next.h5"]):
            error = lockstep(*command, code=2, cwd=tmp_path).stderr
            assert "net.h5.verify.json' is damaged: its checksum does not fit" in error
            assert "lockstep verify net.h5" in error
    earlier = json.loads(text)
    del earlier["checksum"]
    path.write_text(json.dumps(earlier))
    assert "passed: " in lockstep("report", "run.h5", cwd=tmp_path).stdout


def test_a_damaged_proposal_is_not_approved(lockstep, baseline):
    lockstep("baseline", "propose", baseline, "--quiet")
    proposal = baseline.with_name(baseline.name + ".proposed")
    proposal.write_text(proposal.read_text().replace('"reason":"recorded"', '"reason":"recordee"'))
    before = baseline.read_bytes()
    error = lockstep("baseline", "approve", baseline, "--reason", "tried", code=2).stderr
    assert "is damaged: its checksum does not fit" in error and "baseline propose" in error
    assert baseline.read_bytes() == before


def test_of_two_searches_in_one_folder_one_is_refused_before_its_runs(binary_dir, lockstep, tmp_path):
    search = ["recommend", *MODEL, "--steps", 400]
    first = subprocess.Popen([binary_dir / "lockstep", *map(str, search)], cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        lock = tmp_path / "mlp.recommend.lock"
        while not lock.exists():
            assert first.poll() is None
        begin = sorted((tmp_path / "mlp.recommend").glob("*.h5"))
        error = lockstep(*search, "--seed", 9, cwd=tmp_path, code=2).stderr
        assert "'mlp.recommend': another program is writing it" in error
        assert first.poll() is None, "the first must still run"
        assert len(begin) <= 1
    finally:
        first.kill()
        first.wait()


def test_kept_runs_of_a_search_that_are_damaged_are_run_again(lockstep, tmp_path):
    search = ["recommend", *MODEL, "--steps", 12, "--json"]
    first = lockstep(*search, cwd=tmp_path).stdout
    kept = sorted((tmp_path / "mlp.recommend").glob("*.h5"))
    assert kept
    for path in kept:
        change(path, "lanes/fp32/loss", 5)
    again = json.loads(lockstep(*search, cwd=tmp_path).stdout)
    assert again["cost"]["read_again"] == 0 if "cost" in again else True
    drop = re.compile(r'"(read_again|replays)": *\d+')
    assert drop.sub("", json.dumps(again)) == drop.sub("", json.dumps(json.loads(first)))
    lockstep("verify", kept[0])


def test_a_kept_run_that_a_kill_left_without_its_sums_is_run_again(lockstep, tmp_path):
    search = ["recommend", *MODEL, "--steps", 12, "--json"]
    first = lockstep(*search, cwd=tmp_path).stdout
    for path in (tmp_path / "mlp.recommend").glob("*.h5"):
        with h5py.File(path, "r+") as file:
            for lane in file["lanes"].values():
                for name in ("exponent_histogram_50", "exponent_histogram_50_steps", "checksums/blocks"):
                    lane[name].resize(0, axis=0)  # they are written after the last step
        lockstep("verify", path)
    assert lockstep(*search, cwd=tmp_path).stdout == first


def test_a_run_that_was_killed_as_it_ended_is_completed(lockstep, good, run):
    """Columns of the last sums and evaluation are committed one after the other."""
    for name in ("checksums/blocks", "exponent_histogram_50", "checksums/evaluations", "eval/loss"):
        shutil.copy(good, run)  # the checkpoints next to it are those of the run that the last case completed
        with h5py.File(run, "r+") as file:
            shrink(file, f"lanes/autocast/{name}")
        assert "rows, its checksums" in lockstep("report", run, code=2).stderr, "a closed run has all of them"
        with h5py.File(run, "r+") as file:
            shorten(file, int(file.attrs["steps_complete"]))  # nobody closed it
        lockstep("report", run)
        lockstep("verify", run)
        lockstep("replay", "--resume", run, "--quiet")
        assert assert_same_run(good, run) > 50
