"""Casts written in the model: by name, by example, and those that do nothing where the loop is FP32."""

import json

import h5py
import pytest
import torch
import torch.nn.functional as F
from lockstep_capture import capture

LOOPS = [None, torch.bfloat16, torch.float16]


class Casts(torch.nn.Module):
    """Attention scores as published models write them: FP32 softmax, then back to the dtype of the scores."""

    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(6, 6)
        self.scale = torch.nn.Parameter(torch.ones(6))

    def forward(self, x):
        y = self.fc(x)
        asked = y.dtype
        named = y.to(torch.bfloat16)
        wide = y.float() * self.scale
        first = wide.softmax(-1).type_as(y)
        second = F.softmax(y, -1, dtype=torch.float32).to(asked)
        third = (first.to(torch.float32) + 1).to(y)
        mask = torch.zeros(6, dtype=y.dtype).masked_fill(torch.arange(6) > 4, -1.0)
        return (first + second * third + named + mask) * y


def graph_of(path, model, autocast, step_fn=lambda m, b: m(b).float().pow(2).mean()):
    torch.manual_seed(0)
    batches = [torch.randn(4, 6) for _ in range(2)]
    capture(str(path), model, torch.optim.SGD(model.parameters(), 0.1), batches, step_fn, steps=2, autocast=autocast)
    with h5py.File(path) as file:
        return json.loads(bytes(file["graphs/0/json"][()]).decode())


@pytest.mark.parametrize("autocast", LOOPS)
def test_casts_say_whom_they_follow(tmp_path, autocast):
    """The same graph whatever the loop casts to: an FP32 capture shows what a low-precision lane will have to cast."""
    graph = graph_of(tmp_path / "a.lscap.h5", Casts(), autocast)
    by_id = {node["id"]: node for node in graph["nodes"]}
    y = next(node["id"] for node in graph["nodes"] if node["op"] == "linear")
    casts = [(node["attrs"]["dtype"], node["in"]) for node in graph["nodes"] if node["op"] == "cast"]
    assert [dtype for dtype, _ in casts] == ["bf16", "fp32", "fp32", "fp32", "fp32"]  # the third is softmax's
    assert all(read == [y] for _, read in casts[:3]), "each cast reads the layer, no cast stands in for it"
    assert by_id[casts[3][1][0]]["op"] == "cast_like"
    likes = [node["in"] for node in graph["nodes"] if node["op"] == "cast_like"]
    assert [by_id[x]["op"] if x in by_id else x.split("-")[0] for x, _ in likes] == [
        "softmax",
        "softmax",
        "add",
        "c:zeros",
    ]
    assert all(like == y for _, like in likes)
    product = [node for node in graph["nodes"] if node["op"] == "mul"][-1]
    assert y in product["in"]
    assert all(node["autocast"] is None for node in graph["nodes"])


@pytest.mark.parametrize("autocast", LOOPS)
def test_ops_with_a_dtype_say_whom_they_follow(lockstep, tmp_path, autocast):
    """softmax(x, dtype=y.dtype) is softmax of x in y's format, and so is the result."""

    class Asks(Casts):
        def forward(self, x):
            y = self.fc(x)
            z = y.float() * self.scale
            named = torch.softmax(z, -1, dtype=torch.bfloat16).float()
            return (F.softmax(z, dim=-1, dtype=y.dtype) + z.sum(0, dtype=y.dtype)) @ self.fc.weight + named

    torch.manual_seed(1)
    path = tmp_path / "a.lscap.h5"
    graph = graph_of(path, Asks(), autocast)
    casts = [node["attrs"]["dtype"] for node in graph["nodes"] if node["op"] == "cast"]
    assert casts == ["fp32", "bf16", "bf16", "fp32", "fp32"]  # the last one is that of the loss
    by_id = {node["id"]: node["op"] for node in graph["nodes"]}
    likes = [[by_id[name] for name in node["in"]] for node in graph["nodes"] if node["op"] == "cast_like"]
    assert sorted(likes) == [["mul", "linear"], ["mul", "linear"], ["softmax", "linear"], ["sum", "linear"]]
    lockstep("verify", path)


def test_dtypes_that_are_mixed_under_autocast_alone(lockstep, tmp_path):
    """Products of a BF16 and an FP32 operand, which PyTorch refuses without autocast: references widen."""

    class Mixes(Casts):
        def forward(self, x):
            y = self.fc(x)
            if torch.is_autocast_enabled("cpu"):
                y = torch.einsum("nc,cd->nd", y.to(torch.bfloat16), self.fc.weight)
            return y * self.scale

    torch.manual_seed(1)
    path = tmp_path / "a.lscap.h5"
    graph_of(path, Mixes(), torch.bfloat16)
    lockstep("verify", path)


def test_a_cast_in_a_block_of_the_model(tmp_path):
    class Island(Casts):
        def forward(self, x):
            y = self.fc(x)
            with torch.autocast("cpu", enabled=False):
                z = F.linear(y.float(), self.fc.weight)
            return z.type_as(y) * y

    graph = graph_of(tmp_path / "a.lscap.h5", Island(), torch.bfloat16)
    enabled = {node["op"]: node["autocast"] and node["autocast"]["enabled"] for node in graph["nodes"]}
    assert enabled["cast_like"] is None and enabled["linear"] is False
    assert [node["op"] for node in graph["nodes"]][:4] == ["linear", "cast", "linear", "cast_like"]


@pytest.mark.parametrize("autocast", LOOPS)
def test_in_place_keeps_the_dtype(lockstep, tmp_path, autocast):
    """y += x stays y's dtype, however wide x is; two of one dtype need no cast."""

    class Sums(Casts):
        def forward(self, x):
            y = self.fc(x)
            y += self.fc(x + 1)
            y += self.scale * 1.001
            return y.softmax(-1) * 64

    path = tmp_path / "a.lscap.h5"
    graph = graph_of(path, Sums(), autocast)
    by_id = {node["id"]: node for node in graph["nodes"]}
    (like,) = [node["in"] for node in graph["nodes"] if node["op"] == "cast_like"]
    assert [by_id[name]["op"] for name in like] == ["add", "add"] and like[1] in by_id[like[0]]["in"]
    assert "FAIL" not in lockstep("verify", path).stdout


def test_only_the_model_uses_autocast(lockstep, tmp_path):
    """V7 takes the dtype of the block, and what stands outside of it is FP32 in every lane."""

    class Inside(Casts):
        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = F.linear(x, self.fc.weight)
            return self.fc(y.float() * self.scale)

    path = tmp_path / "a.lscap.h5"
    graph = graph_of(path, Inside(), None)
    linears = [node["autocast"]["enabled"] for node in graph["nodes"] if node["op"] == "linear"]
    assert linears == [True, False]
    assert all(node["autocast"]["enabled"] is False for node in graph["nodes"] if node["op"] != "linear")
    said = lockstep("verify", path).stdout
    assert "torch-autocast-bf16-cpu against the captured run" in said and "FAIL" not in said
    assert "V7  PASS" in said and "FP32 in its place would pass" not in said


@pytest.mark.parametrize("autocast", LOOPS)
def test_replays(lockstep, tmp_path, autocast):
    graph_of(tmp_path / "a.lscap.h5", Casts(), autocast)
    said = lockstep("verify", tmp_path / "a.lscap.h5").stdout
    assert "FAIL" not in said and "V1  PASS" in said and "V3  PASS" in said
    assert ("V7  PASS" in said) == (autocast is not None)


class InItsDtype(torch.nn.Module):
    """Tensors that a model makes in the dtype of an activation, as published models write them."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.fc, self.head = kind, torch.nn.Linear(12, 16), torch.nn.Linear(16, 3)
        if kind == "attention":
            self.attention = torch.nn.MultiheadAttention(16, 2, dropout=0.2, batch_first=True)
        if kind == "state":
            self.gru = torch.nn.GRU(16, 16, batch_first=True)

    def forward(self, x):
        y = self.fc(x)
        return self.head(getattr(self, self.kind)(y) if self.kind != "attention" else self.masked(y)).mean(1)

    def masked(self, y):
        """F.multi_head_attention_forward makes float masks of these, in the query's dtype."""
        padding = torch.tensor([[False] * 5 + [True]] * 4)
        causal = torch.ones(6, 6, dtype=torch.bool).triu(1)
        return self.attention(y, y, y, key_padding_mask=padding, attn_mask=causal, need_weights=False)[0]

    def state(self, y):
        return self.gru(y, torch.zeros(1, 4, 16, dtype=y.dtype))[0]

    def rotary(self, y):
        angles = torch.outer(torch.arange(6).float(), 100 ** -torch.arange(8).div(8.0))
        cos, sin = (f(torch.cat([angles, angles], -1)).to(y.dtype) for f in (torch.cos, torch.sin))
        a, b = y.chunk(2, -1)
        return y * cos + torch.cat([-b, a], -1) * sin

    def drop_path(self, y):
        return y * y.new_empty(4, 1, 1).bernoulli_(0.7).div_(0.7)

    def noise(self, y):
        return y + torch.randn_like(y) * (0.1 * y)

    def filled(self, y):
        return torch.cat([y[..., 1:], torch.full_like(y[..., :1], 0.3)], -1) + y.new_full((16,), 0.1)

    def mask(self, y):
        later = torch.full((6, 6), float("-inf"), dtype=y.dtype).triu(1)
        return (y @ y.transpose(1, 2) + later).softmax(-1) @ y


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("kind", ["attention", "state", "rotary", "drop_path", "noise", "filled", "mask"])
def test_what_is_made_in_the_dtype_of_an_activation(lockstep, tmp_path, kind, autocast):
    """It has that activation's format in every lane, and its own numbers are rounded there, not in the file."""
    torch.manual_seed(0)
    model, path = InItsDtype(kind), tmp_path / "a.lscap.h5"
    batches = [(torch.randn(4, 6, 12), torch.randint(3, (4,))) for _ in range(2)]
    capture(
        str(path),
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        batches,
        lambda m, b: F.cross_entropy(m(b[0]), b[1]),
        steps=2,
        verify=range(2),
        autocast=autocast,
    )
    lockstep("verify", path)
    with h5py.File(path) as file:
        graph = json.loads(bytes(file["graphs/0/json"][()]).decode())
    likes = [node["in"] for node in graph["nodes"] if node["op"] == "cast_like"]
    by_id = {node["id"]: node for node in graph["nodes"]}
    count = {"attention": 0, "rotary": 2, "filled": 2}.get(kind, 1)  # attention knows its mask's format
    assert len(likes) == count and all(by_id[like]["op"] == "linear" or kind == "filled" for _, like in likes)
    shown = lockstep("explain", path, "--policy", "torch-autocast-fp16").stdout
    sums = [
        line
        for line in shown.splitlines()
        if line.split()[1:2] and line.split()[1] in ("mul", "add", "concat") and "_to " not in line
    ]
    assert sums or kind in ("attention", "state")
    assert all("fp32" not in line for line in sums)


class Counts(torch.nn.Module):
    """Integers and masks that meet activations widen nothing."""

    def __init__(self):
        super().__init__()
        self.fc, self.sizes = torch.nn.Linear(12, 3), torch.tensor([3, 5, 7])

    def forward(self, x):
        y = self.fc(x)
        kept = (x[:, :3] > 0).long()
        return (y / self.sizes + torch.arange(3)) * kept * (self.sizes > 4)


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_integers_widen_no_activation(lockstep, tmp_path, autocast):
    torch.manual_seed(0)
    model, path = Counts(), tmp_path / "a.lscap.h5"
    capture(
        str(path),
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        [torch.randn(8, 12) for _ in range(2)],
        lambda m, b: m(b).mean(),
        steps=2,
        autocast=autocast,
    )
    lockstep("verify", path)
    shown = lockstep("explain", path, "--policy", "torch-autocast-bf16-cpu").stdout.partition("backward")[0]
    joined = [line for line in map(str.split, shown.splitlines()) if {*line[1:2]} & {"div", "add", "mul"}]
    assert len(joined) == 4 and all(line[-1] == "bf16" for line in joined)


def test_what_a_product_adds_is_cast_as_its_operands(lockstep, tmp_path):
    """addmm and baddbmm are on autocast's list, with all three operands."""

    class Adds(Casts):
        def forward(self, x):
            y = torch.addmm(self.scale, x, self.fc.weight)
            return torch.baddbmm(self.fc.bias.expand(1, 4, 6), y[None], self.fc.weight[None])

    path = tmp_path / "a.lscap.h5"
    graph_of(path, Adds(), torch.bfloat16)
    shown = lockstep("explain", path, "--policy", "torch-autocast-bf16-cpu").stdout.partition("backward")[0]
    sums = [line.split() for line in shown.splitlines() if line.split()[1:2] == ["addmm"]]
    assert len(sums) == 2 and all(line[-1] == "bf16" for line in sums)


class Draws(torch.nn.Module):
    """An action drawn from activations has their format in the loop, and all 32 bits in the references."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.fc = kind, torch.nn.Linear(12, 3)

    def forward(self, x):
        y = self.fc(x)
        if self.kind == "bernoulli":
            drawn = torch.distributions.Bernoulli(logits=y)
            return drawn.log_prob(drawn.sample())
        with torch.no_grad():
            drawn = torch.distributions.Normal(y, y.exp()).sample().tanh()
        return y * drawn


@pytest.mark.parametrize("kind", ["bernoulli", "normal"])
def test_what_is_drawn_under_autocast_is_no_bf16_in_the_fp32_reference(lockstep, tmp_path, kind):
    torch.manual_seed(0)
    model, path = Draws(kind), tmp_path / "a.lscap.h5"
    capture(
        str(path),
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        [torch.randn(8, 12) for _ in range(2)],
        lambda m, b: m(b).mean(),
        steps=2,
        verify=range(2),
        autocast=torch.bfloat16,
    )
    lockstep("verify", path)


class OnlyHere(torch.nn.Module):
    """Its forward pass runs neither under an autocast nor with other weights."""

    def __init__(self, casts):
        super().__init__()
        self.casts, self.fc = casts, torch.nn.Linear(12, 3)

    def forward(self, x):
        if torch.is_autocast_enabled("cpu") or self.fc.weight.dtype != torch.float32:
            raise RuntimeError("not here")
        y = self.fc(x)
        return y * torch.ones(3).to(y.dtype) if self.casts else y


@pytest.mark.parametrize("casts", [True, False])
def test_casts_that_cannot_be_looked_into_are_told(tmp_path, casts, recwarn):
    model = OnlyHere(casts)
    batches = [(torch.randn(4, 12), torch.randint(3, (4,)))]
    capture(
        str(tmp_path / "a.lscap.h5"),
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        batches,
        lambda m, b: F.cross_entropy(m(b[0]), b[1]),
        steps=1,
    )
    told = [str(warning.message) for warning in recwarn if "will have that dtype in all lanes" in str(warning.message)]
    assert bool(told) == casts, told
    if casts:
        assert "first: test_capture_casts.py:" in told[0] and "RuntimeError: not here" in told[0]


class SwitchesOffTwice(torch.nn.Module):
    """An FP32 block for the CPU around a layer of a library that switches autocast off for CUDA alone."""

    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)

    def forward(self, x):
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            y = self.a(x.float())
        with torch.autocast("cuda", enabled=False):
            return self.b(y)


def test_a_block_for_another_device_leaves_the_loops_own_in_force(tmp_path):
    """Gate V0 repeats the loop on the CPU, where the blocks for CUDA do nothing."""
    graph = graph_of(tmp_path / "a.lscap.h5", SwitchesOffTwice(), torch.bfloat16)
    regions = {
        node["module"]: (node["autocast"]["device"], node["autocast"]["enabled"])
        for node in graph["nodes"]
        if node["op"] == "linear"
    }
    assert regions == {"a": ("cpu", False), "b": ("cuda", False)}
