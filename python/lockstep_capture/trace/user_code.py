"""Which lines are the user's: neither torch's nor this package's."""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from typing import Any

import torch

_TORCH_FOLDER = os.path.join(os.path.dirname(torch.__file__), "")
_OWN_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")  # lockstep_capture/


_STANDARD = os.path.join(sysconfig.get_paths()["stdlib"], "")


def is_user_file(file: str) -> bool:
    return file == "<stdin>" or not (
        file.startswith((_TORCH_FOLDER, _OWN_FOLDER, "<")) or "/importlib/" in file or file.endswith("contextlib.py")
    )


@dataclass(frozen=True)
class Lines:
    """innermost: user code or a library's other than PyTorch, "model.py:33". own: the innermost outside of installed packages.
    package: of the innermost line, "timm", "" for one of the user's."""

    innermost: str = ""
    own: str = ""
    package: str = ""


def running_lines() -> Lines:
    innermost = package = ""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_user_file(file):
            line = f"{os.path.basename(file)}:{frame.f_lineno}"
            innermost = innermost or line
            _, found, inside = file.replace(os.sep, "/").rpartition("-packages/")  # site-, dist-
            if not found and not file.startswith(_STANDARD):
                return Lines(innermost, line, package)
            package = package or inside.partition("/")[0].removesuffix(".py")
        frame = frame.f_back
    return Lines(innermost, "", package)


def user_line() -> str:
    """The innermost line of user code that is running: "model.py:33"."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_user_file(file):
            return f"{os.path.basename(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
