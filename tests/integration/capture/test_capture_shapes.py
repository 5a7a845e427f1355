"""Captures whose batches change shape and whose steps differ in micro-batches: one run, the same sites in all lanes."""

import json

import h5py
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from capture_loops import Images, image_batches, image_loss, text_batches
from conftest import assert_same_run
from lockstep_capture import Capture
from unsealed import shorten

nn = torch.nn

# A bound for the loss, after some steps of FP32 in another order of sums: 2^-24 a rounding, some hundreds on the way.
FEW_STEPS = 1024 * 2.0**-24


class Tagger(nn.Module):
    """Learned positions broadcast over the batch, dropout, a bias that the batch shares: all of it goes by the shape."""

    def __init__(self):
        super().__init__()
        self.embed, self.positions = nn.Embedding(11, 8), nn.Parameter(0.1 * torch.randn(1, 12, 8))
        self.norm, self.drop, self.head = nn.LayerNorm(8), nn.Dropout(0.2), nn.Linear(8, 11)

    def forward(self, tokens):
        x = self.embed(tokens) + self.positions[:, : tokens.shape[1]]
        x = x * self.positions.mean(1, keepdim=True).expand(x.shape[0], 1, 8)
        return self.head(self.drop(self.norm(x)))


def tag_loss(model, batch):
    return F.cross_entropy(model(batch["tokens"]).flatten(0, 1), batch["labels"].flatten())


def captured(path, model, loss_fn, micro_batches, steps_of, optimizer=torch.optim.AdamW, clip=None):
    """`steps_of`: micro-batches per step. clip: largest norm, and which. The loss is divided by their number, as loops do at the end of an epoch."""
    optimizer = optimizer(model.parameters(), 1e-2)
    cap = Capture(path, model, optimizer, loss_fn, steps=len(steps_of), verify=range(len(steps_of)))
    batches = iter(micro_batches)
    for count in steps_of:
        for k in range(count):
            batch = next(batches)
            with cap.step(batch):
                (loss_fn(model, batch) / count).backward()
                if k + 1 == count:
                    if clip is not None:
                        nn.utils.clip_grad_norm_(model.parameters(), *clip)
                    optimizer.step()
                    optimizer.zero_grad()
    return path


def images_of(*sizes):
    return [image_batches(1, size, seed=k)[0] for k, size in enumerate(sizes)]


def texts_of(*shapes):
    return [text_batches(1, size, length, seed=k)[0] for k, (size, length) in enumerate(shapes)]


CASES = {
    # A short last batch, and a last step with one micro-batch where the others have two.
    "images": (Images, image_loss, images_of(6, 6, 6, 2, 6), [2, 2, 1], {}),
    "images-clipped": (Images, image_loss, images_of(6, 6, 3, 6), [1, 2, 1], {"clip": (0.1,)}),
    "images-clipped-largest": (
        Images,
        image_loss,
        images_of(6, 6, 3, 6),
        [1, 2, 1],
        {"clip": (0.02, float("inf")), "optimizer": torch.optim.SGD},
    ),
    "images-short-first": (Images, image_loss, images_of(2, 6, 6, 2), [1, 1, 1, 1], {"optimizer": torch.optim.SGD}),
    # Every batch padded to its longest text; one text alone, where sums over the batch have nothing to do.
    "texts": (Tagger, tag_loss, texts_of((3, 6), (3, 9), (1, 5), (3, 12)), [1, 1, 1, 1], {}),
    "one-text": (Tagger, tag_loss, texts_of((4, 12), (1, 12), (1, 12)), [1, 2], {}),
}


def make(name, path):
    torch.manual_seed(5)
    model, loss_fn, batches, steps, options = CASES[name]
    return captured(path, model(), loss_fn, batches, steps, **options)


def read(path, *names):
    with h5py.File(path) as file:
        return [file[name][()] for name in names]


@pytest.mark.parametrize("name", CASES)
def test_every_lane_takes_the_captured_steps(lockstep, tmp_path, name):
    capture, run = make(name, tmp_path / "net.h5"), tmp_path / "run.h5"
    lockstep("verify", capture)
    lockstep("replay", capture, "--lanes", "fp32,fp64,torch-autocast-bf16-cpu", "--quiet", "-o", run)
    wanted, fp32, fp64, bf16 = read(
        run, *(f"lanes/{lane}/loss" for lane in ("captured", "fp32", "fp64", "torch-autocast-bf16-cpu"))
    )
    assert np.abs(fp32 / wanted - 1).max() < FEW_STEPS and np.abs(fp64 / wanted - 1).max() < FEW_STEPS
    assert 0 < np.abs(bf16 / wanted - 1).max() < 0.1


def test_sites_are_those_of_the_graph_with_most_nodes(lockstep, tmp_path):
    """What a site measures in a step is what its batches had; what a batch has no need of is not measured."""
    capture, run = make("texts", tmp_path / "net.h5"), tmp_path / "run.h5"
    lockstep("replay", capture, "--lanes", "fp32,torch-autocast-fp16", "--quiet", "-o", run)
    with h5py.File(run) as file:
        ops, points, shapes = (file[f"sites/{column}"].asstr()[()] for column in ("op", "point", "shape"))
        head = (ops == "linear") & (points == "output")
        assert list(shapes[head]) == ["[3,9,11]"]  # the slice of all 12 positions is none
        for lane in ("fp32", "torch-autocast-fp16"):
            count = file[f"lanes/{lane}/counts/count"][()]
            assert list(count[:, head][:, 0]) == [3 * 6 * 11, 3 * 9 * 11, 5 * 11, 3 * 12 * 11]
            assert (count[:2] > 0).all(axis=0).sum() == (count[1] > 0).sum()
            for step, idle in ((2, {"sum_to", "expand"}), (3, {"slice", "slice_backward"})):
                lacking = (count[step] == 0) & (count[1] > 0)
                assert set(ops[lacking]) == idle
                assert np.isnan(file[f"lanes/{lane}/moments/abs_max"][step][lacking]).all()
                assert (file[f"lanes/{lane}/bits_hash"][step][lacking] == 0).all()
        compared = file["lanes/torch-autocast-fp16/counts/compared"][()]
        assert (compared[:, head][:, 0] == count[:, head][:, 0]).all()


@pytest.mark.parametrize("mode", ["free", "synced"])
def test_a_stopped_run_goes_on(lockstep, tmp_path, mode):
    capture = make("images", tmp_path / "net.h5")
    whole, again = tmp_path / "whole.h5", tmp_path / "again.h5"
    arguments = (
        "--lanes",
        "fp32,fp8-delayed,torch-autocast-bf16-cpu",
        "--mode",
        mode,
        "--checkpoint-every",
        1,
        "--quiet",
    )
    lockstep("replay", capture, *arguments, "-o", whole)
    lockstep("replay", capture, *arguments, "-o", again)
    with h5py.File(again, "r+") as file:
        shorten(file, 1)
    lockstep("replay", "--resume", again, "--quiet")
    assert_same_run(whole, again)


def test_threads_and_vectors_change_nothing(lockstep, tmp_path):
    capture = make("texts", tmp_path / "net.h5")
    one, two = tmp_path / "one.h5", tmp_path / "two.h5"
    lanes = ("--lanes", "fp32,torch-autocast-fp16,pure-fp16", "--quiet")
    lockstep("replay", capture, *lanes, "--threads", 1, "--simd", "scalar", "-o", one)
    lockstep("replay", capture, *lanes, "--threads", 3, "-o", two)
    assert_same_run(one, two)


class Moody(nn.Module):
    """Short batches take another way through it."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.a(x)
        return self.b(torch.relu(x) if x.shape[0] > 2 else torch.tanh(x))


def test_another_way_through_the_model_is_another_graph(lockstep, tmp_path):
    torch.manual_seed(0)
    batches = [(torch.randn(n, 8), torch.randint(3, (n,))) for n in (4, 4, 2)]
    capture = captured(tmp_path / "net.h5", Moody(), lambda m, b: F.cross_entropy(m(b[0]), b[1]), batches, [1, 1, 1])
    run = tmp_path / "run.h5"
    lockstep("verify", capture)
    lockstep("replay", capture, "--lanes", "fp32,torch-autocast-bf16", "-o", run, "--quiet")
    with h5py.File(run) as file:
        ours, theirs = (file[f"lanes/{lane}/loss"][()] for lane in ("fp32", "captured"))
        ops = [text.decode() for text in file["sites/op"][()]]
        counts = file["lanes/fp32/counts/count"][()]
    assert ours == pytest.approx(theirs, rel=1e-6)
    ran = {
        op: [bool(counts[step, [i for i, name in enumerate(ops) if name == op]].any()) for step in range(3)]
        for op in ("relu", "tanh")
    }
    assert ran == {"relu": [True, True, False], "tanh": [False, False, True]}, "a site that a step lacks has count 0"


def test_explain_shows_every_shape(lockstep, tmp_path):
    capture = make("images", tmp_path / "net.h5")
    text = lockstep("explain", capture, "--policy", "torch-autocast-bf16-cpu").stdout
    assert "graph 0: batches of [6, 1, 8, 8], [6], 4 of 5 micro-batches: below" in text
    assert "graph 1: batches of [2, 1, 8, 8], [2], 1 of 5 micro-batches\n" in text
    assert "conv.weight             fp32 -> bf16 nearest_even" in text and "gradient of fc.bias" in text
    short = json.loads(lockstep("explain", capture, "--policy", "fp32", "--graph", 1, "--json").stdout)
    assert {"node": "n0", "layer": "conv", "op": "conv2d"}.items() <= short["ops"][0].items()
    stderr = lockstep("explain", capture, "--policy", "fp32", "--graph", 2, "--batch", 3, code=2).stderr
    assert "--batch" in stderr and "has 2, counted from 0" in stderr
