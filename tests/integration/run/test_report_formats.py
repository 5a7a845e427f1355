"""`report --format csv` as pandas reads it, `report --format json` against its schema, both against the run file."""

import copy
import json
import re

import h5py
import jsonschema
import numpy as np
import pandas as pd
import pytest
import referencing
from conftest import SOURCE


@pytest.fixture(scope="module")
def run_path(lockstep, tmp_path_factory):
    path = tmp_path_factory.mktemp("report_formats") / "run.h5"
    lockstep(
        "replay",
        "lenet",
        "--data",
        "synthetic:200",
        "--steps",
        30,
        "--batch",
        16,
        "--lr",
        0.3,
        "--lanes",
        "fp32,torch-autocast-fp16,pure-fp16",
        "-o",
        path,
    )
    return path


@pytest.fixture(scope="module")
def seeds_path(lockstep, run_path):
    path = run_path.with_name("seeds.h5")
    lockstep(
        "replay",
        "mlp",
        "--data",
        "synthetic:100",
        "--steps",
        4,
        "--batch",
        8,
        "--lanes",
        "tf32",
        "--seeds",
        2,
        "--quiet",
        "-o",
        path,
    )
    return path


@pytest.fixture(scope="module")
def tables(lockstep, run_path):
    folder = run_path.with_name("tables")
    assert f"tables into {folder}/" in lockstep("report", run_path, "--format", "csv", "-o", f"{folder}/").stdout
    return folder


def test_every_table_is_a_file_that_pandas_reads(tables):
    names = {path.stem for path in tables.iterdir()}
    assert {"lanes", "loss", "loss-curves", "layers-pure-fp16", "provenance"} <= names
    for path in tables.iterdir():
        assert path.suffix == ".csv" and path.read_bytes().endswith(b"\r\n")
        table = pd.read_csv(path)
        assert len(table) > 0 and len(table.columns) > 1, path


def test_the_curves_of_the_loss_have_every_digit(tables, run_path):
    table = pd.read_csv(tables / "loss-curves.csv", index_col="step")
    with h5py.File(run_path) as file:
        for lane in ("fp32", "torch-autocast-fp16", "pure-fp16"):
            np.testing.assert_array_equal(table[f"loss: {lane}"], file[f"lanes/{lane}/loss"][()])
    scale = table["loss scale: torch-autocast-fp16"]
    assert scale[0] == 65536 and scale.iloc[-1] < 65536


def test_one_table_alone(lockstep, run_path, tables):
    printed = lockstep("report", run_path, "--table", "lanes").stdout
    assert printed.encode() == (tables / "lanes.csv").read_bytes().replace(b"\r\n", b"\n")
    out = run_path.with_name("lanes.csv")
    lockstep("report", run_path, "--table", "lanes", "-o", out)
    assert out.read_bytes() == (tables / "lanes.csv").read_bytes()
    error = lockstep("report", run_path, "--table", "lane", code=2).stderr
    assert "--table lane: unknown; there are: lanes, loss, loss-curves, " in error


def test_no_file_is_overwritten_unasked(lockstep, run_path, tables):
    before = sorted(tables.iterdir())
    error = lockstep("report", run_path, "--format", "csv", "-o", tables, code=2).stderr
    assert "holds files" in error and "--overwrite" in error
    lockstep("report", run_path, "--format", "csv", "-o", tables, "--overwrite")
    assert sorted(tables.iterdir()) == before
    for arguments in (["--format", "csv"], ["-o", tables / "x.csv"]):
        assert "--table NAME" in lockstep("report", run_path, *arguments, code=2).stderr
    assert "a folder required" in lockstep("report", run_path, "--format", "csv", "-o", run_path, code=2).stderr
    assert "json has no tables" in lockstep("report", run_path, "--format", "json", "--table", "lanes", code=2).stderr


def strict(schema):
    """The same schema, but a key that it does not name is an error."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if isinstance(made.get("properties"), dict) and "additionalProperties" not in made:
        made["additionalProperties"] = False
    return made


@pytest.fixture(scope="module")
def schema():
    schema = json.loads((SOURCE / "docs" / "report.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return schema


def reports_to_validate(lockstep, run_path, seeds_path):
    yield json.loads((SOURCE / "tests" / "golden" / "report.json").read_text())
    yield json.loads(lockstep("report", run_path, "--format", "json").stdout)
    on_device = run_path.with_name("device.h5")
    lockstep(
        "replay",
        "mlp",
        "--data",
        "synthetic:100",
        "--steps",
        2,
        "--batch",
        4,
        "--lanes",
        "fp32,torch-autocast-fp16@cuda-host",
        "--overwrite",
        "-o",
        on_device,
    )
    yield json.loads(lockstep("report", on_device, "--format", "json").stdout)
    yield json.loads(lockstep("report", seeds_path, "--format", "json").stdout)


def test_json_reports_are_valid_and_have_no_key_outside_the_schema(lockstep, run_path, seeds_path, schema):
    for report in reports_to_validate(lockstep, run_path, seeds_path):
        for one in (schema, strict(schema)):
            jsonschema.validate(report, one, cls=jsonschema.Draft202012Validator)
    for damage in (
        lambda r: r.pop("lanes"),
        lambda r: r["lanes"][0].update(kind="x"),
        lambda r: r.update(format_version=2),
        lambda r: r["lanes"][0]["losses"].append("nan"),
    ):
        broken = copy.deepcopy(report)
        damage(broken)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, schema, cls=jsonschema.Draft202012Validator)


def test_the_json_of_two_runs_is_valid(lockstep, run_path, seeds_path, schema):
    pair = json.loads((SOURCE / "docs" / "report-pair.schema.json").read_text())
    report = json.loads(lockstep("report", run_path, seeds_path, "--format", "json").stdout)
    for change in (dict, strict):
        registry = referencing.Registry().with_resource(
            "report.schema.json", referencing.Resource.from_contents(change(schema))
        )
        validator = jsonschema.Draft202012Validator(change(pair), registry=registry)
        validator.validate(report)
    for damage in (
        lambda r: r["lanes"][0].update(change="x"),
        lambda r: r["before"].pop("lanes"),
        lambda r: r.pop("settings"),
    ):
        broken = copy.deepcopy(report)
        damage(broken)
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(broken)


def test_the_json_has_the_numbers_of_the_run_file(lockstep, run_path):
    report = json.loads(lockstep("report", run_path, "--format", "json").stdout)
    lanes = {lane["name"]: lane for lane in report["lanes"]}
    with h5py.File(run_path) as file:
        for name, lane in lanes.items():
            losses = file[f"lanes/{name}/loss"][()]
            assert lane["losses"] == [loss if np.isfinite(loss) else None for loss in losses]
        layers = file["sites/layer"].asstr()[()]
        counts = file["lanes/pure-fp16/counts/count"][()].sum(axis=0)
    for row in lanes["pure-fp16"]["layers"]:
        assert layers[row["site"]["id"]] == row["layer"] and counts[row["site"]["id"]] == row["count"]


def test_two_runs(lockstep, run_path, seeds_path):
    fixed = run_path.with_name("fixed.h5")
    lockstep(
        "replay",
        "lenet",
        "--data",
        "synthetic:200",
        "--steps",
        30,
        "--batch",
        16,
        "--lr",
        0.01,
        "--lanes",
        "fp32,torch-autocast-fp16",
        "-o",
        fixed,
    )
    text = lockstep("report", run_path, fixed).stdout
    assert text.startswith("What changed\n============\n")
    for part in ("What run.h5 says itself:", "What fixed.h5 says itself:", "pure-fp16 is in run.h5 only"):
        assert part in " ".join(text.split()), part
    settings = lockstep("report", run_path, fixed, "--table", "settings").stdout
    assert re.search(r"^optimizer lr,0\.3,0\.01$", settings, re.MULTILINE)
    report = json.loads(lockstep("report", run_path, fixed, "--format", "json").stdout)
    assert report["format"] == "lockstep-report-pair" and report["same_graph"] is True
    assert {lane["before"]: lane["after"] for lane in report["lanes"]}["pure-fp16"] is None
    for format, start in (("html", "<!DOCTYPE html>"), ("markdown", "## Lockstep: run.h5 and fixed.h5")):
        assert lockstep("report", run_path, fixed, "--format", format).stdout.startswith(start)
    table = lockstep("report", run_path, fixed, "--table", "losses-curves").stdout
    assert table.startswith("step,loss: ") and table.count("\n") == 31
    same = lockstep("report", run_path, run_path).stdout
    assert "None: options, policies and environment are the same." in same
    assert "The step graphs differ" in lockstep("report", run_path, seeds_path).stdout
