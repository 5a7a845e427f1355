"""Run.to_tensorboard as TensorBoard's own reader reads it, and Run.to_wandb by a module in wandb's place."""

import sys
import types

import h5py
import numpy as np
import pytest
from lockstep_capture.errors import CaptureError
from lockstep_capture.read_run import read_run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

STEPS = 60
HALF = "torch-autocast-fp16"


@pytest.fixture(scope="module")
def run_path(lockstep, tmp_path_factory):
    path = tmp_path_factory.mktemp("export_run") / "run.h5"
    lockstep(
        "replay",
        "lenet",
        "--data",
        "synthetic:200",
        "--steps",
        STEPS,
        "--batch",
        8,
        "--lr",
        0.3,
        "--lanes",
        f"fp32,{HALF},pure-fp16",
        "-o",
        path,
    )
    return path


@pytest.fixture(scope="module")
def run(run_path):
    return read_run(run_path)


@pytest.fixture(scope="module")
def events(run, binary_dir):
    """The events of every lane, and the folder."""
    folder = run.path + ".events"
    run.to_tensorboard(folder, program=binary_dir / "lockstep")
    found = {}
    for lane in run.lanes.index:
        found[lane] = EventAccumulator(f"{folder}/{lane}", size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
        found[lane].Reload()
    return found, folder


def scalars(accumulator, tag):
    read = accumulator.Scalars(tag)
    return [event.step for event in read], np.array([event.value for event in read])


def test_losses_and_scales_equal_the_run_file(events, run_path):
    with h5py.File(run_path) as file:
        for lane, accumulator in events[0].items():
            group = file[f"lanes/{lane}"]
            steps, losses = scalars(accumulator, "loss")
            assert steps == list(range(len(steps))) and len(steps) > 5
            np.testing.assert_array_equal(losses, group["loss"][: len(steps)].astype(np.float32))
        group = file[f"lanes/{HALF}/loss_scale"]
        np.testing.assert_array_equal(scalars(events[0][HALF], "loss_scale/scale")[1], group["scale"][:, 0])
        skipped = scalars(events[0][HALF], "loss_scale/skipped")[1]
        np.testing.assert_array_equal(skipped, group["skipped"][:, 0])
        assert skipped.any(), "this run is meant to skip a step"


def test_rates_equal_the_counts(events, run_path):
    accumulator, compared = events[0]["pure-fp16"], 0
    with h5py.File(run_path) as file:
        layers, roles = (file[f"sites/{name}"].asstr()[()] for name in ("layer", "role"))
        counts = {name: data[()] for name, data in file["lanes/pure-fp16/counts"].items()}
    for tag in accumulator.Tags()["scalars"]:
        kind, _, place = tag.partition("/")
        if not kind.endswith("_rate") or not place:
            continue
        layer, _, role = place.rpartition("/")
        here = (layers == layer) & (roles == role)
        steps, rates = scalars(accumulator, tag)
        part = counts[kind.removesuffix("_rate")][steps][:, here].sum(axis=1)
        whole = counts["count"][steps][:, here].sum(axis=1)
        if kind not in ("to_infinity_rate", "nan_rate"):
            whole = whole - counts["source_zero"][steps][:, here].sum(axis=1)
        np.testing.assert_array_equal(rates, (part / np.maximum(whole, 1)).astype(np.float32), tag)
        assert part.any(), f"{tag}: a curve of zeros"
        compared += 1
    assert compared > 10
    assert not [tag for tag in events[0]["fp32"].Tags()["scalars"] if tag.startswith("saturated")]


def test_histograms_equal_the_sums_over_50_steps(events, run_path):
    accumulator = events[0]["fp32"]
    with h5py.File(run_path) as file:
        layers, roles = (file[f"sites/{name}"].asstr()[()] for name in ("layer", "role"))
        blocks = file["lanes/fp32/exponent_histogram_50"][()]
    compared = set()
    for tag in accumulator.Tags()["histograms"]:
        layer, role = tag.removeprefix("exponents/").rsplit("/", 1)
        here = (layers == layer) & (roles == role)
        for event in accumulator.Histograms(tag):
            counts = blocks[{49: 0, STEPS - 1: 1}[event.step]][here].sum(axis=0)
            value = event.histogram_value
            read = {
                round(limit - 0.5): count
                for limit, count in zip(value.bucket_limit, value.bucket, strict=True)
                if count
            }
            assert read == {bin - 127: count for bin, count in enumerate(counts) if count and 0 < bin < 255}
            assert value.num == counts[1:255].sum()
            compared.add((event.step, layer, role))
    assert len(compared) > 50 and (49, "fc1", "grad_weight") in compared and (STEPS - 1, "conv1", "weight") in compared


def test_norms_and_sentences(events, run, lockstep):
    squares = run.statistics("fp32", ["update_sq"])["update_sq"]
    updates = run.sites.index[run.sites["role"] == "update"]
    expected = squares[squares.index.get_level_values("site").isin(updates)].groupby("step").sum() ** 0.5
    np.testing.assert_allclose(scalars(events[0]["fp32"], "update_norm")[1], expected, rtol=1e-6)
    text = events[0]["pure-fp16"].Tensors("report/text_summary")[0].tensor_proto.string_val[0].decode()
    assert text.startswith("pure-fp16")
    assert " ".join(text.split()) in " ".join(lockstep("report", run.path).stdout.split())
    assert "gradient_norm" not in events[0]["fp32"].Tags()["scalars"], "not measured without --clip-norm"


def test_the_layer_table_sums_all_sites(run, run_path):
    table = run.layer_table("pure-fp16")
    with h5py.File(run_path) as file:
        layers, roles = (file[f"sites/{name}"].asstr()[()] for name in ("layer", "role"))
        to_zero = file["lanes/pure-fp16/counts/to_zero"][()]
    for (layer, role), row in table.iterrows():
        assert row["to_zero"] == to_zero[:, (layers == layer) & (roles == role)].sum()
    assert table["to_zero"].sum() == to_zero.sum() > 0
    assert set(run.layer_table("fp32", layers="fc*").index.get_level_values("layer")) == {"fc1", "fc2", "fc3"}


def test_events_are_not_mixed_with_older_ones_and_errors_say_what_to_do(run, events, monkeypatch, tmp_path):
    with pytest.raises(FileExistsError, match="name another folder"):
        run.to_tensorboard(events[1], lanes=["fp32"])
    with pytest.raises(KeyError, match="no lane 'fp8'; there are: fp32"):
        run.to_tensorboard(tmp_path, lanes=["fp8"])
    with pytest.raises(CaptureError, match="is not a program here"):
        run.to_tensorboard(tmp_path, program="/no/lockstep")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match="pip install tensorboard"):
        run.to_tensorboard(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)
    for call in (run.to_wandb, run.to_wandb_table):
        with pytest.raises(ImportError, match="pip install wandb"):
            call()
    assert not list(tmp_path.iterdir())


class Target:
    """A run of wandb: what was logged."""

    def __init__(self):
        self.logged, self.finished = [], False

    def log(self, values, step=None):
        self.logged.append((step, values))

    def finish(self):
        self.finished = True


def test_wandb_gets_a_row_per_step_and_the_table(run, run_path, monkeypatch):
    module, made = types.ModuleType("wandb"), []
    module.run = None
    module.Table = lambda columns, data: {"columns": columns, "data": data}
    module.init = lambda **arguments: made.append((arguments, Target())) or made[-1][1]
    monkeypatch.setitem(sys.modules, "wandb", module)
    run.to_wandb(lanes=["fp32", "pure-fp16"], project="mine")
    ((arguments, target),) = made
    assert arguments == {"project": "mine", "config": run.options} and target.finished
    assert [step for step, _ in target.logged] == [*range(STEPS), STEPS - 1]
    with h5py.File(run_path) as file:
        losses = file["lanes/fp32/loss"][()]
    assert [values["loss/fp32"] for _, values in target.logged[:STEPS]] == losses.tolist()
    table = target.logged[-1][1]["layers"]
    assert table == run.to_wandb_table(["fp32", "pure-fp16"])
    assert table["columns"][:3] == ["lane", "layer", "role"] and len(table["data"]) == len(
        run.layer_table("fp32")
    ) + len(run.layer_table("pure-fp16"))
    assert not any(cell != cell for row in table["data"] for cell in row), "missing is None"

    module.run = Target()  # an active one is used, and left open
    run.to_wandb()
    assert len(made) == 1 and len(module.run.logged) == STEPS + 1 and not module.run.finished
