"""Private names of PyTorch, versions that were not tested, and autocast's lists as the installed PyTorch has them."""

import os
import re
import subprocess
import sys
import warnings

import autocast_lists
import pytest
import torch
import torch_versions
from conftest import SOURCE
from lockstep_capture import torch_api

VERSION = torch.__version__.partition("+")[0]


@pytest.mark.parametrize("row", torch_api.ROWS, ids=lambda row: row.name)
def test_private_names_exist(row):
    owner, name = row.place()
    assert getattr(owner, name) is row.get()


def test_a_name_that_is_gone_is_said_when_it_is_needed():
    """The package still imports; a capture is refused."""
    program = """
import torch, torch._dispatch.python, torch._subclasses.schema_check_mode
del torch._dispatch.python.no_python_dispatcher, torch._subclasses.schema_check_mode.SchemaCheckMode
import lockstep_capture
try:
    lockstep_capture.check(torch.nn.Linear(2, 2), lambda model, x: model(x).sum(), torch.ones(1, 2))
except lockstep_capture.CaptureError as error:
    print(error)
"""
    said = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(SOURCE / "python")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f"torch {torch.__version__} has no torch._subclasses.schema_check_mode.SchemaCheckMode" in said
    assert "pip install 'torch>=2.6,<2." in said


def test_a_newer_version_warns_once():
    torch_api.warn_if_newer.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch_api.warn_if_newer(torch.__version__)
        torch_api.warn_if_newer(".".join(map(str, torch_api.NEWEST)) + ".9+cu130")
    newer = f"{torch_api.NEWEST[0]}.{torch_api.NEWEST[1] + 1}.0a0"
    with pytest.warns(UserWarning, match=f"torch is {newer}, .*lockstep verify"):
        torch_api.warn_if_newer(newer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch_api.warn_if_newer(newer)


def test_an_older_version_is_an_error():
    torch_api.check_oldest("2.6.0")
    with pytest.raises(ImportError, match=r"torch is 2\.5\.1, must be at least 2\.6: pip install"):
        torch_api.check_oldest("2.5.1")


def test_the_versions_of_the_study():
    def numbers(version):
        return tuple(map(int, version.split(".")[:2]))

    tried = [numbers(version) for version in torch_versions.VERSIONS]
    rows = re.findall(r"^\| (\d+\.\d+\.\d+)\S* \|", (SOURCE / "docs/study/torch-versions.md").read_text(), re.MULTILINE)
    assert {torch_api.OLDEST, torch_api.NEWEST} <= {numbers(row) for row in rows} <= set(tried)
    assert tried == sorted(tried) and (tried[0], tried[-1]) == (torch_api.OLDEST, torch_api.NEWEST)
    assert f'"torch>={torch_api.OLDEST[0]}.{torch_api.OLDEST[1]}"' in (SOURCE / "python" / "pyproject.toml").read_text()


@pytest.fixture(scope="module")
def lists():
    return {device: autocast_lists.installed(device) for device in autocast_lists.DEVICES}


def test_autocast_lists_are_those_of_the_presets(lists):
    assert {device: len(found) > 100 for device, found in lists.items()} == {"cpu": True, "cuda": True}
    assert not [op for found in lists.values() for op, kind in found.items() if not kind]
    found = torch_versions.autocast_differences(VERSION, lists)
    assert len(found) == 2 and not any(found.values()), found


def test_an_older_preset_differs(lists):
    """PyTorch 2.12 moved one op."""
    found = torch_versions.autocast_differences("2.11.0", lists)
    assert found["torch-autocast-fp16:2.11"] == ["rms_norm (torch: fp32, preset: none)"]


@pytest.mark.parametrize("op, kind", [("mm", "low_precision"), ("softmax.int", "fp32"), ("scatter_add", "promote")])
def test_lists_are_what_runs_under_autocast(lists, op, kind):
    assert lists["cuda"][op] == kind
    assert lists["cpu"].get(op) in (kind, None)
