"""Environments with other versions of PyTorch, and the table of what captures can do there.

An environment holds torch alone. All other packages are lent by the one that runs this, so they are the same for all
versions. ../shared/tools/cuda_stand_ins lets wheels that were built for CUDA import without its libraries.
"""

import contextlib
import json
import pathlib
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from typing import Any

import autocast_lists
import tomllib
import torch
from conftest import SHARED, SOURCE
from zoo import of_version, runner

VERSIONS = ("2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1")
STAND_INS = SHARED / "tools" / "cuda_stand_ins"
_LIBRARIES = "stand-ins"  # the folder that cuda_stand_ins makes


class UnavailableError(RuntimeError):
    """The environment cannot be made here."""


@contextlib.contextmanager
def environment(version: str, folder: pathlib.Path) -> Iterator[dict[str, str]]:
    """folder: is made, and removed afterwards. Gives the arguments of run_apart: python and variables."""
    if torch.__version__.partition("+")[0] == version:
        yield {}
        return
    if not STAND_INS.exists():
        raise UnavailableError("../shared/tools/cuda_stand_ins: not there")
    shutil.rmtree(folder, ignore_errors=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check"]
    try:
        _run(sys.executable, "-m", "venv", "--without-pip", str(folder))
        try:
            _run(*pip, "--no-cache-dir", "--no-compile", "--no-deps", f"torch=={version}")
        except subprocess.CalledProcessError as error:
            raise UnavailableError(f"pip cannot install torch {version}: {_last_line(error.stderr)}") from error
        (site,) = folder.glob("lib/python3*/site-packages")
        (site / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        _run(str(STAND_INS), str(folder))
        yield {"python": str(python), "LD_LIBRARY_PATH": str(folder / _LIBRARIES)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


def study(program: pathlib.Path, folder: pathlib.Path, versions: tuple[str, ...] = VERSIONS) -> None:
    """Results are kept in folder/VERSION; what is there is not repeated."""
    names = {network.name for network in of_version.networks()}
    for version in versions:
        results = folder / version
        if not names - set(_results(results)):
            continue
        try:
            with environment(version, folder / f"venv-{version}") as found:
                runner.run_apart(program, results, module="zoo.of_version", **found)
        except UnavailableError as error:
            print(f"torch {version} is left out: {error}", flush=True)


def _results(folder: pathlib.Path) -> dict[str, dict[str, Any]]:
    files = {network.name: runner.result_file(folder, network.name, "") for network in of_version.networks()}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


def load(folder: pathlib.Path) -> dict[str, dict[str, Any]]:
    """By version, of those that ran to the end: the facts, and the results of networks as "networks"."""
    found = {}
    for version in VERSIONS:
        results = _results(folder / version)
        if len(results) == len(of_version.networks()):
            facts = json.loads((folder / version / "facts.json").read_text())
            found[version] = {**facts, "networks": results}
    return found


def autocast_differences(version: str, lists: dict[str, dict[str, str]]) -> dict[str, list[str]]:
    """By preset: how the lists of that PyTorch differ from those of the newest preset that is not newer, else the oldest."""
    files = sorted((SOURCE / "src" / "policy" / "presets").glob("torch-autocast-*.toml"))
    presets = {"{name}:{version}".format(**tomllib.loads(file.read_text())): file.read_text() for file in files}
    found = {}
    for device, name in autocast_lists.DEVICES.items():
        versions = sorted(
            (preset.partition(":")[2] for preset in presets if preset.startswith(f"{name}:")), key=_numbers
        )
        preset = f"{name}:{([v for v in versions if _numbers(v) <= _numbers(version)[:2]] or versions[:1])[-1]}"
        found[preset] = autocast_lists.differences(lists[device], autocast_lists.of_preset(presets, preset))
    return found


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


INTRO = """# Versions of PyTorch

Written by `./dev study torch-versions`: small networks with random weights from the zoo ([zoo.md](zoo.md)), trained for three steps with AdamW in FP32 on a CPU,
without a capture and with one, then `lockstep verify`. Only PyTorch differs between the columns; the other packages are those of `tests/requirements.txt`.
Versions that are not in the table did not run to the end. Wheels built for CUDA ran with stand-ins for its libraries.

- *gets in*: captured, all gates of `lockstep verify` that apply passed, and training was the same as without a capture, bit for bit.
- *autocast*: ops whose list in that PyTorch (low precision, FP32, widest operand) differs from the preset's. The lists come from PyTorch itself, those of
  CUDA without a GPU. Overloads for named tensors are left out."""


def page(found: dict[str, dict[str, Any]]) -> str:
    """found: of load()."""
    rows = [
        INTRO,
        "",
        "| torch | networks that train | captured | verified | same bits | gets in | private names missing | autocast: other than the preset |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in found.values():
        tried = [r for r in result["networks"].values() if r["status"] not in ("absent", "broken")]
        cells = [
            result["version"],
            len(tried),
            sum(r["status"] == "captured" for r in tried),
            sum(bool(r["faithful"]) for r in tried),
            sum(bool(r["same_bits"]) for r in tried),
            sum(map(of_version.gets_in, tried)),
            ", ".join(result["missing"]) or "none",
            _autocast(result),
        ]
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    versions = list(found)
    rows += ["", "## Networks", "", "| network | family | " + " | ".join(versions) + " |"]
    rows.append("|---" * (2 + len(versions)) + "|")
    for network in of_version.networks():
        words = [_word(result["networks"][network.name]) for result in found.values()]
        rows.append(f"| {network.name} | {network.family} | " + " | ".join(words) + " |")
    refused = [
        f"- {network.name}, torch {version}: {reason}"
        for network in of_version.networks()
        for version, result in found.items()
        if (reason := _reason(result["networks"][network.name]))
    ]
    rows += ["", "## What does not get in", "", *(refused or ["Nothing."])]
    return "\n".join(rows) + "\n"


def _autocast(result: dict[str, Any]) -> str:
    differences = autocast_differences(result["version"].partition("+")[0], result["autocast"])
    return "; ".join(f"`{preset}`: {', '.join(ops) or 'none'}" for preset, ops in differences.items())


def _word(result: dict[str, Any]) -> str:
    if result["status"] != "captured":
        return result["status"]
    gates = [name for name, status in result["gates"].items() if status == "FAIL"]
    return "yes" if of_version.gets_in(result) else " ".join(gates) or "other bits"


def _reason(result: dict[str, Any]) -> str:
    if of_version.gets_in(result):
        return ""
    lines = (result["verify_message"] or result["different"] or result["message"]).strip().splitlines()
    text = lines[-1] if result["status"] in ("broken", "crash") else " ".join(lines[:2])
    return f"{result['status']}: {' '.join(text.split())[:300]}"
