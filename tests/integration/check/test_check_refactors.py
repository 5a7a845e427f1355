"""Refactors of users' scripts are no regression for `lockstep check`: other code for the same mathematics, from the same
weights and batches. The tables called LATER were written after the judge was done."""

import re

import mutants
import pytest
import refactors
from conftest import of_today
from mutants import Change, edit
from test_check_mutants import capture, check

TABLES = {
    "text": refactors.TEXT + refactors.TEXT_LATER,
    "image": refactors.IMAGE + refactors.IMAGE_LATER,
    "mlp": refactors.MLP + refactors.MLP_LATER,
}
ROWS = [
    pytest.param(script, change, id=f"{script}, {change.name}") for script, table in TABLES.items() for change in table
]


@pytest.fixture(scope="session")
def plain_baselines(lockstep, tmp_path_factory):
    """script -> a baseline without limits for other seeds."""
    folder, done = tmp_path_factory.mktemp("refactors"), {}

    def baseline(script):
        if script not in done:
            capture(folder / "here", script, Change("as it is", []), folder / f"{script}.lscap.h5")
            done[script] = folder / f"{script}.json"
            lockstep("baseline", "record", folder / f"{script}.lscap.h5", "-o", done[script], "--quiet")
        return done[script]

    return baseline


@pytest.mark.filterwarnings("ignore:lockstep_capture")
@pytest.mark.parametrize("script, change", of_today(ROWS, 4))
def test_a_refactor_is_not_red(binary_dir, plain_baselines, tmp_path, script, change):
    baseline = plain_baselines(script)
    capture(tmp_path / "here", script, change, tmp_path / "refactored.lscap.h5")
    code, _, text = check(binary_dir, tmp_path / "refactored.lscap.h5", baseline)
    assert code in change.codes, text


_TIE = "        self.head.weight = self.embed.weight\n"
_REPEATS = "for i, batch in enumerate(next(batches(seed)) for _ in range(STEPS * ACCUMULATE)):"
OTHER_DRAWS = [  # what changes weights or batches, the exit code, the headline
    (edit("head untied", _TIE, ""), 1, r"tied weights: embed.weight = head.weight -> none \(text_loop.py:\d+\)"),
    (
        edit("a batch that repeats", mutants._LOOP, _REPEATS),
        1,
        r"different batches: 16 of 16 -> 1 of 16 \(text_loop.py:\d+\)",
    ),
    (
        edit("another seed and another beta2", "(0.9, 0.95)", "(0.9, 0.99)", train={"seed": 901}),
        1,
        r"optimizer beta2: 0.95 -> 0.99 \(text_loop.py:\d+\)",
    ),
    (
        Change("another seed", [], train={"seed": 901}),
        3,
        r"the script has seed 901 \(text_loop.py:\d+\), the baseline's 1",
    ),
]


@pytest.mark.parametrize("change, code, headline", OTHER_DRAWS, ids=lambda value: getattr(value, "name", None))
def test_without_limits_for_other_seeds(binary_dir, plain_baselines, tmp_path, change, code, headline):
    baseline = plain_baselines("text")
    capture(tmp_path / "here", "text", change, tmp_path / "other.lscap.h5")
    found, first, text = check(binary_dir, tmp_path / "other.lscap.h5", baseline)
    assert found == code and re.search(headline, first), text
