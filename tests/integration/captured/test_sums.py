"""Is every sum watched: pools, running averages, gradients of picked rows, micro-batches, the norm of clipping?"""

import json

import pytest
import torch
from lockstep_capture import capture
from torch import nn
from torch.nn import functional as F

STEPS = 6


def findings(lockstep, tmp_path, model, data, loss_of, lanes, lr=1e-3, **how):
    """The first finding of each lane and all sentences."""
    path, run = tmp_path / "net.h5", tmp_path / "run.h5"
    capture(path, model, torch.optim.SGD(model.parameters(), lr=lr), data, loss_of, **how)
    lockstep("replay", path, "--lanes", ",".join(["fp32", *map(str, lanes)]), "-o", run, "--quiet", "--overwrite")
    report = json.loads(lockstep("report", run, "--format", "json").stdout)
    return [lane["findings"] for lane in report["lanes"] if lane["name"] in map(str, lanes)]


def sentences(found):
    return [finding["sentence"] for finding in found]


POOLS = {
    "avg_pool2d": lambda h, size: F.avg_pool2d(h, size).flatten(1),
    "adaptive_avg_pool2d": lambda h, size: F.adaptive_avg_pool2d(h[..., : size + 1], (1, 2)).mean(-1).flatten(1),
    "avg_pool1d": lambda h, size: F.avg_pool1d(h.flatten(2), size * size).flatten(1),
    "cumsum": lambda h, size: h.flatten(2).cumsum(-1)[..., -1] / size**2,
}


class Pooled(nn.Module):
    def __init__(self, how, size):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4, 3)
        self.how, self.size = how, size

    def forward(self, x):
        return self.fc(POOLS[self.how](torch.sigmoid(self.conv(x)), self.size))


def pooled(lockstep, tmp_path, how, size, lane):
    torch.manual_seed(0)
    data = [(torch.randn(2, 1, size, size), torch.randint(3, (2,))) for _ in range(2)]
    found = findings(
        lockstep, tmp_path, Pooled(how, size), data, lambda m, b: F.cross_entropy(m(b[0]), b[1]), [lane], steps=2
    )[0]
    return [finding for finding in found if finding["kind"] == "swamping"]


@pytest.mark.parametrize("how", POOLS)
def test_pools(lockstep, tmp_path, how):
    """0.5 adds nothing to 1024 in FP16."""
    found = pooled(lockstep, tmp_path, how, 96, "pure-fp16")
    assert found[0]["kind"] == "swamping" and "sums in fp16 are wrong by" in found[0]["sentence"], sentences(found)
    assert how.rstrip("12d").removesuffix("_") in found[0]["sentence"] or how == "avg_pool1d"
    assert found[0]["site"]["source_line"].startswith("test_sums.py:"), found[0]["site"]
    assert found[0]["remedies"][0] == "sums in fp32"
    assert not pooled(lockstep, tmp_path, how, 96, "half")  # its sums are in FP32
    assert not pooled(lockstep, tmp_path, how, 8, "pure-fp16")


AVERAGES = {
    "add alpha": lambda old, new, decay: old.mul_(decay).add_(new, alpha=1 - decay),
    "add": lambda old, new, decay: old.copy_(torch.add(old * decay, new, alpha=1 - decay)),
    "sub alpha": lambda old, new, decay: old.sub_(old - new, alpha=1 - decay),
    "sub": lambda old, new, decay: old.copy_(old - (1 - decay) * (old - new)),
    "in place": lambda old, new, decay: old.__iadd__((1 - decay) * (new - old)),
    "lerp of tensors": lambda old, new, decay: old.copy_(torch.lerp(old, new, torch.full_like(old, 1 - decay))),
    "addcdiv": lambda old, new, decay: old.mul_(decay).addcdiv_(new, torch.ones_like(new), value=1 - decay),
    "foreach": lambda old, new, decay: torch._foreach_lerp_([old], [new], 1 - decay),
    "lerp": lambda old, new, decay: old.lerp_(new, 1 - decay),
    "copy": lambda old, new, decay: old.copy_(decay * old + (1 - decay) * new),
    "addcmul": lambda old, new, decay: old.mul_(decay).addcmul_(new, torch.ones_like(new), value=1 - decay),
}


class Averaged(nn.Module):
    def __init__(self, how, decay):
        super().__init__()
        self.fc, self.how, self.decay = nn.Linear(16, 16), how, decay
        self.register_buffer("average", torch.ones(16))

    def forward(self, x):
        y = self.fc(x)
        with torch.no_grad():
            AVERAGES[self.how](self.average, (y * y).mean(0).to(self.average.dtype), self.decay)
        return y / (self.average.sqrt() + 1e-5).to(y.dtype)


def averaged(lockstep, tmp_path, how, decay, dtype=torch.bfloat16):
    torch.manual_seed(0)
    model = Averaged(how, decay).bfloat16()
    model.average.data = model.average.to(dtype)
    data = [torch.randn(64, 16).bfloat16() for _ in range(8)]

    def loss_of(m, x):
        return (m(x).float() - x.float()).pow(2).mean()

    found = findings(lockstep, tmp_path, model, data, loss_of, ["as-captured-bf16"], steps=8)[0]
    return [finding for finding in found if finding["kind"] == "swamping"]


@pytest.mark.parametrize("how", AVERAGES)
def test_averages_that_cannot_move(lockstep, tmp_path, how):
    found = averaged(lockstep, tmp_path, how, 0.999)
    said = "all of the energy that the steps add to average is lost in bf16"
    (of_buffer,) = [finding for finding in found if said in finding["sentence"]]
    assert of_buffer["remedies"][0] == "this buffer in fp32"
    assert not averaged(lockstep, tmp_path, how, 0.75)
    assert not averaged(lockstep, tmp_path, how, 0.999, torch.float32)


def test_a_batch_norm_that_has_converged_is_no_average_that_cannot_move(lockstep, tmp_path):
    """What 4096 rows add is below half an ulp, but goes to and fro."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 2))
    model[0].running_var.fill_(1.0), model[0].running_mean.fill_(2.0)
    data = [(2 + torch.randn(4096, 8), torch.randint(2, (4096,))) for _ in range(8)]
    found = findings(
        lockstep, tmp_path, model, data, lambda m, b: F.cross_entropy(m(b[0]), b[1]), ["pure-bf16-master"], steps=8
    )[0]
    assert not [finding for finding in found if finding["kind"] == "swamping"], sentences(found)


TABLE = torch.arange(1000) % 20
SUMS = {
    "index_add": lambda y, ids: y.new_zeros(20, 40).index_add(0, ids, y),
    "scatter_add": lambda y, ids: y.new_zeros(20, 40).scatter_add(0, ids[:, None].expand(-1, 40), y),
    "index_put": lambda y, ids: y.new_zeros(20, 40).index_put((ids,), y, accumulate=True),
}
PICKS = {
    "x[i]": lambda w, ids: w[ids],
    "index_select": lambda w, ids: w.index_select(0, ids),
    "gather": lambda w, ids: w.gather(0, ids[:, None].expand(-1, 40)),
}


class Indexed(nn.Module):
    """1000 rows added up in 20 places, or picked from them."""

    def __init__(self, name):
        super().__init__()
        self.name, self.rows = name, nn.Parameter(torch.rand(20, 40) + 0.5)

    def forward(self, ids):
        f = (SUMS | PICKS)[self.name]
        return f(self.rows.repeat(50, 1) if self.name in SUMS else self.rows, ids)


def indexed(lockstep, tmp_path, name, lane, distinct=False):
    torch.manual_seed(0)
    ids = [TABLE if distinct else TABLE * (torch.rand(1000) < 0.1) for _ in "ab"]
    model = Indexed(name).bfloat16()
    found = findings(lockstep, tmp_path, model, ids, lambda m, i: m(i).float().mean(), [lane], steps=2, lr=2**-4)[0]
    return [finding for finding in found if finding["kind"] == "swamping" and "sums in" in finding["sentence"]]


@pytest.mark.parametrize("name", SUMS | PICKS)
def test_indexed_sums_in_16_bits(lockstep, tmp_path, name):
    """As PyTorch's CUDA kernels add them: 900 terms of one place."""
    found = indexed(lockstep, tmp_path, name, "as-captured-bf16")
    assert len(found) == 1 and "sums in bf16 are wrong by" in found[0]["sentence"], sentences(found)
    assert found[0]["pass"] == ("forward" if name in SUMS else "backward")
    assert found[0]["site"]["source_line"].startswith("test_sums.py:"), found[0]["site"]
    assert not indexed(lockstep, tmp_path, name, "as-captured-bf16", distinct=True)  # 50 terms each
    wide = tmp_path / "wide.toml"
    wide.write_text('extends = "as-captured-bf16"\n[reduce]\nindexed = "declared"\n')
    assert not indexed(lockstep, tmp_path, name, wide)


def test_a_wrong_sum_comes_before_the_updates_made_from_it(lockstep, tmp_path):
    ids = [TABLE * (torch.rand(1000) < 0.1) for _ in "ab"]
    model = Indexed("index_add").bfloat16()
    loss = lambda m, i: m(i).float().mean()
    found = findings(lockstep, tmp_path, model, ids, loss, ["pure-bf16"], steps=2, lr=1e-6)[0]
    assert [finding["kind"] for finding in found][:2] == ["swamping", "lost updates"], sentences(found)


def duplicated(lockstep, tmp_path, model, lane, tokens=4096):
    torch.manual_seed(0)
    ids = [torch.where(torch.rand(tokens) < 0.95, 0.0, torch.randint(1, 20, (tokens,)).float()).long() for _ in "ab"]
    data = [(each, torch.full((tokens, 4), 2.0)) for each in ids]
    return findings(lockstep, tmp_path, model, data, lambda m, b: F.mse_loss(m(b[0]).float(), b[1]), [lane], steps=2)[0]


class Rows(nn.Module):
    """Picks rows by an embedding."""

    def __init__(self):
        super().__init__()
        self.rows, self.fc = nn.Embedding(20, 8), nn.Linear(8, 4, bias=False)
        nn.init.constant_(self.rows.weight, 0.1)

    def forward(self, ids):
        return self.fc(self.rows(ids))


def test_gradients_of_duplicates(lockstep, tmp_path):
    low = tmp_path / "low.toml"
    low.write_text('extends = "pure-bf16-master"\n[reduce]\naccumulator = "bf16"\n')
    found = duplicated(lockstep, tmp_path, Rows(), low)
    assert found[0]["kind"] == "swamping" and "embedding_backward" in found[0]["sentence"], sentences(found)
    assert found[0]["pass"] == "backward" and "sums in bf16 are wrong by" in found[0]["sentence"]
    assert not duplicated(lockstep, tmp_path, Rows(), "pure-bf16-master")
    assert not duplicated(lockstep, tmp_path, Rows(), low, tokens=64)


@pytest.mark.parametrize("factor,fires", [(1.0, True), (0.25, False)])
def test_micro_batches_that_overflow(lockstep, tmp_path, factor, fires):
    """Four gradients of 29000 each."""
    torch.manual_seed(0)
    model = nn.Linear(6, 4, bias=False)
    weight = torch.full((4, 6), 0.05)
    model.weight.data.copy_(weight)
    xs = [50 + 5 * torch.randn(96, 6) for _ in range(8)]
    found = findings(
        lockstep,
        tmp_path,
        model,
        [(x, x @ weight.t() + 12) for x in xs],
        lambda m, b: factor * F.mse_loss(m(b[0]), b[1], reduction="sum"),
        ["half"],
        lr=1e-7,
        accumulate=4,
    )[0]
    overflows = [finding for finding in found if finding["kind"] == "sum overflow"]
    assert len(overflows) == fires, sentences(found)
    if fires:
        assert "the gradients of 4 micro-batches add up beyond fp16's 65504" in overflows[0]["sentence"]


@pytest.mark.parametrize("size,fires", [(20.0, True), (0.5, False)])
def test_the_norm_of_clipping_overflows(lockstep, tmp_path, size, fires):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 32))
    target = torch.randn(64, 32)
    data = [(4 * x, x @ target * size) for x in (torch.randn(64, 64) for _ in range(4))]
    found = findings(
        lockstep,
        tmp_path,
        model,
        data,
        lambda m, b: (m(b[0]).float() - b[1].float()).pow(2).sum(),
        ["half"],
        lr=1e-6,
        steps=4,
        clip_grad_norm=1.0,
    )[0]
    assert bool(found) == fires or not fires, sentences(found)
    norm = [finding for finding in found if "the norm by which gradients are clipped" in finding["sentence"]]
    assert len(norm) == fires, sentences(found)
