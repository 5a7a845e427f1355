"""What `check` writes for programs and CI systems: JSON by its schema, JUnit XML by a standard parser, SARIF by the
rules of its standard, annotations and a job's summary for GitHub; rules files; outputs never replace an input."""

import json
import os
import pathlib
import re
import subprocess
import time
import xml.etree.ElementTree as ElementTree

import jsonschema
import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[3]

# The part of SARIF 2.1.0's schema (OASIS, sarif-schema-2.1.0.json) that Lockstep's files use: the same names and required
# properties, and as in the schema no others. The schema itself is not ours to copy.
TEXT = {"type": "string"}
MESSAGE = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"text": TEXT, "id": TEXT},
    "anyOf": [{"required": ["text"]}, {"required": ["id"]}],
}
LEVEL = {"enum": ["none", "note", "warning", "error"]}


def closed(required, **properties):
    return {"type": "object", "additionalProperties": False, "required": required, "properties": properties}


def many(item, least=0):
    return {"type": "array", "items": item, "minItems": least}


LOCATION = closed(
    [],
    physicalLocation=closed(
        [],
        artifactLocation=closed([], uri={**TEXT, "format": "uri-reference"}),
        region=closed([], startLine={"type": "integer", "minimum": 1}),
    ),
    logicalLocations=many(closed([], fullyQualifiedName=TEXT)),
)
RESULT = closed(
    ["message"],
    ruleId=TEXT,
    ruleIndex={"type": "integer", "minimum": -1},
    level=LEVEL,
    message=MESSAGE,
    locations=many(LOCATION),
    partialFingerprints={"type": "object", "additionalProperties": TEXT},
    properties={"type": "object"},
)
DRIVER = closed(
    ["name"],
    name=TEXT,
    version=TEXT,
    rules=many(closed(["id"], id=TEXT, shortDescription=MESSAGE, defaultConfiguration=closed([], level=LEVEL))),
)
INVOCATION = closed(
    ["executionSuccessful"],
    executionSuccessful={"type": "boolean"},
    exitCode={"type": "integer"},
    toolExecutionNotifications=many(closed(["message"], level=LEVEL, message=MESSAGE)),
)
SARIF = closed(
    ["version", "runs"],
    version={"const": "2.1.0"},
    **{"$schema": {**TEXT, "format": "uri"}},
    runs=many(
        closed(
            ["tool"],
            tool=closed(["driver"], driver=DRIVER),
            invocations=many(INVOCATION),
            results=many(RESULT),
            properties={"type": "object"},
        )
    ),
)


def check_sarif(sarif):
    jsonschema.validate(sarif, SARIF, cls=jsonschema.Draft202012Validator)
    for run in sarif["runs"]:
        rules = run["tool"]["driver"]["rules"]
        for result in run["results"]:
            assert rules[result["ruleIndex"]]["id"] == result["ruleId"]


@pytest.fixture(scope="module")
def baseline(lockstep, tmp_path_factory):
    path = tmp_path_factory.mktemp("check") / "mlp.baseline.json"
    lockstep(
        "baseline",
        "record",
        "mlp",
        "--data",
        "synthetic:100",
        "--steps",
        3,
        "--batch",
        8,
        "--members",
        4,
        "--lanes",
        "fp32,torch-autocast-fp16",
        "--quiet",
        "-o",
        path,
    )
    return path


@pytest.fixture(scope="module")
def worse(lockstep, baseline):
    """A run with another learning rate."""
    path = baseline.with_name("worse.h5")
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
        "fp32,torch-autocast-fp16",
        "--optimizer-args",
        "lr=0.2",
        "--quiet",
        "-o",
        path,
    )
    return path


@pytest.fixture(scope="module")
def schema():
    schema = json.loads((SOURCE / "docs" / "check.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return schema


def test_json_is_valid_by_its_schema(lockstep, baseline, worse, schema):
    verdicts = {}
    for name, subject, code in (("same", "mlp", 0), ("worse", worse, 1), ("other", "vae", 3)):
        result = json.loads(lockstep("check", subject, "--baseline", baseline, "--json", "-", code=code).stdout)
        jsonschema.validate(result, schema, cls=jsonschema.Draft202012Validator)
        assert result["exit_code"] == code
        verdicts[name] = result["verdict"]
    assert verdicts["same"] == "identical" and verdicts["worse"] == "regression"
    golden = json.loads((SOURCE / "tests" / "golden" / "check.json").read_text())
    jsonschema.validate(golden, schema, cls=jsonschema.Draft202012Validator)
    for damage in (lambda r: r.pop("alarms"), lambda r: r.update(verdict="fine"), lambda r: r["alarms"][0].pop("unit")):
        broken = json.loads(json.dumps(golden))
        damage(broken)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, schema, cls=jsonschema.Draft202012Validator)


def outcomes(root):
    """(failures, errors, skipped) counted from the test cases, which must agree with the totals."""
    found = tuple(len(root.findall(f"./testsuite/testcase/{kind}")) for kind in ("failure", "error", "skipped"))
    for element in (root, root.find("testsuite")):
        assert found == tuple(int(element.get(key)) for key in ("failures", "errors", "skipped"))
        assert int(element.get("tests")) == len(root.findall("./testsuite/testcase"))
    return found


def test_junit_tells_failure_error_and_skipped_apart(lockstep, baseline, worse, tmp_path):
    path = tmp_path / "check.xml"
    lockstep("check", worse, "--baseline", baseline, "--junit", path, code=1)
    root = ElementTree.parse(path).getroot()
    failures, errors, skipped = outcomes(root)
    assert failures > 3 and errors == skipped == 0
    properties = {p.get("name"): p.get("value") for p in root.findall("./testsuite/properties/property")}
    assert properties["alpha"] == "0.01" and properties["ensemble"] == "ulps" and properties["ensemble_runs"] == "5"
    lockstep("check", "mlp", "--baseline", baseline, "--junit", path)
    assert outcomes(ElementTree.parse(path).getroot()) == (0, 0, 0)
    missing = tmp_path / "fewer.h5"
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
        "fp32",
        "--quiet",
        "-o",
        missing,
    )
    lockstep("check", missing, "--baseline", baseline, "--junit", path, code=3)
    assert outcomes(ElementTree.parse(path).getroot()) == (0, 1, 0)
    longer = tmp_path / "longer.h5"
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
        "fp32,torch-autocast-fp16",
        "--quiet",
        "-o",
        longer,
    )
    lockstep("check", longer, "--baseline", baseline, "--junit", path, code=3)
    assert outcomes(ElementTree.parse(path).getroot()) == (0, 0, 1)


def test_sarif_has_what_its_standard_requires(lockstep, baseline, worse, tmp_path):
    path = tmp_path / "check.sarif"
    lockstep("check", worse, "--baseline", baseline, "--sarif", path, code=1)
    sarif = json.loads(path.read_text())
    check_sarif(sarif)
    (result,) = sarif["runs"][0]["results"]
    assert re.search(r"\(\d+ more alarms follow from it\)", result["message"]["text"])
    golden = json.loads((SOURCE / "tests" / "golden" / "check.sarif").read_text())
    check_sarif(golden)
    location = golden["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert location == {"artifactLocation": {"uri": "model.py"}, "region": {"startLine": 12}}
    golden["runs"][0]["results"][0]["rule"] = "x"
    with pytest.raises(jsonschema.ValidationError):
        check_sarif(golden)


@pytest.fixture
def truncated(worse, tmp_path):
    path = tmp_path / "truncated.h5"
    path.write_bytes(worse.read_bytes()[:5000])
    return path


@pytest.mark.parametrize("what", ["run file", "baseline", "no baseline", "rules", "pair"])
def test_an_error_is_in_every_output(lockstep, baseline, worse, truncated, schema, tmp_path, monkeypatch, what):
    broken, rules, summary = tmp_path / "broken.json", tmp_path / "rules.toml", tmp_path / "summary.md"
    broken.write_text(baseline.read_text()[:2000])
    rules.write_text("version = 1\nalpa = 3\n[[ignore]]\nlayr = 1\n")
    args, named = {
        "run file": ([truncated, "--baseline", baseline], "truncated.h5"),
        "baseline": ([worse, "--baseline", broken], "broken.json: not a whole baseline"),
        "no baseline": ([worse, "--baseline", tmp_path / "none.json"], "none.json: no such file"),
        "rules": ([worse, "--baseline", baseline, "--rules", rules], "rules.toml': line "),
        "pair": (["--a", worse, "--b", truncated], "truncated.h5"),
    }[what]
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    paths = {name: tmp_path / f"check.{name}" for name in ("json", "junit", "sarif", "markdown", "report")}
    outputs = [word for name, path in paths.items() for word in (f"--{name}", path)]
    done = lockstep("check", *args, *outputs, "--github", code=2)
    assert named in done.stderr or what == "rules"
    assert done.stdout.startswith("::error title=Lockstep%3A not checked::") and named in done.stdout
    failures, errors, skipped = outcomes(ElementTree.parse(paths["junit"]).getroot())
    assert (failures, errors, skipped) == (0, 1, 0)
    error = ElementTree.parse(paths["junit"]).getroot().find("./testsuite/testcase/error")
    assert named in error.get("message")
    sarif = json.loads(paths["sarif"].read_text())
    check_sarif(sarif)
    invocation = sarif["runs"][0]["invocations"][0]
    assert invocation["executionSuccessful"] is False and invocation["exitCode"] == 2
    assert named in invocation["toolExecutionNotifications"][0]["message"]["text"]
    result = json.loads(paths["json"].read_text())
    jsonschema.validate(result, schema, cls=jsonschema.Draft202012Validator)
    assert result["verdict"] == "error" and result["exit_code"] == 2 and named in result["problems"][0]
    assert len(result["problems"]) == (4 if what == "rules" else 1)
    del result["problems"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(result, schema, cls=jsonschema.Draft202012Validator)
    for path in (paths["markdown"], paths["report"], summary):
        assert "ERROR" in path.read_text()
    only = lockstep("check", *args, "--json", "-", code=2).stdout
    assert json.loads(only)["verdict"] == "error"


def test_a_wrong_command_line_writes_nothing(lockstep, worse, tmp_path):
    lockstep("check", worse, "--baseline", worse, "--no-such-option", "--junit", tmp_path / "x.xml", code=2)
    lockstep("check", worse, "--junit", tmp_path / "x.xml", code=2)
    assert not (tmp_path / "x.xml").exists()


def test_github_annotations_and_summary(lockstep, baseline, worse, tmp_path, monkeypatch):
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    lines = lockstep("check", worse, "--baseline", baseline, "--github", code=1).stdout.splitlines()
    annotations = [line for line in lines if line.startswith("::")]
    assert 1 <= len(annotations) <= 10 and all(line.startswith("::error title=") for line in annotations)
    text = summary.read_text()
    assert text.startswith("before\n## Lockstep: ") and "**REGRESSION**" in text
    summary.write_text("x" * (1 << 20))
    lockstep("check", worse, "--baseline", baseline, "--github", code=1)
    assert summary.stat().st_size == 1 << 20


def test_markdown_and_html(lockstep, baseline, worse, tmp_path):
    markdown, page = tmp_path / "check.md", tmp_path / "check.html"
    lockstep("check", worse, "--baseline", baseline, "--markdown", markdown, "--report", page, code=1)
    assert markdown.stat().st_size < 65536
    text = markdown.read_text()
    assert "**REGRESSION**: optimizer lr: " in text and ". First beyond its limit: lane fp32: " in text
    assert "optimizer lr: " in page.read_text() and "Every alarm" in page.read_text()


def test_an_output_never_replaces_an_input_or_another_output(lockstep, baseline, worse, tmp_path):
    before = baseline.read_bytes()
    link = tmp_path / "link.json"
    link.symlink_to(baseline)
    for path in (baseline, link):
        error = lockstep("check", "mlp", "--baseline", baseline, "--json", path, code=2).stderr
        assert "is an input of this command" in error
    assert baseline.read_bytes() == before
    assert "is an input" in lockstep("check", worse, "--baseline", baseline, "--sarif", worse, code=2).stderr
    error = lockstep("check", worse, "--baseline", baseline.parent, "--json", baseline, code=2).stderr
    assert "is an input" in error
    rules = tmp_path / "rules.toml"
    rules.write_text("version = 1\n")
    assert (
        "is an input"
        in lockstep("check", "mlp", "--baseline", baseline, "--rules", rules, "--junit", rules, code=2).stderr
    )
    new = tmp_path / "new"
    assert (
        "the same file"
        in lockstep("check", "mlp", "--baseline", baseline, "--json", new, "--junit", new, code=2).stderr
    )
    assert (
        "standard output" in lockstep("check", "mlp", "--baseline", baseline, "--json", "-", "--github", code=2).stderr
    )
    assert "--exact" in lockstep("check", worse, "--baseline", worse, "--exact", "--json", new, code=2).stderr
    error = lockstep(
        "check", "mlp", "--baseline", baseline, "--json", tmp_path, "--junit", new / "x.xml", code=2
    ).stderr
    assert f"--json {tmp_path}: is a folder" in error and "there is no folder" in error
    assert not new.exists()


def test_rules_file(lockstep, baseline, worse, tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text('version = 1\n[[ignore]]\nlayr = "x"\nreason = "lr"\nexpires = 2999-01-31\n')
    error = lockstep("check", worse, "--baseline", baseline, "--rules", rules, code=2).stderr
    assert "line 3: [[ignore]] layr is not a key of this table; did you mean 'layer'?" in error
    rules.write_text('version = 1\nalpha = 0.05\n[[ignore]]\nreason = "lr"\nexpires = 2999-01-31\n')
    result = json.loads(lockstep("check", worse, "--baseline", baseline, "--rules", rules, "--json", "-").stdout)
    assert result["alarms"] == [] and result["ignored"][0]["alarms"] > 3 and result["alpha"] == 0.05
    rules.write_text('version = 1\n[[ignore]]\nreason = "lr"\nexpires = 2026-01-31\n')
    text = lockstep("check", worse, "--baseline", baseline, "--rules", rules, code=1).stdout
    assert "expired on 2026-01-31" in " ".join(text.split())


def test_no_output_says_that_all_is_well_where_another_cannot_be_written(lockstep, tmp_path):
    base, out = tmp_path / "b.json", tmp_path / "out.json"
    lockstep("baseline", "record", "mlp", "--steps", "3", "--members", "2", "-o", base, "--quiet")
    check = ["check", "mlp", "--baseline", base, "--json", out, "--github"]
    lockstep(*check, env={**os.environ, "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")})
    assert json.loads(out.read_text())["verdict"] == "identical"
    summary = tmp_path / "none" / "summary.md"
    done = lockstep(*check, code=2, env={**os.environ, "GITHUB_STEP_SUMMARY": str(summary)})
    assert f"GITHUB_STEP_SUMMARY={summary}: cannot be written" in done.stderr
    assert json.loads(out.read_text())["verdict"] == "error"
    assert "::error" in done.stdout and "identical" not in done.stdout.lower().split("::error", 1)[1]


def test_a_check_removes_what_a_killed_one_left(binary_dir, lockstep, tmp_path):
    base, scratch = tmp_path / "b.json", tmp_path / "scratch"
    scratch.mkdir()
    lockstep("baseline", "record", "mlp", "--steps", "3", "--members", "2", "-o", base, "--quiet")
    own = {**os.environ, "TMPDIR": str(scratch)}
    command = [binary_dir / "lockstep", "check", "--baseline", base]
    long = tmp_path / "long.json"
    text = json.loads(base.read_text())
    text["steps"] = text["options"]["steps"] = 100_000
    long.write_text(json.dumps(text))
    killed = subprocess.Popen(
        [*command[:-1], long, "mlp"], env=own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while not list(scratch.glob("lockstep-check.*/*.h5")):
        assert killed.poll() is None
        time.sleep(0.01)
    (scratch / "lockstep-check.mine").write_text("a file of the user's")
    lockstep("check", "mlp", "--baseline", base, env=own)
    assert list(scratch.glob("lockstep-check.*/*.h5")), "another check's folder, while it runs"
    killed.kill()
    killed.wait()
    lockstep("check", "mlp", "--baseline", base, env=own)
    assert [path.name for path in scratch.iterdir()] == ["lockstep-check.mine"]
