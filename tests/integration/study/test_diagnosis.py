"""A dozen seeds of the diagnosis study (diagnosis.py), and its own parts by hand."""

import diagnosis
import numpy as np
import planted_faults as faults
import planted_models as models
import planted_names as names
import torch


def test_every_kind_has_builders_and_names():
    assert all(faults.KINDS.values())
    assert set(faults.KINDS) <= set(names.ACCEPTED)


def test_scaling_a_pair_of_layers_keeps_the_function():
    drawn = models.draw(np.random.default_rng(3), names=("mlp",), width=24)
    before = drawn.model(drawn.batches[0][0])
    models.scale_pair(drawn.model, drawn.model.pairs[0], 2.0**10)
    assert torch.equal(before, drawn.model(drawn.batches[0][0]))  # a power of two: every bit


def test_a_seed_gives_the_same_case_twice(tmp_path, binary_dir):
    first, second = (faults.run_planted(5, tmp_path / name) for name in ("a", "b"))
    assert (first.kind, first.about, first.sentence) == (second.kind, second.about, second.sentence)


def test_a_dozen_seeds(binary_dir):
    planted = diagnosis.run(range(2, 10), False)
    clean = diagnosis.run(range(1, 4), True)
    print("\n" + diagnosis.page(planted, clean))
    assert not [o for o in planted + clean if "error" in o]
    assert sum(o["right"] for o in planted) >= len(planted) - 1
    assert not [row for o in clean for row in o["found"]]
