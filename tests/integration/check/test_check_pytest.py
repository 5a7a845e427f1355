"""The pytest plugin in an empty project: a fresh environment with the package, PyTorch and pytest, and nothing else."""

import json
import os
import pathlib
import re
import subprocess
import sys
import sysconfig

import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[3]
TEST = """
import sys
import pytest

def build(seed=0):
    import torch
    from torch import nn
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))
    loader = [(torch.randn(6, 8), torch.randint(3, (6,))) for _ in range(4)]
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), loader

def loss_of(model, batch):
    from torch.nn import functional as F
    return F.cross_entropy(model(batch[0]), batch[1])

SMALL = dict(steps=4, lanes=["fp32", "torch-autocast-fp16"], members=4)

def test_the_plugin_leaves_torch_alone():
    assert "lockstep_pytest" in sys.modules and "torch" not in sys.modules

def test_numerics(lockstep):
    lockstep.check(*build(), loss_of, **SMALL)

def test_other_seeds(lockstep):
    lockstep.check(*build(), loss_of, other_seeds=build, seeds=4, name="seeds", **SMALL)

@pytest.mark.parametrize("clip", [1.0])
def test_own_loop(lockstep, clip):
    import torch
    model, optimizer, loader = build()
    with lockstep.capture(model, optimizer, loss_of, **SMALL) as cap:
        for batch in loader:
            with cap.step(batch):
                loss_of(model, batch).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
"""
FORGOTTEN = """
def test_forgets_to_check(lockstep):
    pass

def test_leaves_early(lockstep):
    import pytest
    pytest.skip("no data here")
"""
TWICE = """
def test_twice(lockstep):
    for _ in range(2):
        lockstep.check(*build(), loss_of, name="seeds", **SMALL)
"""
NODE = "/".join(["tests", "test_train.py::test_numerics"])
BASELINES = {"test_train.test_numerics.json", "seeds.json", "test_train.test_own_loop-1.0.json"}


class Project:
    """An empty project, and its environment."""

    def __init__(self, folder, program):
        self.folder, self.test = folder / "project", folder / "project" / "tests" / "test_train.py"
        self.test.parent.mkdir(parents=True)
        self.python = folder / "venv" / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        before = sorted((SOURCE / "python").rglob("*"))
        (own,) = (folder / "venv" / "lib").glob("python3*/site-packages")
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--no-build-isolation",
                "--disable-pip-version-check",
                "--target",
                own,
                SOURCE / "python",
            ],
            check=True,
        )
        assert sorted((SOURCE / "python").rglob("*")) == before, "the installation left files in the checkout"
        # PyTorch and pytest are lent: a second download would take minutes.
        self.environment = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib"), "LOCKSTEP": str(program)}
        self.baselines = self.test.parent / "baselines"

    def pytest(self, *options, code=0):
        """Runs all tests; the output."""
        done = subprocess.run(
            [self.python, "-m", "pytest", "-p", "no:cacheprovider", "-rs", *options],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def project(binary_dir, tmp_path_factory):
    project = Project(tmp_path_factory.mktemp("empty"), binary_dir / "lockstep")
    project.test.write_text(TEST)
    where = subprocess.run(
        [project.python, "-c", "import lockstep_capture, lockstep_pytest; print(lockstep_capture.__file__)"],
        env=project.environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert where.startswith(str(project.python.parents[1])), "the installed package, not the checkout"
    return project


@pytest.fixture(scope="module")
def recorded(project):
    """The project after its first recording; the outputs before and of it."""
    project.missing = project.pytest(code=1)
    project.recording = project.pytest("--lockstep-record")
    return project


def with_test(project, text, *options, code):
    """The output with other tests; the project is as before afterwards."""
    project.test.write_text(text)
    try:
        return project.pytest(*options, code=code)
    finally:
        project.test.write_text(TEST)


def test_a_missing_baseline_says_how_to_record_it(recorded):
    assert "3 failed, 1 passed" in recorded.missing
    assert "no baseline tests/baselines/test_train.test_numerics.json" in recorded.missing
    assert f"pytest --lockstep-record {NODE}" in recorded.missing


def test_baselines_are_recorded_next_to_the_tests(recorded):
    assert set(os.listdir(recorded.baselines)) == BASELINES
    assert "recorded tests/baselines/seeds.json" in recorded.recording
    for path in recorded.baselines.iterdir():
        text = path.read_text()
        assert str(recorded.folder.parent) not in text and "/tmp" not in text, "no path of this machine is committed"


def test_the_same_loop_passes(recorded):
    assert "4 passed" in recorded.pytest()


def test_a_regression_fails_with_the_program_s_text(recorded):
    text = with_test(recorded, TEST.replace("nn.LayerNorm(16)", "nn.LayerNorm(16, eps=1e-2)"), code=1)
    assert "3 failed, 1 passed" in text
    verdicts = re.findall(r"REGRESSION: .*?\n\n", text, re.S)
    assert len(verdicts) == 3
    assert all("layer_norm" in verdict and "1e-05 -> 0.01" in verdict for verdict in verdicts), verdicts
    assert f'pytest --lockstep-record --lockstep-reason "..." {NODE}' in text


def test_recording_anew_needs_a_reason_and_keeps_the_history(recorded):
    text = recorded.pytest("--lockstep-record", "-k", "test_numerics", code=1)
    assert 'exists: say why it changes, --lockstep-reason "..."' in text
    text = recorded.pytest("--lockstep-record", "--lockstep-reason", "a larger rate", "-k", "test_numerics")
    assert "recorded tests/baselines/test_train.test_numerics.json: a larger rate" in text
    history = json.loads((recorded.baselines / "test_train.test_numerics.json").read_text())["history"]
    assert len(history) == 2 and history[1]["reason"] == "a larger rate"


def test_a_broken_run_is_no_baseline(recorded):
    before = (recorded.baselines / "test_train.test_numerics.json").read_bytes()
    broken = TEST.replace("model(batch[0])", "model(batch[0] * 1e6)")  # FP16 ends at 65504
    assert broken != TEST
    text = with_test(
        recorded, broken, "--lockstep-record", "--lockstep-reason", "why not", "-k", "test_numerics", code=1
    )
    assert "tests/baselines/test_train.test_numerics.json stays as it is. lockstep: not proposed" in text
    assert (recorded.baselines / "test_train.test_numerics.json").read_bytes() == before


def test_another_seed_is_judged_by_other_seeds_alone(recorded):
    other = TEST.replace("def build(seed=0):", "def build(seed=77):")
    text = with_test(recorded, other, "-k", "numerics or seeds", code=1)
    assert "1 failed, 1 passed" in text and "INCONCLUSIVE" in text
    text = with_test(recorded, other, "-k", "numerics or seeds", "--lockstep-inconclusive", "skip", code=0)
    assert "1 passed, 1 skipped" in text and "SKIPPED" in text and "INCONCLUSIVE" in text


def test_a_test_that_looks_at_nothing_is_an_error(recorded):
    text = with_test(recorded, FORGOTTEN, code=1)
    assert "1 passed, 1 skipped, 1 error" in text
    assert "calls neither lockstep.check nor lockstep.capture" in text


def test_two_checks_need_two_names(recorded):
    assert "give the second check a name of its own" in with_test(recorded, TEST + TWICE, "-k", "twice", code=1)
