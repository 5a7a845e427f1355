"""Every network of the zoo, in FP32 and under BF16 autocast; the table is docs/study/zoo.md. Hours.

Results are kept in build/zoo, so that a study that was interrupted goes on where it stopped; remove the folder to
repeat everything. LOCKSTEP_ZOO_ONLY (`./dev study zoo NAME,...`) names networks, families or packages: only these are
run and shown, and nothing is said about shares. Packages: zoo/requirements.txt; `./dev study zoo` installs them.
"""

import json
import os
import pathlib

import pytest
from conftest import SOURCE
from zoo import registry, runner, table

CAPTURED_SHARE, VERIFIED_SHARE = 0.95, 0.98
ONLY = os.environ.get("LOCKSTEP_ZOO_ONLY", "")
whole = pytest.mark.skipif(bool(ONLY), reason="LOCKSTEP_ZOO_ONLY: a part of the zoo")
LEAST_NETWORKS, LEAST_PACKAGES, HELD_OUT = 150, 10, 20


def results_of(folder, mode):
    autocast = "" if mode == "fp32" else mode
    files = {name: runner.result_file(folder, name, autocast) for name in registry.NETWORKS}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


@pytest.fixture(scope="module")
def found(binary_dir):
    registry.load()
    folder = SOURCE / "build" / "zoo"
    chosen = ["--only", ONLY, "--all"] if ONLY else []
    for mode in table.MODES:
        runner.run_apart(
            binary_dir / "lockstep", folder, "--held-out", *chosen, *(["--autocast"] if mode == "bfloat16" else [])
        )
    found = {mode: results_of(folder, mode) for mode in table.MODES}
    wanted = set(ONLY.split(","))
    return {
        mode: {name: result for name, result in results.items() if not ONLY or wanted & _names(name)}
        for mode, results in found.items()
    }


def _names(name):
    network = registry.NETWORKS[name]
    return {name, network.family, network.package}


def test_the_table(found):
    text = table.page(registry.NETWORKS, found)
    print("\n" + text)
    folder = os.environ.get("LOCKSTEP_STUDY_DIR")
    if folder and not ONLY:
        pathlib.Path(folder, "zoo.md").write_text(text)


def test_there_are_enough(found):
    networks = registry.NETWORKS.values()
    assert len(networks) >= LEAST_NETWORKS and sum(network.held_out for network in networks) == HELD_OUT
    assert len({network.package for network in networks} - {""}) >= LEAST_PACKAGES
    quick = [network.family for network in networks if network.quick]
    assert sorted(quick) == sorted({network.family for network in networks})


@whole
@pytest.mark.parametrize("mode", list(table.MODES))
def test_shares(found, mode):
    part = table.counts(found[mode].values())
    assert part["captured"] >= CAPTURED_SHARE * part["tried"]
    assert part["verified"] >= VERIFIED_SHARE * part["captured"]
    assert part["replayed"] == part["captured"]


@pytest.mark.parametrize("mode", list(table.MODES))
def test_training_is_not_disturbed(found, mode):
    assert not [name for name, result in found[mode].items() if result["same_bits"] is False]
    assert not [name for name, result in found[mode].items() if result["status"] in ("crash", "timeout")]
