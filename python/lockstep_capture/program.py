"""Finds and runs the lockstep program."""

from __future__ import annotations

import os
import shutil
import subprocess

from lockstep import program_path

from .errors import CaptureError


def find_program(program: str | os.PathLike[str] | None = None) -> str:
    """Its path: of `program`, else of $LOCKSTEP, else on the PATH, else in the wheel. Throws: CaptureError if there is none."""
    wanted = os.fspath(program) if program is not None else os.environ.get("LOCKSTEP")
    found = shutil.which(wanted or "lockstep") or (program_path() if wanted is None else None)
    if found is None:
        raise CaptureError(
            f"program: {wanted or 'lockstep'!r} is not a program here; install the wheel or build Lockstep (README), "
            "then put it on the PATH, set LOCKSTEP to its path, or pass program="
        )
    return os.fspath(found)


def run_program(program: str, *arguments: str) -> str:
    """What it prints. Throws: CaptureError with its error message."""
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise CaptureError(f"lockstep {arguments[0]}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
