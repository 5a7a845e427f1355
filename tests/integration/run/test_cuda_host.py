"""Whole lanes of the engine cuda on the host that stands in for an H100: the same run as the software lane @hopper."""

import json
import re
import shutil

import h5py
import numpy as np
import pytest
from lockstep_capture.read_run import RunFileError, read_run
from unsealed import unseal

CASES = {
    "lenet": ["--data", "synthetic:100", "--steps", 2, "--batch", 4],
    "resnet20": ["--data", "shapes:50", "--steps", 2, "--batch", 1, "--size", "width=4"],
    "gpt": ["--data", "grammar:10000", "--steps", 2, "--batch", 2, "--size", "layers=1,width=32,context=40"],
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
    rounded = int(re.search(r" ([0-9]+) results? rounded there", done.stdout).group(1))
    if policy in ("torch-autocast-fp16", "tf32"):  # others: scaled, or with records of their sums
        assert rounded > 0, done.stdout
    with h5py.File(run) as file:
        ours, theirs = (file[f"lanes/{policy}@{target}"] for target in ("hopper", "cuda-host"))
        engine, target, fallbacks = (
            np.bytes_(theirs.attrs[name]).decode() for name in ("engine", "target", "fallbacks")
        )
        assert engine == target == "cuda-host"
        fallbacks = fallbacks.split(",")
        assert "rounding and statistics" in fallbacks
        assert not {"sums by hopper_fp16", "sums by hopper_bf16", "sums by hopper_tf32", "sums by hopper_fp8"} & set(
            fallbacks
        )
        expected, found = datasets(ours), datasets(theirs)
        of_device = {name for name in found if name.startswith(("device", "checksums/device"))}
        assert of_device and expected.keys() == found.keys() - of_device
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
    beside = json.loads(lockstep("report", run, "--format", "json").stdout)["lanes"][2]["beside_model"]
    assert beside["model"] == f"{policy}@hopper"
    assert beside["same"] == beside["tensors"] > 50 and beside["first_step"] == -1 and beside["sites"] == []
    assert f"{policy}@cuda-host has the bits of {policy}@hopper in all {beside['tensors']} tensors" in joined(
        lockstep("report", run).stdout
    )


def joined(text):
    return " ".join(text.split())


@pytest.fixture(scope="module")
def two_lanes(lockstep, tmp_path_factory):
    """Four steps, of which 0 and 2 are measured, of tf32@hopper and tf32@cuda-host: the same bits."""
    run = tmp_path_factory.mktemp("two_lanes") / "run.h5"
    lockstep(
        "replay",
        "lenet",
        "--data",
        "synthetic:100",
        "--steps",
        4,
        "--batch",
        4,
        "--statistics-every",
        2,
        "--lanes",
        "fp32,tf32@hopper,tf32@cuda-host",
        "-o",
        run,
    )
    return run


def beside_model(lockstep, run, copy, edit):
    """lanes[].beside_model and the text of the report, after `edit` of the lane on the device."""
    shutil.copy(run, copy)
    with h5py.File(copy, "r+") as file:
        edit(file["lanes/tf32@cuda-host"], site_of(file))
        unseal(file)
    lane = json.loads(lockstep("report", copy, "--format", "json").stdout)["lanes"][2]
    return lane["beside_model"], joined(lockstep("report", copy).stdout)


def site_of(file):
    columns = [file[f"sites/{name}"].asstr()[()] for name in ("layer", "op", "point")]
    return {place: site for site, place in enumerate(zip(*columns, strict=True))}


def test_the_first_difference_names_the_library_s_algorithm(lockstep, tmp_path, two_lanes):
    def edit(lane, site):
        for layer in ("conv2", "fc1"):
            lane["bits_hash"][0, site[layer, {"c": "conv2d", "f": "linear"}[layer[0]], "output"]] ^= 1
        lane["bits_hash"][0, site["fc2", "linear", "operand"]] ^= 1  # follows from fc1
        products = lane["device_products"]
        parts = products["most_parts"][()]
        parts[np.isin(products["site"][()], [id for place, id in site.items() if place[:2] == ("fc1", "linear")])] = 5
        products["most_parts"][...] = parts

    beside, text = beside_model(lockstep, two_lanes, tmp_path / "a.h5", edit)
    assert beside["first_step"] == 0 and not beside["follows_unmeasured"] and beside["loss_gap"] == 0
    assert beside["tensors"] - beside["same"] >= 3
    first = [
        (p["site"]["layer"], max(q["most_parts"] for q in p["products"])) for p in beside["first"] if p["products"]
    ]
    assert first[:2] == [("conv2", 1), ("fc1", 5)] and not any(p["rounded"] for p in beside["first"])
    assert beside["in_parts"] == {"products": 2, "same": 1}  # step 2 is equal
    assert beside["one_chain"]["products"] == beside["one_chain"]["same"] + 1 > 5
    assert "split-K, at most 5 parts" in text and "no split reported" in text


def test_a_difference_after_a_step_without_statistics_names_no_place(lockstep, tmp_path, two_lanes):
    def edit(lane, site):
        lane["bits_hash"][2, site["fc1", "linear", "output"]] ^= 1

    beside, text = beside_model(lockstep, two_lanes, tmp_path / "a.h5", edit)
    assert beside["first_step"] == 2 and beside["follows_unmeasured"] and beside["first"] == []
    assert "where they first differed is not known" in text


def test_a_lane_that_broke_alone_is_told(lockstep, tmp_path, two_lanes):
    def edit(lane, site):
        lane["bits_hash"][0, site["fc1", "linear", "output"]] ^= 1
        lane["loss"][3] = np.nan

    beside, text = beside_model(lockstep, two_lanes, tmp_path / "a.h5", edit)
    assert beside["one_broke_at"] == 3 and "In step 3 the loss of one of them alone is not finite" in text


def test_results_that_leave_the_library_rounded_are_told_from_the_model(lockstep, tmp_path):
    policy = tmp_path / "narrow.toml"
    policy.write_text('[gemm]\noperand = "bf16"\n[cuda]\nresults = "factors"\n')
    run = tmp_path / "run.h5"
    lockstep("replay", "lenet", *CASES["lenet"], "--lanes", f"fp32,{policy}@hopper,{policy}@cuda-host", "-o", run)
    beside = json.loads(lockstep("report", run, "--format", "json").stdout)["lanes"][2]["beside_model"]
    assert 0 < beside["same"] < beside["tensors"] and beside["first_step"] == 0 and beside["loss_gap"] > 0
    first = beside["first"][0]
    assert first["site"]["layer"] == "conv1" and [p["k"] for p in first["products"]] == [25]
    assert all(place["rounded"] for place in beside["first"]) and beside["in_parts"]["products"] == 0
    assert beside["one_chain"]["products"] > beside["one_chain"]["same"]
    # Factors rounded to BF16 move both lanes from FP32; the results' rounding, at most 2^-9 of each, moves one further.
    gap = next(gap for gap in beside["sites"] if gap["site"] == first["site"])
    assert 0 < gap["least"] <= gap["most"] < 2**-6
    text = joined(lockstep("report", run).stdout)
    assert "Hardware compared with its model" in text and "rounded by the library" in text


def test_a_gpu_that_is_not_there_is_refused(lockstep, tmp_path):
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has a GPU")
    failed = lockstep(
        "replay",
        "mlp",
        "--data",
        "synthetic:100",
        "--steps",
        1,
        "--lanes",
        "fp32,tf32@cuda",
        "-o",
        tmp_path / "run.h5",
        code=2,
    )
    assert "target 'cuda': " in failed.stderr and "leave '@cuda' out" in failed.stderr
    assert not (tmp_path / "run.h5").exists()


LENET = [
    "lenet",
    "--data",
    "synthetic:100",
    "--steps",
    3,
    "--batch",
    4,
    "--lanes",
    "fp32,torch-autocast-fp16@cuda-host",
    "--checkpoint-every",
    1,
]
LANE = "torch-autocast-fp16@cuda-host"


@pytest.fixture(scope="module")
def recorded(lockstep, tmp_path_factory):
    """Three steps of LeNet on the host device, with their checkpoints."""
    run = tmp_path_factory.mktemp("device") / "run.h5"
    lockstep("replay", *LENET, "-o", run)
    return run


def copied(recorded, folder):
    for suffix in ("", ".state", ".state.1"):
        shutil.copy(f"{recorded}{suffix}", folder / f"run.h5{suffix}")
    return folder / "run.h5"


def test_every_product_of_a_lane_is_recorded(lockstep, recorded):
    run = read_run(recorded)
    table = run.device_products(LANE)
    assert (table["step"] == 0).all() and (table["most_parts"] == 1).all() and (table["algorithm"] == -1).all()
    assert set(table["sum"]) == {"hopper_fp16 fp16 x fp16"}
    forward = {"conv1", "conv2", "fc1", "fc2", "fc3"}
    layers = [run.sites.loc[site, "layer"] for site in table["site"]]
    assert {layer: layers.count(layer) for layer in forward} == {"conv1": 2, "conv2": 3, "fc1": 3, "fc2": 3, "fc3": 3}
    steps = run.steps.loc[LANE]
    products = (4 + 1) + (4 + 4 + 1) + 3 * 3  # convolutions: one for each image, their weight's gradient one for all
    assert list(steps["products"]) == [products] * 3
    assert (steps["bytes_up"] > 0).all() and (steps["bytes_down"] > 0).all()
    report = lockstep("report", recorded, "--format", "text").stdout
    assert f"on the device: {3 * products} products of {len(table)} kinds" in " ".join(report.split()), report


@pytest.mark.parametrize(
    "column,value,problem",
    [
        ("m", 0, "sizes must be at least 1"),
        ("site", 10**6, "site 1000000"),
        ("step", -1, "step -1, must be at least 0"),
    ],
)
def test_a_damaged_table_of_products_is_an_error(lockstep, recorded, tmp_path, column, value, problem):
    run = copied(recorded, tmp_path)
    with h5py.File(run, "r+") as file:
        file[f"lanes/{LANE}/device_products/{column}"][0] = value
    assert "the checksum does not fit" in lockstep("verify", run, code=1).stdout
    with h5py.File(run, "r+") as file:
        unseal(file)
    failed = lockstep("report", run, "--format", "text", code=2)
    assert "is damaged" in failed.stderr and problem in failed.stderr
    if column == "site":
        with pytest.raises(RunFileError, match="names a site"):
            read_run(run).device_products(LANE)


@pytest.mark.parametrize("column,value", [("products", -1), ("bytes_up", 2**62)])
def test_damaged_work_of_a_step_is_an_error(lockstep, recorded, tmp_path, column, value):
    run = copied(recorded, tmp_path)
    with h5py.File(run, "r+") as file:
        file[f"lanes/{LANE}/device/{column}"][1:] = value
        unseal(file)
    failed = lockstep("report", run, "--format", "text", code=2)
    assert f"device/{column}: {value} in step" in failed.stderr, failed.stderr


@pytest.mark.parametrize("longer", ["step", "m"])
def test_a_kill_may_leave_a_column_longer(lockstep, recorded, tmp_path, longer):
    run = copied(recorded, tmp_path)
    before = read_run(recorded).device_products(LANE)
    with h5py.File(run, "r+") as file:
        data = file[f"lanes/{LANE}/device_products/{longer}"]
        data.resize((len(before) + 1,))
        data[-1] = 1
        file.attrs["steps_complete"] = 2
        unseal(file)
    assert read_run(run).device_products(LANE).equals(before)
    lockstep("replay", "--resume", run)
    assert read_run(run).device_products(LANE).equals(before)
    lockstep("verify", run, code=3)


def test_a_step_that_is_computed_again_counts_all_its_products(lockstep, tmp_path):
    steps = {}
    for every in (1, 0):
        run = tmp_path / f"every-{every}.h5"
        lockstep("replay", *LENET, "--statistics-every", str(every), "--lr", "1e6", "-o", run)
        steps[every] = read_run(run).steps.loc[LANE]["products"].to_list()
    broken = [once for once, again in zip(steps[1], steps[0], strict=True) if again == 2 * once]
    same = [once for once, again in zip(steps[1], steps[0], strict=True) if again == once]
    assert broken and len(broken) + len(same) == len(steps[1]), steps


def test_reports_name_sums_in_parts(lockstep, recorded, tmp_path):
    run = copied(recorded, tmp_path)
    with h5py.File(run, "r+") as file:
        parts = file[f"lanes/{LANE}/device_products/most_parts"]
        site = int(file[f"lanes/{LANE}/device_products/site"][0])
        parts[0] = 12
        unseal(file)
        layer = file["sites/layer"].asstr()[site]
    lines = lockstep("report", run, "--format", "text").stdout.splitlines()
    named = [line for line in lines if "at most 12 parts: " in line]
    assert len(named) == 1 and layer in named[0], named
    assert not any(
        "at most 12 parts" in line for line in lockstep("report", recorded, "--format", "text").stdout.splitlines()
    )


def test_a_table_without_a_column_is_an_error(lockstep, recorded, tmp_path):
    run = copied(recorded, tmp_path)
    with h5py.File(run, "r+") as file:
        del file[f"lanes/{LANE}/device_products/k"]
        unseal(file)
    assert "device_products/k: is missing" in lockstep("report", run, "--format", "text", code=2).stderr


def test_products_of_a_step_that_was_not_completed_do_not_count(lockstep, recorded, tmp_path):
    run = copied(recorded, tmp_path)
    before = read_run(recorded).device_products(LANE)
    with h5py.File(run, "r+") as file:  # as after a kill in step 2, on another library
        for name, data in file[f"lanes/{LANE}/device_products"].items():
            data.resize((len(before) + 1,))
            data[-1] = 2 if name == "step" else 7
        file.attrs["steps_complete"] = 2
        unseal(file)
    assert read_run(run).device_products(LANE).equals(before)
    lockstep("replay", "--resume", run)
    assert read_run(run).device_products(LANE).equals(before)
    lockstep("verify", run, code=3)
