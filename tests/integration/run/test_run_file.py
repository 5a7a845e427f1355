"""The run file as others read it: h5py and h5dump, and the invariants of its numbers."""

import json
import os
import shutil
import subprocess

import h5py
import numpy as np
import pytest
from unsealed import unseal

LANES = ["fp32", "torch-autocast-fp16", "torch-autocast-bf16", "tf32", "pure-fp16"]
STEPS = 25


@pytest.fixture(scope="module")
def run_file(lockstep, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run.h5"
    lockstep(
        "replay",
        "lenet",
        "--data",
        "synthetic:500",
        "--steps",
        STEPS,
        "--batch",
        8,
        "--lanes",
        ",".join(LANES),
        "-o",
        path,
    )
    return path


def test_h5dump_opens_it(run_file):
    if shutil.which("h5dump") is None:
        pytest.skip("h5dump is not installed")
    done = subprocess.run(["h5dump", "-H", str(run_file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "exponent_histogram" in done.stdout


def test_attributes(run_file):
    with h5py.File(run_file, "r") as file:
        assert file.attrs["format"] in ("lockstep-run", b"lockstep-run")
        assert int(file.attrs["format_version"]) == 4
        assert int(file.attrs["steps_complete"]) == STEPS
        assert sorted(file["lanes"]) == sorted([*LANES, "twin"])


def test_histograms_sum_to_counts(run_file):
    checked = 0
    with h5py.File(run_file, "r") as file:
        for lane in LANES:
            group = file["lanes"][lane]
            count = group["counts/count"][()]
            steps = group["exponent_histogram_step"][()]
            histograms = group["exponent_histogram"][()]
            assert histograms.shape[0] == len(steps) >= 20
            for record, step in enumerate(steps):
                sums = histograms[record].sum(axis=1, dtype=np.uint64)
                assert np.array_equal(sums, count[step]), (lane, int(step))
                checked += len(sums)
            total = group["exponent_histogram_50"][()].sum(axis=(0, 2), dtype=np.uint64)
            assert np.array_equal(total, count[:STEPS].sum(axis=0, dtype=np.uint64)), lane
    assert checked > 1000


def test_counts_are_consistent(run_file):
    with h5py.File(run_file, "r") as file:
        for lane in LANES:
            counts = {k: v[()] for k, v in file["lanes"][lane]["counts"].items()}
            for name in (
                "source_zero",
                "to_zero",
                "to_subnormal",
                "to_infinity",
                "saturated",
                "nan",
                "inexact",
                "compared",
            ):
                assert (counts[name] <= counts["count"]).all(), (lane, name)
            lost = counts["source_zero"] + counts["to_zero"]
            assert (lost <= counts["count"]).all(), lane
            moments = file["lanes"][lane]["moments/err_sq"][()]
            measured = counts["count"] > 0
            assert measured.any()
            assert np.isnan(moments[~measured]).all(), lane
        reference = file["lanes/fp32/counts"]
        assert reference["inexact"][()].sum() == 0, "the FP32 reference rounds nothing"
        assert file["lanes/pure-fp16/counts/to_zero"][()].sum() > 0


def as_version_2(new, old):
    """A copy as the format was before sums were sampled and sites exempted from statistics."""
    shutil.copy(new, old)
    with h5py.File(old, "r+") as file:
        del file["sites/stat_exempt"], file["sites/torch_op"]
        unseal(file)
        for lane in file["lanes"].values():
            del lane["sums"], lane["checksums"]
        options = json.loads(file.attrs["options"])
        del options["sums_every"]
        file.attrs["options"] = np.bytes_(json.dumps(options).encode())
        file.attrs["format_version"] = 2


def test_version_2_is_read(lockstep, run_file, tmp_path):
    """All that version 2 has is reported as from a file of the current version; what it lacks was not measured."""
    old = tmp_path / "old.h5"
    as_version_2(run_file, old)

    def report(path):
        lines = lockstep("report", path, "--format", "text").stdout.splitlines()
        return [line for line in lines if not line.startswith(("  lockstep ", "    -"))]  # commands name the file

    before, now = report(old), report(run_file)
    lacking = "No sums of products were sampled."
    assert lacking in before and lacking not in now
    head = now.index("Sums of products")
    assert before[:head] == now[:head] and head > 40
    assert before[before.index("Sums of products") :][2] == lacking
    # Compared with itself everything is equal, and none of it is the sums.
    checked = lockstep("check", old, "--baseline", old, "--exact").stdout
    assert checked.startswith("PASS") and "sums/" not in checked
    newer = tmp_path / "newer.h5"
    shutil.copy(run_file, newer)
    with h5py.File(newer, "r+") as file:
        file.attrs["format_version"] = 5
    assert "format version 5, at most 4" in lockstep("report", newer, code=2).stderr


def test_names_that_are_not_utf8_are_refused_with_the_reason(lockstep, tmp_path):
    policy = tmp_path / os.fsdecode(b"caf\xe9.toml")
    policy.write_text('extends = "tf32"\n')
    run = tmp_path / "run.h5"
    replay = ["replay", "mlp", "--data", "synthetic:100", "--steps", 2, "--batch", 8, "--quiet", "-o", run]
    error = lockstep(*replay, "--lanes", policy, code=2).stderr
    assert "caf\\xe9.toml': not UTF-8; rename the file" in error
    assert not run.exists()
    named = policy.with_name("caf\N{LATIN SMALL LETTER E WITH ACUTE}.toml")
    policy.rename(named)
    lockstep(*replay, "--lanes", named)
    assert "caf\N{LATIN SMALL LETTER E WITH ACUTE}.toml" in (tmp_path / "run.h5.progress.json").read_text()
