"""Batches that are objects: step_fn gets a copy of the object with its methods, the loop's own is never written to."""

import collections
import dataclasses
import types
from typing import NamedTuple

import h5py
import pytest
import torch
from capture_loops import Images, image_batches, steps_in, train
from lockstep_capture import Capture, CaptureError


class Encoding(collections.UserDict):
    """As BatchEncoding of Transformers: keys as attributes, a method, other attributes."""

    def __init__(self, data):
        super().__init__(data)
        self.encodings = [object()]

    def __getattr__(self, name):
        return self.data[name]


class Stored(collections.abc.MutableMapping):
    """Its copy.copy shares the dict."""

    def __init__(self, data):
        self.held = dict(data)

    def __getitem__(self, key):
        return self.held[key]

    def __setitem__(self, key, value):
        self.held[key] = value

    def __delitem__(self, key):
        del self.held[key]

    def __iter__(self):
        return iter(self.held)

    def __len__(self):
        return len(self.held)


class Shared(Stored):
    """So does the copy of its copy."""

    def __init__(self, data):
        self.held = types.SimpleNamespace(of=dict(data))

    def __getitem__(self, key):
        return self.held.of[key]

    def __setitem__(self, key, value):
        self.held.of[key] = value

    def __iter__(self):
        return iter(self.held.of)


class Data:
    """As that of PyTorch Geometric: keys() and [key], a store that knows its owner."""

    def __init__(self, data):
        self._store = dict(data)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return self._store[name]

    def __getitem__(self, key):
        return self._store[key]

    def __setitem__(self, key, value):
        self._store[key] = value

    def keys(self):
        return list(self._store)


@dataclasses.dataclass(frozen=True)
class Sample:
    images: torch.Tensor
    labels: torch.Tensor
    name: str = "none"


class Pair(NamedTuple):
    images: torch.Tensor
    labels: torch.Tensor


def by_key(batch):
    return batch["images"], batch["labels"]


def by_name(batch):
    return batch.images, batch.labels


KINDS = {
    "UserDict": (Encoding, by_name, "batch['images']"),
    "Mapping": (Stored, by_key, "batch['images']"),
    "MappingProxy": (types.MappingProxyType, by_key, "batch['images']"),
    "Data": (Data, by_name, "batch['images']"),
    "dataclass": (lambda data: Sample(**data), by_name, "batch.images"),
    "namespace": (lambda data: types.SimpleNamespace(**data), by_name, "batch.images"),
    "namedtuple": (lambda data: Pair(**data), by_name, "batch.images"),
    "nested": (
        lambda data: [{"sample": Sample(**data)}],
        lambda batch: by_name(batch[0]["sample"]),
        "batch[0]['sample'].images",
    ),
}


def batches(make):
    return [make({"images": images, "labels": labels}) for images, labels in image_batches(3)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_any_kind(tmp_path, kind):
    make, parts, place = KINDS[kind]

    def loss_of(model, batch):
        images, labels = parts(batch)
        return torch.nn.functional.cross_entropy(model(images), labels)

    def trained(path):
        torch.manual_seed(0)
        model, own = Images(), batches(make)
        held = [tensor for batch in own for tensor in parts(batch)]
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        cap = None if path is None else Capture(path, model, optimizer, loss_of, steps=2)
        losses = train(model, optimizer, loss_of, own, cap)
        assert all(a is b for a, b in zip(held, [t for batch in own for t in parts(batch)], strict=True))
        return losses

    path = tmp_path / "a.h5"
    assert trained(path) == trained(None) and steps_in(path)[0] == 2
    with h5py.File(path) as file:
        assert file["steps/000000/micro/000/inputs/0"].attrs["path"] == place


class Lazy(Stored):
    """Gives a new object whenever it is asked."""

    def __getitem__(self, key):
        return self.held[key].clone()

    def __copy__(self):
        return Lazy(self.held)


def test_a_batch_that_makes_its_parts_anew(tmp_path):
    model, own = Images(), batches(Lazy)
    held = [dict(batch.held) for batch in own]
    loss_of = lambda m, b: torch.nn.functional.cross_entropy(m(b["images"]), b["labels"])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    train(model, optimizer, loss_of, own, Capture(tmp_path / "a.h5", model, optimizer, loss_of, steps=2))
    assert steps_in(tmp_path / "a.h5")[0] == 2
    assert all(batch.held[key] is before[key] for batch, before in zip(own, held, strict=True) for key in before)


def test_a_batch_that_holds_itself_is_refused(tmp_path):
    model, own = Images(), batches(Stored)
    own[0].held["parent"] = own[0]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    cap = Capture(tmp_path / "a.h5", model, optimizer, lambda m, b: m(b["images"]).mean())
    with pytest.raises(CaptureError, match=r"batch\['parent'\]: a Stored holds itself"), cap.step(own[0]):
        pass


def test_a_batch_that_shares_its_parts_with_its_copy_is_refused(tmp_path):
    model, own = Images(), batches(Shared)
    optimizer, held = torch.optim.SGD(model.parameters(), 0.1), by_key(own[0])
    cap = Capture(tmp_path / "a.h5", model, optimizer, lambda m, b: m(b["images"]).mean())
    with (
        pytest.raises(CaptureError, match=r"a Shared cannot be copied with other tensors .* dict\(batch\)"),
        cap.step(own[0]),
    ):
        pass
    assert all(a is b for a, b in zip(held, by_key(own[0]), strict=True))
