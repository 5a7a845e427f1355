"""What cmake/page_charts.cmake does without npm: configuring succeeds and says what will lack, and the script is empty."""

import os
import shutil
import subprocess

import pytest
from conftest import SOURCE

PROJECT = f"""cmake_minimum_required(VERSION 3.25)
project(charts LANGUAGES NONE)
include({SOURCE}/cmake/page_charts.cmake)
"""


@pytest.fixture
def configure(tmp_path):
    """Configures a project of the charts alone; returns the process and the script's path."""
    if shutil.which("cmake") is None or shutil.which("ninja") is None:
        pytest.skip("no cmake and ninja")
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)

    def run(*options, tools=("cmake", "ninja"), environment=None):
        folder = tmp_path / "tools"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for tool in tools:
            (folder / tool).symlink_to(shutil.which(tool))
        done = subprocess.run(
            [
                "cmake",
                "-G",
                "Ninja",
                "-S",
                tmp_path,
                "-B",
                tmp_path / "build",
                f"-DCMAKE_FIND_ROOT_PATH={folder}",
                f"-DCMAKE_PROGRAM_PATH={folder}",
                "-DCMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH=OFF",
                "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF",
                f"-DCMAKE_MAKE_PROGRAM={shutil.which('ninja')}",
                *options,
            ],
            capture_output=True,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        return done, tmp_path / "build" / "page" / "charts.js"

    return run


@pytest.mark.parametrize("option, said", [("AUTO", "npm was not found"), ("OFF", "LOCKSTEP_CHARTS is OFF")])
def test_without_npm_the_script_is_empty_and_configure_says_so(configure, option, said):
    done, script = configure(f"-DLOCKSTEP_CHARTS={option}")
    assert done.returncode == 0, done.stderr
    text = " ".join((done.stdout + done.stderr).split())
    assert f"HTML reports will have tables and no charts: {said}" in text
    assert script.read_bytes() == b""


def test_charts_that_were_asked_for_must_be_there(configure):
    done, _ = configure("-DLOCKSTEP_CHARTS=ON")
    assert done.returncode != 0
    assert "LOCKSTEP_CHARTS is ON, but npm was not found" in " ".join(done.stderr.split())


def test_an_npm_without_a_network_is_no_error(configure, tmp_path):
    if shutil.which("npm") is None:
        pytest.skip("no npm")
    nowhere = {
        "npm_config_registry": "http://127.0.0.1:9",
        "npm_config_cache": str(tmp_path / "cache"),
        "npm_config_fetch_retries": "0",
    }
    done, script = configure(
        f"-DLOCKSTEP_NPM={shutil.which('npm')}", f"-DLOCKSTEP_NODE={shutil.which('node')}", environment=nowhere
    )
    assert done.returncode == 0, done.stderr
    assert "npm could not install echarts and esbuild" in " ".join(done.stderr.split())
    assert script.read_bytes() == b""


def test_versions_are_locked_and_no_registry_is_named():
    lock = (SOURCE / "reports" / "page" / "package-lock.json").read_text()
    assert "http" not in lock and "resolved" not in lock
    assert lock.count('"integrity": "sha512-') == lock.count('"node_modules/')
