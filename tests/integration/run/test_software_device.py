"""--software-device: software lanes whose products the devices' kernels compute have the same bits."""

import re
import shutil

import h5py
import numpy as np
import pytest

CASES = {
    "lenet": ["--data", "synthetic:100", "--steps", 2, "--batch", 4],
    "resnet20": ["--data", "shapes:50", "--steps", 2, "--batch", 1, "--size", "width=4"],
    "gpt": ["--data", "grammar:10000", "--steps", 2, "--batch", 2, "--size", "layers=1,width=32,context=40"],
}
LANES = "fp32,fp64,torch-autocast-fp16@hopper,fp8-current@hopper,tf32@ampere,pure-fp16"


def datasets(file):
    found = {}
    file.visititems(lambda name, item: found.update({name: item[...]}) if isinstance(item, h5py.Dataset) else None)
    return {name: values for name, values in found.items() if name.split("/")[-1] != "seconds"}


@pytest.mark.parametrize("model", CASES)
def test_lanes_have_the_same_bits(lockstep, tmp_path, model):
    runs = {}
    for device in ("none", "cuda-host"):
        options = [] if device == "none" else ["--software-device", device]
        run = tmp_path / f"{device}.h5"
        done = lockstep("replay", model, *CASES[model], "--lanes", LANES, *options, "-o", run)
        assert bool(re.search(r"host: [0-9 ]+ products of software lanes", done.stdout)) == (device != "none"), (
            done.stdout
        )
        if device != "none":
            assert re.search(r" [1-9][0-9 ]* results? rounded there", done.stdout), done.stdout
        with h5py.File(run) as file:
            runs[device] = datasets(file)
    assert runs["none"].keys() == runs["cuda-host"].keys()
    assert sum(name.endswith("bits_hash") for name in runs["none"]) == LANES.count(",") + 2  # and the twin
    for name, values in runs["none"].items():
        np.testing.assert_array_equal(values, runs["cuda-host"][name], err_msg=name)


def test_sums_that_stay_on_the_cpu_are_listed(lockstep, tmp_path):
    policy = tmp_path / "kahan.toml"
    policy.write_text('name = "kahan"\nversion = "1"\n[gemm]\naccumulator = "fp32_kahan"\n')
    run = tmp_path / "run.h5"
    lockstep(
        "replay",
        "mlp",
        "--data",
        "synthetic:100",
        "--steps",
        1,
        "--lanes",
        f"fp32,{policy}",
        "--software-device",
        "cuda-host",
        "-o",
        run,
    )
    with h5py.File(run) as file:
        lists = {name: np.bytes_(lane.attrs["fallbacks"]).decode() for name, lane in file["lanes"].items()}
    assert lists["fp32"] == ""
    assert [text for name, text in lists.items() if "kahan" in name] == ["sums by fp32_kahan"]


def test_a_device_that_is_not_there_is_refused(lockstep, tmp_path):
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has a GPU")
    for device, problem in (("cuda", "software device 'cuda': "), ("gpu", "software device 'gpu': unknown")):
        failed = lockstep(
            "replay",
            "mlp",
            "--data",
            "synthetic:100",
            "--steps",
            1,
            "--software-device",
            device,
            "-o",
            tmp_path / "run.h5",
            code=2,
        )
        assert problem in failed.stderr
        assert not (tmp_path / "run.h5").exists()
