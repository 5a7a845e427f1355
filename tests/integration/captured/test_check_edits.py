"""`lockstep check` must notice one edited element in any dataset of a run file, whatever its kind."""

import shutil
import subprocess

import h5py
import numpy as np
import pytest
import tiny_capture as tiny
from unsealed import unseal

# Wall-clock times differ from run to run; the others are derived from what is compared.
NOT_COMPARED = {"seconds"}
DERIVED_SITES = {"sites/count", "sites/order", "sites/source_line", "sites/torch_op"}
STEP = 1


def measured(lane):
    """An index of a site with values, of one compared with the reference, and of an update."""
    counts = lane["counts"]
    compared = (counts["compared"][STEP] > 0) & (counts["count"][STEP] > counts["source_zero"][STEP])
    return int(np.argmax(compared)), int(np.argmax(lane["updates/count"][STEP] > 0))


def other_text(old):
    """The text, as long as before (strings may have a fixed size), with one letter or digit changed."""
    text = old.decode() if isinstance(old, bytes) else old
    place = next(i for i, c in enumerate(text) if c.isalnum())
    new = ("8" if text[place] == "7" else "7") if text[place].isdigit() else "x"
    assert new != text[place]
    return text[:place] + new + text[place + 1 :]


def edit(dataset, site, update):
    """Changes one element to another value of its type."""
    name = dataset.name
    if dataset.shape == ():
        dataset[()] = other_text(dataset[()])
        return
    if name.startswith("/sites"):
        index = (dataset.shape[0] - 1,)
    elif dataset.ndim == 1:
        index = (min(STEP, dataset.shape[0] - 1),)
    elif dataset.ndim == 3:  # histograms: step or block, site, bin
        index = (min(STEP, dataset.shape[0] - 1), site, 100)
    else:
        place = update if "/updates/" in name else site
        index = (min(STEP, dataset.shape[0] - 1), min(place, dataset.shape[1] - 1))
    old = dataset[index]
    if dataset.dtype.kind == "f":
        dataset[index] = old * 1.001 if np.isfinite(old) and old != 0 else 1.0
    elif dataset.dtype.kind in "iu":
        dataset[index] = old ^ 1
    else:
        dataset[index] = other_text(old)


def test_one_edit_in_every_dataset_is_found(lockstep, binary_dir, tmp_path):
    base, changed = tmp_path / "base.h5", tmp_path / "changed.h5"
    lockstep(
        "replay",
        "mlp",
        "--data",
        "synthetic:100",
        "--steps",
        3,
        "--batch",
        8,
        "--lanes",
        "fp32,torch-autocast-fp16",
        "-o",
        base,
    )
    lockstep("check", base, "--baseline", base, "--exact")
    names = []
    with h5py.File(base, "r") as file:
        file.visititems(lambda name, obj: names.append(name) if isinstance(obj, h5py.Dataset) else None)
        site, update = measured(file["lanes/torch-autocast-fp16"])
    tested, unseen = 0, []
    for name in names:
        if name.startswith("lanes/fp32/") or name in DERIVED_SITES:
            continue
        if name == "products" or name.endswith("/site_formats"):  # derived from graph and policy
            continue
        if "/checksums/" in name:  # of numbers that are compared themselves
            continue
        if "/loss_effect/" in name:  # derived from errors and derivatives, which are compared
            continue
        if name.rsplit("/", 1)[-1] in NOT_COMPARED:
            continue
        shutil.copy(base, changed)
        with h5py.File(changed, "r+") as file:
            edit(file[name], site, update)
            unseal(file)  # otherwise nothing is compared
        done = subprocess.run(
            [str(binary_dir / "lockstep"), "check", str(changed), "--exact", "--baseline", str(base)],
            capture_output=True,
            text=True,
        )
        tested += 1
        if done.returncode not in (1, 2, 3):
            unseen.append((name, done.returncode))
    assert tested > 40
    assert not unseen, unseen


@pytest.fixture(scope="module")
def captured(lockstep, tmp_path_factory):
    """A capture, and a run of it."""
    folder = tmp_path_factory.mktemp("captured")
    capture = tiny.write(folder / "net.lscap.h5", tiny.make(steps=3))
    lockstep("replay", capture, "--lanes", "fp32,torch-autocast-bf16-cpu", "-o", folder / "base.h5", "--quiet")
    return capture, folder / "base.h5"


@pytest.mark.parametrize("lane", ["captured", "torch-autocast-bf16-cpu"])
def test_an_edited_gradient_norm_of_a_capture_is_found(lockstep, tmp_path, captured, lane):
    base, changed = captured[1], tmp_path / "changed.h5"
    lockstep("check", base, "--baseline", base, "--exact", "--strict")
    shutil.copy(base, changed)
    with h5py.File(changed, "r+") as file:
        names = file[f"lanes/{lane}/gradient_norms"]
        names[STEP, 2] *= 1 + 1e-9  # above the tolerance for another order of summation
        unseal(file)
    said = lockstep("check", changed, "--baseline", base, "--exact", code=1).stdout
    assert "1 of " in said and "gradient_norms" in said and f"step {STEP}, lane {lane}, parameter " in said
    with h5py.File(changed, "r+") as file:  # a run that lacks them does not pass
        del file[f"lanes/{lane}/gradient_norms"]
    assert "missing here" in lockstep("check", changed, "--baseline", base, "--exact", code=1).stdout


def test_a_capture_is_known_by_its_content(lockstep, tmp_path, captured):
    """Moved to another folder it is the same; under the same name it may be another one."""
    capture, base = captured
    moved = tmp_path / "net.lscap.h5"
    shutil.copy(capture, moved)
    arguments = ("--lanes", "fp32,torch-autocast-bf16-cpu", "-o", tmp_path / "run.h5", "--quiet", "--overwrite")
    lockstep("replay", moved, *arguments)
    lockstep("check", tmp_path / "run.h5", "--baseline", base, "--exact", "--strict")
    lockstep("replay", tiny.write(moved, tiny.make(steps=3, seed=1)), *arguments)
    said = lockstep("check", tmp_path / "run.h5", "--baseline", base, "--exact", code=3).stdout
    assert "INCONCLUSIVE" in said and "model: 'capture with SHA-256" in said


def test_a_new_finding_is_named(lockstep, binary_dir, tmp_path):
    """An overflow that the baseline does not have is at the top; one that it has is not reported."""
    base, changed = tmp_path / "base.h5", tmp_path / "changed.h5"
    lockstep(
        "replay",
        "mlp",
        "--data",
        "synthetic:100",
        "--steps",
        3,
        "--batch",
        8,
        "--lanes",
        "fp32,torch-autocast-bf16",
        "--twins",
        0,
        "-o",
        base,
    )
    shutil.copy(base, changed)
    with h5py.File(changed, "r+") as file:
        layers, ops = (file[f"sites/{name}"].asstr()[()] for name in ("layer", "op"))
        points = file["sites/point"].asstr()[()]
        site = np.flatnonzero((layers == "fc2") & (ops == "linear") & (points == "output"))[0]
        unseal(file)
        lane = file["lanes/torch-autocast-bf16"]
        lane["counts/to_infinity"][1, site] = 5
        lane["moments/abs_max"][1, site] = 1e39
        lane["moments/err_sq"][1] = np.inf
    said = lockstep("check", changed, "--baseline", base, "--exact", code=1).stdout
    news = "New findings, which the baseline does not have:"
    assert news in said and "torch-autocast-bf16: fc2 linear: its result reaches 1.0e39" in said, said
    assert said.index(news) < said.index("First difference:")
    said = lockstep("check", base, "--baseline", changed, "--exact", code=1).stdout
    assert news not in said, said
