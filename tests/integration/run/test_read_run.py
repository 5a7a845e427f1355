"""read_run: run files as pandas tables, against the same numbers read with h5py alone."""

import os
import shutil

import h5py
import numpy as np
import pandas as pd
import pytest
from lockstep_capture.read_run import read_run
from lockstep_capture.run_file import RunFileError, unescape_name
from unsealed import unseal

STEPS = 70
LANES = ["fp32", "torch-autocast-fp16@hopper", "pure-fp16", "twin"]


@pytest.fixture(scope="module")
def run_path(lockstep, tmp_path_factory):
    path = tmp_path_factory.mktemp("read_run") / "run.h5"
    lockstep(
        "replay",
        "lenet",
        "--data",
        "synthetic:200",
        "--steps",
        STEPS,
        "--batch",
        8,
        "--lr",
        2,
        "--eval-every",
        30,
        "--lanes",
        ",".join(LANES),
        "-o",
        path,
    )
    return path


@pytest.fixture(scope="module")
def run(run_path):
    return read_run(run_path)


@pytest.fixture
def damaged(run_path, tmp_path):
    """A copy to damage: damaged(function of the open file) gives its path."""

    def make(damage):
        path = tmp_path / "copy.h5"
        shutil.copy(run_path, path)
        with h5py.File(path, "r+") as file:
            unseal(file)
            damage(file)
        return path

    return make


def test_lanes_and_sites(run, run_path):
    assert list(run.lanes.index) == LANES, "the order of the run"
    assert run.lanes.loc["fp32", "is_reference"] and not run.lanes.loc["twin", "is_reference"]
    assert run.lanes.loc["torch-autocast-fp16@hopper", "target"] == "hopper"
    assert run.steps_complete == STEPS and run.options["steps"] == STEPS
    with h5py.File(run_path) as file:
        count, layers = file["sites/count"][()], file["sites/layer"].asstr()[()]
    assert (run.sites["count"] == count).all() and (run.sites["layer"] == layers).all()
    assert run.sites["shape"].map(np.prod).eq(run.sites["count"]).all(), "shapes are lists of numbers"
    assert len(run.products) > 5 and run.policies["fp32"]


def test_a_dead_lane_has_no_rows_after_its_death(run, run_path):
    died_at = run.lanes.loc["pure-fp16", "died_at"]
    assert 0 < died_at < STEPS, "this run is meant to kill pure-fp16"
    assert pd.isna(run.lanes.loc["fp32", "died_at"])
    assert len(run.steps.loc["pure-fp16"]) == died_at and len(run.steps.loc["fp32"]) == STEPS
    table = run.statistics("pure-fp16", "count")
    assert table.index.get_level_values("step").max() == died_at - 1
    assert run.histograms("pure-fp16").index.get_level_values("step").max() < died_at


def test_steps_equal_the_file(run, run_path):
    with h5py.File(run_path) as file:
        group = file["lanes/torch-autocast-fp16@hopper"]
        table = run.steps.loc["torch-autocast-fp16@hopper"]
        np.testing.assert_array_equal(table["loss"], group["loss"][()])
        np.testing.assert_array_equal(table["scale"], group["loss_scale/scale"][:, 0])
        found = group["loss_scale/found_inf"][:, 0] != 0
        assert found.any(), "this run is meant to overflow once"
        assert (table["found_inf"].to_numpy(bool) == found).all()
        culprit = group["loss_scale/culprit_site"][:, 0]
        assert (table["culprit_site"].isna().to_numpy() == (culprit == -1)).all()
        assert (table["culprit_site"].dropna() == culprit[culprit != -1]).all()
    assert table["gradient_norm"].isna().all(), "not measured without --clip-norm"


def test_statistics_are_missing_where_nothing_was_measured(run, run_path):
    lane = "torch-autocast-fp16@hopper"
    table = run.statistics(lane)
    with h5py.File(run_path) as file:
        counts = file[f"lanes/{lane}/counts"]
        count, to_zero = counts["count"][()], counts["to_zero"][()]
        err_sq = file[f"lanes/{lane}/moments/err_sq"][()]
    wide = run.wide("to_zero", lane)
    assert wide.shape == count.shape
    assert (wide.isna().to_numpy() == (count == 0)).all(), "<NA> where the lane lacks the site, only there"
    assert (count == 0).any() and (to_zero[count > 0] > 0).any()
    assert (wide.fillna(0).to_numpy(np.uint64) == to_zero).all()
    measured = table.dropna(subset=["to_zero"])
    step, site = (measured.index.get_level_values(name) for name in ("step", "site"))
    np.testing.assert_array_equal(measured["err_sq"], err_sq[step, site])
    updates = table["update_count"] > 0
    assert updates.any() and table.loc[~updates, "update_stagnant"].isna().all()
    reference = run.statistics("fp32", ["count", "bits_hash"])
    assert reference["bits_hash"].isna().eq(reference["count"] == 0).all()


def test_some_steps_and_named_columns(run):
    table = run.statistics("fp32", ["count"], steps=[3, 60])
    assert set(table.index.get_level_values("step")) == {3, 60}
    wide = run.wide("abs_max", "fp32", steps=[5], site_names=True)
    assert wide.columns.names == ["site", "layer", "op", "role", "point"] and list(wide.index) == [5]
    assert len(wide.columns) == len(run.sites)


def test_histograms_sum_to_counts(run):
    histograms = run.histograms("fp32")
    counts = run.statistics("fp32", "count")["count"].reindex(histograms.index)
    assert len(histograms) > 1000
    assert (histograms.sum(axis=1).to_numpy() == counts.to_numpy(np.uint64)).all()
    blocks = run.histograms("fp32", blocks=True)
    assert set(blocks["steps"]) == {50, STEPS - 50}
    summed = blocks.drop(columns="steps").groupby("site").sum().sum(axis=1)
    count = run.statistics("fp32", "count")["count"].groupby("site").sum()
    assert (summed == count[count > 0].astype(np.uint64)).all()
    sums = run.sums("fp32")
    assert (sums["samples"] > 0).all() and len(sums) > 0


def test_rows_behind_steps_complete_are_not_shown(damaged, run):
    path = damaged(lambda file: file.attrs.modify("steps_complete", np.int64(7)))
    short = read_run(path)
    assert short.steps_complete == 7
    assert short.steps.groupby("lane").size().eq(7).all()
    assert short.wide("count", "fp32").shape[0] == 7
    assert short.histograms("fp32").index.get_level_values("step").max() == 6
    assert len(short.histograms("fp32", blocks=True)) == 0, "the sums cover 50 steps"
    assert short.evaluations.empty or short.evaluations.index.get_level_values("steps_done").max() <= 7
    assert pd.isna(short.lanes.loc["pure-fp16", "died_at"]), "it died later"


def test_what_a_lane_did_not_record_is_missing(damaged):
    def damage(file):
        lane = file["lanes/twin"]
        for name in ("gradient_norm", "seconds", "counts", "exponent_histogram_step", "sums"):
            del lane[name]
        del lane["loss_scale/found_inf"]

    run = read_run(damaged(damage))
    assert run.steps.loc["twin"]["found_inf"].isna().all() and run.steps.loc["twin"]["seconds"].isna().all()
    assert run.steps.loc["fp32"]["found_inf"].notna().all()
    assert "to_zero" not in run.statistic_names("twin") and "to_zero" in run.statistic_names("fp32")
    with pytest.raises(KeyError, match="to_zero.*there are: .*abs_max"):
        run.statistics("twin", "to_zero")
    assert run.histograms("twin").empty and run.sums("twin").empty


def test_lane_names_are_unescaped(damaged):
    assert [unescape_name(name) for name in ("a%2Fb%25c", "%252F", "%2E", "x.toml")] == ["a/b%c", "%2F", ".", "x.toml"]
    run = read_run(damaged(lambda file: file.move("lanes/twin", "lanes/my%2F50%25.toml")))
    assert "my/50%.toml" in run.lanes.index
    assert len(run.statistics("my/50%.toml", "count")) > 0
    with pytest.raises(KeyError, match="no lane 'twin'; there are: fp32, .*my/50%.toml"):
        run.wide("count", "twin")


def test_errors_name_the_problem(damaged, tmp_path):
    with pytest.raises(RunFileError, match="no such file; `lockstep replay"):
        read_run(tmp_path / "none.h5")
    text = tmp_path / "text.h5"
    text.write_text("step,loss\n0,1\n")
    with pytest.raises(RunFileError, match="HDF5 cannot open it"):
        read_run(text)
    with pytest.raises(RunFileError, match="format is 'lockstep-capture', must be 'lockstep-run'.*capture"):
        read_run(damaged(lambda file: file.attrs.create("format", "lockstep-capture")))
    with pytest.raises(RunFileError, match="format_version is 5, must be 1 ... 4"):
        read_run(damaged(lambda file: file.attrs.modify("format_version", np.int64(5))))

    for text in ('{"seed" 1}', "[1]", '{"seed":"one"}'):
        with pytest.raises(RunFileError, match="its contents are not those of a run file"):
            read_run(damaged(lambda file: file.attrs.create("options", text)))

    def damage(file):
        del file["lanes/fp32/loss"], file["lanes/twin/counts/to_zero"]
        file["lanes/fp32/loss"] = np.zeros(3)
        file["lanes/twin/counts/to_zero"] = np.zeros((STEPS, 5), np.uint64)

    with pytest.raises(RunFileError) as error:
        read_run(damaged(damage))
    assert "2 problem(s)" in str(error.value)
    assert f"/lanes/fp32/loss has shape (3,), must have {STEPS} rows" in str(error.value)
    assert "/lanes/twin/counts/to_zero has shape" in str(error.value)


def test_files_of_unknown_origin(damaged, tmp_path):
    """HDF5 may crash on such files, so a child process reads them first."""
    with pytest.raises(RunFileError, match="claims more than the .* bytes that fit a file of this size"):
        read_run(damaged(lambda file: file["lanes/fp32/loss"].resize((2**50,))))
    with pytest.raises(RunFileError, match="HDF5 cannot read all of it"):
        read_run(damaged(lambda file: file.__setitem__("sites/x", h5py.ExternalLink("/etc/passwd", "/"))))
    os.mkfifo(tmp_path / "pipe.h5")
    with pytest.raises(RunFileError, match="not a regular file"):
        read_run(tmp_path / "pipe.h5")
    whole = bytearray(damaged(lambda file: None).read_bytes())
    rng, path = np.random.default_rng(20261126), tmp_path / "flipped.h5"
    refused = 0
    for _ in range(100):
        changed = bytearray(whole)
        # Structure lies at the front and between the datasets' chunks.
        changed[int(rng.integers(8, min(len(whole), 40_000)))] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        try:
            read_run(path)
        except RunFileError:
            refused += 1
    assert 5 < refused < 95


def test_seeds(lockstep, tmp_path):
    """Every seed reads as a run of its own; the first one by default."""
    path = tmp_path / "seeds.h5"
    args = ["replay", "mlp", "--data", "synthetic:100", "--steps", 4, "--batch", 8, "--lanes", "tf32", "--quiet"]
    lockstep(*args, "--seed", 9, "--seeds", 2, "-o", path)
    runs = [read_run(path), read_run(path, seed=9), read_run(path, seed=10)]
    assert [run.seeds for run in runs] == [[9, 10]] * 3
    assert [run.seed for run in runs] == [run.options["seed"] for run in runs] == [9, 9, 10]
    assert list(runs[2].lanes.index) == ["fp32", "tf32", "twin"], "a twin runs by default"
    alone = tmp_path / "alone.h5"
    lockstep(*args, "--seed", 10, "-o", alone)
    alone = read_run(alone)
    assert alone.seeds == [10]
    pd.testing.assert_frame_equal(runs[2].steps.drop(columns="seconds"), alone.steps.drop(columns="seconds"))
    pd.testing.assert_frame_equal(runs[2].statistics("tf32"), alone.statistics("tf32"))
    assert not runs[0].steps["loss"].equals(runs[2].steps["loss"])
    with pytest.raises(KeyError, match="no seed 11; there are: 9, 10"):
        read_run(path, seed=11)


def test_steps_that_only_counted(lockstep, tmp_path):
    path = tmp_path / "run.h5"
    lockstep(
        "replay",
        "mlp",
        "--data",
        "synthetic:100",
        "--steps",
        3,
        "--batch",
        8,
        "--lanes",
        "fp32,pure-fp16",
        "--statistics",
        "health",
        "-o",
        path,
    )
    table = read_run(path).statistics("pure-fp16", ["count", "to_zero", "compared", "bits_hash", "scale", "abs_max"])
    first, later = table.xs(0, level="step"), table.xs(2, level="step")
    assert first.notna().all(axis=None) and 0 < len(later) < len(first)
    assert later[["count", "to_zero"]].notna().all(axis=None) and (later["count"] > 0).all()
    assert later[["compared", "bits_hash", "scale", "abs_max"]].isna().all(axis=None)
