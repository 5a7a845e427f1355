"""Shared by the whole-program tests: where the program is, how to run it, how to compare run files."""

import os
import pathlib
import subprocess
import sys

import h5py
import numpy as np
import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
SHARED = SOURCE.parent / "shared"
# lockstep_capture, without installing it, and what tests of several folders share
sys.path[:0] = [str(SOURCE / "python"), str(SOURCE / "tests" / "integration" / "support")]


@pytest.fixture(scope="session")
def binary_dir():
    """The build folder that holds `lockstep`; set by ctest."""
    path = pathlib.Path(os.environ["LOCKSTEP_BINARY_DIR"])
    assert (path / "lockstep").exists(), f"no program at {path}/lockstep"
    return path


@pytest.fixture(scope="session")
def lockstep(binary_dir):
    """Runs the program; asserts the exit code; returns the completed process."""

    def run(*args, code=0, **kwargs):
        done = subprocess.run([str(binary_dir / "lockstep"), *map(str, args)], capture_output=True, text=True, **kwargs)
        assert done.returncode == code, (
            f"exit code {done.returncode}, expected {code}\n"
            f"args: {args}\nstdout:\n{done.stdout}\nstderr:\n{done.stderr}"
        )
        return done

    return run


@pytest.fixture(scope="session")
def mnist():
    path = SHARED / "data" / "mnist"
    if not path.exists():
        pytest.skip("no MNIST digits beside the checkout (../shared/data/mnist)")
    return path


@pytest.fixture(scope="session")
def corpus():
    path = SHARED / "data" / "tinyshakespeare" / "input.txt"
    if not path.exists():
        pytest.skip("no text corpus beside the checkout (../shared/data/tinyshakespeare)")
    return path


def of_today(cases, share=2):
    """For parametrize: one case of every `share`, others each day (./dev test says which, in LOCKSTEP_SWEEP_SLICE); the
    rest are skipped, and counted. Without that variable all run."""
    day = os.environ.get("LOCKSTEP_SWEEP_SLICE")
    if day is None:
        return list(cases)
    other_day = pytest.mark.skip(reason=f"one case of {share} a day: LOCKSTEP_SWEEP_SLICE={day}")
    return [
        case if number % share == int(day) % share else _skipped(case, other_day) for number, case in enumerate(cases)
    ]


def _skipped(case, mark):
    """`case`: a value, or a pytest.param with an id."""
    return pytest.param(*getattr(case, "values", (case,)), marks=mark, id=getattr(case, "id", str(case)))


def datasets(path):
    """Every dataset of an HDF5 file as {name: array}."""
    found = {}
    with h5py.File(path, "r") as file:
        file.visititems(lambda name, obj: found.__setitem__(name, obj[()]) if isinstance(obj, h5py.Dataset) else None)
    return found


def assert_same_run(path_a, path_b):
    """Every dataset has the same name, shape, type and bytes, but for time and bytes copied to a device."""
    a, b = datasets(path_a), datasets(path_b)
    assert a.keys() == b.keys()
    assert len(a) > 20, "a run file holds more than a handful of datasets"
    compared = 0
    for name in a:
        if name.rsplit("/", 1)[-1] in ("seconds", "bytes_up", "bytes_kept"):
            continue
        x, y = np.asarray(a[name]), np.asarray(b[name])
        assert x.dtype == y.dtype and x.shape == y.shape, name
        if x.dtype == object:  # variable-length strings
            assert x.tolist() == y.tolist(), name
        elif x.tobytes() != y.tobytes():
            where = np.argwhere(
                np.atleast_1d((x != y) & ~((x != x) & (y != y))) if x.dtype.names is None else np.array([[0]])
            )
            raise AssertionError(f"{name} differs, first at {where[:1].tolist()}")
        compared += 1
    return compared
