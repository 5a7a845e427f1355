"""The project's own gate: this program is as good as it was when tests/baselines were accepted.

A change that moves a number needs `lockstep baseline propose` and `approve --reason` (CONTRIBUTING.md), and a line under Numerics in
the changelog.
"""

import json
import pathlib

import pytest

BASELINES = sorted((pathlib.Path(__file__).resolve().parents[2] / "baselines").glob("*.json"))


def test_there_are_baselines():
    assert len(BASELINES) >= 2


@pytest.mark.parametrize("path", BASELINES, ids=lambda path: path.stem)
def test_this_program_is_as_good_as_its_baseline(lockstep, path):
    baseline = json.loads(path.read_text())
    said = lockstep("check", baseline["options"]["model"], "--baseline", path).stdout
    assert "IDENTICAL" in said, "software lanes have the same bits everywhere:\n" + said
    assert all(entry["reason"] for entry in baseline["history"])
