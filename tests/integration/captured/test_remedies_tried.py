"""Remedies that were run: what `report --try` and debug() say of them, inputs that a format cannot hold, lines for PyTorch."""

import importlib.util
import json
import re

import h5py
import lockstep_capture
import pytest
import torch
import torch.nn.functional as F
from torch import nn

STEPS = 4


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def written(folder, model, batches, loss_of, lr=1e-3):
    """A capture of a plain loop in FP32."""
    path, optimizer = folder / "net.lscap.h5", torch.optim.SGD(model.parameters(), lr=lr)
    lockstep_capture.capture(path, model, optimizer, batches, loss_of, steps=len(batches), quiet=True)
    return path


class Variance(nn.Module):
    """E[x^2] - E[x]^2 of values around `mean`, far from 0: what was rounded is the layer before."""

    def __init__(self, mean):
        super().__init__()
        self.stem, self.head = nn.Linear(8, 32), nn.Linear(32, 4)
        with torch.no_grad():
            self.stem.weight.mul_(0.2), self.stem.bias.fill_(mean)

    def forward(self, x):
        y = self.stem(x)
        mean, square = y.mean(-1, keepdim=True), (y * y).mean(-1, keepdim=True)
        return self.head((y - mean) * ((square - mean * mean).clamp(min=0) + 1e-5).rsqrt())


def classes(count=STEPS):
    return [(torch.randn(16, 8), torch.randint(4, (16,))) for _ in range(count)]


def cross_entropy(model, batch):
    return F.cross_entropy(model(batch[0]).float(), batch[1])


def replayed(lockstep, folder, capture, lane, *options):
    lockstep("replay", capture, "--lanes", f"fp32,{lane}", "-o", folder / "run.h5", "--quiet", *options)
    return folder / "run.h5"


def first_screen(text):
    return " ".join(text[text.index("Verdict") :].split())


BF16 = "torch-autocast-bf16"


@pytest.fixture(scope="module")
def variance(lockstep, tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("variance")
    return replayed(lockstep, folder, written(folder, Variance(30.0), classes(), cross_entropy), BF16)


def test_try_says_what_came_of_a_remedy(lockstep, variance):
    untried = first_screen(lockstep("report", variance).stdout)
    assert "Tried: " not in untried
    text = first_screen(lockstep("report", variance, "--try").stdout)
    said = re.search(
        r"Tried: (.+?) removes the fault: gap at equal weights (\S+)% -> (\S+)%, loss (\S+), fp32 (\S+)\. ", text
    )
    assert said, text
    assert float(said[2]) > 1.6 and float(said[3]) < float(said[2]) / 10
    assert said[1] not in untried.partition("Try (untested): ")[2], "the words of the edit that ran"
    lanes = json.loads(lockstep("report", variance, "--try", "--format", "json").stdout)["lanes"]
    told = {lane["name"]: lane.get("tried") for lane in lanes}
    assert told["fp32"] is None and told[BF16].startswith("Tried: ") and told[BF16] in text


def test_a_replay_that_was_slow_is_not_tried(lockstep, variance, tmp_path):
    slow = tmp_path / "slow.h5"
    slow.write_bytes(variance.read_bytes())
    with h5py.File(slow, "a") as run:
        run["lanes/fp32/seconds"][...] = 3.0
        run.attrs["format_version"] = 3  # without checksums
        del run.attrs["description_checksum"]
    done = lockstep("report", slow, "--try")
    assert "the replay took 12 s, more than 5: no remedy was run" in done.stderr.replace("\n", " ")
    assert "Tried: " not in first_screen(done.stdout)


def test_try_belongs_to_one_run(lockstep, variance):
    assert "--try and RUN2" in lockstep("report", variance, variance, "--try", code=2).stderr
    assert "--live and --try" in lockstep("report", variance, "--live", "--try", code=2).stderr


def test_the_fix_begins_with_what_was_rounded(lockstep, variance):
    found = json.loads(lockstep("recommend", variance, "--fix", BF16, "--json").stdout)
    assert "cancellation" in found["finding"], found["finding"]
    rounded = re.search(r"rounding the result of (.+?) \(", found["finding"])[1]
    words = [" and ".join(edit["words"] for edit in one["edits"]) for one in found["tried"]]
    assert words[0] == f"{rounded} in fp32", words
    assert words[1].startswith(f"{rounded} in fp32, and the ops from there to "), words
    chosen = found["tried"][found["fix"]]
    for one in found["tried"]:
        assert not (one["grade"] != "no" and one["equal_weights"]["is_wrong"]), "a fix with a wrong loss"

    def gap(one):
        equal = one["equal_weights"]
        return abs(equal["loss"] - equal["reference_loss"]) / equal["reference_loss"]

    assert not chosen["equal_weights"]["is_wrong"]
    accepted = [one for one in found["tried"][:4] if one["grade"] == "tolerance"]
    assert all(max(gap(one), 2**-10) >= max(gap(chosen), 2**-10) / 2 for one in accepted)


class Pixels(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm, self.head = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.norm(self.stem(x.reshape(16, 8))))


@pytest.mark.parametrize("lane", ["half", "torch-autocast-fp16"])
def test_a_batch_beyond_the_format_is_to_be_normalised(lockstep, tmp_path, lane):
    batches = [(1e5 * (1 + torch.rand(16, 2, 4)), y) for _, y in classes()]
    run = replayed(lockstep, tmp_path, written(tmp_path, Pixels(), batches, cross_entropy, lr=1e-6), lane)
    said = "Try (untested): normalise or shift input batch[0] in fp32, before it is rounded to fp16."
    for options in ((), ("--try",)):
        text = first_screen(lockstep("report", run, *options).stdout)
        assert said in text and "this op in fp32" not in text, text
    assert text.index(said) < text.index("Tried: ")


def test_a_batch_that_loses_its_meaning_is_to_be_shifted(lockstep, tmp_path):
    """Times up to 1000 in bf16, which has steps of 4 there, into a sine."""

    class Clock(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(2, 1)
            with torch.no_grad():
                self.head.weight.copy_(torch.tensor([[1.0, 0.0]])), self.head.bias.zero_()

        def forward(self, t):
            return self.head(torch.stack([t.sin(), t.cos()], -1)).squeeze(-1)

    times = [1000 * torch.rand(64) for _ in range(STEPS)]
    batches = [(t, t.sin() + 0.02 * torch.randn(64)) for t in times]
    path = written(tmp_path, Clock(), batches, lambda m, b: F.mse_loss(m(b[0]).float(), b[1].float()))
    run = replayed(lockstep, tmp_path, path, "pure-bf16-master")
    lanes = json.loads(lockstep("report", run, "--format", "json").stdout)["lanes"]
    assert "normalise or shift input batch[0] in fp32, before it is rounded to bf16" in json.dumps(lanes)


NET = """import functools

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        op = self.first
        x = op(x)
        op = functools.partial(torch.mul, other=300.0)
        x = op(x)
        op = torch.square
        x = op(x)
        op = functools.partial(nn.functional.layer_norm, normalized_shape=(16,))
        x = op(x)
        op = self.last
        x = op(x)
        return x
"""


def net_of(path, text):
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(1)
    return module.Net()


@pytest.mark.parametrize("lane,cast", [("half", torch.float16)])
def test_the_lines_for_a_model_in_16_bits_run_in_pytorch(lockstep, tmp_path, lane, cast):
    """Each printed line replaces the line of the file that it names."""
    batches = [(torch.randn(16, 16), torch.randint(4, (16,))) for _ in range(STEPS)]
    capture = written(tmp_path, net_of(tmp_path / "net.py", NET), batches, cross_entropy)
    text = lockstep("recommend", capture, "--fix", lane, "--quiet").stdout
    assert "autocast(" not in text.partition("In PyTorch:")[2].partition("\n\n")[0], text
    found = json.loads(lockstep("recommend", capture, "--fix", lane, "--json").stdout)
    assert found["answer"] == "fixed" and found["pytorch"], found["sentence"]
    lines, modules = NET.split("\n"), []
    for line in found["pytorch"]:
        assert line in text
        code, _, place = line.partition("  # ")
        if place:
            number = int(re.search(r"\(net\.py:(\d+)\)", place)[1])
            assert lines[number - 1].strip() == "x = op(x)"
            lines[number - 1] = lines[number - 1].replace("x = op(x)", code)
        else:
            modules.append(code)
    assert any(".float())" in line for line in lines), found["pytorch"]

    def loss_of(path, source, lines=()):
        model = net_of(path, source).to(cast)
        for line in lines:
            exec(line, {"model": model, "torch": torch})
        return F.cross_entropy(model(batches[0][0].to(cast)).float(), batches[0][1])

    assert not loss_of(tmp_path / "as_it_is.py", NET).isfinite()
    fixed = loss_of(tmp_path / "fixed.py", "\n".join(lines), modules)
    equal = found["tried"][found["fix"]]["equal_weights"]
    assert fixed.item() == pytest.approx(equal["loss"], rel=2**-10)


def test_a_run_in_which_fp32_has_converged_has_an_answer(lockstep, tmp_path):
    """A network that is fine-tuned at its minimum: the loss does not fall, for better or worse."""
    model, batches = nn.Linear(8, 4), classes()
    capture = written(tmp_path, model, batches, cross_entropy, lr=1e-7)
    text = " ".join(lockstep("recommend", capture, "--quiet").stdout.split())
    assert text.startswith(
        "Too short to judge how training ends: fp32 itself has not learned within 60 steps (give --steps 240, or steps "
        "in which the loss falls). Under plain fp16 autocast the loss is fp32's within noise in these steps"
    ), text
    found = json.loads(lockstep("recommend", capture, "--json", "-o", tmp_path / "p.toml").stdout)
    assert found["answer"] == "plain" and found["is_too_short"] and (tmp_path / "p.toml").exists()


def test_a_fault_in_a_run_that_is_too_short_is_named(lockstep, tmp_path):
    """Its layer in fp32 passes; without a layer to keep, the answer names what is wrong, not 'none trained'."""
    capture = written(tmp_path, Variance(30.0), classes(), cross_entropy, lr=1e-9)
    found = json.loads(lockstep("recommend", capture, "--formats", "bf16", "--json").stdout)
    assert found["answer"] == "exceptions" and found["is_too_short"]
    assert found["candidates_run"] <= 10, "no search where nothing tells candidates apart"
    none = lockstep("recommend", capture, "--formats", "bf16", "--budget", 0, "--quiet", code=3).stdout
    said = " ".join(none.split())
    assert said.startswith("Too short to judge how training ends") and "plain bf16: " in said and "cancellation" in said
    assert "none trained" not in said


def test_inference_needs_no_word_on_loss_scales(lockstep, tmp_path):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    path, batches = tmp_path / "net.lscap.h5", [(torch.randn(16, 8),) for _ in range(STEPS)]
    lockstep_capture.capture(path, model, None, batches, lambda m, b: m(b[0]).square().mean(), steps=STEPS, quiet=True)
    run = replayed(lockstep, tmp_path, path, "torch-autocast-fp16")
    module = tmp_path / "cast_rules.py"
    advice = lockstep("recommend", run, "--emit", "pytorch", module).stdout
    for text in (first_screen(lockstep("report", run).stdout).partition(" Findings")[0], advice):
        assert "a loss scale of" not in text and "needs no loss scale" not in text, text
    first = module.read_text().partition("\nimport")[0]
    assert "import cast_rules as amp" in first and "oss scale" not in first and "scaler" not in first


def test_the_module_is_imported_by_the_name_of_its_file(lockstep, tmp_path, monkeypatch):
    lockstep("replay", "mlp", "--data", "synthetic:100", "--steps", 2, "--batch", 4, "-o", tmp_path / "r.h5", "--quiet")
    monkeypatch.syspath_prepend(tmp_path)
    for file, line in (
        ("amp.py", "import amp"),
        ("rules_of_mine.py", "import rules_of_mine as amp"),
        ("my-rules.py", 'import importlib; amp = importlib.import_module("my-rules")'),
    ):
        lockstep("recommend", tmp_path / "r.h5", "--emit", "pytorch", tmp_path / file)
        (said,) = [
            text.strip() for text in (tmp_path / file).read_text().split("\n") if "import" in text and "amp" in text
        ][:1]
        assert said.replace("\\", "") == line
        names = {}
        exec(said.replace("\\", ""), names)
        assert names["amp"].DTYPE is torch.float16


class Attention(nn.Module):
    """Large scores: the product of queries and keys exceeds FP16, and the gradients of its saturated softmax are lost in BF16."""

    def __init__(self, width=32):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.qkv, self.head = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, 4, 1)
        self.factor = width**-0.5
        with torch.no_grad():
            self.norm.weight.fill_(130.0), self.head.weight.mul_(0.02)

    def forward(self, x):
        query, key, value = self.qkv(self.norm(self.stem(x))).flatten(2).chunk(3, 1)
        scores = (query.transpose(-2, -1) @ key) * self.factor
        return self.head((value @ F.softmax(scores, -1).transpose(-2, -1))[..., None]).squeeze(-1)


def test_a_remedy_that_leaves_wrong_gradients_is_no_fix(lockstep, tmp_path):
    """bf16 ends the overflow, and its loss is right at equal weights; but its training goes elsewhere."""
    batches = [(torch.randn(8, 3, 8, 8), torch.randint(4, (8, 64))) for _ in range(8)]
    net = written(tmp_path, Attention(), batches, lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    run = replayed(lockstep, tmp_path, net, "torch-autocast-fp16")
    found = json.loads(lockstep("recommend", run, "--fix", "torch-autocast-fp16", "--json").stdout)
    bf16 = [one for one in found["tried"] if "without a loss scale" in one["edits"][-1]["words"]]
    assert bf16 and bf16[0]["gone"] and not bf16[0]["findings"], found["tried"]
    assert bf16[0]["grade"] == "no" and not bf16[0]["worst_step_at_equal_weights"]["is_wrong"], bf16
    assert bf16[0]["gap"] > 0.1 * bf16[0]["reference_loss"], bf16
    screen = first_screen(lockstep("report", run, "--try").stdout)
    assert "without a loss scale removes the fault" not in screen, screen
