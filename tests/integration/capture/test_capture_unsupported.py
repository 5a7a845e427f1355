"""What cannot be replayed is refused in one message with every module and line, and the loop does not notice."""

import subprocess
import sys
import warnings

import pytest
import torch
from capture_loops import Images, image_batches, image_loss, train
from conftest import SOURCE
from lockstep_capture import Capture, CaptureError, UnsupportedModelError, check

nn = torch.nn


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, dy):
        return 3 * dy


class Part(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.fc = kind, nn.Linear(4, 4)

    def forward(self, x):
        x = self.fc(x)
        if self.kind == "op":
            x = torch.erfinv(x.tanh())
        if self.kind == "control" and x.sum() > 0:
            x = 2 * x
        if self.kind == "item":
            x = x * float(x.mean().item())
        if self.kind == "view":
            torch.no_grad()(x[:, 0].zero_)()
        if self.kind == "mask":
            x = x[x > 0].sum() * x
        if self.kind == "function":
            x = Doubled.apply(x)
        if self.kind == "complex":
            x = torch.fft.fft(x).tanh().real
        return x


class Parts(nn.Module):
    def __init__(self, *kinds):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.parts = nn.ModuleList(map(Part, kinds))

    def forward(self, tokens):
        x = self.embed(tokens)
        for part in self.parts:
            x = part(x)
        return x.square().mean()


def step_fn(model, batch):
    return model(batch)


BATCH = torch.tensor([0, 1, 2])


def line_of(kind):
    """Where Part does it."""
    lines = open(__file__).read().splitlines()
    start = next(i for i, text in enumerate(lines) if text.startswith("class Part("))
    found = next(i for i in range(start, len(lines)) if f'self.kind == "{kind}"' in lines[i])
    return found + 2  # numbers count from 1


@pytest.mark.parametrize(
    "kinds,expected",
    [
        (("op", "plain", "op"), [("aten.erfinv.default", ["parts.0", "parts.2"], "op")]),
        (
            ("view", "op"),
            [("in-place on a view without gradient", ["parts.0"], "view"), ("aten.erfinv.default", ["parts.1"], "op")],
        ),
        (("function", "op"), [("aten.erfinv.default", ["parts.1"], "op")]),
        (("complex", "plain"), [("aten.tanh.default", ["parts.0"], "complex")]),
        (("control", "item", "mask", "op"), [("aten.erfinv.default", ["parts.3"], "op")]),
    ],
)
def test_every_occurrence_is_listed_with_module_and_line(kinds, expected):
    support = check(Parts(*kinds), step_fn, BATCH)
    assert not support.ok
    for what, modules, kind in expected:
        found = [p for p in support.problems if p.what == what and p.module in modules]
        assert [p.module for p in found] == modules, support
        assert all(p.source == f"test_capture_unsupported.py:{line_of(kind)}" for p in found), support
    assert len(support.problems) == sum(len(modules) for _, modules, _ in expected), support


def test_the_message_says_op_count_modules_lines_and_hint():
    with pytest.raises(UnsupportedModelError) as error:
        raise UnsupportedModelError(check(Parts("op", "view", "op"), step_fn, BATCH).problems)
    text = str(error.value)
    assert text.startswith("2 unsupported things in 3 places; nothing was written:")
    text = " ".join(text.split())
    assert f"aten.erfinv.default x2 in parts.0, parts.2 (test_capture_unsupported.py:{line_of('op')})" in text
    assert "hint: the gradient passes by such a write" in text


@pytest.mark.parametrize("autocast", [None, "bfloat16"])
def test_a_check_leaves_a_batch_that_the_model_writes_to(autocast):
    x = torch.ones(2, 3)
    support = check(nn.Linear(3, 2), lambda m, b: m(b.mul_(2)).sum(), x, autocast=autocast)
    assert [p.what for p in support.problems] == ["in-place on the batch"] and torch.equal(x, torch.ones(2, 3))


class FullyShardedDataParallel(nn.Module):
    """Stands for torch's: a process group is no matter of this test."""

    def __init__(self, module):
        super().__init__()
        self.module = module


def test_fsdp_is_refused():
    with pytest.raises(UnsupportedModelError, match="FullyShardedDataParallel.*one rank"):
        wrapped = FullyShardedDataParallel(Images())
        cap = Capture("never.h5", wrapped, torch.optim.SGD(wrapped.parameters(), 0.1), image_loss)
        with cap.step(image_batches(1)[0]):
            pass


@pytest.mark.parametrize("kinds", [("op",), ("control", "op"), ("view",), ("function", "op")])
def test_nothing_is_written_and_the_loop_goes_on_as_without(tmp_path, kinds):
    """on_unsupported="report": a warning, and bit for bit the same training."""
    path = tmp_path / "a.lscap.h5"

    def trained(capture):
        torch.manual_seed(3)
        model = Parts(*kinds)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        cap = Capture(path, model, optimizer, step_fn, steps=2, on_unsupported="report") if capture else None
        losses = train(model, optimizer, step_fn, [BATCH] * 4, cap)
        return losses, torch.random.get_rng_state(), [p.detach() for p in model.parameters()]

    with pytest.warns(UserWarning, match="unsupported"):
        watched = trained(True)
    alone = trained(False)
    assert watched[0] == alone[0] and torch.equal(watched[1], alone[1])
    assert all(torch.equal(a, b) for a, b in zip(watched[2], alone[2]))
    assert list(tmp_path.iterdir()) == []


def test_an_error_leaves_everything_as_it_was(tmp_path):
    model = Parts("op")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = (torch.autograd.backward, torch.nn.utils.clip_grad._get_total_norm, torch.random.get_rng_state())
    cap = Capture(tmp_path / "a.h5", model, optimizer, step_fn)
    with pytest.raises(UnsupportedModelError):
        with cap.step(BATCH):
            pass
    assert torch.autograd.backward is before[0] and torch.nn.utils.clip_grad._get_total_norm is before[1]
    assert torch.equal(torch.random.get_rng_state(), before[2])
    assert not optimizer._optimizer_step_pre_hooks and cap.finished and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change,message",
    [
        (lambda m, b: image_loss(m, b) * 1.001, "gate V0"),
        (lambda m, b: image_loss(m, b) + m.fc.weight.sum() * 1e-3, "gate V0"),
    ],
)
def test_another_loss_than_the_loops_is_refused_by_gate_v0(tmp_path, change, message):
    model = Images()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    cap = Capture(tmp_path / "a.h5", model, optimizer, change)
    with pytest.raises(CaptureError, match=message):
        train(model, optimizer, image_loss, image_batches(2), cap)
    assert list(tmp_path.iterdir()) == []


def test_a_gradient_that_the_graph_does_not_explain(tmp_path):
    """A second head whose loss is zero in value, not in gradient: the losses agree, the gradients do not."""

    class Two(Images):
        def __init__(self):
            super().__init__()
            self.other = nn.Linear(3, 1)

    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loops(model, batch):
        extra = model.other(torch.ones(1, 3)).sum()
        return image_loss(model, batch) + (extra - extra.detach())

    with pytest.raises(CaptureError, match="2 parameters got a gradient that the graph does not explain, e.g. other"):
        train(model, optimizer, loops, image_batches(2), Capture(tmp_path / "a.h5", model, optimizer, image_loss))


def test_state_outside_of_the_model_is_caught_by_gate_v0(tmp_path):
    model = Images()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    class Counter:  # nobody's module: what its attributes hold cannot be put back
        n = 0

    state = Counter()

    def step(model, batch):
        state.n += 1
        return image_loss(model, batch) * (1 + state.n)

    with pytest.raises(CaptureError, match="gate V0"):
        train(model, optimizer, step, image_batches(4), Capture(tmp_path / "a.h5", model, optimizer, step))


def test_blocks_without_or_with_two_backwards(tmp_path):
    model = Images()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batch = image_batches(1)[0]
    with pytest.raises(CaptureError, match="no backward"):
        with Capture(tmp_path / "a.h5", model, optimizer, image_loss).step(batch):
            pass
    with pytest.raises(CaptureError, match="block of its own"):
        with Capture(tmp_path / "a.h5", model, optimizer, image_loss).step(batch):
            loss = image_loss(model, batch)
            loss.backward(retain_graph=True)
            loss.backward()


def test_bad_arguments_are_listed_at_once():
    with pytest.raises(CaptureError) as error:
        Capture("a.h5", Images(), None, image_loss, steps=2, verify=[5], autocast="float8", on_unsupported="maybe")
    for part in ("verify: has [5]", "autocast: is 'float8'", "on_unsupported: is 'maybe'"):
        assert part in str(error.value)


def test_check_on_the_command_line(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\n\ndef good():\n    return torch.nn.Linear(3, 2), lambda m, b: m(b).sum(), torch.ones(1, 3)\n\n"
        "def bad():\n    return torch.nn.Linear(3, 2), lambda m, b: torch.erfinv(m(b)).sum(), torch.ones(1, 3)\n"
    )

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "lockstep_capture.check", *arguments],
            text=True,
            capture_output=True,
            cwd=tmp_path,
            env={"PYTHONPATH": str(SOURCE / "python")},
        )

    good = run("mine:good")
    assert good.returncode == 0 and "linear x1" in good.stdout and "supported" in good.stdout, good
    bad = run("mine:bad")
    assert bad.returncode == 1 and "aten.erfinv.default" in bad.stdout
    assert run("mine").returncode == 2 and run("mine:nothing").returncode == 2
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".h5"] == []


def test_warnings_of_torch_stay_away():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check(nn.LSTM(4, 3, batch_first=True), lambda m, b: m(b)[0].sum(), torch.ones(2, 3, 4)).ok


def test_a_step_function_that_closes_over_another_model():
    """capture() trains a copy: a step_fn that ignores its argument would capture nothing of it."""
    other = nn.Linear(3, 2)
    support = check(nn.Linear(3, 2), lambda _, batch: other(batch).sum(), torch.ones(4, 3))
    assert not support.ok and "a loss that depends on no weight of the model" in str(support)
    assert check(other, lambda model, batch: model(batch).sum(), torch.ones(4, 3)).ok
