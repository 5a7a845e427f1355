"""Values that the user watches: are their errors and KL those that PyTorch itself gives, and are they shown?"""

import json
import math

import numpy as np
import pytest
import torch
from lockstep_capture import CaptureError, UnsupportedModelError, capture, debug, read_run, watch_value
from torch import nn
from torch.nn import functional as F

VOCABULARY, TOKENS, GROUP, STEPS = 12, 16, 64, 4
LANE = "torch-autocast-bf16-cpu"
U_BF16, U_FP32 = 2.0**-8, 2.0**-24  # unit roundoffs


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.body = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 16))
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens)))


def log_probs(model, batch):
    return F.log_softmax(model(batch["tokens"]).float(), -1).gather(-1, batch["next"].unsqueeze(-1)).squeeze(-1)


def grpo(model, batch):
    """A group-relative clipped objective, with a penalty on the divergence from the reference policy."""
    now = watch_value("log_probs", log_probs(model, batch), log_probs=True)
    ratio = torch.exp(now - batch["old"])
    gain = torch.minimum(ratio * batch["advantage"], ratio.clamp(0.8, 1.2) * batch["advantage"])
    apart = batch["old"] - now
    return -(gain - 0.04 * (torch.exp(apart) - apart - 1)).mean()


def data(steps=STEPS, tokens=TOKENS):
    torch.manual_seed(0)
    model, batches = Policy(), []
    for _ in range(steps):
        batch = {
            "tokens": torch.randint(VOCABULARY, (GROUP, tokens)),
            "next": torch.randint(VOCABULARY, (GROUP, tokens)),
        }
        reward = torch.randn(GROUP, 1)
        batch["advantage"] = (reward - reward.mean()) / reward.std()
        with torch.no_grad():
            batch["old"] = log_probs(model, batch) + 0.05 * torch.randn(GROUP, tokens)
        batches.append(batch)
    return model, batches


def captured(path, step_fn=grpo, batches=None, model=None, **how):
    own, own_batches = data()
    model = model or own
    capture(
        path,
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        batches or own_batches,
        step_fn,
        steps=STEPS,
        quiet=True,
        **how,
    )
    return model


def replayed(lockstep, path, run, *more):
    lockstep("replay", path, "--lanes", f"fp32,fp64,{LANE}", "-o", run, "--quiet", "--overwrite", *more)
    return read_run(run)


def test_they_are_what_pytorch_gives(lockstep, tmp_path):
    """The first step, where weights are equal: torch under autocast of the same format against torch in FP32."""
    path = tmp_path / "grpo.lscap.h5"
    model, batch = captured(path, watch="head"), data()[1][0]
    run = replayed(lockstep, path, tmp_path / "run.h5")
    with torch.no_grad():
        logits, reference = model(batch["tokens"]), log_probs(model, batch)
        with torch.autocast("cpu", torch.bfloat16):
            own_logits, own = model(batch["tokens"]).float(), log_probs(model, batch)
    wanted = {"log_probs": (own, reference), "head": (own_logits, logits)}
    size = float(logits.abs().max())
    # PyTorch adds products in another order: a few of the values of the pass round to the other neighbour.
    flips, ulp = 3, 2 * U_BF16 * size
    for name, (low, high) in wanted.items():
        found = run.watched(LANE).loc[name].loc[0]
        error = (low.double() - high.double()).abs().numpy()
        assert found["count"] == found["compared"] == error.size and found["nonfinite"] == 0
        assert abs(found["mean_error"] - error.mean()) <= flips * ulp / error.size
        assert abs(found["largest_error"] - error.max()) <= ulp
        assert abs(found["mean_size"] - high.abs().double().mean()) <= 64 * U_FP32 * size
        assert math.isclose(found["relative_error"], found["mean_error"] / found["mean_size"], rel_tol=1e-12)
        assert found["mean_error"] > 8 * flips * ulp / error.size, "a bound that any error keeps"
    error = (wanted["log_probs"][0].double() - wanted["log_probs"][1].double()).numpy()
    kl, most = np.mean(np.expm1(error) - error), np.abs(error).max() + ulp
    found = run.watched(LANE).loc["log_probs"].loc[0]
    assert abs(found["kl"] - kl) <= flips * ulp * most / error.size < kl
    assert math.isclose(found["largest_ratio"], math.exp(found["largest_error"]), rel_tol=1e-12)
    assert run.watched(LANE).loc["head"]["kl"].isna().all()
    assert run.watched("fp32").empty
    # FP64 against FP32: what FP32 rounds, and no more.
    assert 0 < run.watched("fp64").loc["log_probs"]["mean_error"].iloc[0] < 64 * U_FP32 * size


def test_what_the_report_says(lockstep, tmp_path):
    path, run = tmp_path / "grpo.lscap.h5", tmp_path / "run.h5"
    captured(path, watch=["head"])
    table = replayed(lockstep, path, run).watched(LANE)
    lanes = json.loads(lockstep("report", run, "--format", "json").stdout)["lanes"]
    assert {lane["kind"] for lane in lanes if "watched" not in lane} == {"reference", "captured"}
    watched = {value["name"]: value for lane in lanes if lane["name"] == LANE for value in lane["watched"]}
    assert list(watched) == ["log_probs", "head"]
    for name, value in watched.items():
        assert value["last_step"] == STEPS - 1
        for key, step in (("equal_weights", 0), ("last", STEPS - 1)):
            for number in ("mean_error", "largest_error", "relative_error", "mean_size"):
                assert math.isclose(value[key][number], table.loc[name].loc[step, number], rel_tol=1e-12)
    assert watched["head"]["last"]["kl"] is None and watched["log_probs"]["last"]["kl"] > 0
    text = lockstep("report", run).stdout.split("Watched values\n")[1].split("\n\n")[0]
    assert f"{table.loc['log_probs'].loc[0, 'kl']:.2g}" in text and text.count(LANE) == 2 and "twin" in text
    # Synced: every step begins with the reference's weights.
    synced = replayed(lockstep, path, run, "--mode", "synced").watched(LANE).loc["log_probs"]
    lanes = json.loads(lockstep("report", run, "--format", "json").stdout)["lanes"]
    equal = next(lane for lane in lanes if lane["name"] == LANE)["watched"][0]["equal_weights"]
    assert equal["count"] == STEPS * GROUP * TOKENS
    assert math.isclose(equal["mean_error"], synced["mean_error"].mean(), rel_tol=1e-12)
    assert math.isclose(equal["kl"], synced["kl"].mean(), rel_tol=1e-12)


def test_a_replay_can_watch_what_the_capture_did_not(lockstep, tmp_path):
    path, run = tmp_path / "plain.lscap.h5", tmp_path / "run.h5"
    captured(path, lambda m, b: -log_probs(m, b).mean())
    assert replayed(lockstep, path, run).watched(LANE).empty
    names = replayed(lockstep, path, run, "--watch", "head,bod?.*", "--statistics", "none").watched(LANE)
    assert list(dict.fromkeys(names.index.get_level_values("value"))) == ["head", "body.0", "body.1", "body.2"]
    assert len(names) == 4 * STEPS  # also in steps that measure nothing else
    # Only a view of the whole body's output leaves the body: it is that of its last layer.
    again = replayed(lockstep, path, run, "--watch", "body,body.2").watched(LANE)
    assert again.loc["body"].equals(again.loc["body.2"])
    assert lockstep("replay", path, "--watch", "hed", "-o", run, "--overwrite", code=2).stderr.count(
        "did you mean 'head'?"
    )
    lockstep(
        "replay", path, "--watch", "log_probs/head", "-o", run, "--quiet", "--overwrite", "--lanes", f"fp32,{LANE}"
    )
    assert read_run(run).watched(LANE)["kl"].notna().all()


def test_micro_batches_shapes_and_writes(lockstep, tmp_path):
    """A value is named as it is at that line; micro-batches of a step add up; batches may have several shapes."""

    def step(model, batch):
        now = log_probs(model, batch)
        watch_value("log_probs", now)
        now = now.mul_(2)
        if now.shape[1] == TOKENS:
            watch_value("doubled", now)
        return -now.mean()

    short = data(STEPS, tokens=3)[1]
    batches = [batch for pair in zip(data()[1], short, strict=True) for batch in pair]
    path, run = tmp_path / "both.lscap.h5", tmp_path / "run.h5"
    captured(path, step, batches, accumulate=2)
    table = replayed(lockstep, path, run).watched(LANE)
    first = table.xs(0, level="step")
    assert dict(first["count"]) == {"log_probs": GROUP * (TOKENS + 3), "doubled": GROUP * TOKENS}
    # Twice the value of the larger batch alone.
    assert first.loc["doubled", "mean_size"] > 1.5 * first.loc["log_probs", "mean_size"]
    assert first["kl"].isna().all()


def test_refusals(tmp_path):
    path = tmp_path / "no.lscap.h5"
    with pytest.raises(CaptureError, match="'heads' is not the path of a module.*near: head$"):
        captured(path, watch=["heads"])

    def twice(model, batch):
        return -(watch_value("x", log_probs(model, batch)) + watch_value("x", log_probs(model, batch))).mean()

    with pytest.raises(UnsupportedModelError, match=r"watch_value\('x'\) twice.*test_watched.py"):
        captured(path, twice)

    def of_data(model, batch):
        watch_value("old", batch["old"])
        return grpo(model, batch)

    with pytest.raises(UnsupportedModelError, match=r"watch_value\('old'\).*from the model's weights"):
        captured(path, of_data)
    with pytest.raises(CaptureError, match="'tokens' is a torch.int64"):
        watch_value("tokens", torch.arange(3))
    assert not path.exists()
    kept = torch.ones(2)
    assert watch_value("outside of a capture", kept) is kept


def test_debug_says_it(binary_dir):
    model, batches = data()
    found = debug(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        batches,
        grpo,
        lanes=[LANE],
        steps=STEPS,
        program=binary_dir / "lockstep",
    )
    value = next(lane for lane in found.lanes if lane["name"] == LANE)["watched"][0]["equal_weights"]
    line = f"Mean error of log_probs at equal weights: {LANE} {value['mean_error']:.2g} (largest {value['largest_error']:.2g}, KL {value['kl']:.2g})."
    assert line in found.text.splitlines()
