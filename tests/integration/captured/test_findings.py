"""Is a planted fault found in the right layer, with the right kind, in the lanes where it fires, and nowhere else?"""

import json

import h5py
import hand_planted as planted
import pytest
from conftest import SOURCE
from unsealed import unseal


def check(lockstep, run, fires, silent):
    lanes = {lane["name"]: lane for lane in json.loads(lockstep("report", run, "--format", "json").stdout)["lanes"]}
    for name, (kinds, layer) in fires.items():
        findings = lanes[name]["findings"]
        assert findings, f"{name}: nothing found"
        first = findings[0]
        assert first["kind"] in kinds, f"{name}: {first['sentence']}"
        assert layer is None or first["site"]["layer"].startswith(layer), f"{name}: {first['sentence']}"
    for name in silent:
        assert not lanes[name]["findings"], f"{name}: {lanes[name]['findings'][0]['sentence']}"


@pytest.mark.parametrize("fault", planted.FAULTS, ids=lambda fault: fault.name)
def test_captured(lockstep, tmp_path, fault):
    run = tmp_path / "run.h5"
    path = planted.capture(fault, tmp_path / "net.h5")
    lanes = ",".join(["fp32", *fault.fires, *fault.silent])
    lockstep("replay", path, "--lanes", lanes, *fault.replay, "-o", run, "--quiet")
    check(lockstep, run, fault.fires, fault.silent)


@pytest.mark.parametrize("name,arguments,fires,silent", planted.BUILT_IN, ids=lambda x: x if isinstance(x, str) else "")
def test_built_in(lockstep, tmp_path, name, arguments, fires, silent):
    run = tmp_path / "run.h5"
    lockstep("replay", *arguments, "--lanes", ",".join(["fp32", *fires, *silent]), "-o", run, "--quiet", cwd=SOURCE)
    check(lockstep, run, fires, silent)


def test_a_loop_in_fp16_without_a_grad_scaler(lockstep, tmp_path):
    """Its lanes have none either, or they would not do what PyTorch did; the finding says what is missing."""
    run = tmp_path / "run.h5"
    path = planted.capture_without_scaler(tmp_path / "net.h5")
    policy = tmp_path / "scaled.toml"
    policy.write_text('extends = "torch-autocast-fp16-cpu:2.13"\n')
    lanes = ["torch-autocast-fp16-cpu", "torch-autocast-fp16", policy]
    said = lockstep("replay", path, "--lanes", ",".join(["fp32", *map(str, lanes)]), "-o", run).stderr
    assert "the captured loop has no GradScaler, so this lane has none" in said
    report = {lane["name"]: lane for lane in json.loads(lockstep("report", run, "--format", "json").stdout)["lanes"]}
    for lane in lanes[:2]:
        first = report[lane]["findings"][0]
        assert first["kind"] == "no scaler" and first["pass"] == "backward", first["sentence"]
        assert first["sentence"].startswith("no loss scale although gradients vanish: ")
        assert first["remedies"][0] == "a loss scale (GradScaler)"
        assert not {"no gradient", "underflow"} & {f["kind"] for f in report[lane]["findings"]}, "folded under it"
        assert first["value"] < 2**-14 and first["limit"] == 2**-24
    assert not report[str(policy)]["findings"]  # a policy file keeps its own scaler
    assert "PASS" in lockstep("verify", path).stdout


@pytest.mark.parametrize(
    "name,said",
    [
        (
            "weights too large to store",
            "weight planted.fc.weight reaches 2.5e5 and becomes infinite when stored, fp16 ends at 65504",
        ),
        ("inputs too large to store", "becomes infinite when stored, fp16 ends at 65504"),
        ("a running variance too large to store", "buffer planted.body.running_var reaches 1.0e6 and becomes infinite"),
        ("a constant too large to store", "reaches 1.0e5 and becomes infinite when stored, fp16 ends at 65504"),
        ("an eps that vanishes when stored", "became zero when stored"),
        ("a weight that vanishes when stored", "weight planted.value becomes zero when stored in fp16"),
    ],
)
def test_the_stored_value_is_named(lockstep, tmp_path, name, said):
    fault = next(fault for fault in planted.FAULTS if fault.name == name)
    run = tmp_path / "run.h5"
    path = planted.capture(fault, tmp_path / "net.h5")
    lockstep("replay", path, "--lanes", f"fp32,{planted.HALF}", "-o", run, "--quiet")
    lanes = {lane["name"]: lane for lane in json.loads(lockstep("report", run, "--format", "json").stdout)["lanes"]}
    findings = lanes[planted.HALF]["findings"]
    assert said in findings[0]["sentence"], findings[0]["sentence"]
    of_storage = [finding["sentence"] for finding in findings if finding["kind"].startswith("storage")]
    assert len(of_storage) == (0 if "eps" in name else 1), of_storage
    with h5py.File(run) as file:
        points = file["sites/point"].asstr()[()]
        counts = file[f"lanes/{planted.HALF}/counts/count"][:, points == "storage"]
        once = file["sites/role"].asstr()[()][points == "storage"] != "input"
    assert (counts[0] > 0).all() and (counts[1:, once] == 0).all()


def test_pytorchs_own_name_of_the_op(lockstep, tmp_path):
    """Where Lockstep's op has another name, a finding says PyTorch's, in the sentence and in the JSON."""
    fault = next(f for f in planted.FAULTS if f.name == "attention scores beyond 65504")
    path, run = planted.capture(fault, tmp_path / "net.h5"), tmp_path / "run.h5"
    lockstep("replay", path, "--lanes", f"fp32,{planted.FP16}", "-o", run, "--quiet")
    lane = json.loads(lockstep("report", run, "--format", "json").stdout)["lanes"][1]
    first = lane["findings"][0]
    assert first["site"]["torch_op"] == "aten.matmul.default", first["site"]
    text = lockstep("report", run).stdout
    assert "8 recorded steps" not in text and text.count("12 recorded steps show overflow") == 1
    with h5py.File(run, "r+") as file:  # as older files are
        ops = file["sites/torch_op"].asstr()[()]
        assert {"aten.linear.default", "aten.cross_entropy_loss.default", ""} <= set(ops)
        del file["sites/torch_op"]
        unseal(file)
    older = json.loads(lockstep("report", run, "--format", "json").stdout)["lanes"][1]
    assert older["findings"][0]["site"]["torch_op"] == ""


def test_a_run_file_of_an_earlier_version(lockstep, tmp_path):
    """Without formats of sites and squares of stagnant updates: fewer numbers in the sentences, no error."""
    run = tmp_path / "run.h5"
    lockstep("replay", "lenet", *planted.ADAM, "--lanes", "fp32,half", "-o", run, "--quiet")
    with h5py.File(run, "r+") as file:
        for lane in file["lanes"].values():
            del lane["site_formats"], lane["updates/stagnant_sq"]
        unseal(file)
    text = lockstep("report", run).stdout
    assert "half broke at step 0. conv1.weight" in text and "nan" not in text.split("Lanes")[0]
    lockstep("check", run, "--baseline", run, "--exact")
