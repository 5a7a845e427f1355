"""The GitHub Action, the demo workflow and the GitLab template: their shell steps, run as plain shell."""

import json
import os
import pathlib
import re
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest
import yaml

CI = pathlib.Path(__file__).resolve().parents[3] / "ci"
# How GitHub runs a step of `shell: bash`.
BASH = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c"]
RUN = ["--steps", 4, "--batch", 16, "--lanes", "fp32,torch-autocast-bf16", "--quiet"]


class Machine:
    """A folder in which steps run, with the files that GitHub gives to a step."""

    def __init__(self, folder, binary_dir):
        self.folder, self.output, self.summary = folder, folder / "output", folder / "summary.md"
        self.environment = {
            **os.environ,
            "PATH": f"{binary_dir}:{os.environ['PATH']}",
            "GITHUB_OUTPUT": str(self.output),
            "GITHUB_STEP_SUMMARY": str(self.summary),
        }

    def run(self, text, shell=BASH, **environment):
        return subprocess.run(
            [*shell, text], cwd=self.folder, env={**self.environment, **environment}, capture_output=True, text=True
        )


@pytest.fixture
def machine(tmp_path, binary_dir):
    return Machine(tmp_path, binary_dir)


@pytest.fixture(scope="module")
def files(lockstep, tmp_path_factory):
    """A baseline; a run as good as it; a run with a defect; a run of another seed, which it cannot judge."""
    folder = tmp_path_factory.mktemp("runs")
    lockstep("baseline", "record", "lenet", *RUN, "--members", 6, "-o", folder / "b.json")
    for name, option in {
        "good": ["--nudge", 1001],
        "bad": ["--batch-norm-eps", "1e-2"],
        "other": ["--seed", 7],
    }.items():
        lockstep("replay", "lenet", *RUN, "--twins", 0, *option, "-o", folder / f"{name}.h5")
    return folder


def load(path):
    return yaml.safe_load((CI / path).read_text())


def action_step(subject, files, **more):
    """The command of the Action's step, and its environment with these inputs."""
    action = load("github/action.yml")
    inputs = {name: row.get("default") for name, row in action["inputs"].items()}
    inputs |= {"subject": str(files / subject), "baseline": str(files / "b.json"), **more}
    step = next(step for step in action["runs"]["steps"] if "run" in step)
    environment = {
        name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: inputs[found.group(1)], text)
        for name, text in step["env"].items()
    }
    assert "${{" not in step["run"], "inputs come through the environment: no text of theirs is run"
    return step["run"], environment


def failures(path):
    """Of a JUnit file: test cases with a failure or an error, and all of them."""
    cases = list(ElementTree.parse(path).getroot().iter("testcase"))
    return [case for case in cases if any(child.tag in ("failure", "error") for child in case)], cases


@pytest.mark.parametrize("subject, code", [("good.h5", 0), ("bad.h5", 1), ("other.h5", 3)])
def test_the_action_s_exit_code_is_the_verdict(machine, files, subject, code):
    command, environment = action_step(subject, files)
    done = machine.run(command, **environment)
    assert done.returncode == code, done.stdout + done.stderr
    assert machine.output.read_text() == f"exit-code={code}\n"
    folder = machine.folder / "lockstep-check"
    assert set(os.listdir(folder)) == {"check.json", "junit.xml", "check.md", "check.sarif", "check.html"}
    assert machine.summary.stat().st_size > 0
    failed, cases = failures(folder / "junit.xml")
    assert cases and bool(failed) == (code == 1)
    assert json.loads((folder / "check.sarif").read_text())["version"] == "2.1.0"
    assert ("::error" in done.stdout) == (code == 1)


def test_the_action_can_warn_where_nothing_is_comparable(machine, files):
    command, environment = action_step("other.h5", files, inconclusive="warn")
    done = machine.run(command, **environment)
    assert done.returncode == 0 and "::warning" in done.stdout, done.stdout + done.stderr
    assert machine.output.read_text() == "exit-code=3\n"


def test_the_action_reads_a_rules_file(machine, files):
    command, environment = action_step("good.h5", files, rules="no-such-rules.toml")
    done = machine.run(command, **environment)
    assert done.returncode == 2 and "no-such-rules.toml" in done.stderr, done.stdout + done.stderr


def test_the_demo_workflow_runs_as_plain_shell(machine):
    workflow = load("github/demo.yml")
    steps = [step for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert len(steps) == 4
    for step in steps:
        done = machine.run(step["run"])
        assert done.returncode == 0, f"{step['name']}\n{done.stdout}{done.stderr}"
    kept = machine.folder / "lockstep-check"
    assert not failures(kept / "junit.xml")[0] and failures(kept / "defect.xml")[0]


@pytest.mark.parametrize("subject, code", [("good.h5", 0), ("bad.h5", 1), ("other.h5", 3)])
def test_the_gitlab_template_runs_as_plain_shell(machine, files, subject, code):
    job = load("gitlab/lockstep.gitlab-ci.yml")[".lockstep-check"]
    variables = {
        **job["variables"],
        "LOCKSTEP_SUBJECT": str(files / subject),
        "LOCKSTEP_BASELINE": str(files / "b.json"),
    }
    done = machine.run("\n".join(job["script"]), shell=["sh", "-e", "-c"], **variables)
    assert done.returncode == code, done.stdout + done.stderr
    assert "allow_failure" not in job, "what could not be compared is no pass"
    junit = job["artifacts"]["reports"]["junit"].replace("$LOCKSTEP_FOLDER", variables["LOCKSTEP_FOLDER"])
    assert (machine.folder / junit).exists()
