"""Three small networks with the oldest or the newest PyTorch that is supported (each every other day): captured, verified, replayed, and training
the same as without a capture. Private names and autocast's lists, too. Downloads up to 1 GB, and removes it.

Skipped where the package index or the stand-ins for CUDA's libraries cannot be had. All versions: ./dev study torch-versions.
"""

import json

import pytest
import torch_versions
from conftest import of_today
from zoo import runner

NETWORKS = ("straight_through_function", "packed_lstm", "nerf")


@pytest.mark.parametrize("version", of_today([torch_versions.VERSIONS[0], torch_versions.VERSIONS[-1]]))
def test_a_version(binary_dir, tmp_path, version):
    program = binary_dir / "lockstep"
    try:
        with torch_versions.environment(version, tmp_path / "venv") as found:
            runner.run_apart(program, tmp_path / "results", "--only", ",".join(NETWORKS), **found)
            runner.run_apart(program, tmp_path, "--no-networks", module="zoo.of_version", **found)
    except torch_versions.UnavailableError as error:
        pytest.skip(str(error))
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts["version"].startswith(version) and not facts["missing"]
    for name in NETWORKS:
        result = json.loads(runner.result_file(tmp_path / "results", name, "").read_text())
        assert runner.perfect(result), runner.line(result) + result["message"] + result["verify_message"]
