"""`lockstep recommend` on captures with a planted fault: its answer, and that the answer removes the fault."""

import json
import signal
import subprocess
import time

import h5py
import pytest
import torch
from planted_layers import KINDS, captured
from torch import nn

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("captures")
    return [captured(folder / f"{name}.lscap.h5", middle) for name, middle in KINDS.items()]


@pytest.fixture
def captures(recorded, tmp_path):
    """By kind: a file in the test's own folder, where its search is kept, too."""
    for path in recorded:
        (tmp_path / path.name).symlink_to(path)
    return {name: f"{name}.lscap.h5" for name in KINDS}


def advice(lockstep, capture, folder, *options, code=0):
    return json.loads(lockstep("recommend", capture, "--json", *options, cwd=folder, code=code).stdout)


def chosen(found):
    return found["tried"][found["chosen"]]


def test_where_all_is_well_nothing_needs_doing(lockstep, captures, tmp_path):
    found = advice(lockstep, captures["fine"], tmp_path)
    assert found["answer"] == "plain" and found["candidates_run"] == 1
    assert found["sentence"].startswith("Nothing needs doing: under plain fp16 autocast")
    assert chosen(found)["lane"] == "torch-autocast-fp16" and chosen(found)["passes"]


def test_a_layer_that_overflows_stays_in_fp32_alone(lockstep, captures, tmp_path):
    found = advice(lockstep, captures["large"], tmp_path, "-o", "policy.toml")
    assert found["answer"] == "exceptions"
    (layer,) = chosen(found)["fp32"]
    assert layer["layer"] == "middle" and layer["measured"] and "fp16 ends at 65504" in layer["reason"]
    assert found["sentence"].startswith("Keep middle in fp32; middle matmul (planted_layers.py:")
    assert "GradScaler's 65536 fits, keep it dynamic." in found["sentence"]
    # Plain autocast broke; under the policy, run as a user would, the fault is gone.
    assert found["tried"][0]["verdict"] == "broke"
    lockstep(
        "replay",
        captures["large"],
        "--cycle",
        "--steps",
        60,
        "--lanes",
        "fp32,policy.toml",
        "--quiet",
        "-o",
        "run.h5",
        cwd=tmp_path,
    )
    report = json.loads(lockstep("report", "run.h5", "--format", "json", cwd=tmp_path).stdout)
    lane = next(one for one in report["lanes"] if one["name"] == "policy.toml")
    assert lane["outcome"] == "fine" and not lane["findings"]


def test_rounding_is_seen_where_all_ranges_fit(lockstep, captures, tmp_path):
    """The numbers fit FP16 and BF16 everywhere; what a sum with 4096 leaves of them does not."""
    found = advice(lockstep, captures["cancels"], tmp_path)
    assert not found["tried"][0]["passes"] and found["answer"] == "exceptions"
    (layer,) = chosen(found)["fp32"]
    assert layer["layer"] == "middle" and "loses 100% of its energy" in layer["reason"]


def test_the_text_names_the_answer_first(lockstep, captures, tmp_path):
    text = lockstep("recommend", captures["large"], "--quiet", "--prove", cwd=tmp_path).stdout
    assert text.startswith("Keep middle in fp32; ")
    assert "amp.apply(model)" in text and "scaler.scale(loss).backward()" in text
    plain = lockstep("recommend", captures["fine"], "--quiet", cwd=tmp_path).stdout
    assert 'torch.autocast("cuda", dtype=torch.float16)' in plain and 'torch.amp.GradScaler("cuda")' in plain
    assert "orders of the captured batches" in text and "Ranges for fp16" not in text
    again = lockstep("recommend", captures["large"], "--quiet", "--all", "--prove", cwd=tmp_path).stdout
    assert "replays read from large.recommend" in again and "Ranges for fp16" in again


def test_without_a_budget_the_search_says_so(lockstep, captures, tmp_path):
    found = advice(lockstep, captures["large"], tmp_path, "--budget", 0, "--formats", "fp16")
    assert found["answer"] == "fp32" and found["out_of_budget"] and "--budget" in found["sentence"]


def test_an_answer_from_too_few_steps_says_so(lockstep, captures, tmp_path):
    found = advice(lockstep, captures["fine"], tmp_path, "--steps", 2)
    assert found["is_too_short"] and found["sentence"].startswith("Too short to judge how training ends")
    assert "give --steps 8" in found["sentence"]


def test_a_stopped_search_goes_on(lockstep, binary_dir, captures, tmp_path):
    options = ["--steps", "600", "--formats", "fp16"]
    command = [str(binary_dir / "lockstep"), "recommend", captures["large"], *options, "--quiet"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    folder = tmp_path / "large.recommend"
    while not list(folder.glob("*.h5")):
        assert process.poll() is None
        time.sleep(0.005)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, said = process.communicate()
    assert process.returncode == 130 and not output and "The same command goes on from there." in said
    finished = advice(lockstep, captures["large"], tmp_path, *options)
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    (fresh / captures["large"]).symlink_to(tmp_path / captures["large"])
    assert finished == advice(lockstep, captures["large"], fresh, *options)
    assert not list(folder.glob("*.state*"))


def test_a_reference_that_breaks_gets_no_answer(lockstep, tmp_path):
    path = captured(
        tmp_path / "wild.lscap.h5", lambda width: nn.Linear(width, width), optimizer=lambda p: torch.optim.SGD(p, 1e9)
    )
    for formats in ("bf16", "fp16,bf16"):
        found = advice(lockstep, path, tmp_path, "--formats", formats, code=3)
        assert found["answer"] == "fp32_broke" and "fp32's own loss is not finite" in found["sentence"]


def test_options_that_would_be_ignored_are_refused(lockstep, captures, tmp_path):
    said = lockstep(
        "recommend",
        captures["fine"],
        "--batch",
        3,
        "--data",
        "x",
        "--tolerance",
        2,
        "--formats",
        "fp16,fp16",
        code=2,
        cwd=tmp_path,
    ).stderr
    for part in (
        "--batch: capture",
        "--data: capture",
        "--tolerance: only for --prove",
        "--tolerance 2: must lie",
        "fp16 is there twice",
    ):
        assert part in said
    lockstep("replay", captures["fine"], "--quiet", "-o", "run.h5", cwd=tmp_path)
    said = lockstep("recommend", "run.h5", "--steps", 5, "--also", "state", code=2, cwd=tmp_path).stderr
    assert "--steps: run.h5 is a run file" in said and "--also: run.h5 is a run file" in said
    lockstep("recommend", "no-model", "--quiet", code=2, cwd=tmp_path)
    assert not (tmp_path / "no-model.recommend").exists()


def test_a_proof_runs_new_seeds(lockstep, tmp_path):
    found = advice(lockstep, "mlp", tmp_path, "--prove", "--tolerance", 0.1)
    proof = found["proof"]
    assert proof["result"] == "pass" and proof["seeds"] in (5, 8, 12)
    assert proof["tolerance"] >= 0.1 * proof["fall"] > 0
    assert proof["upper_bound"] < proof["tolerance"]


def test_a_linear_layer_that_fp8_spoils_is_found(lockstep, captures, tmp_path):
    found = advice(lockstep, captures["narrow"], tmp_path, "--formats", "bf16,fp8")
    assert found["answer"] == "plain" and chosen(found)["format"] == "bf16"
    (outcome,) = found["narrow"]
    # The last layer has 4 outputs, no multiple of 16.
    assert outcome["format"] == "fp8" and outcome["passes"] and outcome["linear_layers"] == 1
    trial = next(t for t in found["tried"] if t["lane"] == outcome["lane"])
    assert {kept["layer"] for kept in trial["not_narrow"]} == {"middle.inner", "last"}
    # The score, from one run in which both layers are in fp8, ranks them as they are when measured alone.
    rows = {row["layer"]: row for row in found["sensitivity"]["layers"] if row["format"] == "fp8"}
    assert rows["middle.inner"]["score"] > 3 * rows["first"]["score"]
    assert rows["middle.inner"]["loss_error"] > 3 * rows["first"]["loss_error"]
    floor = found["sensitivity"]["floor"]
    assert all(row["loss_error"] > 10 * floor["loss_error"] for row in rows.values())
    assert [point["passes"] for point in found["frontier"] if "lane" in point].count(True) >= 1


def test_a_format_without_a_unit_on_the_gpu_is_not_tried(lockstep, captures, tmp_path):
    found = advice(lockstep, captures["fine"], tmp_path, "--formats", "bf16,mxfp8", "--gpu", "h100")
    assert found["narrow"] == [{"format": "mxfp8", "passes": False, "why_not": "h100 has no unit for it"}]
    assert found["gpu"] == "h100" and found["candidates_run"] == 1
    assert advice(lockstep, captures["fine"], tmp_path, "--formats", "bf16,mxfp8")["gpu"] == "b200"


def test_weights_without_masters_need_more_than_rounding_to_nearest(lockstep, tmp_path):
    found = advice(lockstep, "lenet", tmp_path, "--formats", "bf16", "--also", "weights,state")
    outcomes = {row["choice"]: row["passes"] for row in found["memory"]}
    # Its loss is fine after 60 steps, but updates are lost: of no use for a longer run.
    assert not outcomes["weights-nearest"] and outcomes["weights-stochastic"] and outcomes["weights-kahan"]
    nearest = next(t for t in found["tried"] if t.get("memory") == ["weights-nearest"])
    assert nearest["passes"]
    assert set(chosen(found)["memory"]) == {"weights-stochastic", "state-bf16"}
    assert chosen(found)["relative_time"] < found["tried"][0]["relative_time"]


def test_sums_of_fp8_products_may_be_hoppers_fast_ones(lockstep, tmp_path):
    found = advice(lockstep, "mlp", tmp_path, "--formats", "bf16,fp8", "--also", "sums", "-o", "policy.toml")
    (outcome,) = found["memory"]
    assert outcome["choice"] == "sums-fp8-fast" and outcome["passes"] and chosen(found)["narrow"] == "fp8"
    explained = lockstep("explain", "mlp", "--policy", "policy.toml", cwd=tmp_path).stdout
    rows = [line for line in explained.splitlines() if "hopper_fp8" in line]
    assert rows and all("fp8_e" in line or "linear" in line for line in rows)
    # Without FP8 layers there is nothing that such sums add.
    assert "memory" not in advice(lockstep, "mlp", tmp_path, "--formats", "bf16", "--also", "sums")


def test_the_budget_in_minutes_and_in_candidates(lockstep, captures, tmp_path):
    found = advice(lockstep, captures["cancels"], tmp_path, "--formats", "fp16", "--budget", "1,10m")
    assert found["out_of_budget"] and found["candidates_run"] == 2
    error = lockstep(
        "recommend", captures["fine"], "--budget", "soon", "--also", "wieghts", "--gpu", "h10", code=2, cwd=tmp_path
    ).stderr
    assert "--budget soon" in error and "--also wieghts" in error and "h10" in error and "h100" in error


def test_a_capture_is_proven_on_steps_that_the_search_did_not_see(lockstep, captures, tmp_path):
    found = advice(lockstep, captures["fine"], tmp_path, "--prove", "--tolerance", "0.5")
    assert found["proof"]["result"] == "pass" and found["proof"]["seeds"] == 5
    orders = set()
    for path in (tmp_path / "fine.recommend").glob("*.h5"):
        with h5py.File(path) as file:
            orders.add(
                tuple(json.loads(file["options"][()] if "options" in file else file.attrs["options"])["captured_order"])
            )
    assert (0, 1, 2, 3) in orders and len(orders) == 6  # the search's, and five of the others
    assert all(set(order) == {4, 5, 6, 7} for order in orders - {(0, 1, 2, 3)})


def test_the_ranges_of_a_run_file_as_json(lockstep, captures, tmp_path):
    lockstep("replay", captures["fine"], "--lanes", "fp32", "--quiet", "-o", "run.h5", cwd=tmp_path)
    found = json.loads(lockstep("recommend", "run.h5", "--json", cwd=tmp_path).stdout)
    ranges = found["loss_scales"]["fp16"]
    assert found["format"] == "lockstep-ranges" and ranges["lo_exponent"] < 0 < ranges["hi_exponent"]
    assert {row["layer"] for row in ranges["layers"]} >= {"first", "middle", "last"}
