"""`replay --save-values`: NumPy reads the file, and its values have the run file's statistics."""

import h5py
import numpy as np

RUN = ["mlp", "--data", "synthetic:200", "--steps", 4, "--batch", 16, "--twins", 0]


def sites(path):
    with h5py.File(path) as file:
        return [tuple(x.decode() for x in row) for row in zip(file["sites/layer"], file["sites/op"])]


def test_values_have_the_statistics_of_the_run_file(lockstep, tmp_path):
    lane = "torch-autocast-fp16"
    first = tmp_path / "first.h5"
    lockstep("replay", *RUN, "--lanes", f"fp32,{lane}", "-o", first)
    checked = exact = 0
    for number in range(0, len(sites(first)), 5):
        run, npy = tmp_path / f"{number}.h5", tmp_path / f"{number}.npy"
        with h5py.File(first) as file:
            lanes = file["lanes"]
            name = [key for key in lanes if "autocast" in key][0]
            count = lanes[name]["counts/count"][2, number]
            hashes = lanes[name]["bits_hash"][2, number]
            largest = lanes[name]["moments/abs_max"][2, number]
            smallest = lanes[name]["moments/abs_min_nonzero"][2, number]
            inexact = lanes[name]["counts/inexact"][2, number]
        if count == 0:
            continue
        lockstep(
            "replay", *RUN, "--lanes", f"fp32,{lane}", "-o", run, "--save-values", npy, "--at", f"2 {lane} #{number}"
        )
        values = np.load(npy)
        assert values.size == count
        assert values.dtype == np.float32
        # Moments are of values before rounding, equal to those after it where nothing was inexact.
        if inexact == 0:
            assert abs(values).max() == largest
            assert abs(values[values != 0]).min() == smallest
            exact += 1
        with h5py.File(run) as file:
            assert file["lanes"][name]["bits_hash"][2, number] == hashes
        checked += 1
    assert checked > 3 and exact > 3


def test_mistakes(lockstep, tmp_path):
    npy, run = tmp_path / "v.npy", tmp_path / "run.h5"
    for at, said in [
        ("2 fp32", "STEP LANE SITE"),
        ("9 fp32 #0", "0 <= STEP < 4"),
        ("x fp32 #0", "0 <= STEP < 4"),
        ("2 fp64 #0", "lane 'fp64'"),
        ("2 fp32 nothing", "no site 'nothing'"),
    ]:
        done = lockstep("replay", *RUN, "-o", run, "--save-values", npy, "--at", at, code=2)
        assert said in done.stderr, done.stderr
        assert not npy.exists() and not run.exists()
    assert "both required" in lockstep("replay", *RUN, "-o", run, "--save-values", npy, code=2).stderr
    npy.write_text("mine")
    done = lockstep("replay", *RUN, "-o", run, "--save-values", npy, "--at", "2 fp32 #0", code=2)
    assert "v.npy" in done.stderr and npy.read_text() == "mine"


def test_a_lane_that_stopped_has_no_values(lockstep, tmp_path):
    diverging = [
        "mlp",
        "--data",
        "synthetic:200",
        "--steps",
        12,
        "--batch",
        16,
        "--twins",
        0,
        "--lr",
        "1e6",
        "--lanes",
        "fp32,pure-fp16",
    ]
    npy = tmp_path / "v.npy"
    lockstep("replay", *diverging, "-o", tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5") as file:
        died = file["lanes/pure-fp16"].attrs["died_at"]
    assert 0 < died < 12
    done = lockstep(
        "replay", *diverging, "-o", tmp_path / "b.h5", "--save-values", npy, "--at", f"{died} pure-fp16 #9", code=2
    )
    assert f"stopped before step {died}" in done.stderr and not npy.exists()


def test_the_run_file_is_no_place_for_values(lockstep, tmp_path):
    run = tmp_path / "run.h5"
    done = lockstep("replay", *RUN, "-o", run, "--save-values", run, "--at", "2 fp32 #9", code=2)
    assert "the same file" in done.stderr and not run.exists()
