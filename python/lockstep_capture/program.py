"""Finds and runs the lockstep program."""

from __future__ import annotations

import os
import shutil
import subprocess

from .errors import CaptureError


def find_program(program: str | os.PathLike[str] | None = None) -> str:
    """Its path: of `program`, else of $LOCKSTEP, else on the PATH. Throws: CaptureError if there is none."""
    wanted = os.fspath(program) if program is not None else os.environ.get("LOCKSTEP", "lockstep")
    found = shutil.which(wanted)
    if found is None:
        raise CaptureError(
            f"program: {wanted!r} is no program here; build Lockstep (README), then put it on the PATH, "
            "set LOCKSTEP to its path, or pass program="
        )
    return found


def run_program(program: str, *arguments: str) -> str:
    """What it prints. Throws: CaptureError with its error message."""
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise CaptureError(f"lockstep {arguments[0]}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
