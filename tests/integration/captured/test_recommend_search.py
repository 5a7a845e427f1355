"""`lockstep recommend` on captures with a planted fault: its answer, and that the answer removes the fault."""

import json
import signal
import subprocess
import time

import pytest
import torch
from lockstep_capture import Capture
from torch import nn

torch.set_num_threads(1)
STEPS = 8


class Large(nn.Module):
    """A product that exceeds FP16's largest number, scaled back in FP32's reach."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)

    def forward(self, x):
        return (x * 4000) @ (self.weight * 400) / 1.6e6


class Cancels(nn.Module):
    """Adds a number and takes it away: x keeps the digits that the format has beside 4096."""

    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x):
        return (self.inner(x) + 4096.0) - 4096.0


class Net(nn.Module):
    def __init__(self, middle):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(16, 32), middle, nn.Linear(32, 4)

    def forward(self, x):
        return self.last(torch.relu(self.middle(torch.relu(self.first(x)))))


def loss_of(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def captured(path, middle, optimizer=lambda parameters: torch.optim.Adam(parameters, 3e-3)):
    torch.manual_seed(0)
    model, truth = Net(middle(32)), torch.randn(16, 4)
    optimizer = optimizer(model.parameters())
    with Capture(str(path), model, optimizer, loss_of, steps=STEPS, verify=[]) as capture:
        for _ in range(STEPS):
            x = torch.randn(64, 16)
            batch = x, (x @ truth).argmax(1)
            with capture.step(batch):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
    return path


@pytest.fixture(scope="module")
def captures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("captures")
    kinds = {"fine": lambda width: nn.Linear(width, width), "large": Large, "cancels": Cancels}
    return {name: captured(folder / f"{name}.lscap.h5", middle) for name, middle in kinds.items()}


def advice(lockstep, capture, folder, *options):
    return json.loads(lockstep("recommend", capture, "--json", *options, cwd=folder).stdout)


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
    assert found["sentence"].startswith("Keep middle in fp32; middle matmul (test_recommend_search.py:")
    assert "GradScaler's 65536 fits, keep it dynamic." in found["sentence"]
    # Plain autocast broke; under the policy, run as a user would, the fault is gone.
    assert found["tried"][0]["verdict"] == "broke"
    lockstep("replay", captures["large"], "--cycle", "--steps", 60, "--lanes", "fp32,policy.toml", "--quiet", "-o", "run.h5",
             cwd=tmp_path)
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
    text = lockstep("recommend", captures["large"], "--quiet", "--prove", code=3, cwd=tmp_path).stdout
    assert text.startswith("Keep middle in fp32; ")
    assert "amp.apply(model)" in text and "scaler.scale(loss).backward()" in text
    plain = lockstep("recommend", captures["fine"], "--quiet", cwd=tmp_path).stdout
    assert 'torch.autocast("cuda", dtype=torch.float16)' in plain and 'torch.amp.GradScaler("cuda")' in plain
    assert "No proof: a capture has" in text and "Ranges for fp16" not in text
    again = lockstep("recommend", captures["large"], "--quiet", "--all", cwd=tmp_path).stdout
    assert "replays read from large.recommend" in again and "Ranges for fp16" in again


def test_without_a_budget_the_search_says_so(lockstep, captures, tmp_path):
    found = advice(lockstep, captures["large"], tmp_path, "--budget", 0, "--formats", "fp16")
    assert found["answer"] == "fp32" and found["out_of_budget"] and "--budget" in found["sentence"]


def test_too_few_steps_give_no_answer(lockstep, captures, tmp_path):
    found = advice(lockstep, captures["fine"], tmp_path, "--steps", 2)
    assert found["answer"] == "too_short" and "give --steps 8" in found["sentence"]


def test_a_stopped_search_goes_on(lockstep, binary_dir, captures, tmp_path):
    options = ["--steps", "600", "--formats", "fp16"]
    command = [str(binary_dir / "lockstep"), "recommend", str(captures["large"]), *options, "--quiet"]
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
    assert finished == advice(lockstep, captures["large"], fresh, *options)
    assert not list(folder.glob("*.state*"))


def test_a_reference_that_breaks_gets_no_answer(lockstep, tmp_path):
    path = captured(tmp_path / "wild.lscap.h5", lambda width: nn.Linear(width, width), optimizer=lambda p: torch.optim.SGD(p, 1e9))
    for formats in ("bf16", "fp16,bf16"):
        found = advice(lockstep, path, tmp_path, "--formats", formats)
        assert found["answer"] == "fp32_broke" and "fp32's own loss is not finite" in found["sentence"]


def test_options_that_would_be_ignored_are_refused(lockstep, captures, tmp_path):
    said = lockstep("recommend", captures["fine"], "--batch", 3, "--data", "x", "--tolerance", 2, "--formats", "fp16,fp16",
                    code=2, cwd=tmp_path).stderr
    for part in ("--batch: capture", "--data: capture", "--tolerance: only for --prove", "--tolerance 2: must lie", "fp16 is there twice"):
        assert part in said
    lockstep("replay", captures["fine"], "--quiet", "-o", "run.h5", cwd=tmp_path)
    said = lockstep("recommend", "run.h5", "--steps", 5, "--json", code=2, cwd=tmp_path).stderr
    assert "--steps: run.h5 is a run file" in said and "--json: run.h5 is a run file" in said


def test_a_proof_runs_new_seeds(lockstep, tmp_path):
    found = advice(lockstep, "mlp", tmp_path, "--prove", "--tolerance", 0.1)
    proof = found["proof"]
    assert proof["result"] == "pass" and proof["seeds"] in (5, 8, 12)
    assert proof["tolerance"] >= 0.1 * proof["fall"] > 0
    assert proof["upper_bound"] < proof["tolerance"]
