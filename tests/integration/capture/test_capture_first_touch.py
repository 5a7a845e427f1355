"""What goes wrong at the first try is reported as the user's own: what, where, and how to put it right."""

import collections
import contextlib
import os

import h5py
import pytest
import torch
import torch.nn.functional as F
from capture_loops import Images, Loop, image_batches, image_loss
from lockstep_capture import Capture, CaptureError, UnsupportedModelError, capture, check
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

nn = torch.nn
BATCH = (torch.ones(5, 4), torch.zeros(5, dtype=torch.int64))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


class Broken(Net):
    def forward(self, x):
        return self.b(self.a(x).reshape(3, 7))  # here


def loss_of(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def refusal(model, step_fn, batch=BATCH, **options):
    with pytest.raises(CaptureError) as error:
        check(model, step_fn, batch, **options)
    return str(error.value)


def line_of(text):
    lines = open(__file__).read().splitlines()
    return f"(test_capture_first_touch.py:{1 + next(i for i, line in enumerate(lines) if text in line)})"


# ---- weights


def test_weights_that_a_capture_cannot_hold(tmp_path):
    model = nn.Sequential(*(Net() for _ in range(3))).double()
    support = check(model, loss_of, BATCH)
    assert not support.ok and len(support.problems) == 1
    text = str(support)
    assert "12 of 12 parameters are float64, must be float32, bfloat16, float16 or complex64" in text
    assert "in 0.a.weight, 0.a.bias, 0.b.weight, 0.b.bias and 8 more" in text and "model.float()" in text
    with pytest.raises(UnsupportedModelError, match="parameters are float64"):
        capture(tmp_path / "a.h5", model, torch.optim.SGD(model.parameters(), 0.1), [BATCH], loss_of, steps=1)


def test_weights_on_several_devices():
    model = Net()
    model.b.to("meta")
    assert "2 of 4 parameters are on meta, must have values" in str(check(model, loss_of, BATCH))


def test_a_scripted_model():
    problems = check(torch.jit.script(Net()), loss_of, BATCH).problems
    assert [problem.what for problem in problems] == ["a TorchScript module"]


# ---- step_fn


def wants_a_dict(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])


def backward_inside(model, batch):
    loss = loss_of(model, batch)
    loss.backward()  # inside
    return loss


class NoLength(tuple):
    def __len__(self):
        raise NotImplementedError


class NoCopy(list):
    def copy(self):
        raise NotImplementedError


def test_containers_of_other_classes_than_pythons():
    model = torch.nn.Linear(3, 2)
    model.kinds, model.sizes = NoLength([1]), NoCopy([2])
    assert check(model, lambda m, x: m(x).mean(), torch.ones(1, 3)).ok


class MakesItsItems(collections.OrderedDict):
    """As the table of activations in Transformers: reading an item makes an object of the class in it."""

    def __getitem__(self, name):
        return super().__getitem__(name)()


def test_a_table_that_makes_its_items_keeps_its_classes():
    activations = MakesItsItems(relu=nn.ReLU, gelu=nn.GELU)

    def activated_loss(model, batch):
        return F.cross_entropy(activations["gelu"](model(batch[0])), batch[1])

    for _ in range(2):
        check(Net(), activated_loss, BATCH)
        assert dict(activations.items()) == {"relu": nn.ReLU, "gelu": nn.GELU}


class TakesTheDtypeOfItsInput(torch.nn.Module):
    """As losses with weights of pytorch-metric-learning do."""

    def __init__(self):
        super().__init__()
        self.fc, self.proxies = torch.nn.Linear(3, 4), torch.nn.Parameter(torch.randn(4, 2))

    def forward(self, x):
        x = self.fc(x)
        self.proxies.data = self.proxies.data.to(x.dtype)
        return x @ self.proxies


def test_weights_that_the_model_casts_keep_their_numbers():
    model = TakesTheDtypeOfItsInput()
    before = model.proxies.detach().clone()
    assert check(model, lambda m, x: m(x).square().mean(), torch.ones(1, 3)).ok
    assert model.proxies.dtype == torch.float32 and torch.equal(model.proxies, before)


@pytest.mark.parametrize("count", [1, 2])
def test_a_capture_begins_after_the_step_that_casts_weights(lockstep, tmp_path, count):
    """count: micro-batches a step."""
    path, made = tmp_path / "a.h5", []
    for capturing in (False, True):
        torch.manual_seed(0)
        model = TakesTheDtypeOfItsInput()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loss = lambda m, x: m(x).float().square().mean()
        cap = Capture(path, model, optimizer, loss, steps=2, autocast=torch.bfloat16)
        told = pytest.warns(UserWarning, match="e.g. proxies to bfloat16: the capture begins with the next step")
        with told if capturing else contextlib.nullcontext():
            for number, batch in enumerate(torch.randn(3 * count, 5, 3)):
                with cap.step(batch) if capturing else contextlib.nullcontext():
                    with torch.autocast("cpu", torch.bfloat16):
                        value = loss(model, batch) / count
                    value.backward()
                    if (number + 1) % count == 0:
                        optimizer.step()
                        optimizer.zero_grad()
        made.append([tensor.detach() for tensor in model.parameters()])
    assert cap.finished and all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(*made))
    lockstep("verify", path)
    with h5py.File(path) as file:
        assert len(file["steps"]) == 2 and len(file["steps/000000/micro"]) == count


def test_weights_that_each_pass_casts_anew(tmp_path):
    def loop():
        for _ in range(3):
            with cap.step(torch.ones(5, 3)):
                with torch.autocast("cpu", torch.bfloat16):
                    loss(model, torch.ones(5, 3)).backward()
                optimizer.step()
                optimizer.zero_grad()
                model.proxies.data = model.proxies.data.float()

    model, loss = TakesTheDtypeOfItsInput(), lambda m, x: m(x).square().mean()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    cap = Capture(tmp_path / "a.h5", model, optimizer, loss, steps=2, autocast=torch.bfloat16)
    with (
        pytest.warns(UserWarning, match="begins with the next step"),
        pytest.raises(CaptureError, match=r"proxies to bfloat16, and not in the first step alone.*proxies.to\("),
    ):
        loop()


def test_an_error_of_step_fn_is_told_as_its_own():
    text = refusal(Net(), wants_a_dict)
    assert text.startswith(
        "step_fn raised TypeError: tuple indices must be integers or slices, not str "
        f"{line_of('model(batch[' + chr(34) + 'x')}"
    )
    assert "with batch = (f32[5,4], i64[5])" in text
    assert "KeyError: 0" in (other := refusal(Net(), loss_of, {"x": BATCH[0], "y": BATCH[1]}))
    assert "with batch = {'x': f32[5,4], 'y': i64[5]}" in other
    assert "missing 1 required positional argument: 'y'" in refusal(Net(), lambda model, x, y: None)


def test_an_error_of_the_models_is_told_with_its_innermost_line():
    assert refusal(Broken(), loss_of).startswith(
        f"step_fn raised RuntimeError: shape '[3, 7]' is invalid for input of size 40 {line_of('reshape(3, 7)')}"
    )


def test_a_batch_that_only_values_spoil():
    """Tracing does not look at labels, and casts by its own autocast."""
    wrong = torch.full((5,), 7)
    assert "IndexError: Target 7 is out of bounds" in refusal(Net(), loss_of, (BATCH[0], wrong))
    assert "must have the same dtype" in refusal(Net(), loss_of, (BATCH[0].half(), BATCH[1]))
    assert "autocast: is 'fp8'" in refusal(Net(), loss_of, autocast="fp8")


def test_a_step_that_only_autocast_lets_pass():
    text = refusal(Net(), loss_of, (BATCH[0].half(), BATCH[1]), autocast="bfloat16")
    assert text.startswith(
        "step_fn needs the loop's autocast, without it it raised RuntimeError: mat1 and mat2 must have "
        f"the same dtype, but got Half and Float {line_of('return self.b(torch.relu(')}"
    ), text
    assert "with batch = (f16[5,4], i64[5]); a capture computes it in FP32, too" in text
    assert check(Net(), loss_of, BATCH, autocast="bfloat16").ok


@pytest.mark.parametrize(
    "result,expected",
    [
        (lambda loss: None, "None, must return the loss alone, a tensor: is a `return` missing?"),
        (
            lambda loss: (loss, torch.ones(2)),
            "a tuple, (f32[], f32[2]), must return the loss alone, a tensor: return result[0]",
        ),
        (
            lambda loss: {"loss": loss},
            "a dict, {'loss': f32[]}, must return the loss alone, a tensor: return result['loss']",
        ),
        (lambda loss: loss.item(), "a float, must return the loss alone, a tensor: item() and float()"),
        (lambda loss: loss.detach(), "a loss without gradient, must depend on weights that train: is it detached"),
        (lambda loss: loss.expand(5), "a loss of shape [5], must have one element: take its mean()"),
        (lambda loss: loss.argmax(), "a tensor of int64, must be the loss, a floating number"),
        (
            lambda loss: loss.detach().expand(2),
            "a loss of shape [2], must have one element: take its mean() or sum(), as the "
            "loop does; a loss without gradient",
        ),
    ],
    ids=["nothing", "tuple", "dict", "float", "detached", "vector", "integer", "vector-detached"],
)
def test_a_result_that_is_no_loss(result, expected):
    def step_fn(model, batch):  # defined
        return result(loss_of(model, batch))

    text = refusal(Net(), step_fn)
    assert text.startswith(f"step_fn returned {expected}") and text.endswith(line_of("# defined")), text


def test_a_loss_of_one_element_is_one():
    assert check(Net(), lambda model, batch: loss_of(model, batch).reshape(1, 1), BATCH).ok


@pytest.mark.parametrize("step_fn", [backward_inside, lambda model, batch: backward_inside(model, batch).detach()])
def test_backward_inside_of_step_fn(step_fn):
    model = Net()
    text = refusal(model, step_fn)
    assert text.startswith(f"step_fn calls backward() {line_of('# inside')}, must compute the loss and return it")
    assert all(parameter.grad is None for parameter in model.parameters())


def test_gradients_that_are_there_stay_when_step_fn_zeroes_them():
    """A second shape is traced in the midst of an accumulation."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loss_of(model, BATCH).backward()
    before = [parameter.grad for parameter in model.parameters()]

    def step_fn(model, batch):
        optimizer.zero_grad()
        return loss_of(model, batch)

    assert check(model, step_fn, BATCH).ok
    assert all(parameter.grad is grad for parameter, grad in zip(model.parameters(), before, strict=True))


def test_a_mistake_in_step_fn_is_no_failure_of_the_loop(tmp_path):
    loop = Loop(tmp_path / "a.h5", on_unsupported="report")
    loop.cap._step_fn = wants_a_dict
    with pytest.warns(UserWarning, match="step_fn raised TypeError: tuple indices"):
        loss = loop(image_batches(1)[0])
    assert loss == Loop(None)(image_batches(1)[0]) and list(tmp_path.iterdir()) == []


# ---- arguments


def test_all_wrong_arguments_are_listed_at_once(tmp_path):
    model = Images()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(CaptureError) as error:
        Capture("", model, optimizer, image_loss, steps=0, autocast="fp8", scaler=1)
    assert str(error.value) == (
        "path: is '', must be the name of a file, e.g. 'run.lscap.h5'; scaler: is a int, must be a torch.amp.GradScaler "
        "or None; autocast: is 'fp8', must be one of float16, fp16, half, bfloat16, bf16 or None; steps: is 0, must be a "
        "whole number of at least 1"
    )
    for arguments, expected in (
        ({"steps": 2.0}, "steps: is 2.0, must be a whole number"),
        ({"steps": "2"}, "steps: is '2', must be a whole number"),
        ({"verify": 1}, "verify: is 1, must be numbers of steps"),
    ):
        with pytest.raises(CaptureError, match=expected):
            Capture(tmp_path / "a.h5", model, optimizer, image_loss, **arguments)
    with pytest.raises(CaptureError, match="path: is a Images, must be the name of a file"):
        Capture(model, "a.h5", optimizer, image_loss)
    with pytest.raises(CaptureError) as error:
        capture(tmp_path / "a.h5", model, optimizer, None, image_loss, accumulate=0, clip_grad_norm=0)
    for part in (
        "loader: is a NoneType, must give batches",
        "accumulate: is 0",
        "clip_grad_norm: is 0, must be positive",
    ):
        assert part in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_only_a_capture_is_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open("thesis.h5", "w") as file:
        file.write("all of it")
    with pytest.raises(
        CaptureError, match="thesis.h5 exists and is not a capture, must be a new name or an older capture"
    ):
        Loop("thesis.h5")
    open("mine.h5", "w").close()  # as tempfile leaves one
    for seed in range(2):
        torch.manual_seed(seed)
        loop = Loop("mine.h5", steps=1)
        loop(image_batches(1, seed=seed)[0])
    assert loop.cap.finished and sorted(os.listdir()) == ["mine.h5", "thesis.h5"]


def test_capture_trains_under_no_grad(tmp_path):
    model = Images()
    with torch.no_grad():
        capture(
            tmp_path / "a.h5", model, torch.optim.SGD(model.parameters(), 0.1), image_batches(1), image_loss, steps=1
        )
    assert (tmp_path / "a.h5").exists()


def test_a_device_or_a_pipe_stays_one(tmp_path):
    """As root a rename would put a file into the place of /dev/null."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(CaptureError, match="pipe is a device or pipe, must be a file"):
        Capture(path, Net(), None, lambda m, b: m(b).sum())
    assert path.is_fifo()


# ---- loops without a step


def test_a_block_that_is_not_entered(tmp_path):
    loop = Loop(tmp_path / "a.h5")
    loop.cap.step(image_batches(1)[0])
    with pytest.warns(UserWarning, match="put the loop's body in `with cap.step"):
        loop.cap.finish()


def test_a_loop_that_never_steps(tmp_path):
    loop = Loop(tmp_path / "a.h5")
    for batch in image_batches(3):
        with loop.block(batch):
            loop.backward(batch)
    with pytest.warns(UserWarning, match=r"3 blocks called backward\(\), none called step\(\) of the optimizer"):
        loop.cap.finish()


@pytest.mark.parametrize(
    "clip,expected",
    [
        (lambda p: clip_grad_norm_(p, 0.0), "clip_grad_norm_ with max_norm 0 "),
        (lambda p: clip_grad_norm_(p, 1.0, norm_type=-1.0), "clip_grad_norm_ with norm_type -1 .*positive, or inf"),
        (lambda p: clip_grad_value_(p, 0.0), "clip_grad_value_ with clip_value 0 "),
    ],
    ids=["zero", "negative-norm", "value-zero"],
)
def test_bounds_that_no_replay_could_read(tmp_path, clip, expected):
    loop = Loop(tmp_path / "a.h5")
    with pytest.raises(UnsupportedModelError, match=expected):
        with loop.block(image_batches(1)[0]):
            loop.backward(image_batches(1)[0])
            clip(loop.model.parameters())
            loop.step()


def test_a_norm_that_is_only_looked_at(lockstep, tmp_path):
    """clip_grad_norm_(parameters, inf) before the real one: gradients stay as they are, and it is no clipping."""
    path, loop = tmp_path / "a.h5", Loop(tmp_path / "a.h5")
    for batch in image_batches(2):
        with loop.block(batch):
            loop.backward(batch)
            clip_grad_norm_(loop.model.parameters(), float("inf"), norm_type=1.0)
            clip_grad_norm_(loop.model.parameters(), 0.1)
            loop.step()
    lockstep("verify", path)
    lockstep("replay", path, "--lanes", "fp32", "--quiet", "-o", tmp_path / "run.h5")
    with h5py.File(path) as file:
        assert [(step.attrs["clip_max_norm"], step.attrs["clip_norm_type"]) for step in file["steps"].values()] == [
            (0.1, 2)
        ] * 2
