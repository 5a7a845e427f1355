"""A full disk: a clear error, exit code 2, and a file that still reads up to the last complete step."""

import os
import shutil
import subprocess

import pytest
from conftest import assert_same_run
from test_kill_resume import ARGS, steps_complete


def mounted(path, size_kib):
    path.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "tmpfs", str(path)], capture_output=True)
    return done.returncode == 0


def test_small_tmpfs(lockstep, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    whole = tmp_path / "whole.h5"
    lockstep(*ARGS, "-o", whole)
    full_kib = whole.stat().st_size // 1024
    stopped = 0
    for percent in (20, 33, 47, 61, 74, 88):
        folder = tmp_path / f"disk-{percent}"
        if not mounted(folder, full_kib * percent // 100):
            pytest.skip("this machine does not allow mounting a tmpfs")
        try:
            path = folder / "run.h5"
            done = lockstep(*ARGS, "-o", path, code=2)
            assert "space" in done.stderr.lower() or "full" in done.stderr.lower(), done.stderr
            steps = steps_complete(path)
            lockstep("report", path, code=0 if steps > 0 else 2)
            stopped += 0 < steps < 60
            # Resumed where there is room, it ends with the bits of a run that never stopped.
            if steps > 0:
                moved = tmp_path / f"moved-{percent}"
                shutil.copytree(folder, moved)
                lockstep("replay", "--resume", moved / "run.h5")
                assert assert_same_run(whole, moved / "run.h5") > 50
        finally:
            subprocess.run(["umount", str(folder)], check=True)
    assert stopped >= 3
