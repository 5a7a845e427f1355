"""Which lines are the user's: neither torch's nor this package's."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

_TORCH_FOLDER = os.path.join(os.path.dirname(torch.__file__), "")
_OWN_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")  # lockstep_capture/


def is_user_file(file: str) -> bool:
    return file == "<stdin>" or not (file.startswith((_TORCH_FOLDER, _OWN_FOLDER, "<")) or "/importlib/" in file
                                     or file.endswith("contextlib.py"))


def user_line() -> str:
    """The innermost line of user code that is running: "model.py:33"."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_user_file(file):
            return f"{os.path.basename(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
