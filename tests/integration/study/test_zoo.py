"""One network of every family of the zoo: captured, verified, replayed, and training the same as without a capture.

Minutes. A network whose package is absent is skipped. `./dev study zoo` runs them all (test_study_zoo.py).
"""

import json

import pytest
from zoo import registry, runner

QUICK = [network for network in registry.load().values() if network.quick]


def test_every_family_has_one():
    assert sorted(network.family for network in QUICK) == sorted({n.family for n in registry.NETWORKS.values()})


@pytest.fixture(scope="module")
def results(binary_dir, tmp_path_factory):
    """All of a mode at once: the packages are imported once."""
    folder = tmp_path_factory.mktemp("zoo")
    for autocast, option in (("", []), ("bfloat16", ["--autocast"])):
        names = [
            name
            for network in QUICK
            if _autocast(network) == autocast
            for name in (network.name, network.tried_by)
            if name
        ]
        runner.run_apart(binary_dir / "lockstep", folder, "--only", ",".join(names), *option)
    return {
        name: json.loads(runner.result_file(folder, name, _autocast(network)).read_text())
        for network in QUICK
        for name in (network.name, network.tried_by)
        if name
    }


def _autocast(network):
    """Every other one under BF16 autocast."""
    return "bfloat16" if QUICK.index(network) % 2 and not network.fp32_only else ""


@pytest.mark.parametrize("network", QUICK, ids=lambda network: network.name)
def test_quick(results, network):
    result = results[network.name]
    if result["status"] == "absent":
        pytest.skip(result["message"])
    if network.way_out:
        assert result["status"] == "refused" and network.way_out in result["message"], result["message"]
        assert result["same_bits"], result["different"]
        result = results[network.tried_by]
    assert result["status"] == "captured", result["message"]
    assert result["same_bits"], result["different"]
    assert result["faithful"], result["verify_message"]
    assert result["replayed"], result["replay_message"]
