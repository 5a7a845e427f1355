"""What a model computes from a dtype before its first weight: positions, tables, masks. It follows each lane's formats.

The same model in .bfloat16() or .half() is the judge: at step 0 the weights are the same.
"""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from lockstep_capture import capture, read_run

T = 1000


def replayed(lockstep, tmp_path, model, loader, loss_of, lanes):
    """The run of a capture that verifies, and the loss of each lane at step 0."""
    path = tmp_path / "a.lscap.h5"
    capture(str(path), model, torch.optim.SGD(model.parameters(), 1e-4), loader, loss_of, steps=len(loader))
    lockstep("verify", path)
    lockstep("replay", path, "--lanes", ",".join(["fp32", *lanes]), "-o", tmp_path / "r.h5", "--quiet")
    run = read_run(str(tmp_path / "r.h5"))
    return run, run.steps["loss"].unstack("lane").iloc[0]


class Positions(torch.nn.Module):
    """x plus a table of cosines and sines of the positions, learned to the last bit."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.register_buffer("freq", torch.tensor([1.0, 0.5]))
        self.register_buffer("steps", torch.arange(float(T)))
        self.scale = torch.nn.Parameter(torch.ones(4))

    @property
    def dtype(self):
        return next(parameter.dtype for parameter in self.parameters())

    def forward(self, x):
        x = x.to(self.dtype)
        table = getattr(self, self.kind)(x)
        return x + table * self.scale

    @staticmethod
    def table(t, freq):
        a = torch.outer(t, freq)
        return torch.cat((a.cos(), a.sin()), -1)

    def type_as_buffer(self, x):
        return self.table(torch.arange(x.shape[1]).type_as(self.freq), self.freq)

    def to_buffers_dtype(self, x):
        return self.table(torch.arange(x.shape[1]).to(self.freq.dtype), self.freq)

    def to_buffer(self, x):
        return self.table(torch.arange(x.shape[1], dtype=torch.float32).to(self.freq), self.freq)

    def to_weights_dtype(self, x):
        return self.table(torch.arange(x.shape[1]).to(self.dtype), self.freq)

    def to_activations_dtype(self, x):
        return self.table(torch.arange(x.shape[1]).to(x.dtype), self.freq)

    def made_in_dtype(self, x):
        return self.table(torch.arange(x.shape[1], dtype=self.freq.dtype), self.freq)

    def filled_in_dtype(self, x):
        ones = torch.full((x.shape[1],), 1.0, dtype=self.dtype)
        return self.table(ones.cumsum(0) - ones, self.freq)

    def like_a_weight(self, x):
        ones = torch.ones_like(self.scale[:1]).expand(x.shape[1])
        return self.table(ones * torch.arange(x.shape[1]), self.freq)

    def integers_and_a_buffer(self, x):
        a = torch.arange(x.shape[1])[:, None] * self.freq
        return torch.cat((a.cos(), a.sin()), -1)

    def a_buffer_of_positions(self, x):
        return self.table(self.steps[: x.shape[1]], self.freq)

    def ids_of_the_batch(self, x):
        ids = (x[0, :, 0] > -torch.inf).long().cumsum(0) - 1
        return self.table(ids.to(self.dtype), self.freq)

    def einsum(self, x):
        a = torch.einsum("i,j->ij", torch.arange(x.shape[1]).type_as(self.freq), self.freq)
        return torch.cat((a.cos(), a.sin()), -1)

    def sinusoids(self, x):
        rate = torch.exp(torch.arange(0, 4, 2, dtype=self.dtype) * (-math.log(10000.0) / 4))
        a = torch.arange(x.shape[1], dtype=self.dtype)[:, None] * rate
        return torch.stack((a.sin(), a.cos()), -1).flatten(1)

    def distances(self, x):
        """ALiBi's, as far as one position goes."""
        slope = torch.tensor([0.5, 0.25, 0.125, 0.0625], dtype=self.dtype)
        distance = torch.arange(x.shape[1], dtype=self.dtype)[:, None] - x.shape[1]
        return (distance * slope).remainder(1.0)


SPELLINGS = [name for name in vars(Positions) if name not in ("dtype", "forward", "table") and name[0] != "_"]


@pytest.mark.parametrize("kind", SPELLINGS)
def test_positions_have_the_dtype_of_the_lane(lockstep, tmp_path, kind):
    torch.manual_seed(0)
    model = Positions(kind)
    batches = [torch.randn(2, T, 4) for _ in range(2)]
    with torch.no_grad():
        loader = [(x, model(x) + 0.01 * torch.randn(2, T, 4)) for x in batches]

    def loss_of(model, batch):
        return F.mse_loss(model(batch[0]).float(), batch[1])

    with torch.no_grad():
        full, low = (loss_of(m, loader[0]).item() for m in (model, copy.deepcopy(model).bfloat16()))
    assert low > 20 * full, "the dtype matters"
    _, losses = replayed(lockstep, tmp_path, model, loader, loss_of, ["pure-bf16-master", "torch-autocast-bf16"])
    assert losses["fp32"] == pytest.approx(full, rel=1e-5)
    assert losses["pure-bf16-master"] == pytest.approx(low, rel=0.05)
    if kind != "einsum":  # autocast computes that in BF16
        assert losses["torch-autocast-bf16"] == pytest.approx(full, rel=0.05)


class Masked(torch.nn.Module):
    """Scores of which a mask in their own dtype leaves some; row 0 of the batch has padding, too."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.embed, self.head = torch.nn.Embedding(64, 32), torch.nn.Linear(32, 64)
        self.q, self.k, self.v = (torch.nn.Linear(32, 32) for _ in range(3))

    @property
    def dtype(self):
        return self.embed.weight.dtype

    def forward(self, ids, keep):
        x = self.embed(ids)
        scores = self.q(x) @ self.k(x).transpose(1, 2) * 32**-0.5
        causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        masked = getattr(self, self.kind)(scores, causal & keep[:, None, :].bool())
        return self.head(x + masked.softmax(-1) @ self.v(x))

    def times(self, scores, allowed):
        return scores + (1.0 - allowed.to(self.dtype)) * torch.finfo(self.dtype).min

    def times_integers(self, scores, allowed):
        return scores + ((1 - allowed.long()) * torch.finfo(scores.dtype).min).to(scores.dtype)

    def half_of_it(self, scores, allowed):
        return scores + (~allowed).to(scores.dtype) * (torch.finfo(scores.dtype).min / 2)

    def minus_the_largest(self, scores, allowed):
        return scores.masked_fill(~allowed, -torch.finfo(scores.dtype).max)

    def masked_fill(self, scores, allowed):
        return scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)

    def masked_fill_in_place(self, scores, allowed):
        return scores.clone().masked_fill_(~allowed, torch.finfo(self.dtype).min)

    def filled_mask(self, scores, allowed):
        mask = torch.full(scores.shape, torch.finfo(scores.dtype).min, dtype=scores.dtype)
        return scores + mask.masked_fill(allowed, 0.0)

    def triangle(self, scores, allowed):
        return scores + torch.full(scores.shape[1:], torch.finfo(self.dtype).min, dtype=self.dtype).triu(1)

    def chosen(self, scores, allowed):
        return torch.where(allowed, scores, torch.finfo(scores.dtype).min)

    def chosen_tensor(self, scores, allowed):
        return torch.where(allowed, scores, torch.tensor(torch.finfo(scores.dtype).min, dtype=scores.dtype))

    def new_full(self, scores, allowed):
        least = scores.new_full(scores.shape, torch.finfo(scores.dtype).min)
        return torch.where(allowed, scores, least)

    def assigned(self, scores, allowed):
        mask = torch.zeros_like(scores)
        mask[~allowed] = torch.finfo(mask.dtype).min
        return scores + mask

    def infinite(self, scores, allowed):
        return scores.masked_fill(~allowed, -torch.inf)

    def bounded(self, scores, allowed):
        least = torch.finfo(scores.dtype).min
        return (scores + (~allowed).to(scores.dtype) * least).clamp(min=least)


def masks_loss(model, batch):
    return F.cross_entropy(model(batch[0], batch[1]).flatten(0, 1).float(), batch[2].flatten(), ignore_index=-100)


def batches_of_ids(count=3):
    found = []
    for seed in range(count):
        torch.manual_seed(seed)
        ids, keep = torch.randint(1, 64, (4, 12)), torch.ones(4, 12, dtype=torch.long)
        for row in range(4):
            keep[row, 12 - row :] = 0
        wanted = ids.roll(-1, 1).masked_fill(keep == 0, -100)
        found.append((ids, keep, wanted))
    return found


MASKS = [name for name in vars(Masked) if name not in ("dtype", "forward") and name[0] != "_"]


@pytest.mark.parametrize("kind", MASKS)
def test_masks_are_the_least_number_of_the_lane(lockstep, tmp_path, kind):
    torch.manual_seed(0)
    model, loader = Masked(kind), batches_of_ids()
    with torch.no_grad():
        low = masks_loss(copy.deepcopy(model).half(), loader[0]).item()
    assert math.isfinite(low)
    run, losses = replayed(lockstep, tmp_path, model, loader, masks_loss, ["half", "torch-autocast-fp16"])
    assert losses["half"] == pytest.approx(low, rel=2e-3)
    report = lockstep("report", tmp_path / "r.h5").stdout
    verdict = report[: report.index("Lanes\n")]
    assert "broke" not in verdict and "infinite" not in verdict and "fp16 ends at" not in verdict, verdict
    assert "swamp" not in verdict and "times operand" not in verdict, verdict
    assert "keep in fp32" not in verdict, verdict  # by range


@pytest.mark.parametrize("kind", ["type_as_buffer", "to_weights_dtype", "made_in_dtype", "a_buffer_of_positions"])
def test_a_bf16_model_has_references_with_fp32_positions(lockstep, tmp_path, kind):
    torch.manual_seed(0)
    model = Positions(kind)
    batches = [torch.randn(2, T, 4) for _ in range(2)]
    with torch.no_grad():
        loader = [(x, model(x) + 0.01 * torch.randn(2, T, 4)) for x in batches]

    def loss_of(model, batch):
        return F.mse_loss(model(batch[0]).float(), batch[1])

    narrow = copy.deepcopy(model).bfloat16()
    with torch.no_grad():
        full, low = (loss_of(m, loader[0]).item() for m in (copy.deepcopy(narrow).float(), narrow))
    _, losses = replayed(lockstep, tmp_path, narrow, loader, loss_of, ["as-captured-bf16-cpu"])
    assert losses["fp32"] == pytest.approx(full, rel=1e-5)
    assert losses["as-captured-bf16-cpu"] == pytest.approx(low, rel=0.02)


@pytest.mark.parametrize("kind", ["times", "half_of_it", "masked_fill", "bounded"])
def test_a_half_model_has_masks_of_each_lane(lockstep, tmp_path, kind):
    """The reference in FP32 has FP32's least number."""
    torch.manual_seed(0)
    model, loader = Masked(kind).half(), batches_of_ids()
    with torch.no_grad():
        low, full = (masks_loss(m, loader[0]).item() for m in (model, copy.deepcopy(model).float()))
    _, losses = replayed(lockstep, tmp_path, model, loader, masks_loss, ["as-captured-fp16-cpu"])
    assert losses["fp32"] == pytest.approx(full, rel=1e-6)
    assert losses["as-captured-fp16-cpu"] == pytest.approx(low, rel=1e-3)


class Bounded(torch.nn.Module):
    """Numbers that torch.finfo gives for the dtype of an activation or a weight, and branches on such a dtype."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.first, self.last = (torch.nn.Linear(16, 16) for _ in range(2))
        self.scale = torch.nn.Parameter(torch.ones(16))

    def forward(self, x):
        return self.last(getattr(self, self.kind)(self.first(x.to(self.scale.dtype))))

    def clamp(self, x):
        p = (x * 20).sigmoid()
        eps = torch.finfo(p.dtype).eps
        p = p.clamp(eps, 1 - eps)
        return p.log() - torch.log1p(-p)

    def clip_by_name(self, x):
        p = (x * 20).sigmoid()
        p = torch.clip(p, max=1.0 - torch.finfo(p.dtype).eps, min=0.001)
        return p.log() - torch.log1p(-p)

    def clamp_in_place(self, x):
        p = (x * 20).sigmoid().clone()
        eps = torch.finfo(self.scale.dtype).eps
        p.clamp_(eps, 1 - eps)
        return p.log() - torch.log1p(-p)

    def logit(self, x):
        p = (x * 20).sigmoid()
        return torch.logit(p, eps=torch.finfo(p.dtype).eps)

    def pad(self, x):
        least = torch.finfo(x.dtype).min
        s = F.pad(x[..., :4], (0, 4), value=least).masked_fill(torch.arange(8) < 4, least)
        return F.pad(s.softmax(-1) * 9, (0, 8))

    def infinities(self, x):
        s = x.masked_fill(torch.arange(12)[:, None] > 5, -torch.inf)
        return torch.nan_to_num(s, neginf=torch.finfo(x.dtype).min).softmax(-1) * 9

    def infinities_by_default(self, x):
        s = x.masked_fill(torch.arange(12)[:, None] > 5, -torch.inf)
        return torch.nan_to_num(s).softmax(-1) * 9

    def normalize(self, x):
        return F.normalize(x * 1e-5, dim=-1, eps=torch.finfo(x.dtype).eps) * 9

    def layer_norm(self, x):
        return F.layer_norm(x * 0.01, (16,), self.scale, self.last.bias, torch.finfo(x.dtype).eps)

    def rms_norm(self, x):
        return F.rms_norm(x * 0.01, (16,), weight=self.scale, eps=torch.finfo(x.dtype).eps)

    def group_norm(self, x):
        y = F.group_norm((x * 0.01).transpose(1, 2), 4, self.scale, eps=torch.finfo(x.dtype).eps)
        return y.transpose(1, 2)

    def cosine_similarity(self, x):
        y = x * 1e-4
        alike = F.cosine_similarity(y, y.roll(1, -1) + y, dim=-1, eps=torch.finfo(y.dtype).eps)
        return x + 9 * alike[..., None]

    # Branches. What the cast rounds away is multiplied, so that the loss shows it.
    def shown(self, wide, y):
        return (y + (wide - y.float()) * 500).to(self.scale.dtype)

    def branch_of_t5(self, x):
        wide = y = x.float() * 3.3
        if self.scale.dtype in [torch.float16, torch.bfloat16]:
            y = y.to(self.scale.dtype)
        return self.shown(wide, y)

    def branch_of_not_fp32(self, x):
        wide = y = x.float() * 3.3
        if (dtype := self.scale.dtype) != torch.float32:
            y = y.to(dtype=dtype)
        return self.shown(wide, y)

    def branch_by_name(self, x):
        wide = y = x.float() * 3.3
        if self.scale.dtype == torch.bfloat16:
            y = y.bfloat16()
        elif self.scale.dtype == torch.float16:
            y = y.half()
        return self.shown(wide, y)

    def branch_in_a_function(self, x):
        def is_low(y):
            return y.dtype in (torch.float16, torch.bfloat16)

        wide = y = x.float() * 3.3
        if is_low(self.scale):
            y = y.type_as(self.scale)
        return self.shown(wide, y)


def steps_of_noise():
    torch.manual_seed(1)
    return [(torch.randn(2, 12, 16), torch.randn(2, 12, 16)) for _ in range(2)]


def bounded_loss(model, batch):
    return F.mse_loss(model(batch[0]).float(), batch[1])


BOUNDS = [name for name in vars(Bounded) if name not in ("forward", "shown") and name[0] != "_"]


@pytest.mark.filterwarnings("error::UserWarning:lockstep_capture")
@pytest.mark.parametrize("kind", BOUNDS)
def test_limits_and_branches_are_those_of_the_lane(lockstep, tmp_path, kind):
    torch.manual_seed(0)
    model, loader = Bounded(kind), steps_of_noise()
    with torch.no_grad():
        full, half, bf16 = (
            bounded_loss(copy.deepcopy(model).to(dtype), loader[0]).item()
            for dtype in (torch.float32, torch.float16, torch.bfloat16)
        )
    _, losses = replayed(lockstep, tmp_path, model, loader, bounded_loss, ["half", "pure-bf16-master"])
    assert losses["fp32"] == pytest.approx(full, rel=1e-5)
    assert losses["half"] == pytest.approx(half, rel=3e-3)
    assert losses["pure-bf16-master"] == pytest.approx(bf16, rel=1e-2)


class Clamped(torch.nn.Module):
    """FP16 alone is cut off: not what an FP32 loop computes. `casts`: it is cast as well."""

    def __init__(self, casts):
        super().__init__()
        self.fc, self.casts = torch.nn.Linear(16, 16), casts

    def forward(self, x):
        y = self.fc(x.to(self.fc.weight.dtype)).float()
        if self.fc.weight.dtype == torch.float16:
            y = y.clamp(-6e4, 6e4)
            if self.casts:
                y = y.to(self.fc.weight.dtype)
        return y


@pytest.mark.parametrize("casts", [False, True])
def test_a_branch_that_computes_something_else_is_the_loops_own(lockstep, tmp_path, casts):
    torch.manual_seed(0)
    model, loader = Clamped(casts), steps_of_noise()
    with pytest.warns(UserWarning, match=r"branches on a dtype \(test_capture_dtypes.py:\d+\).* float16"):
        _, losses = replayed(lockstep, tmp_path, model, loader, bounded_loss, ["half"])
    assert losses["fp32"] == pytest.approx(bounded_loss(model, loader[0]).item(), rel=1e-2)
