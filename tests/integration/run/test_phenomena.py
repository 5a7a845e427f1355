"""Does each phenomenon of docs/phenomena.md appear, and stay away where its cause is taken away?

Every test runs the page's command. Limits stand where the measured figures of the two sides are far
apart; the measured ones are in the page.
"""

import h5py
import numpy as np
import pytest
from conftest import SOURCE

POLICIES = SOURCE / "examples" / "policies"
FAST = ["--sums-every", 0, "--threads", 1, "--quiet"]  # of no influence on what is asserted


def policy(name):
    path = POLICIES / f"{name}.toml"
    assert path.exists(), path
    return path


class Run:
    """A finished run: its lanes by preset or file name, its sites as arrays of text."""

    def __init__(self, lockstep, path, model, options, lanes):
        lockstep("replay", model, *options, *FAST, "--lanes", ",".join(map(str, lanes)), "-o", path)
        self.path = path
        self.file = h5py.File(path, "r")
        columns = ("layer", "op", "role", "point", "value")
        self.site = {c: np.array([t.decode() for t in self.file["sites"][c]]) for c in columns}

    def lane(self, name):
        lanes = self.file["lanes"]
        wanted = [n for n in lanes if n == name or n.endswith(f"%2F{name}.toml")]
        assert len(wanted) == 1, (name, list(lanes))
        return self.file["lanes"][wanted[0]]

    def loss(self, lane):
        return np.array(self.lane(lane)["loss"])

    def skipped(self, lane):
        return np.array(self.lane(lane)["loss_scale/skipped"])[:, 0]

    def sites(self, **columns):
        mask = np.logical_and.reduce([self.site[c] == text for c, text in columns.items()])
        assert mask.any(), columns
        return np.flatnonzero(mask)

    def total(self, lane, statistic, sites, step=slice(None)):
        return np.array(self.lane(lane)[statistic])[step][..., sites].sum()

    def error(self, lane, sites, step):
        """|lane - fp32| / |fp32| over the sites' compared elements."""
        return np.sqrt(
            self.total(lane, "moments/err_sq", sites, step) / self.total(lane, "moments/ref_sq", sites, step)
        )

    def culprits(self, lane):
        """Layers and ops of the sites that the lane's scaler was told of, without repetition."""
        found = np.array(self.lane(lane)["loss_scale/culprit_site"])[:, 0]
        return {(self.site["layer"][i], self.site["op"][i]) for i in found if i >= 0}


@pytest.fixture
def run(lockstep, tmp_path):
    made = []

    def make(model, options, lanes):
        made.append(Run(lockstep, tmp_path / f"{len(made)}.h5", model, options, lanes))
        return made[-1]

    yield make
    for each in made:
        each.file.close()


ADAM = ["--optimizer", "adam", "--batch", 32]


def test_adam_in_fp16_divides_by_zero(run, lockstep):
    lanes = ["fp32", "apex-o1", "apex-o2", "half", "pure-fp16"]
    r = run("lenet", [*ADAM, "--steps", 10], lanes)
    states = r.sites(layer="fc1", role="optimizer_state", value="p:fc1.weight")
    second_moment = states[1]  # Adam's states in order: mean, then mean of squares
    weights = r.sites(role="weight", op="optimizer", point="output")
    for lane in ("half", "pure-fp16"):
        assert np.isfinite(r.loss(lane)[0]) and np.isnan(r.loss(lane)[1:]).all(), r.loss(lane)
        assert r.lane(lane).attrs["died_at"] == 6
        zeroed = r.total(lane, "counts/to_zero", second_moment, 0)
        assert zeroed > 0.8 * r.total(lane, "counts/count", second_moment, 0)
        # 0/0 where the gradient was zero, too; the others became infinite.
        assert r.total(lane, "counts/nan", weights, 0) > 1000
    for lane in ("apex-o1", "apex-o2"):
        assert np.abs(r.loss(lane) - r.loss("fp32")).max() < 0.02
        assert r.total(lane, "counts/to_zero", second_moment) == 0
        assert r.total(lane, "counts/nan", weights) == 0
    text = " ".join(lockstep("report", r.path).stdout.split())
    for lane in ("half", "pure-fp16"):
        place = text.split(f"{lane} broke at step 0. ")[1]
        assert "the update becomes infinite because the optimizer state became zero." in place[:120]


def test_a_loss_scale_brings_the_detectors_gradients_back(run):
    lanes = ["fp16-no-scale", "fp16-scale-8", "fp16-scale-32768"]
    options = [
        "--size",
        "width=8",
        "--batch",
        128,
        "--steps",
        40,
        "--mode",
        "synced",
        "--optimizer",
        "adamw",
        "--lr",
        "3e-3",
    ]
    r = run("detector", options, ["fp32", *map(policy, lanes)])
    gradients = r.sites(role="grad_activation", point="output")

    def nonzero(lane, step):
        count, source_zero, to_zero = (
            r.total(lane, f"counts/{name}", gradients, step) for name in ("count", "source_zero", "to_zero")
        )
        return count - source_zero - to_zero

    def vanished(lane, step=slice(None)):
        return 1 - nonzero(lane, step) / nonzero("fp32", step)

    none, eight, large = map(vanished, lanes)
    assert 0.05 < none < 0.11 and 0.005 < eight < 0.025 and abs(large) < 1e-4, (none, eight, large)
    # It grows as the detector learns.
    assert vanished(lanes[0], -1) > 0.10 > 5 * vanished(lanes[0], 0)
    # What the histogram of the reference says: half the least subnormal, 2^-25, over the scale.
    histogram = np.array(r.lane("fp32")["exponent_histogram_50"])[:, gradients].sum(axis=(0, 1))
    exponents = np.arange(256) - 127
    for lane, shift in zip(lanes, (0, 3, 15)):
        predicted = histogram[1:][exponents[1:] < -25 - shift].sum() / histogram[1:].sum()
        assert abs(vanished(lane) - predicted) < 0.1 * predicted + 1e-4, (lane, predicted)

    weights = r.sites(role="grad_weight", point="output")

    assert r.error(lanes[0], weights, -1) > 5 * r.error(lanes[2], weights, -1)
    assert not any(r.skipped(lane).any() for lane in lanes[1:])


def test_bf16_norm_weights_stand_still(run):
    options = [
        "--size",
        "layers=1,width=256,context=16,dropout=0",
        "--batch",
        2,
        "--steps",
        10,
        "--optimizer",
        "adamw",
        "--lr",
        "6e-4",
    ]
    r = run("gpt", options, ["fp32", "pure-bf16", "pure-bf16-master"])
    norms = [f"{layer}.weight" for layer in ("h.0.ln1", "h.0.ln2", "ln_f")]
    sites = [i for name in norms for i in r.sites(value=f"p:{name}", role="update")]
    updates = np.array(r.lane("pure-bf16")["updates/count"])[:, sites].sum(axis=1)
    assert (updates == 768).all(), updates
    stagnant = {lane: r.total(lane, "updates/stagnant", sites) for lane in ("pure-bf16", "pure-bf16-master")}
    assert stagnant["pure-bf16"] == 7680 and stagnant["pure-bf16-master"] < 10, stagnant

    with h5py.File(f"{r.path}.state", "r") as state:

        def moved(lane, kind):
            tensors = state["lanes"][str(r.lane(lane).attrs["index"])]["tensors"]
            return sum((np.array(tensors[f"{kind}%2F{name}"]) != 1).sum() for name in norms)

        assert moved("pure-bf16", "weight") == 0
        assert moved("pure-bf16-master", "master") == 768
        assert moved("pure-bf16-master", "weight") > 100, "the sums of updates reach the BF16 copy"


def test_batch_norm_sums_overflow_in_fp16(run):
    options = ["--size", "width=4", "--steps", 2]
    lanes = ["fp32", "torch-autocast-fp16", policy("bn-sums-fp16")]
    r = run("resnet20", [*options, "--batch", 64], lanes)
    values = {"running mean": "n1.1", "mean": "n1.3", "1/std": "n1.4"}

    def error(run, lane, value):
        site = run.sites(layer="bn1", op="batch_norm", point="output", value=value)
        return run.error(lane, site, 0)

    mean = r.sites(layer="bn1", op="batch_norm", point="output", value=values["mean"])
    assert r.total("bn-sums-fp16", "moments/abs_max", mean, 0) == np.inf
    assert r.total("fp32", "moments/abs_max", mean, 0) * 64 * 32 * 32 > 65504
    assert np.isnan(r.loss("bn-sums-fp16")).all() and r.skipped("bn-sums-fp16").all()
    assert np.abs(r.loss("torch-autocast-fp16") - r.loss("fp32")).max() < 0.01
    for value in values.values():
        assert error(r, "torch-autocast-fp16", value) < 0.005
    # With an eighth of the batch the same sums stay below 65504.
    small = run("resnet20", [*options, "--batch", 8], lanes)
    assert np.isfinite(small.loss("bn-sums-fp16")).all() and not small.skipped("bn-sums-fp16").any()
    rounded, exact = (error(small, lane, values["1/std"]) for lane in ("bn-sums-fp16", "torch-autocast-fp16"))
    assert rounded > 2 * exact, (rounded, exact)


def test_clipping_scaled_gradients_stops_training(run):
    options = ["--size", "hidden1=32,hidden2=16", "--batch", 32, "--steps", 40, "--clip-norm", 1]
    r = run("mlp", options, ["fp32", "torch-autocast-fp16", policy("clip-before-unscale")])
    wrong, right = "clip-before-unscale", "torch-autocast-fp16"
    assert r.lane(wrong)["loss_scale/scale"][0, 0] == 65536 and not r.skipped(wrong)[0]
    norms = {lane: r.lane(lane)["gradient_norm"][0] for lane in (wrong, right, "fp32")}
    assert norms[wrong] == pytest.approx(65536 * norms["fp32"], rel=0.01)
    updates = r.sites(role="update")

    def length(lane):
        return np.sqrt(r.total(lane, "updates/update_sq", updates, 0))

    clipped = max(norms["fp32"], 1)  # by the right lane's clipping at step 0, if at all
    assert length(right) / length(wrong) == pytest.approx(65536 * norms["fp32"] / clipped, rel=0.01)
    first, last = slice(0, 5), slice(-10, None)
    assert r.loss(wrong)[last].mean() > 0.98 * r.loss(wrong)[first].mean()
    assert r.loss(right)[last].mean() < 0.6 * r.loss(right)[first].mean()
    assert abs(r.loss(right)[last].mean() - r.loss("fp32")[last].mean()) < 0.1


def test_a_large_adam_eps_carries_fp16(run):
    last = slice(-10, None)
    runs = {
        eps: run("lenet", [*ADAM, "--steps", 60, "--eps", eps], ["fp32", "half"])
        for eps in ("1e-8", "1e-6", "1e-5", "1e-3")
    }
    loss = {eps: {lane: r.loss(lane)[last].mean() for lane in ("fp32", "half")} for eps, r in runs.items()}
    assert np.isnan(loss["1e-8"]["half"])  # 1e-8 is zero in FP16
    assert np.isnan(loss["1e-6"]["half"])  # 1e-6 is not
    assert loss["1e-5"]["half"] > 5, loss
    assert abs(loss["1e-3"]["half"] - loss["1e-3"]["fp32"]) < 0.15, loss
    assert loss["1e-3"]["fp32"] > loss["1e-8"]["fp32"] + 0.05, "the price in FP32"
    # batch_norm's eps, 1e-5, has nothing to protect: variances are thousands of times larger.
    r = runs["1e-3"]
    for layer, node in (("bn1", "n1"), ("bn2", "n5")):
        inverse_std = r.sites(layer=layer, op="batch_norm", point="output", value=f"{node}.4")
        for lane in ("fp32", "half"):
            largest = np.array(r.lane(lane)["moments/abs_max"])[:, inverse_std].max()
            assert largest**-2.0 > 1000 * 1e-5, (layer, lane, largest)


def test_a_large_batch_norm_eps_costs_fp32_and_helps_pure_fp16(run):
    last = slice(-10, None)
    for seed in (1, 2, 3):
        loss = {}
        for eps in ("1e-5", "0.1"):
            r = run(
                "lenet", ["--batch", 32, "--steps", 60, "--seed", seed, "--batch-norm-eps", eps], ["fp32", "pure-fp16"]
            )
            loss[eps] = [r.loss(lane)[last].mean() for lane in ("fp32", "pure-fp16")]
        assert loss["0.1"][0] > loss["1e-5"][0] + 0.04, (seed, loss)
        assert np.isfinite(loss["0.1"][1]), (seed, loss)
        assert not loss["1e-5"][1] < loss["0.1"][1] + 0.1, (seed, loss)  # NaN, or worse
        assert np.isnan(loss["1e-5"][1]) == (seed == 1)


def test_bf16_weights_meet_the_range_of_fp16(run, lockstep, tmp_path):
    fine_tune = [*ADAM, "--steps", 20, "--lr", "1e-4"]

    def pretrain(*options):
        r = run("lenet", [*ADAM, "--steps", 40, *options], ["fp32", "torch-autocast-bf16"])
        advice = tmp_path / f"advice-{r.path.stem}.toml"
        table = lockstep("recommend", r.path, "-o", advice).stdout
        verdicts = {
            words[0]: words[-1]
            for words in map(str.split, table.splitlines())
            if words and words[-1] in ("fp16", "fp32")
        }
        return [*fine_tune, "--start-from", f"{r.path}.state:torch-autocast-bf16"], verdicts, advice

    start, verdicts, advice = pretrain("--group", "conv2:lr=300")
    assert {layer for layer, verdict in verdicts.items() if verdict == "fp32"} == {"conv2", "bn2"}
    assert len(verdicts) == 14, verdicts
    fp16 = "torch-autocast-fp16"
    r = run("lenet", start, ["fp32", "torch-autocast-bf16", fp16, advice])
    assert np.isnan(r.loss(fp16)).all() and r.skipped(fp16).all()
    assert r.culprits(fp16) == {("conv2", "conv2d")}
    # No loss scale helps a forward pass: 19 halvings of 2^16 by step 19.
    assert r.lane(fp16)["loss_scale/scale"][-1, 0] == 2.0**-3
    for lane in ("torch-autocast-bf16", advice.stem):
        assert np.abs(r.loss(lane) - r.loss("fp32")).max() < 0.02
    assert not r.skipped(advice.stem).any()

    start, verdicts, advice = pretrain()
    assert "fp32" not in verdicts.values() and len(verdicts) == 14, verdicts
    r = run("lenet", start, ["fp32", fp16])
    assert np.abs(r.loss(fp16) - r.loss("fp32")).max() < 0.02
    assert not r.skipped(fp16).any()


def test_the_vaes_reconstruction_needs_fp32(run):
    def train(batch):
        options = ["--size", "hidden=32", "--batch", batch, "--steps", 10, "--optimizer", "adam"]
        return run("vae", options, ["fp32", policy("fp16-masters"), policy("fp16-masters-vae")])

    r = train(256)
    squares = r.sites(layer="loss.reconstruction", op="mse_loss", point="output")
    assert r.total("fp32", "moments/abs_max", squares, 0) > 65504
    assert r.total("fp16-masters", "counts/to_infinity", squares) == 10
    assert np.isposinf(r.loss("fp16-masters")).all()
    assert r.total("fp16-masters-vae", "counts/to_infinity", squares) == 0
    assert np.abs(r.loss("fp16-masters-vae") / r.loss("fp32") - 1).max() < 0.01
    # The gradient of a sum of squares does not read the sum: the weights do not notice.
    weights = r.sites(role="master_weight", point="output")
    errors = [r.error(lane, weights, -1) for lane in ("fp16-masters", "fp16-masters-vae")]
    assert max(errors) < 0.05 and errors[0] == pytest.approx(errors[1], rel=0.2), errors
    small = train(32)
    assert np.abs(small.loss("fp16-masters") / small.loss("fp32") - 1).max() < 0.01


def test_an_fp16_all_reduce_overflows_at_64_workers(lockstep, tmp_path):
    lanes = [policy(name) for name in ("all-reduce-fp16", "all-reduce-fp32", "all-reduce-fp16-divide-before")]
    options = ["--data", "synthetic:200", "--batch", 64, "--workers", 64, "--steps", 1]
    run = Run(lockstep, tmp_path / "workers.h5", "mlp", options, ["fp32", *lanes])
    entering = run.sites(op="all_reduce", point="operand")
    sums = run.sites(op="all_reduce", point="output")
    assert run.total("all-reduce-fp16", "counts/to_infinity", entering) == 0
    assert run.total("all-reduce-fp16", "counts/to_infinity", sums) > 0
    assert run.skipped("all-reduce-fp16").all()
    culprit = np.array(run.lane("all-reduce-fp16")["loss_scale/culprit_site"])[0, 0]
    assert run.site["op"][culprit] == "all_reduce" and run.site["layer"][culprit] == "fc3"
    for lane in ("all-reduce-fp32", "all-reduce-fp16-divide-before"):
        assert run.total(lane, "counts/to_infinity", sums) == 0 and not run.skipped(lane).any()
    assert run.total("all-reduce-fp32", "counts/to_zero", entering) == 0
    assert run.total("all-reduce-fp16-divide-before", "counts/to_zero", entering) > 1000
