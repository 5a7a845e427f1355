"""What a step chose by values is the step's: branches, numbers that Python reads, places, masks, draws of whole layers."""

import contextlib
import json

import h5py
import lockstep_capture
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from capture_loops import train
from lockstep_capture import Capture
from tiny_capture import seal

nn = torch.nn
torch.set_num_threads(1)
STEPS = 4


def branch(m, x):
    y = m.a(x)
    return y * 2 if float(y.sum()) > 0 else y.tanh()


def number(m, x):
    y = m.a(x)
    return y / y.detach().abs().max().item()


def dropped_layers(m, x):
    for layer in m.layers:
        if torch.rand([]) < 0.5:
            continue
        x = x + layer(x).relu()
    return m.a(x)


def picked_by_mask(m, x):
    y = m.a(x)
    return torch.cat([y[y > 0], y.masked_select(y < -0.5)]).reshape(1, -1)


def largest(m, x):
    values, places = m.a(x).topk(2, -1)
    return values * m.scale[places]


def in_order(m, x):
    y = m.a(x)
    return y.sort(-1, descending=True).values * m.scale[:6] + y[torch.arange(len(y)), y.argmax(-1), None]


def neighbours(m, x):
    """Which rows lie near each other is read from the batch alone: the points of a cloud."""
    near = torch.cdist(x, x).topk(2, largest=False).indices
    return m.a(x[near] - x[:, None]).amax(1)


def median(m, x):
    return m.a(x).median(1).values[:, None]


def experts(m, x):
    """A mixture of experts as it is usually written."""
    y = m.a(x)
    weights, chosen = m.router(y).softmax(-1).topk(2, -1)
    out = torch.zeros_like(y)
    for number, expert in enumerate(m.layers):
        rows, slots = torch.where(chosen == number)
        if len(rows):
            out.index_add_(0, rows, expert(y[rows]) * weights[rows, slots, None])
    return out


def joined_masks(m, x):
    y = m.a(x)
    mask = y > -1
    mask &= y < 1
    mask |= x[:, :1] > 1
    mask ^= x[:, 1:2] > 2.5
    return torch.cat([y[mask], y[~mask] * 2]).reshape(1, -1)


def share(m, x):
    y = m.a(x)
    return y.sum() / (y > 0).sum()


def written(m, x):
    y = m.a(x)
    z = y.clone()
    z[y > 0.5] = 0.25
    places = y.argmin(-1, keepdim=True)
    return z.scatter(1, places, y[:, :1]).scatter_add(1, places, y[:, 1:2])


def sampled(m, x):
    y = m.a(x)
    return y.gather(1, torch.multinomial(y.softmax(-1), 2))


BODIES = [
    branch,
    number,
    dropped_layers,
    picked_by_mask,
    joined_masks,
    largest,
    in_order,
    neighbours,
    median,
    experts,
    share,
    written,
    sampled,
]


class Deciding(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body, self.a, self.router = body, nn.Linear(6, 6), nn.Linear(6, 3)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.scale = nn.Parameter(torch.linspace(0.5, 2, 7))

    def forward(self, x):
        return self.body(self, x)


def trained(path, body, steps=STEPS):
    torch.manual_seed(5)
    model = Deciding(body)
    optimizer = torch.optim.AdamW(model.parameters(), 0.05, weight_decay=0.1)
    batches = [(1 - 2 * (i % 2)) * (2 + torch.rand(5, 6)) for i in range(steps)]

    def step(m, b):
        return (m(b) - 0.3).square().mean()

    cap = Capture(path, model, optimizer, step, steps=steps, verify=range(steps)) if path else None
    losses = train(model, optimizer, step, batches, cap)
    return losses, [p.detach().clone() for p in model.parameters()], torch.random.get_rng_state()


@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
def test_steps_that_decide_are_captured_verified_and_replayed(lockstep, tmp_path, body):
    path, run = tmp_path / "a.lscap.h5", tmp_path / "run.h5"
    watched, alone = trained(path, body), trained(None, body)
    assert watched[0] == alone[0] and torch.equal(watched[2], alone[2])
    assert all(torch.equal(a, b) for a, b in zip(watched[1], alone[1], strict=True))
    said = lockstep("verify", path).stdout
    assert "V1  PASS" in said and "V3  PASS" in said and "V5  PASS" in said
    lockstep("replay", path, "--lanes", "fp32,torch-autocast-bf16,torch-autocast-fp16", "-o", run, "--quiet")
    with h5py.File(run) as file:
        ours, theirs = (file[f"lanes/{lane}/loss"][()] for lane in ("fp32", "captured"))
    assert ours == pytest.approx(theirs, rel=1e-4), "also of weights that a step's path does not reach"


def graphs(path):
    with h5py.File(path) as file:
        return [json.loads(bytes(file[f"graphs/{k}/json"][()])) for k in range(len(file["graphs"]))]


def test_each_path_is_a_graph_and_one_graph_serves_equal_paths(tmp_path):
    trained(tmp_path / "a.h5", branch, steps=6)
    ops = [{node["op"] for node in graph["nodes"]} for graph in graphs(tmp_path / "a.h5")]
    assert len(ops) == 2 and sorted("tanh" in names for names in ops) == [False, True]


def test_what_was_chosen_is_an_input_of_each_step(tmp_path):
    trained(tmp_path / "a.h5", largest)
    assert len(graphs(tmp_path / "a.h5")) == 1
    with h5py.File(tmp_path / "a.h5") as file:
        for step in file["steps"].values():
            kept = [item[()] for item in step["micro/000/inputs"].values() if "topk" in item.attrs["path"]]
            assert kept and all(np.issubdtype(item.dtype, np.integer) and item.max() < 7 for item in kept)


def test_autocast_decides_as_the_loop_did(lockstep, tmp_path):
    """The loop's own choices, made in BF16, are those that FP32 and FP64 follow."""
    torch.manual_seed(5)
    model = Deciding(experts)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)

    def step(m, b):
        return (m(b).float() - 0.3).square().mean()

    cap = Capture(tmp_path / "a.h5", model, optimizer, step, steps=3, autocast="bfloat16")
    for _ in range(3):
        batch = torch.randn(9, 6)
        with cap.step(batch):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = step(model, batch)
            loss.backward()
            optimizer.step()
    said = lockstep("verify", tmp_path / "a.h5").stdout
    assert "V1  PASS" in said and "V7  PASS" in said


def test_a_layer_that_no_step_reaches_keeps_its_weights(lockstep, tmp_path):
    """AdamW would decay it: a weight without a gradient is passed over, in PyTorch and in a replay."""
    trained(tmp_path / "a.h5", dropped_layers)
    lockstep("replay", tmp_path / "a.h5", "-o", tmp_path / "run.h5", "--quiet")
    with h5py.File(tmp_path / "a.h5") as file, h5py.File(tmp_path / "run.h5.state") as state:
        missed = state["lanes/0/missed_steps"][()]
        assert missed.max() > 0
        kept = state["lanes/0/tensors"]
        names = [name for name in file["final/params"] if f"weight%2F{name}" in kept]
        assert sum("layers" in name for name in names) >= 4, "weights of layers that some step reached"
        for name in names:
            assert kept[f"weight%2F{name}"][()] == pytest.approx(file[f"final/params/{name}"][()], rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("heads", [4, 2])
def test_attention_with_a_learned_mask(lockstep, tmp_path, heads):
    """T5's relative positions: PyTorch takes the math backend, dropout included."""

    class Relative(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.bias = nn.ModuleList(nn.Linear(8, 2 * h) for h in (4, heads, heads)), nn.Embedding(9, 4)

        def forward(self, x):
            q, k, v = (part(x).view(*x.shape[:2], -1, 2).transpose(1, 2) for part in self.qkv)
            far = torch.arange(5)[:, None] - torch.arange(5) + 4
            mask = self.bias(far).permute(2, 0, 1)[None]
            return F.scaled_dot_product_attention(q, k, v, mask, dropout_p=0.2, enable_gqa=heads < 4)

    torch.manual_seed(1)
    model = Relative()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = lambda m, b: m(b).square().mean()
    train(
        model,
        optimizer,
        step,
        [torch.randn(2, 5, 8) for _ in range(2)],
        Capture(tmp_path / "a.h5", model, optimizer, step, steps=2),
    )
    assert "V1  PASS" in lockstep("verify", tmp_path / "a.h5").stdout


class Around(torch.nn.Module):
    """A linear layer and a body(self, y) of the tests below."""

    def __init__(self, body):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.a, self.b = body, torch.nn.Linear(5, 6), torch.nn.Linear(6, 6)
        self.first, self.second = torch.nn.ReLU(), torch.nn.ReLU()
        self.experts = torch.nn.Parameter(torch.ones(6, 6))

    def forward(self, x):
        return self.body(self, self.a(x))


def around_loss(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def captured_graphs(path, model):
    batches = [(torch.randn(8, 5), torch.randint(6, (8,))) for _ in range(3)]
    lockstep_capture.capture(path, model, torch.optim.SGD(model.parameters(), 0.1), batches, around_loss, steps=3)
    with h5py.File(path) as file:
        return [json.loads(bytes(graph["json"][()]).decode()) for graph in file["graphs"].values()]


def router(model, y):
    best, expert = model.b(y).softmax(-1).max(-1)
    return y * model.experts[expert] * best[:, None]


def masked_data(model, y):
    z = y.data * 1.0
    z[z < 0] = 0
    return y * z


@pytest.mark.parametrize(
    "body,ops",
    [
        (lambda model, y: y / y.data.abs().max(), {"div", "amax"}),
        (masked_data, {"masked_fill", "mul"}),
        (lambda model, y: y * torch.from_numpy(y.detach().numpy()).abs().max(), {"amax", "mul"}),
        (router, {"gather"}),
        (lambda model, y: y + model.b(y).max(-1, keepdim=True).values, {"max_dim"}),
        (lambda model, y: y + torch.normal(y.detach() * 3, 0.1), set()),
        (lambda model, y: y + torch.distributions.Normal(y, 0.1).sample(), set()),
        (lambda model, y: y * torch.bernoulli(y.sigmoid()), set()),
        (lambda model, y: y + torch.randn_like(y * 2), set()),
    ],
    ids=["data", "masked data", "numpy", "router", "max", "normal", "distribution", "bernoulli", "randn_like"],
)
def test_activations_stay_each_lanes_own(lockstep, tmp_path, body, ops):
    """What shares an activation's memory is that activation, and what is picked by value goes with its place."""
    path = tmp_path / "a.lscap.h5"
    graphs = captured_graphs(path, Around(body))
    assert len(graphs) == 1, "no number of a step is in the graph"
    assert ops <= {node["op"] for node in graphs[0]["nodes"]}
    lockstep("verify", path)
    lockstep("replay", path, "--lanes", "fp32,torch-autocast-fp16", "-o", tmp_path / "run.h5", "--quiet")


def test_paths_through_other_modules_are_other_graphs(tmp_path):
    def body(model, y):
        model.turn = not getattr(model, "turn", False)
        return (model.first if model.turn else model.second)(y)

    layers = {
        node["module"]
        for graph in captured_graphs(tmp_path / "a.lscap.h5", Around(body))
        for node in graph["nodes"]
        if node["op"] == "relu"
    }
    assert layers == {"first", "second"}


def decays(model, y):
    with torch.no_grad():
        model.b.weight.mul_(0.9)
    return model.b(y)


def decays_data(model, y):
    model.b.weight.data.mul_(0.9)
    return model.b(y)


@pytest.mark.parametrize(
    "body,said",
    [
        (decays, "in-place on a parameter"),
        (decays_data, "in-place on a parameter"),
        (lambda model, y: torch.func.jvp(torch.tanh, (y,), (y,))[1] + y, "a tensor that no op here made"),
        (lambda model, y: y @ model.b.weight.T.data, "a view of another tensor that no op made"),
        (lambda model, y: (y.T @ model.table).T, "a sparse tensor"),
    ],
    ids=["decays", "decays data", "jvp", "view", "sparse"],
)
def test_refused_and_nothing_disturbed(tmp_path, body, said):
    def train(observed):
        model = Around(body)
        model.table = torch.eye(8).to_sparse()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        recorder = lockstep_capture.Capture(
            tmp_path / "a.lscap.h5", model, optimizer, around_loss, steps=2, on_unsupported="report"
        )
        dice = torch.Generator().manual_seed(3)
        for _ in range(3):
            batch = (torch.randn(8, 5, generator=dice), torch.randint(6, (8,), generator=dice))
            with recorder.step(batch) if observed else contextlib.nullcontext():
                around_loss(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
        return list(model.parameters())

    with pytest.warns(UserWarning, match=said):
        observed = train(True)
    assert all(torch.equal(a, b) for a, b in zip(observed, train(False)))


class Rows(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.table = torch.nn.Embedding(9, 4, **options)

    def forward(self, x):
        e = self.table(x)
        return e if self.table.max_norm else e * (1 / e.norm(dim=-1, keepdim=True)).clamp(max=1)


def test_rows_that_are_scaled_where_they_are_read():
    """max_norm writes to the weights. What the message says to do is captured."""
    refused = str(lockstep_capture.check(Rows(max_norm=1.0), lambda m, x: m(x).sum(), torch.arange(9)))
    assert "in-place on a parameter  x1  in table" in refused and "leave out max_norm=m, and scale the rows" in refused
    assert lockstep_capture.check(Rows(), lambda m, x: m(x).sum(), torch.arange(9)).ok


def test_a_sparse_tensor_that_is_not_used(tmp_path):
    model = Around(lambda model, y: y)
    model.table = torch.eye(5).to_sparse()
    assert len(captured_graphs(tmp_path / "a.lscap.h5", model)) == 1


class Dropping(torch.nn.Module):
    """One of its layers is left out in some steps."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.turn = torch.nn.Linear(5, 6), torch.nn.Linear(6, 6), 0

    def forward(self, x):
        return self.a(x) if self.turn % 3 == 1 else self.b(self.a(x))


def test_a_capture_that_starts_after_steps_that_left_layers_out(lockstep, tmp_path):
    """Adam counts the steps of every weight, which the bias correction of the next one needs."""
    model, path, run = Dropping(), tmp_path / "a.lscap.h5", tmp_path / "run.h5"
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)
    recorder = lockstep_capture.Capture(path, model, optimizer, around_loss, steps=4)
    dice = torch.Generator().manual_seed(3)
    for number in range(9):
        model.turn = number
        batch = (torch.randn(8, 5, generator=dice), torch.randint(6, (8,), generator=dice))
        with recorder.step(batch) if number >= 5 else contextlib.nullcontext():
            around_loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    lockstep("verify", path)
    lockstep("replay", path, "--lanes", "fp32", "-o", run, "--quiet")
    with h5py.File(run) as file:
        ours, theirs = file["lanes/fp32/loss"][:], file["lanes/captured/loss"][:]
    assert len(ours) == 4 and np.abs(ours - theirs).max() < 1e-5, (ours, theirs)


def routed(m, x):
    """All that the choice leads to is in the graph."""
    y = m.a(x)
    weights, chosen = m.router(y).softmax(-1).topk(2, -1)
    return (
        m.layers[0](y).view(-1, 3, 2).gather(1, chosen.unsqueeze(-1).expand(-1, -1, 2)) * weights[..., None]
    ).flatten(1)


def taken(m, x):
    y = m.a(x)
    if (y.mean(0) > 0).any():
        return y * 2
    return y


def weighed_apart(m, x):
    """A second network only chooses; the loss sees no more of it than the places."""
    y = m.a(x)
    with torch.no_grad():
        best = m.layers[1](y.relu()).argmax(1, keepdim=True)
    return y.gather(1, best)


def unknown_scores(m, x):
    """Nothing in the graph can compute what this chooses by."""
    y = m.a(x)
    return y.gather(1, torch.linalg.pinv(y[:, :5]).t().contiguous().argmax(1, keepdim=True))


def decisions(path):
    return [(node["attrs"], node["aten"]) for node in graphs(path)[0]["nodes"] if node["op"] == "decision"]


@pytest.mark.parametrize(
    "body,expected",
    [
        (largest, [{"by": "largest", "dim": 1}]),
        (routed, [{"by": "largest", "dim": 1, "own": True}]),
        (taken, [{"by": "greater", "scalar": 0.0}]),
        (weighed_apart, [{"by": "largest", "dim": 1, "own": True}]),
        (picked_by_mask, [{"by": "greater", "scalar": 0.0}, {"by": "less", "scalar": -0.5}]),
        (median, [{"by": "rank", "rank": 2, "dim": 1, "own": True}]),
        (experts, [{"by": "largest", "dim": 1}]),
        (unknown_scores, []),
    ],
    ids=lambda item: getattr(item, "__name__", ""),
)
def test_choices_are_nodes_and_lanes_may_take_those_that_stay_in_the_graph(lockstep, tmp_path, body, expected):
    trained(tmp_path / "a.h5", body)
    assert [attrs for attrs, _ in decisions(tmp_path / "a.h5")] == expected
    lockstep("verify", tmp_path / "a.h5")


def moved(path, node_of, by):
    """The capture with the recorded choices of every step changed."""
    with h5py.File(path, "r+") as file:
        graph = json.loads(bytes(file["graphs/0/json"][()]))
        node = next(node for node in graph["nodes"] if node["op"] == node_of)
        for step in file["steps"].values():
            item = step[f"micro/000/inputs/{node['inputs' if 'inputs' in node else 'in'][-1][2:]}"]
            item[...] = by(item[()])
    seal(path)


def flips(run, lane):
    with h5py.File(run) as file:
        group = file[f"lanes/{lane}/decisions"]
        return {name: group[name][()].max(axis=1) for name in group}


def test_a_lane_counts_the_choices_that_its_values_would_change(lockstep, tmp_path):
    """Recorded places that are not the largest: every lane sees that, the reference, too."""
    path, run = tmp_path / "a.h5", tmp_path / "run.h5"
    trained(path, weighed_apart)
    moved(path, "decision", lambda places: (places + 1) % 6)
    lockstep("replay", path, "--lanes", "fp32,torch-autocast-bf16", "-o", run, "--quiet")
    for lane in ("fp32", "torch-autocast-bf16"):
        found = flips(run, lane)
        assert (found["count"] == 5).all() and (found["flipped"] == 5).all()
        assert (found["margin_sum"] > 0).all() and (found["margin_max"] <= found["margin_sum"]).all()


def test_own_choices_are_those_of_pytorch(lockstep, tmp_path):
    """A lane that chooses itself undoes what was changed in the file; one that follows does not."""
    path, runs = tmp_path / "a.h5", {}
    trained(path, routed)
    for name, change in (("as it was", None), ("changed", lambda places: np.roll(places, 1, 0))):
        if change:
            moved(path, "decision", change)
        for mode in ("recorded", "own"):
            run = tmp_path / f"{name}-{mode}.h5"
            lockstep("replay", path, "--lanes", "fp32,torch-autocast-bf16", "--decisions", mode, "-o", run, "--quiet")
            with h5py.File(run) as file:
                runs[name, mode] = file["lanes/fp32/loss"][()]
    assert (runs["as it was", "own"] == runs["as it was", "recorded"]).all()
    assert (runs["changed", "own"] == runs["as it was", "recorded"]).all()
    assert (runs["changed", "recorded"] != runs["as it was", "recorded"]).any()


class Ranking(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.codes = nn.Sequential(nn.Linear(6, 32), nn.Linear(32, 8)), nn.Parameter(torch.randn(16, 8))

    def forward(self, x):
        return (self.body(x)[:, None] * self.codes).sum(-1)


def test_an_order_that_bf16_would_change_is_a_finding(lockstep, tmp_path):
    """The share, against PyTorch's own BF16 on the same weights and batch."""
    path, run = tmp_path / "a.h5", tmp_path / "run.h5"
    torch.manual_seed(3)
    model, x, ranks = Ranking(), torch.randn(64, 6), torch.linspace(-1, 1, 16)
    with torch.no_grad():
        expected = model(x).argsort(-1, descending=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            narrow = model(x)
        theirs = int((narrow.gather(1, expected) != narrow.sort(-1, descending=True).values).sum())

    def step(m, x):
        return (m(x).sort(-1, descending=True).values * ranks).square().mean()

    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    train(model, optimizer, step, [x, x], Capture(path, model, optimizer, step, steps=2))
    lockstep("replay", path, "--lanes", "fp32,torch-autocast-bf16", "-o", run, "--quiet")
    found = flips(run, "torch-autocast-bf16")
    assert flips(run, "fp32")["flipped"].max() <= 2, "PyTorch's FP32 and ours differ by an ulp"
    assert theirs > 0.01 * expected.numel()
    # Sums in another order move few numbers across a rounding: five standard deviations of a count.
    assert abs(int(found["flipped"][0]) - theirs) <= 5 * theirs**0.5
    lane = next(
        lane
        for lane in json.loads(lockstep("report", run, "--format", "json").stdout)["lanes"]
        if lane["name"] == "torch-autocast-bf16"
    )
    finding = next(item for item in lane["findings"] if item["kind"] == "flipped decisions")
    total = int(found["flipped"].sum())
    assert finding["sentence"].startswith("sort (test_capture_decisions.py:")
    assert f"would choose otherwise in {total} of {2 * expected.numel()} cases" in finding["sentence"]


def test_own_decisions_are_of_captures(lockstep):
    said = lockstep("replay", "lenet", "--decisions", "own", "--steps", "1", code=2).stderr
    assert "--decisions own: only a capture has recorded decisions" in said
