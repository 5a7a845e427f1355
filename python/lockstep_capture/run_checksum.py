"""Compares a run file's checksums with what h5py reads (docs/run-file.md, "Checksums")."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

from lockstep_capture.run_file import RunFileError, plain, unescape_name
from lockstep_capture.xxh3 import xxh3

FIRST_VERSION = 4  # of run files whose readers compare checksums
BLOCK = 50  # steps per row of exponent_histogram_50
_TEXTS = ("policy", "site_formats", "device_sums")  # in a lane's group, but without rows that grow
_CHANGING = ("steps_complete", "steps_checksum", "died_at", "died_of", "description_checksum")
_KINDS = {"uint8": 0, "int32": 1, "uint32": 2, "int64": 3, "uint64": 4, "float32": 5, "float64": 6}
_TEXT_KIND = 7
_GROUP_KINDS = {
    "eval": "evaluations",
    "sums": "samples",
    "loss_effect": "samples",
    "device_products": "device_products",
}
_NAME_KINDS = {
    "exponent_histogram": "histograms",
    "exponent_histogram_step": "histograms",
    "exponent_histogram_50": "blocks",
    "exponent_histogram_50_steps": "blocks",
    "seconds": "seconds",
    "device/bytes_up": "seconds",
    "device/bytes_kept": "seconds",
}
# Which step a row belongs to.
_STEPS = {
    "evaluations": "eval/steps_done",
    "samples": "sums/step",
    "histograms": "exponent_histogram_step",
    "blocks": "exponent_histogram_50_steps",
    "device_products": "device_products/step",
}
_AT_ONCE = 1 << 24  # bytes


def _fnv1a(text: str, starts: np.ndarray) -> np.ndarray:
    h = np.uint64(0xCBF29CE484222325) ^ starts
    for byte in text.encode():
        h = (h ^ np.uint64(byte)) * np.uint64(0x100000001B3)
    return h


def _one(number: int) -> np.ndarray:
    return np.array([number & (2**64 - 1)], np.uint64)


def _hash(content: bytes, seed: np.ndarray) -> np.ndarray:
    return xxh3(np.frombuffer(content, np.uint8)[None, :], seed)


def _row_checksums(name: str, first: int, rows: np.ndarray) -> np.ndarray:
    count = len(rows)
    data = np.ascontiguousarray(rows).reshape(count, int(np.prod(rows.shape[1:]))).view(np.uint8)
    return xxh3(data, _fnv1a(name, np.arange(first, first + count, dtype=np.uint64)))


# ---- the description


def _kind(dtype: np.dtype[Any]) -> int:
    if dtype.kind in "SOU":
        return _TEXT_KIND
    return _KINDS.get(dtype.name, _KINDS["int64"])


def _value_checksum(path: str, value: Any, grows: bool = False) -> int:
    """Of an array; of rows that grow, type and width."""
    array = value if isinstance(value, h5py.Dataset) else np.asarray(value)
    kind = _kind(array.dtype)
    shape = array.shape[1:] if grows else array.shape
    h = _hash(np.array(shape, np.int64).tobytes(), _fnv1a(path, _one(kind)))
    content = b""
    if not grows and kind == _TEXT_KIND:
        for text in np.asarray(value).ravel().tolist():
            h = _hash(text.encode() if isinstance(text, str) else text, h)
    elif not grows:
        named = {number: name for name, number in _KINDS.items()}
        content = np.ascontiguousarray(np.asarray(value).astype(named[kind])).tobytes()
    return int(_hash(content, h)[0])


def _node_checksum(node: h5py.Group | h5py.Dataset, path: str, stored: str, has_layout: bool) -> int:
    """path: with names unescaped; stored: as in the file; has_layout: types and widths of rows that grow are part of it."""
    if isinstance(node, h5py.Dataset):
        parts = stored.split("/")
        grows = parts[:2] == ["", "lanes"] and not (len(parts) == 4 and parts[3] in _TEXTS)
        checksum = 0 if grows and not has_layout else _value_checksum(path, node if grows else node[()], grows)
    else:
        checksum = int(_fnv1a(path, _one(0))[0])
    for name, value in node.attrs.items():
        if name not in _CHANGING:
            checksum ^= _value_checksum(f"{path}@{name}", value)
    if isinstance(node, h5py.Group):
        for name, child in node.items():
            if path or name != "seeds":
                checksum ^= _node_checksum(child, f"{path}/{unescape_name(name)}", f"{stored}/{name}", has_layout)
    return checksum


def steps_checksum(steps: int, is_closed: bool) -> str:
    """is_closed: the writer ended, so no row is half written."""
    return f"{xxh3(np.ones((1, int(is_closed)), np.uint8), _fnv1a('steps_complete', _one(steps)))[0]:016x}"


def _is_closed(run: h5py.Group) -> bool:
    return bool(plain(run.attrs["steps_checksum"]) == steps_checksum(int(run.attrs["steps_complete"]), True))


def description_problem(run: h5py.Group) -> str:
    """What is wrong with everything but the rows of lanes; "": nothing, or an earlier version wrote no checksum of it."""
    version = int(run.attrs["format_version"])
    stored = plain(run.attrs.get("description_checksum", ""))
    if version < FIRST_VERSION and not stored:
        return ""
    if stored != f"{_node_checksum(run, '', '', version >= FIRST_VERSION):016x}":
        return "the checksum of its description does not fit"
    if version < FIRST_VERSION:
        return ""
    steps = int(run.attrs["steps_complete"])
    if plain(run.attrs.get("steps_checksum", "")) not in (steps_checksum(steps, True), steps_checksum(steps, False)):
        return f"steps_complete: {steps}; its checksum does not fit"
    return ""


# ---- rows


def _datasets(lane: h5py.Group) -> Iterator[tuple[str, str, h5py.Dataset]]:
    """Kind, name below the lane and dataset of all rows that have checksums."""
    for name, item in lane.items():
        if name in _TEXTS or name == "checksums":
            continue
        if isinstance(item, h5py.Dataset):
            yield _NAME_KINDS.get(name, "steps"), name, item
            continue
        for part, data in item.items():
            whole = f"{name}/{part}"
            yield _GROUP_KINDS.get(name, _NAME_KINDS.get(whole, "steps")), whole, data


def _first_damage(name: str, data: h5py.Dataset, wanted: np.ndarray) -> int | None:
    at_once = max(1, _AT_ONCE // max(1, data.dtype.itemsize * int(np.prod(data.shape[1:]))))
    for first in range(0, len(wanted), at_once):
        rows = data[first : min(first + at_once, len(wanted))]
        differ = np.flatnonzero(_row_checksums(name, first, rows) != wanted[first : first + len(rows)])
        if len(differ):
            return first + int(differ[0])
    return None


def _first_wrong_death(lane: h5py.Group, wanted: np.ndarray) -> int | None:
    died_at, died_of = (int(lane.attrs[name]) for name in ("died_at", "died_of"))
    causes = np.zeros(len(wanted), np.int64)
    if died_at >= 0:
        causes[died_at:] = 1 + died_of
    seeds = _fnv1a("died_at", np.arange(len(wanted), dtype=np.uint64))
    differ = np.flatnonzero(xxh3(causes[:, None].view(np.uint8), seeds) != wanted)
    return int(differ[0]) if len(differ) else None


def _steps_before(lane: h5py.Group, kind: str, row: int) -> int:
    """The steps that nothing of these rows, from this one on, is part of."""
    if kind in ("steps", "seconds"):
        return row
    if kind == "blocks":
        return BLOCK * row
    return 0 if row == 0 else max(0, int(lane[_STEPS[kind]][row - 1]) + (kind != "evaluations"))


def _complete_rows(lane: h5py.Group, kind: str, steps: int, is_closed: bool) -> int:
    """Rows of complete steps; later ones, which a kill leaves, may be of any length and content."""
    if kind in ("steps", "seconds"):
        return steps
    if is_closed:
        return len(lane[f"checksums/{kind}"])
    of_rows = lane[_STEPS[kind]][()]
    if kind == "blocks":
        whole = (of_rows == BLOCK) & (BLOCK * np.arange(1, len(of_rows) + 1) <= steps)
        return len(of_rows) if whole.all() else int(np.argmin(whole))
    late = of_rows > steps if kind == "evaluations" else of_rows >= steps
    if kind != "device_products":
        late[1:] |= of_rows[1:] < of_rows[:-1]
    return int(np.argmax(late)) if late.any() else len(of_rows)


def first_damage(run: h5py.Group, steps: int) -> tuple[str, int]:
    """The first damaged row in words, and the steps before it; "" if all rows are whole.

    Throws: RunFileError where rows are missing.
    """
    found = ("", steps)
    is_closed = _is_closed(run)

    def add(lane: h5py.Group, name: str, kind: str, row: int, what: str) -> None:
        nonlocal found
        whole = min(_steps_before(lane, kind, row), steps)
        if not found[0] or whole < found[1]:
            found = (f"{lane.name.lstrip('/')}/{name}: row {row}: {what}", whole)

    for lane in run["lanes"].values():
        kinds: dict[str, dict[str, h5py.Dataset]] = {}
        for kind, name, data in _datasets(lane):
            kinds.setdefault(kind, {})[name] = data
        for kind, datasets in kinds.items():
            sums = lane[f"checksums/{kind}"]
            complete = _complete_rows(lane, kind, steps, is_closed)
            rows = sums[:complete]
            first = 1 if kind == "steps" else 0
            if first and (row := _first_wrong_death(lane, rows[:, 0])) is not None:
                add(lane, f"checksums/{kind}", kind, row, "the checksum of the lane's died_at does not fit")
            if rows.ndim != 2 or rows.shape[1] != first + len(datasets):
                raise RunFileError(
                    f"{run.file.filename}: {sums.name} has shape {sums.shape}, must have {first + len(datasets)} columns"
                )
            for part, name in enumerate(sorted(datasets, key=str.encode)):
                data = datasets[name]
                if min(len(data), len(rows)) < complete or (
                    is_closed and kind not in ("steps", "seconds") and len(data) != len(rows)
                ):
                    raise RunFileError(
                        f"{run.file.filename}: {data.name} has {len(data)} rows, its checksums {len(rows)}, "
                        f"{complete} must be there"
                    )
                row = _first_damage(name, data, rows[:, first + part])
                if row is not None:
                    add(lane, name, kind, row, "the checksum does not fit")
    return found
