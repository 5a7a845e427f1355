"""Tries in a child process whether a run file can be read: on a damaged or malicious one, HDF5 may crash, hang or
use up all memory. Knows nothing of what a run file must hold."""

from __future__ import annotations

import functools
import os
import resource
import signal
import time
from collections.abc import Iterator

import h5py

_MOST_SECONDS, _BYTES_PER_SECOND = 20, 20e6
# A dataset's bytes: run files are not compressed; one that a user has compressed may grow this much.
_LEAST_BYTES, _GROWTH = 64 << 20, 8
_TOO_LARGE, _FAILED, _NOT_HDF5 = 3, 4, 5  # exit codes of the child


def problem_of(path: str) -> str:
    """What is wrong with the file, or "": all its objects and attributes were read, and its datasets (of those above
    64 MiB a row); or it is not HDF5 at all, as h5py will say."""
    status = os.stat(path)
    return _problem_of(os.path.abspath(path), status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=64)
def _problem_of(path: str, _changed: int, size: int) -> str:
    most_bytes = _LEAST_BYTES + _GROWTH * size
    seconds = _MOST_SECONDS + size / _BYTES_PER_SECOND
    child = os.fork()
    if child == 0:
        _be_child(path, most_bytes, int(seconds))
    code = _wait(child, time.monotonic() + 3 * seconds)
    if code is None:
        return f"reading it took more than {3 * seconds:.0f} s"
    if code < 0:
        return f"HDF5 crashed while reading it ({signal.Signals(-code).name})"
    if code == _TOO_LARGE:
        return f"a dataset claims more than the {most_bytes} bytes that fit a file of this size"
    return "" if code in (0, _NOT_HDF5) else "HDF5 cannot read all of it"


def _wait(child: int, end: float) -> int | None:
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended == child:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _be_child(path: str, most_bytes: int, seconds: int) -> None:
    """Ends the process without Python's own shutdown, which is the parent's."""
    code = _FAILED
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2 * most_bytes + _LEAST_BYTES,) * 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        code = _NOT_HDF5
        with h5py.File(path, "r") as file:
            code = _FAILED
            code = _read_all(file, most_bytes)
    except BaseException:  # the exit code says what was reached
        pass
    finally:
        os._exit(code)


def _objects(group: h5py.Group, seen: set[object]) -> Iterator[h5py.Group | h5py.Dataset]:
    yield group
    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise ValueError(f"{name} is not a hard link")
        item = group[name]
        if item.id in seen:
            raise ValueError(f"{name} is in the file twice")
        seen.add(item.id)
        if isinstance(item, h5py.Group):
            yield from _objects(item, seen)
        else:
            yield item


def _read_all(file: h5py.File, most_bytes: int) -> int:
    for item in _objects(file, set()):
        for name in item.attrs:
            item.attrs[name]
        if not isinstance(item, h5py.Dataset):
            continue
        if item.external or item.is_virtual or item.nbytes > most_bytes:
            return _TOO_LARGE
        if item.nbytes <= _LEAST_BYTES:  # larger ones are read on demand
            item[()]
        elif item.shape[0] > 0:
            item[item.shape[0] - 1]
    return 0
