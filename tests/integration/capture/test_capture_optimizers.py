"""Optimizers that others wrote: capture() puts them back as they were, subclasses that change no rule are replayed."""

import collections
import contextlib
import re

import h5py
import pytest
import torch
from capture_loops import Images, UnknownOptimizer, image_batches, image_loss, steps_in, train
from lockstep_capture import Capture, CaptureError, capture


def off_with_codes(lockstep, path, codes, tmp_path):
    """Verifies the capture; how far the losses of a lane with these codes, and of fp32, are from the loop's at most."""
    verified = lockstep("verify", path).stdout
    assert re.search(r"^V5 +PASS ", verified, re.M)
    assert f'[optimizer] state_codes = "{codes}"' in " ".join(verified.split())
    policy, run = tmp_path / "codes.toml", tmp_path / "run.h5"
    policy.write_text(f'extends = "fp32"\n[optimizer]\nstate_codes = "{codes}"\n')
    lockstep("replay", path, "--lanes", f"fp32,{policy}", "-o", run, "--quiet")
    with h5py.File(run) as file:
        lanes = {k.replace("%2F", "/"): v["loss"][()] for k, v in file["lanes"].items()}
    off = {k: abs(v / lanes["captured"] - 1).max() for k, v in lanes.items()}
    print(off)
    return off[str(policy)], off["fp32"]


class OwnAttributes(torch.optim.Optimizer):
    """Has attributes that torch.optim.Optimizer does not pickle, and tensors at any depth."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": torch.tensor(lr)})
        self.mask = torch.ones(1).expand(4)  # no copy_() into it
        self.sign, self.history, self.calls = torch.sign, [torch.zeros(2)], 0

    @torch.no_grad()
    def step(self, closure=None):
        self.calls += 1
        self.history[0] += 1
        self.history.append(torch.ones(1))
        for group in self.param_groups:
            group["lr"] *= 0.5
            for p in group["params"]:
                state = self.state[p]
                state.setdefault("factors", [torch.zeros_like(p), {"steps": 0}])
                state["factors"][0] += p.grad
                state["factors"][1]["steps"] += 1
                p -= group["lr"] * self.sign(state["factors"][0])


def contents(value):
    """Plain copies of everything that an optimizer holds."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().tolist()
    if isinstance(value, dict):
        return {
            str(key) if not isinstance(key, torch.Tensor) else id(key): contents(item) for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [contents(item) for item in value]
    return value


@pytest.mark.parametrize("steps_before", [0, 2])
def test_an_optimizer_of_others_is_put_back(tmp_path, steps_before):
    torch.manual_seed(0)
    model = Images()
    optimizer = OwnAttributes(model.parameters(), 0.1)
    train(model, optimizer, image_loss, image_batches(steps_before))
    model.fc.weight.grad = torch.ones_like(model.fc.weight)
    before, weights = contents(vars(optimizer)), {k: v.clone() for k, v in model.state_dict().items()}
    capture(tmp_path / "a.h5", model, optimizer, image_batches(3), image_loss, steps=3)
    assert contents(vars(optimizer)) == before
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())
    assert bool((model.fc.weight.grad == 1).all()) and model.fc.bias.grad is None
    with h5py.File(tmp_path / "a.h5") as file:
        assert file.attrs["replay_mode"] == "recorded" and file.attrs["n_steps"] == 3
        assert not torch.equal(torch.tensor(file["final/params/fc.bias"][()]), weights["fc.bias"])


class Named(torch.optim.AdamW):
    """A subclass as libraries have them: other defaults, groups of its own making, no other rule."""

    def __init__(self, model):
        weights = [p for p in model.parameters() if p.dim() > 1]
        super().__init__([{"params": weights}, {"params": model.fc.bias, "weight_decay": 0.0}], 1e-2, (0.8, 0.9))

    def zero_grad(self, set_to_none=True):
        super().zero_grad(set_to_none)


class Signs(torch.optim.AdamW):
    """A subclass with another rule."""

    step = UnknownOptimizer.step


def test_a_subclass_that_changes_no_rule_is_replayed_as_its_parent(lockstep, tmp_path):
    torch.manual_seed(0)
    model, path = Images(), tmp_path / "a.h5"
    capture(path, model, Named(model), image_batches(3), image_loss, steps=3, verify=[0, 2])
    with h5py.File(path) as file:
        assert file["optimizer"].attrs["class"] == "AdamW" and file.attrs["replay_mode"] == "full"
    assert "V5" in lockstep("verify", path).stdout
    lockstep("replay", path, "--lanes", "fp32", "-o", tmp_path / "run.h5", "--quiet")
    capture(path, model, Signs(model.parameters()), image_batches(3), image_loss, steps=1)
    with h5py.File(path) as file:
        assert file["optimizer"].attrs["class"] == "Signs" and file.attrs["replay_mode"] == "recorded"


RULES = {
    "Adagrad": {"lr": 0.05, "lr_decay": 0.1, "weight_decay": 1e-2, "initial_accumulator_value": 0.1},
    "RMSprop": {"lr": 1e-3, "momentum": 0.9, "centered": True, "weight_decay": 1e-2},
}


@pytest.mark.parametrize("rule", RULES)
def test_adagrad_and_rmsprop_are_replayed_by_their_rules(lockstep, tmp_path, rule):
    """From states of earlier steps. Another number of the rule is another replay."""
    torch.manual_seed(0)
    model, path, run = Images(), tmp_path / "a.h5", tmp_path / "run.h5"
    optimizer = getattr(torch.optim, rule)(model.parameters(), **RULES[rule])
    train(model, optimizer, image_loss, image_batches(2))
    capture(path, model, optimizer, image_batches(4), image_loss, steps=4, verify=[0, 3])
    with h5py.File(path) as file:
        assert file["optimizer"].attrs["class"] == rule and file.attrs["replay_mode"] == "full"
        assert len(file["optimizer/state/fc.weight"]) == (2 if rule == "Adagrad" else 4)
    assert re.search(r"^V5 +PASS ", lockstep("verify", path).stdout, re.M)
    lockstep("replay", path, "--lanes", "fp32,pure-bf16", "-o", run, "--quiet")
    other = tmp_path / "other.h5"
    lockstep("replay", path, "--change", "weight_decay=0", "--lanes", "fp32", "-o", other, "--quiet")
    with h5py.File(run) as own, h5py.File(other) as changed:
        losses, captured = own["lanes/fp32/loss"][()], own["lanes/captured/loss"][()]
        assert abs(losses / captured - 1).max() < 1e-5
        assert abs(changed["lanes/fp32/loss"][()] / captured - 1).max() > 1e-5


class Wide(torch.nn.Module):
    """A weight large enough for states in codes."""

    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(32, 256), torch.nn.Linear(256, 4)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


def squares(model, batch):
    return model(batch).square().mean()


@pytest.mark.parametrize(
    "name,codes", [("AdamW8bit", "dynamic8"), ("Adam4bit", "dynamic4"), ("AdamWFp8", "fp8_e4m3"), ("AdamW8bit", "")]
)
def test_torchao_s_adam_is_replayed_by_its_rule_and_its_codes(lockstep, tmp_path, monkeypatch, name, codes):
    """A lane with these codes follows the loop, one without does not. Blocks that policies do not have: recorded."""
    optim = pytest.importorskip("torchao.optim", reason="torchao is not installed")
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    torch.manual_seed(0)
    model, path = Wide(), tmp_path / "a.h5"
    options = {} if codes else {"block_size": 512}
    optimizer = getattr(optim, name)(model.parameters(), lr=0.002, **options)
    batches = list(torch.randn(8, 16, 32))
    train(model, optimizer, squares, batches[:2])
    capture(path, model, optimizer, batches, squares, steps=8, verify=[0, 5])
    with h5py.File(path) as file:
        kind = file["optimizer"].attrs["class"]
        assert (kind, file.attrs["replay_mode"]) == (
            ("Adam" + "W" * ("W" in name), "full") if codes else (name, "recorded")
        )
    if not codes:
        return
    own, fp32 = off_with_codes(lockstep, path, codes, tmp_path)
    assert own < 1e-5 < fp32 / 10


def squared_error(model, batch):
    return (model(batch) - 1).square().mean()


def adafactor_of_transformers(*arguments, **options):
    module = pytest.importorskip("transformers.optimization", reason="transformers is not installed")
    return module.Adafactor(*arguments, **options)


WHOLE_TENSOR_RULES = {
    "torch": (torch.optim.Adafactor, {"lr": 0.05, "weight_decay": 0.01}, "eps2=0.5"),
    "torch, eps given": (torch.optim.Adafactor, {"lr": 0.05, "eps": (1e-4, 1e-2), "d": 2.0}, "d=0.5"),
    "transformers": (adafactor_of_transformers, {"warmup_init": False}, "relative_step=0"),
    "transformers, lr": (
        adafactor_of_transformers,
        {"lr": 0.01, "relative_step": False, "scale_parameter": False, "beta1": 0.9, "weight_decay": 0.01},
        "weight_decay=0",
    ),
}


@pytest.mark.parametrize("name", WHOLE_TENSOR_RULES)
def test_adafactor_is_replayed_by_its_rule(lockstep, tmp_path, name):
    """From states of earlier steps, in their own shapes. Another number of the rule is another replay."""
    torch.manual_seed(0)
    make, options, change = WHOLE_TENSOR_RULES[name]
    model, path, run = Wide(), tmp_path / "a.h5", tmp_path / "run.h5"
    optimizer = make(model.parameters(), **options)
    batches = list(torch.randn(6, 16, 32))
    train(model, optimizer, squared_error, batches[:2])
    capture(path, model, optimizer, batches, squared_error, steps=6, verify=[0, 4])
    with h5py.File(path) as file:
        assert file["optimizer"].attrs["class"] == "Adafactor" and file.attrs["replay_mode"] == "full"
        shapes = {key: value.shape for key, value in file["optimizer/state/up.weight"].items()}
        assert sorted(shape for key, shape in shapes.items() if key not in ("step", "exp_avg")) == [(1, 32), (256, 1)]
    assert re.search(r"^V5 +PASS ", lockstep("verify", path).stdout, re.M)
    lockstep("replay", path, "--lanes", "fp32,pure-bf16", "-o", run, "--quiet")
    other = tmp_path / "other.h5"
    lockstep("replay", path, "--change", change, "--lanes", "fp32", "-o", other, "--quiet")
    with h5py.File(run) as own, h5py.File(other) as changed:
        losses, captured = own["lanes/fp32/loss"][()], own["lanes/captured/loss"][()]
        assert abs(losses / captured - 1).max() < 1e-5
        assert abs(changed["lanes/fp32/loss"][()] / captured - 1).max() > 1e-5


@pytest.mark.parametrize("choice", [None, "match_rms_adamw"])
def test_muon_is_replayed_by_its_rule(lockstep, tmp_path, choice):
    """The matrices by Muon, the biases by another optimizer of the loop. PyTorch sums BF16 in another order: a replay is as
    near as BF16 allows, far nearer than one with another number of the rule."""
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this PyTorch has no Muon")
    torch.manual_seed(0)
    model, path, run = Wide(), tmp_path / "a.h5", tmp_path / "run.h5"
    matrices = [p for p in model.parameters() if p.dim() == 2]
    muon = torch.optim.Muon(matrices, lr=0.02, adjust_lr_fn=choice, ns_coefficients=(3.0, -4.0, 1.9), ns_steps=4)
    others = torch.optim.SGD([p for p in model.parameters() if p.dim() < 2], lr=0.01)
    batches = list(torch.randn(9, 16, 32))

    def loop(cap, batches):
        for batch in batches:
            with contextlib.nullcontext() if cap is None else cap.step(batch):
                squared_error(model, batch).backward()
                muon.step()
                others.step()
                model.zero_grad()

    loop(None, batches[:2])
    loop(Capture(path, model, muon, squared_error, steps=6, verify=[0, 4]), batches[2:])
    with h5py.File(path) as file:
        assert file["optimizer"].attrs["class"] == "Muon" and file.attrs["replay_mode"] == "full"
        assert set(file["optimizer/state/up.weight"]) == {"momentum_buffer"}
    assert re.search(r"^V5 +PASS ", lockstep("verify", path).stdout, re.M)
    lockstep("replay", path, "--lanes", "fp32", "-o", run, "--quiet")
    off = {}
    for change in ("momentum=0.9", "ns_steps=5"):
        other = tmp_path / "other.h5"
        lockstep("replay", path, "--change", change, "--lanes", "fp32", "-o", other, "--quiet", "--overwrite")
        with h5py.File(other) as file:
            off[change] = abs(file["lanes/fp32/loss"][()] / file["lanes/captured/loss"][()] - 1).max()
    with h5py.File(run) as own:
        apart = abs(own["lanes/fp32/loss"][()] / own["lanes/captured/loss"][()] - 1).max()
    print(apart, off)
    assert apart < min(off.values()) / 5


@pytest.mark.parametrize("name,decay", [("Adam8bit", 0.1), ("AdamW8bit", 0.01)])
def test_bitsandbytes_adam_on_the_cpu_is_replayed_by_its_rule_and_its_codes(lockstep, tmp_path, name, decay):
    """A lane with its codes follows the loop, one without does not. Settings that policies do not have: recorded."""
    optim = pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed").optim
    torch.manual_seed(0)
    model, path = Wide(), tmp_path / "a.h5"
    optimizer = getattr(optim, name)(model.parameters(), lr=0.01, weight_decay=decay)
    batches = list(torch.randn(8, 16, 32))
    train(model, optimizer, squares, batches[:2])
    capture(path, model, optimizer, batches, squares, steps=8, verify=[0, 5])
    with h5py.File(path) as file:
        assert (file["optimizer"].attrs["class"], file.attrs["replay_mode"]) == ("AdamW", "full")
    own, fp32 = off_with_codes(lockstep, path, "dynamic8_bitsandbytes_cpu", tmp_path)
    assert own < fp32 / 20  # a state on the other side of a place's border is a level off
    smaller = getattr(optim, name)(model.parameters(), lr=0.002, min_8bit_size=1024)
    capture(path, model, smaller, batches, squares, steps=2)
    with h5py.File(path) as file:
        assert (file["optimizer"].attrs["class"], file.attrs["replay_mode"]) == (name, "recorded")


class Around(torch.optim.Optimizer):
    """One around another, which never calls Optimizer.__init__ (Lookahead of torch-optimizer): its step() does more than
    the other's."""

    def __init__(self, optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        self.state, self.defaults = collections.defaultdict(dict), optimizer.defaults

    def step(self, closure=None):
        self.optimizer.step(closure)
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                slow = self.state[p].setdefault("slow", p.clone())
                slow += (p - slow) / 2
                p.copy_(slow)

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)


def test_an_optimizer_around_another_is_not_taken_for_it(tmp_path):
    def trained(path):
        torch.manual_seed(0)
        model = Images()
        optimizer = Around(torch.optim.SGD(model.parameters(), 0.1))
        cap = None if path is None else Capture(path, model, optimizer, image_loss, steps=3)
        return train(model, optimizer, image_loss, image_batches(4), cap)

    assert trained(tmp_path / "a.h5") == trained(None)
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["optimizer"].attrs["class"] == "Around" and file.attrs["replay_mode"] == "recorded"
        assert file.attrs["n_steps"] == 3 and file["steps/000001"].attrs["stepped"]


# ---- Loops that are refused, and the way out that the message names


class Pair(torch.nn.Module):
    """A generator with a discriminator, or a network with its teacher."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)


def pair_loss(model, batch):
    return (model.second(model.first(batch)) - 1).square().mean()


def pair_loop(cap, model, optimizer, when):
    """The loop changes the second network by itself."""
    for number, batch in enumerate(torch.randn(6, 5, 4)):
        with cap.step(batch):
            (pair_loss(model, batch) / 2).backward()
            if when == "before":
                model.second.weight.data.mul_(0.9)
            if number % 2:
                optimizer.step()
                model.zero_grad()
                if when == "inside":
                    model.second.weight.data.mul_(0.9)
        if when == "micro" or when == "after" and number % 2:
            model.second.weight.data.mul_(0.9)


def paired(path, when, optimizer=torch.optim.SGD):
    model = Pair()
    made = optimizer(model.first.parameters(), 0.1)
    pair_loop(Capture(path, model, made, pair_loss, steps=3, verify=[0, 2]), model, made, when)


@pytest.mark.parametrize("when", ["before", "micro"])
def test_weights_outside_of_the_optimizer_that_change_within_a_step(tmp_path, when):
    expected = r"1 weights outside of the optimizer changed .*, e.g. second.weight: .*\(GAN\).* after optimizer.step"
    with pytest.raises(CaptureError, match=expected):
        paired(tmp_path / "a.h5", when)
    assert not (tmp_path / "a.h5").exists()


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adamax])
@pytest.mark.parametrize("when", ["inside", "after"])
def test_weights_that_another_optimizer_or_the_loop_changes_between_steps(lockstep, tmp_path, when, optimizer):
    """The other network of a GAN, a teacher: lanes add PyTorch's changes."""
    path, run = tmp_path / "a.h5", tmp_path / "run.h5"
    paired(path, when, optimizer)
    with h5py.File(path) as file:
        assert ["params/second.weight" in file[f"steps/{s:06d}"] for s in range(3)] == [True, True, False]
        before = file["verify/000002/pre/params/second.weight"][()]
        assert (file["steps/000001/params/second.weight"][()] == before).all()
        assert "first.weight" in file["steps/000001/params"] or optimizer is torch.optim.SGD
    assert "note: 1 weights outside of the optimizer, e.g. second.weight, change" in lockstep("verify", path).stdout
    lockstep("replay", path, "--lanes", "fp32,pure-bf16", "-o", run, "--quiet")
    with h5py.File(run) as file, h5py.File(f"{run}.state") as state:
        assert (
            state["lanes/0/tensors/weight%2Fsecond.weight"][()] == before
        ).all()  # the last step has no one after it
        losses, captured = file["lanes/fp32/loss"][()], file["lanes/captured/loss"][()]
        assert abs(losses / captured - 1).max() < 1e-5


def test_a_teacher_whose_results_are_in_the_batch(lockstep, tmp_path):
    model, path = Pair(), tmp_path / "b.h5"
    teacher = model.second
    optimizer = torch.optim.SGD(model.first.parameters(), 0.1)

    def loss_of(model, batch):
        return (model(batch["x"]) - batch["target"]).square().mean()

    cap = Capture(path, model.first, optimizer, loss_of, steps=2)
    for x in torch.randn(3, 5, 4):
        batch = {"x": x, "target": teacher(x).detach()}
        with cap.step(batch):
            loss_of(model.first, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        teacher.weight.data.lerp_(model.first.weight.data, 0.1)
    assert steps_in(path) == (2, 2, True)
    lockstep("verify", path)


def test_lbfgs_is_refused_before_anything_runs(tmp_path):
    model, path = Images(), tmp_path / "a.h5"
    optimizer, ran = torch.optim.LBFGS(model.parameters()), []

    def loss_of(model, batch):
        ran.append(batch)
        return image_loss(model, batch)

    with pytest.raises(CaptureError, match="LBFGS runs forward and backward pass several times .*SGD"):
        capture(path, model, optimizer, image_batches(3), loss_of)
    cap = Capture(path, model, optimizer, loss_of, on_unsupported="report")
    with pytest.warns(UserWarning, match="LBFGS runs"), cap.step(image_batches(1)[0]):
        pass
    assert not ran and not path.exists()
