"""Where the wheel's program is, and the command `lockstep`, which runs it."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def program_path() -> Path | None:
    """Its path; None if this installation has none: `pip install ./python` installs the Python packages alone."""
    path = Path(__file__).parent / "bin" / "lockstep"
    return path if path.exists() else None


def main() -> None:
    """Replaces this process by the program, with the same arguments."""
    found = program_path()
    if found is None:
        sys.exit(
            "lockstep: this installation has no program: the wheels are for Linux on x86-64 alone; "
            "build it from source (`./dev build`), or install a wheel of `./dev wheel`"
        )
    os.execv(found, ["lockstep", *sys.argv[1:]])
