"""Whole lanes of the engine cuda on the host that stands in for an H100: the same run as the software lane @hopper."""

import re
import shutil

import h5py
import numpy as np
import pytest

CASES = {
    "lenet": ["--data", "synthetic:100", "--steps", 2, "--batch", 4],
    "resnet20": ["--data", "shapes:50", "--steps", 1, "--batch", 1, "--size", "width=4"],
    "gpt": ["--data", "grammar:10000", "--steps", 1, "--batch", 2, "--size", "layers=1,width=32,context=40"],
}


def datasets(group):
    found = {}
    group.visititems(lambda name, item: found.update({name: item[...]}) if isinstance(item, h5py.Dataset) else None)
    return found


@pytest.mark.parametrize("model", CASES)
@pytest.mark.parametrize("policy", ["torch-autocast-fp16", "tf32", "fp8-current", "pure-fp16"])
def test_a_lane_has_the_bits_of_the_software_lane(lockstep, tmp_path, model, policy):
    run = tmp_path / "run.h5"
    done = lockstep("replay", model, *CASES[model], "--lanes", f"fp32,{policy}@hopper,{policy}@cuda-host", "-o", run)
    assert re.search(r"host: [0-9 ]+ products of ", done.stdout), done.stdout  # the device has been used
    with h5py.File(run) as file:
        ours, theirs = (file[f"lanes/{policy}@{target}"] for target in ("hopper", "cuda-host"))
        engine, target, fallbacks = (np.bytes_(theirs.attrs[name]).decode() for name in ("engine", "target", "fallbacks"))
        assert engine == target == "cuda-host"
        fallbacks = fallbacks.split(",")
        assert "rounding and statistics" in fallbacks
        assert not {"sums by hopper_fp16", "sums by hopper_bf16", "sums by hopper_tf32", "sums by hopper_fp8"} & set(fallbacks)
        expected, found = datasets(ours), datasets(theirs)
        assert expected.keys() == found.keys()
        # What happens inside a GPU's sum cannot be seen.
        of_sums = file["sites/point"].asstr()[()] == "accumulator"
        compared = 0
        for name, values in expected.items():
            if name.startswith("checksums/") or name in ("seconds", "policy"):
                continue
            if name.startswith("counts/"):
                values, found[name] = values[:, ~of_sums], found[name][:, ~of_sums]
            np.testing.assert_array_equal(values, found[name], err_msg=name)
            compared += 1
        assert compared > 20


def test_a_gpu_that_is_not_there_is_refused(lockstep, tmp_path):
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has a GPU")
    failed = lockstep("replay", "mlp", "--data", "synthetic:100", "--steps", 1, "--lanes", "fp32,tf32@cuda",
                      "-o", tmp_path / "run.h5", code=2)
    assert "target 'cuda': " in failed.stderr and "leave '@cuda' out" in failed.stderr
    assert not (tmp_path / "run.h5").exists()
