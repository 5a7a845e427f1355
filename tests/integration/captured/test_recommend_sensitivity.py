"""The sensitivities of `recommend`: gradients' batch noise against PyTorch's own, roles measured alone, culprits by halving."""

import json
import math

import pytest
import torch
from lockstep_capture import Capture
from planted_layers import Hidden, Narrow, captured, captured_model, loss_of
from torch import nn
from torch.func import functional_call, grad, vmap

torch.set_num_threads(1)

BATCH, STEPS, POPULATION = 16, 60, 4096


def advice(lockstep, capture, folder, *options):
    return json.loads(lockstep("recommend", capture, "--json", *options, cwd=folder).stdout)


def draw(count, dice, truth):
    x = torch.randn(count, 8, generator=dice)
    return x, (x @ truth + 0.5 * torch.randn(count, 3, generator=dice)).argmax(1)


def scatter(model, x, y):
    """By weight, from one gradient per example: tr S of a batch's gradient, |mean|^2, and tr S^2."""
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss_of_one(weights, x, y):
        return nn.functional.cross_entropy(functional_call(model, weights, (x[None],)), y[None])

    out = {}
    for name, each in vmap(grad(loss_of_one), (None, 0, 0))(weights, x, y).items():
        each = each.flatten(1).double()
        mean = each.mean(0)
        covariance = (each - mean).T @ (each - mean) / (len(each) - 1)
        trace = covariance.trace()
        out[name] = trace / BATCH, mean.square().sum() - trace / len(each), covariance.square().sum() / BATCH**2
    return out


def captured_with_truth(path, make_optimizer):
    """A capture of a small network, and by weight: (tr S / E|g|^2 over the steps, the number of directions that scatter)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3))
    optimizer = make_optimizer(model.parameters())
    dice, others = torch.Generator().manual_seed(5), torch.Generator().manual_seed(99)
    truth = torch.randn(8, 3, generator=dice)
    noise, whole, directions = {}, {}, {}
    with Capture(str(path), model, optimizer, loss_of, steps=STEPS, verify=[]) as capture:
        for _ in range(STEPS):
            for name, (trace, mean_sq, square) in scatter(model, *draw(POPULATION, others, truth)).items():
                noise[name] = noise.get(name, 0) + trace
                whole[name] = whole.get(name, 0) + trace + mean_sq
                directions[name] = directions.get(name, 0) + trace**2 / square / STEPS
            batch = draw(BATCH, dice, truth)
            with capture.step(batch):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
    return {name: (float(noise[name] / whole[name]), float(directions[name])) for name in noise}


SLOW = {
    "sgd": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, 1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-3, weight_decay=0.1),
}


@pytest.mark.parametrize("name", SLOW)
def test_the_noise_of_gradients_is_that_of_one_gradient_per_example(lockstep, tmp_path, name):
    truth = captured_with_truth(tmp_path / "slow.lscap.h5", SLOW[name])
    rows = advice(lockstep, tmp_path / "slow.lscap.h5", tmp_path, "--formats", "bf16")["sensitivity"]["weights"]
    assert {row["weight"] for row in rows} == set(truth)
    for row in rows:
        share, directions = truth[row["weight"]]
        assert row["basis"] == "measured" and "reason" not in row
        # Relative standard deviation of a variance from STEPS gradients that scatter in so many directions: sqrt(2 / both).
        assert abs(row["noise_share"] - share) < 5 * share * math.sqrt(2 / (directions * STEPS))
    # Noise is not everything: taking it for all of the gradient, as where it is assumed, would fail here.
    share, directions = truth["2.weight"]
    assert 1 - share > 5 * share * math.sqrt(2 / (directions * STEPS))


def test_a_mean_that_moves_counts_as_noise(lockstep, tmp_path):
    truth = captured_with_truth(tmp_path / "fast.lscap.h5", lambda p: torch.optim.SGD(p, 0.1, momentum=0.9))
    rows = advice(lockstep, tmp_path / "fast.lscap.h5", tmp_path, "--formats", "bf16")["sensitivity"]["weights"]
    for row in rows:
        share, directions = truth[row["weight"]]
        assert row["noise_share"] > share * (1 - 5 * math.sqrt(2 / (directions * STEPS)))
        assert row["noise_share"] <= 1.5 * share  # what docs/recommend.md says of it


def test_without_an_average_the_noise_is_assumed_and_says_so(lockstep, tmp_path):
    path = captured(
        tmp_path / "plain.lscap.h5", lambda width: nn.Linear(width, width), optimizer=lambda p: torch.optim.SGD(p, 0.1)
    )
    rows = advice(lockstep, path, tmp_path, "--formats", "bf16")["sensitivity"]["weights"]
    for row in rows:
        assert row["basis"] == "assumed" and row["noise_share"] == 1
        assert row["reason"] == "sgd without momentum keeps no average of gradients"
    text = lockstep("recommend", path, "--formats", "bf16", "--all", "--quiet", cwd=tmp_path).stdout
    assert "assumed: sgd without momentum keeps no average of gradients" in " ".join(text.split())


def test_roles_are_measured_alone(lockstep, tmp_path):
    found = advice(lockstep, captured(tmp_path / "narrow.lscap.h5", Narrow), tmp_path, "--formats", "bf16,fp8")
    rows = found["sensitivity"]["roles"]
    measured = {(row["layer"], row["role"]): row["measured"] for row in rows if "measured" in row}
    assert all(row["format"] == "fp8" for row in rows if "measured" in row)
    layers = {row["layer"]: row for row in found["sensitivity"]["layers"] if "loss_error" in row}
    assert set(layers) == {"first", "middle.inner"}
    assert set(measured) == {
        ("first", "input"),
        ("first", "weight"),
        ("first", "grad_activation"),
        ("middle.inner", "activation"),
        ("middle.inner", "weight"),
        ("middle.inner", "grad_activation"),
    }
    # A backward value alone leaves the loss of its own step as it is; every role spoils gradients, the planted layer's more.
    for (layer, role), row in measured.items():
        assert (row["loss_error"] == 0) == (role == "grad_activation")
        assert 0 < row["gradient_error"] < row["error_to_noise"]  # the noise is a part of the gradient
        if layer == "middle.inner":
            assert row["gradient_error"] > 5 * measured["first", "weight"]["gradient_error"]
    assert found["sensitivity"]["role_rank_correlation"] is not None
    text = lockstep(
        "recommend", tmp_path / "narrow.lscap.h5", "--formats", "bf16,fp8", "--all", "--quiet", cwd=tmp_path
    ).stdout
    assert "roles in layers that were measured alone with a rank correlation of" in " ".join(text.split())


def test_a_culprit_that_no_score_names_is_found_by_halving(lockstep, tmp_path):
    torch.manual_seed(0)
    path = captured_model(tmp_path / "hidden.lscap.h5", Hidden())
    found = advice(lockstep, path, tmp_path, "--formats", "bf16")
    assert found["answer"] == "exceptions" and not found["out_of_budget"]
    (layer,) = found["tried"][found["chosen"]]["fp32"]
    assert layer["layer"] == "victim" and layer["measured"] and "halving" in layer["reason"]
    # Findings and scores name others, and the frontier's points that pass keep many layers.
    scores = {row["layer"]: row["score"] for row in found["sensitivity"]["layers"]}
    assert sum(score > scores["victim"] for score in scores.values()) >= 3
    kept = [len(trial["fp32"]) for trial in found["tried"] if trial["passes"]]
    assert found["layers"] == 25 and sorted(kept)[0] == 1 and sorted(kept)[1] >= 8
    # One at a time would take 25 runs.
    frontier = max(
        i for i, trial in enumerate(found["tried"]) if trial["lane"] in {p.get("lane") for p in found["frontier"]}
    )
    assert found["candidates_run"] - (frontier + 1) <= 4 * math.ceil(math.log(25, 4)) + 1
