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
    assert [by_id[x]["op"] for x, _ in likes] == ["softmax", "softmax", "add"]
    assert all(like == y for _, like in likes)
    product = [node for node in graph["nodes"] if node["op"] == "mul"][-1]
    assert y in product["in"]
    assert all(node["autocast"] is None for node in graph["nodes"])


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
