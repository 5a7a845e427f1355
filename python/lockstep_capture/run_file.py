"""Checks that a run file can be read, and turns its HDF5 values into Python's, for `read_run`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from typing import Any

import h5py
import numpy as np

from lockstep_capture import try_file

FORMAT = "lockstep-run"
NEWEST_VERSION = 4
SITE_KEYS = ("layer", "op", "role", "point")
SITE_GROUPS = {
    "counts": "",
    "moments": "",
    "updates": "update_",
    "live": "",
}  # the statistics in them, by prefix of their names
# In a lane's group, but no row per step.
_OTHER_ROWS = ("policy", "site_formats", "device_sums", "device_products", "eval", "sums", "loss_effect", "checksums")
_NONE = {"culprit_site": -1, "bits_hash": 0}  # the value that means "none" in an integer dataset


class RunFileError(ValueError):
    """The file is not a run file that this version can read. Lists all problems found."""


def unescape_name(name: str) -> str:
    """The lane name that a component of an HDF5 path encodes: %25 is '%', %2F is '/', %2E is '.'."""
    return re.sub("%(25|2F|2E)", lambda found: chr(int(found[1], 16)), name)


def import_pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise ImportError("read_run gives pandas tables: pip install pandas") from error
    return pandas


def opened(path: str) -> h5py.File:
    """The file, for reading. Throws: RunFileError if HDF5 cannot open it, or if it is not safe to."""
    if not os.path.exists(path):
        raise RunFileError(f"{path}: no such file; `lockstep replay MODEL -o {path}` writes one")
    if not os.path.isfile(path):
        raise RunFileError(f"{path}: not a regular file")
    if problem := try_file.problem_of(path):
        raise RunFileError(f"{path}: {problem}; is it a complete copy of the file that replay wrote?")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise RunFileError(
            f"{path}: HDF5 cannot open it ({error}); `lockstep replay` writes run "
            "files. While a replay runs, read its .progress.json instead"
        ) from error


def check_root(path: str, attributes: dict[str, Any]) -> None:
    kind = attributes.get("format")
    if kind != FORMAT:
        hint = " (a capture: `lockstep replay` makes a run file of it)" if kind == "lockstep-capture" else ""
        raise RunFileError(f"{path}: format is {kind!r}, must be {FORMAT!r}{hint}")
    problems = []
    version, steps = attributes.get("format_version"), attributes.get("steps_complete")
    if not isinstance(version, int) or not 1 <= version <= NEWEST_VERSION:
        problems.append(f"format_version is {version!r}, must be 1 ... {NEWEST_VERSION}: update lockstep_capture")
    if not isinstance(steps, int) or steps < 0:
        problems.append(f"steps_complete is {steps!r}, must be an integer of at least 0")
    _raise_all(path, problems)


def seeds_of(file: h5py.File) -> list[int]:
    """The seeds of all runs in the file, the first run's first (docs/run-file.md)."""
    first = int(json_text(file.attrs.get("options")).get("seed", 1))
    return [first, *sorted(int(name) for name in file.get("seeds", {}))]


def check_objects(path: str, file: h5py.File, steps: int) -> None:
    """Checks what every table needs: sites, lanes, and as many rows as steps_complete says."""
    problems = [f"/{name} is missing" for name in ("graph", "sites", "lanes") if name not in file]
    _raise_all(path, problems)
    lengths = {name: len(data) for name, data in file["sites"].items()}
    if len(set(lengths.values())) != 1:
        problems.append(f"columns of /sites differ in length: {lengths}")
    problems += [f"/sites/{name} is missing" for name in ("id", *SITE_KEYS) if name not in lengths]
    sites = lengths.get("id", 0)
    for lane, group in file["lanes"].items():
        for name, data in step_datasets(group).items():
            label = f"/lanes/{lane}/{name}"
            if data.ndim == 0 or data.shape[0] < steps:
                problems.append(f"{label} has shape {data.shape}, must have {steps} rows (steps_complete)")
            if is_per_site(name, data) and (data.ndim != 2 or data.shape[1] != sites):
                problems.append(f"{label} has shape {data.shape}, must have {sites} columns (sites)")
    _raise_all(path, problems)


def step_datasets(group: h5py.Group) -> dict[str, h5py.Dataset]:
    """The datasets of a lane with a row per step, by their path below the lane: whatever the file has, but for those
    that have a row per evaluation, sample or histogram."""
    found = {}
    for name, item in group.items():
        if name in _OTHER_ROWS or name.startswith("exponent_histogram"):
            continue
        parts = (
            {f"{name}/{part}": data for part, data in item.items()} if isinstance(item, h5py.Group) else {name: item}
        )
        found.update(parts)
    return found


def is_per_site(name: str, data: h5py.Dataset) -> bool:
    """Has a row a number for every site? In those groups, and where rows are chunks of their own (docs/run-file.md)."""
    group, _, part = name.partition("/")
    return group in SITE_GROUPS if part else data.ndim == 2 and data.chunks is not None and data.chunks[0] == 1


def _raise_all(path: str, problems: list[str]) -> None:
    if problems:
        raise RunFileError(f"{path}: {len(problems)} problem(s) in this run file:\n  " + "\n  ".join(problems))


def known_or_raise(wanted: Iterable[Any], known: Iterable[Any], what: str) -> None:
    known = known if isinstance(known, range) else list(known)
    missing = [name for name in wanted if name not in known]
    if missing:
        listed = f"{known.start} ... {known.stop - 1}" if isinstance(known, range) else ", ".join(map(str, known))
        raise KeyError(f"no {what} {', '.join(map(repr, missing))}; there are: {listed}")


def take(data: h5py.Dataset, rows: list[int]) -> np.ndarray:
    """Those rows of a dataset with a leading step axis."""
    if rows and rows == list(range(rows[0], rows[0] + len(rows))):
        return data[rows[0] : rows[0] + len(rows)]
    return data[rows] if rows else np.empty((0, *data.shape[1:]), data.dtype)


def column(name: str, values: np.ndarray, pandas: Any, absent: np.ndarray | None = None) -> Any:
    """A column in which "none" is missing: floats as they are (NaN), integers nullable."""
    if values.dtype.kind == "f":
        return values
    flag = values.dtype == np.uint8
    array = pandas.array(values.astype(bool) if flag else values)
    none = np.zeros(len(values), bool) if absent is None else absent.copy()
    if name in _NONE:
        none |= values == _NONE[name]
    array[none] = pandas.NA
    return array


def add_columns(columns: dict[str, Any], name: str, values: np.ndarray, pandas: Any) -> None:
    """[step] becomes a column; of [step, group] the first is `name`, the others name[1], name[2], ..."""
    if values.ndim == 1:
        columns[name] = column(name, values, pandas)
        return
    for i in range(values.shape[1]):
        columns[name if i == 0 else f"{name}[{i}]"] = column(name, values[:, i], pandas)


def plain(value: Any) -> Any:
    """An HDF5 value as a Python object."""
    if isinstance(value, bytes):
        return value.decode()
    return (
        value.item()
        if isinstance(value, np.generic) and value.ndim == 0 and not isinstance(value, np.bytes_)
        else value.decode()
        if isinstance(value, np.bytes_)
        else value
    )


def texts(values: np.ndarray) -> Any:
    return [plain(value) for value in values] if values.dtype.kind in "SO" else values


def json_text(text: Any) -> dict[str, Any]:
    return json.loads(text) if text else {}


def json_dataset(file: h5py.File, name: str) -> Any:
    return json.loads(plain(file[name][()])) if name in file else None
