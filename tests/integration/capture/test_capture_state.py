"""What a step changes and reads in addition to its graph: buffers, tensors outside of the model, random generators."""

import functools
import json
import re

import h5py
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from capture_loops import train
from lockstep_capture import Capture, CaptureError, capture, check

nn = torch.nn
STEPS = 3
DRAWN = torch.Generator().manual_seed(11)
BATCHES = [(torch.randn(6, 5, generator=DRAWN), torch.randint(0, 4, (6,), generator=DRAWN)) for _ in range(STEPS)]


class Kept(nn.Module):
    """A layer whose loss reads buffers, which `update(self, y)` changes."""

    def __init__(self, update):
        super().__init__()
        self.fc, self.update = nn.Linear(5, 4), update
        self.register_buffer("c", torch.full((4,), 0.25))
        self.register_buffer("d", torch.ones(4))
        self.register_buffer("queue", torch.linspace(-1, 1, 32).reshape(4, 8))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, batch):
        y = self.fc(batch[0])
        z = torch.cat([y - self.c * self.d, y @ self.queue], 1)
        self.update(self, y.detach())
        return F.cross_entropy(z, batch[1])


def loss_of(model, batch):
    return model(batch)


class Between:
    """Where a loop has its scheduler."""

    def __init__(self, model, body):
        self.model, self.body = model, body

    def step(self):
        with torch.no_grad():
            self.body(self.model)


def captured(path, model, step_fn=loss_of, loop=None, between=lambda model: None, **options):
    """Trains and captures; the losses. loop: what the loop computes, where that is not step_fn; between: behind each
    optimizer step."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    cap = None if path is None else Capture(path, model, optimizer, step_fn, steps=STEPS, **options)
    return train(model, optimizer, loop or step_fn, BATCHES, cap, scheduler=Between(model, between))


def kept(update):
    torch.manual_seed(3)
    return Kept(update)


# ---- buffers


def chained(m, y):
    m.c.mul_(0.9).add_(y.mean(0), alpha=0.1)


def two_writes(m, y):
    m.c.mul_(0.9)
    m.c.add_(y.mean(0), alpha=0.1)


def read_between(m, y):
    m.c.mul_(0.9)
    m.d.copy_(m.c)
    m.c.add_(y.mean(0), alpha=0.1)


def assigned(m, y):
    m.c = m.c * 0.9 + y.mean(0) * 0.1


def assigned_behind_a_write(m, y):
    m.c.mul_(0.9)
    m.c = m.c + y.mean(0)


def swapped(m, y):
    m.c, m.d = m.d, m.c


def queued(m, y):
    m.queue = torch.cat([m.queue[:, 6:], y.T], 1)


def from_a_weight(m, y):
    m.c = m.fc.bias.detach().clone()


def through_data(m, y):
    m.c.data.mul_(0.9).add_(y.mean(0), alpha=0.1)


def data_assigned(m, y):
    m.c.data = m.c * 0.9 + y.mean(0) * 0.1
    m.d.data = m.c * 0.5  # what was assigned is read


def counted_and_read(m, y):
    m.calls += 1
    m.c.mul_(0.9 / m.calls)


def in_a_ring(m, y):
    """The queue of MoCo, as published."""
    place, m.queue = int(m.calls), m.queue.clone()
    m.queue[:, place : place + 2] = y.T[:, :2]
    m.calls.view(1)[0] = (place + 2) % 8


def in_a_part(m, y):
    m.c[1:] = y.mean(0)[1:]


def through_a_view(m, y):
    m.c.view(2, 2).t().mul_(0.9)


CHANGES = {
    data_assigned: {"c", "d"},
    counted_and_read: {"c"},
    in_a_ring: {"queue"},
    in_a_part: {"c"},
    through_a_view: {"c"},
    through_data: {"c"},
    chained: {"c"},
    two_writes: {"c"},
    read_between: {"c", "d"},
    assigned: {"c"},
    assigned_behind_a_write: {"c"},
    swapped: {"c", "d"},
    queued: {"queue"},
    from_a_weight: {"c"},
}


@pytest.mark.parametrize("update", CHANGES, ids=lambda f: f.__name__)
def test_buffers_that_the_forward_pass_changes(lockstep, tmp_path, update):
    path = tmp_path / "a.h5"
    losses = captured(path, kept(update), verify=range(STEPS))
    assert losses == captured(None, kept(update))
    with h5py.File(path) as file:
        graph = json.loads(bytes(file["graphs/0/json"][()]))
        assert {mutation["buffer"] for mutation in graph["mutations"]} == CHANGES[update]
        for name in CHANGES[update]:
            for step in range(STEPS - 1):
                made = file[f"verify/{step:06d}/ref32/post/buffers/{name}"][()]
                assert np.array_equal(made, file[f"verify/{step + 1:06d}/pre/buffers/{name}"][()])
                before = f"verify/{step:06d}/pre/" if step else ""
                assert not np.array_equal(made, file[f"{before}buffers/{name}"][()])
    gates = lockstep("verify", path).stdout
    assert "V1  PASS" in gates and "V4  PASS" in gates


def grown(m, y):
    m.queue = torch.cat([m.queue, y.T], 1)


def test_a_buffer_that_grows_is_refused_by_name(tmp_path):
    with pytest.raises(CaptureError, match=r"buffer queue replaced by another kind of tensor .*hint: self.queue.copy_"):
        captured(tmp_path / "a.h5", kept(grown), verify=[0])
    assert list(tmp_path.iterdir()) == []


def test_a_buffer_that_autocast_makes_bf16(lockstep, tmp_path):
    """It is FP32 in the first step alone; in the references it stays so."""

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.RNN(5, 4)
            self.register_buffer("state", torch.zeros(1, 4))

        def forward(self, batch):
            y, state = self.rnn(batch[0][:, None], self.state[:, None])
            self.state = state[:, 0].detach()
            return F.cross_entropy(y[:, 0], batch[1])

    torch.manual_seed(3)
    path, model = tmp_path / "a.h5", Recurrent()
    capture(
        path,
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        BATCHES,
        loss_of,
        steps=STEPS,
        verify=range(STEPS),
        autocast=torch.bfloat16,
    )
    with h5py.File(path) as file:
        graphs = [json.loads(bytes(graph["json"][()])) for graph in file["graphs"].values()]
        assert all(len(graph["mutations"]) == 1 for graph in graphs)
        assert [file[f"{place}/state"].attrs["torch_dtype"] for place in ("buffers", "verify/000001/pre/buffers")] == [
            "float32",
            "bfloat16",
        ]
    assert [buffer.get("format") for graph in graphs for buffer in graph["buffers"]] == [None, "bf16"]
    gates = lockstep("verify", path).stdout
    assert "V1  PASS" in gates and "V3  PASS" in gates and "V4  PASS" in gates
    for policy, held in (("torch-autocast-bf16-cpu", "bf16"), ("torch-autocast-fp16", "fp16"), ("fp32", "fp32")):
        program = lockstep("explain", path, "--graph", "1", "--policy", policy).stdout
        assert program.split(" state ")[1].split()[0] == held, program


def test_a_forward_pass_more_than_step_fn_has(tmp_path):
    def twice(model, batch):
        model(batch)
        return model(batch)

    model = kept(lambda m, y: m.calls.add_(1))
    captured(tmp_path / "a.h5", model, loop=twice)  # nothing reads the counter of calls
    assert int(model.calls) == 2 * STEPS and (tmp_path / "a.h5").exists()

    bn = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))
    with pytest.raises(CaptureError, match="3 buffers differ from the graph's, e.g. 1.num_batches"):
        captured(
            tmp_path / "b.h5",
            bn,
            lambda m, b: F.cross_entropy(m(b[0]), b[1]),
            loop=lambda m, b: (m(b[0]), F.cross_entropy(m(b[0]), b[1]))[1],
        )


# ---- tensors outside of the model

CENTRE = torch.zeros(4)
BANK = torch.linspace(-1, 1, 8).reshape(4, 2)
TEACHER = nn.Linear(5, 4).requires_grad_(False)


def with_teacher(model, batch):
    return F.mse_loss(model.fc(batch[0]), TEACHER(batch[0]))


def average_of_weights(model):
    TEACHER.weight.lerp_(model.fc.weight, 0.1)


def with_centre(model, batch):
    global CENTRE
    y = model.fc(batch[0])
    loss = F.mse_loss(y, CENTRE.expand_as(y))
    CENTRE = CENTRE * 0.9 + y.detach().mean(0) * 0.1
    return loss


def with_bank(model, batch):
    return F.cross_entropy(model.fc(batch[0]) @ BANK, batch[1] % 2)


def rolled(model):
    """The sum of its bits stays."""
    BANK.copy_(BANK.roll(1, 0))


def nothing(model):
    pass


@pytest.mark.parametrize(
    "step_fn, between, name",
    [
        (with_teacher, average_of_weights, "TEACHER.weight"),
        (with_centre, nothing, "CENTRE"),
        (with_bank, rolled, "BANK"),
    ],
)
def test_a_tensor_outside_of_the_model_that_changes(tmp_path, step_fn, between, name):
    model = kept(lambda m, y: None)
    with pytest.raises(CaptureError, match=f"1 tensors outside of the model changed during the capture, e.g. {name}:"):
        captured(tmp_path / "a.h5", model, step_fn, between=between, verify=[0])
    assert list(tmp_path.iterdir()) == []


class Centred(nn.Module):
    """A loss whose centre is an attribute: PyTorch does not know that it is state."""

    def __init__(self, update, centre):
        super().__init__()
        self.update, self.centre = update, centre

    def forward(self, y, goals):
        if self.centre is None:
            self.centre = torch.zeros(4)
        loss = F.cross_entropy(y - self.centre, goals)
        self.mean = y.detach().mean(0)  # nothing reads it
        self.update(self)
        return loss


def in_place(loss):
    loss.centre.mul_(0.9).add_(loss.mean, alpha=0.1)


def anew(loss):
    loss.centre = 0.9 * loss.centre + 0.1 * loss.mean


def through(loss):
    return lambda model, batch: loss(model.fc(batch[0]), batch[1])


@pytest.mark.parametrize("where", ["model", "outside", "made"])
@pytest.mark.parametrize("update", [in_place, anew])
def test_attributes_that_the_forward_pass_changes(lockstep, tmp_path, update, where):
    """They are replayed as buffers. made: by the first step, which is not captured then."""
    path, seen = tmp_path / "a.h5", []
    for capturing in (True, False):
        loss = Centred(update, None if where == "made" else torch.zeros(4))
        model = kept(lambda m, y: None)
        if where == "model":
            model.loss = loss
        assert check(model, through(loss), BATCHES[0]).ok
        losses = captured(path if capturing else None, model, through(loss), verify=range(STEPS))
        seen.append((losses, loss.centre.tolist()))
    assert seen[0] == seen[1]
    with h5py.File(path) as file:
        assert len(file["steps"]) == STEPS - (where == "made")
        graph = json.loads(bytes(file["graphs/0/json"][()]))
        assert [mutation["buffer"] for mutation in graph["mutations"]] == ["loss.centre"]
        assert file["final/buffers/loss.centre"][()].tolist() == seen[0][1]
    gates = lockstep("verify", path).stdout
    assert "V1  PASS" in gates and "V4  PASS" in gates
    lockstep("replay", path, "-o", tmp_path / "run.h5", "--quiet")


def test_an_attribute_that_the_loop_takes_away(tmp_path):
    loss, model = Centred(anew, torch.zeros(4)), kept(lambda m, y: None)
    model.loss = loss

    def reset(model):
        model.loss.centre = None

    with pytest.raises(
        CaptureError, match=r"^loss\.centre: the model keeps a tensor here .* now it is None: reset it with zero_"
    ):
        captured(tmp_path / "a.h5", model, through(loss), between=reset, verify=range(STEPS))


class Anchored(nn.Module):
    """As torchvision's AnchorGenerator: a list of tensors takes the dtype of the features in the first pass."""

    def __init__(self):
        super().__init__()
        self.fc, self.anchors = nn.Linear(5, 4), [torch.linspace(-1, 1, 4)]

    def forward(self, batch):
        y = self.fc(batch[0])
        self.anchors = [anchor.to(dtype=y.dtype) for anchor in self.anchors]
        return F.cross_entropy(y - self.anchors[0], batch[1])


def test_one_that_takes_another_dtype_in_the_first_pass(lockstep, tmp_path):
    torch.manual_seed(3)
    path, model = tmp_path / "a.h5", Anchored()
    capture(
        path, model, torch.optim.SGD(model.parameters(), 0.1), BATCHES, loss_of, steps=STEPS, autocast=torch.bfloat16
    )
    with h5py.File(path) as file:
        assert list(file["graphs"]) == ["0", "1"] and [
            int(step["micro/000"].attrs["graph"]) for step in file["steps"].values()
        ] == [0, 1, 1]
    lockstep("verify", path)


def test_one_that_stays_is_a_constant(tmp_path):
    captured(tmp_path / "a.h5", kept(lambda m, y: None), with_teacher)
    with h5py.File(tmp_path / "a.h5") as file:
        assert any(np.array_equal(one[()], TEACHER.weight) for one in file["constants"].values())


# ---- the step function runs more often than the loop calls it


def noisy(writes=False):
    """A step function with state of all kinds, and what can be seen of that state. writes: to a tensor, too."""
    torch_own, numpy_own = torch.Generator().manual_seed(7), np.random.default_rng(7)
    tensor, entries, table, count = torch.zeros(4), [], {"n": 0}, 0

    def step_fn(model, batch, scale=1.0):
        nonlocal count
        count += 1
        table["n"] += 1
        entries.append(numpy_own.random())
        if writes:
            tensor.add_(1)
        noise = torch.randn(batch[0].shape, generator=torch_own)
        return scale * F.cross_entropy(model.fc(batch[0] + 0.1 * noise), batch[1])

    def state():
        return count, table["n"], entries, tensor.tolist(), torch_own.get_state().tolist()

    return functools.partial(step_fn, scale=0.5), state


def test_generators_and_variables_of_the_step_function(tmp_path):
    """Drawn from a generator of its own: recorded like any noise, and the generator is where the loop left it."""
    seen = []
    for path in (tmp_path / "a.h5", None):
        step_fn, state = noisy()
        losses = captured(path, kept(lambda m, y: None), step_fn)
        seen.append((losses, state()))
    assert seen[0] == seen[1]
    with h5py.File(tmp_path / "a.h5") as file:
        assert any(
            re.fullmatch(r"derived:(0\.1 \* noise|mul \(.*:\d+\)):mul", entry.attrs["path"])
            for entry in file["steps/000001/micro/000/inputs"].values()
        )


def test_and_a_refusal_leaves_them_as_well(tmp_path):
    seen = []
    for path in (tmp_path / "a.h5", None):
        step_fn, state = noisy(writes=True)
        unsupported = functools.partial(lambda f, m, b: f(m, b) + torch.erfinv(m.fc.weight.tanh()).sum(), step_fn)
        model = kept(lambda m, y: None)
        if path is None:
            losses = captured(path, model, unsupported)
        else:
            with pytest.warns(UserWarning, match="aten.erfinv"):
                losses = captured(path, model, unsupported, on_unsupported="report")
        seen.append((losses, state()))
    assert seen[0] == seen[1] and list(tmp_path.iterdir()) == []


class Gated(torch.nn.Module):
    """Whose gate gets no gradient."""

    def __init__(self):
        super().__init__()
        self.fc, self.gate = torch.nn.Linear(6, 4), torch.nn.Linear(6, 4)

    def forward(self, x):
        return self.fc(x) * (1 + self.gate(x).detach())


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_weights_that_decay_by_gradients_of_zeros(tmp_path, weight_decay):
    """A replay leaves alone what has no gradient; PyTorch decays what has one of zeros, from a step before the capture."""
    torch.manual_seed(0)
    model, path = Gated(), tmp_path / "a.h5"
    optimizer = torch.optim.SGD(model.parameters(), 0.1, weight_decay=weight_decay)
    model.gate.weight.grad = torch.zeros(4, 6)
    step_fn = lambda m, b: F.cross_entropy(m(b[0]), b[1])
    cap = Capture(path, model, optimizer, step_fn, steps=2)

    def loop():
        for _ in range(2):
            batch = torch.randn(5, 6), torch.randint(4, (5,))
            with cap.step(batch):
                step_fn(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)

    if weight_decay == 0:
        loop()
        assert cap.finished and path.exists()
        return
    with pytest.raises(CaptureError, match="1 weights that no gradient .* e.g. gate.weight: call zero_grad"):
        loop()


class Late(nn.Module):
    """Makes a buffer when it first needs one, as tables of positions are made."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 4)
        self.register_buffer("table", None, persistent=False)

    def forward(self, batch):
        if self.table is None:
            self.register_buffer("table", torch.linspace(-1, 1, 4), persistent=False)
        return F.cross_entropy(self.fc(batch[0]) + self.table, batch[1])


def test_a_buffer_that_the_first_step_makes(tmp_path):
    with pytest.raises(CaptureError, match="^table: .* run the model once before the capture begins"):
        captured(tmp_path / "run.h5", Late())
    model = Late()
    model(BATCHES[0])
    captured(tmp_path / "run.h5", model)
    assert (tmp_path / "run.h5").exists()


class WritesToItsNoise(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 4)

    def forward(self, batch):
        y = self.fc(batch[0])
        return F.cross_entropy(torch.randn_like(y).mul_(y.exp()).add_(y), batch[1])


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_noise_that_the_model_writes_to(lockstep, tmp_path, autocast):
    model, path = WritesToItsNoise(), tmp_path / "run.h5"
    capture(path, model, torch.optim.SGD(model.parameters(), 0.1), BATCHES, loss_of, steps=STEPS, autocast=autocast)
    lockstep("verify", path)


class WideBuffer(nn.Module):
    """A density whose constant is kept in FP64: replays read its FP32 digits."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 4)
        self.register_buffer("log_z", torch.tensor(2 * np.log(2 * np.pi), dtype=torch.float64), persistent=False)

    def forward(self, batch):
        return (0.5 * self.fc(batch[0]).square().sum(-1) + self.log_z).square().mean()


class ReturnsItsInput(nn.Module):
    """Ops that return a value unchanged, after ops with kinks: a maximum, a magnitude."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 16)

    def forward(self, batch):
        y = self.fc(batch[0])
        pooled = torch.cat([F.max_pool1d(y[:, None], 2)[:, 0]], 1)
        image = torch.cat([F.max_pool2d(y.reshape(-1, 1, 4, 4), 2)])
        return (F.dropout(y.abs(), 0.0) * y.square()).mean() + pooled.square().mean() + image.square().mean()


@pytest.mark.parametrize("model", [WideBuffer, ReturnsItsInput])
def test_is_faithful(lockstep, tmp_path, model):
    model, path = model(), tmp_path / "run.h5"
    capture(path, model, torch.optim.SGD(model.parameters(), 0.01), BATCHES, loss_of, steps=STEPS)
    lockstep("verify", path)


class MarksTargets(nn.Module):
    """Targets made like the scores, whose type is the autocast's."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 4)

    def forward(self, batch):
        scores = self.fc(batch[0])
        targets = torch.zeros_like(scores)
        targets[torch.arange(6), batch[1]] = 1.0
        return F.binary_cross_entropy_with_logits(scores, targets)


class MarksMore(MarksTargets):
    """And a part of them: targets without the class of the background, as detectors make them."""

    def forward(self, batch):
        scores = self.fc(batch[0])
        targets = torch.zeros(6, 5, dtype=scores.dtype)
        targets.scatter_(1, batch[1][:, None], 1)
        p, targets = scores.sigmoid(), targets[:, :-1]
        return ((1 - p * targets - (1 - p) * (1 - targets)).square() * scores).mean()


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_targets_like_the_scores(lockstep, tmp_path, autocast):
    model, path = MarksTargets(), tmp_path / "run.h5"
    capture(path, model, torch.optim.SGD(model.parameters(), 0.1), BATCHES, loss_of, steps=STEPS, autocast=autocast)
    lockstep("verify", path)
    shown = lockstep("explain", path, "--policy", "torch-autocast-bf16-cpu").stdout
    assert [line.split()[-1] for line in shown.splitlines() if line.split()[1:2] == ["where"]][0] == "bf16"


def test_a_part_of_targets_like_the_scores(lockstep, tmp_path):
    torch.manual_seed(3)
    model, path = MarksMore(), tmp_path / "run.h5"
    capture(
        path, model, torch.optim.SGD(model.parameters(), 0.1), BATCHES, loss_of, steps=STEPS, autocast=torch.bfloat16
    )
    lockstep("verify", path)
    shown = lockstep("explain", path, "--policy", "torch-autocast-bf16-cpu").stdout.partition("backward")[0]
    products = [line.split() for line in shown.splitlines() if line.split()[1:2] == ["mul"]]
    assert len(products) == 3 and all(line[-1] == "bf16" for line in products)
