"""Refactors of users' scripts are no regression for `lockstep check`: other code for the same mathematics, from the same
weights and batches. The tables called LATER were written after the judge was done."""

import pytest
import refactors
from conftest import of_today
from mutants import Change
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
