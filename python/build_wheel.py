"""What `./dev wheel` adds to the Python packages: the program named by $LOCKSTEP_PROGRAM and the licences of the libraries
in it, from $LOCKSTEP_LICENSES. Without them (`pip install ./python`) the wheel is for any machine."""

from __future__ import annotations

import os
import sysconfig
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ProgramHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        program = os.environ.get("LOCKSTEP_PROGRAM")
        if not program:
            return
        build_data["pure_python"] = False
        # No extension module: one wheel for all versions of Python.
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        build_data["force_include"][program] = "lockstep/bin/lockstep"
        build_data["force_include"][os.environ["LOCKSTEP_LICENSES"]] = "lockstep/licenses"
