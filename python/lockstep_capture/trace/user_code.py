"""Which lines are the user's: neither torch's nor this package's."""

from __future__ import annotations

import contextlib
import functools
import itertools
import linecache
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

import torch

from ..errors import FRAMES, CaptureError

_LONGEST = 48
_P = ParamSpec("_P")
_T = TypeVar("_T")

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
    package: of the innermost line, "timm", "" for one of the user's. text: what is computed there, "t * freq", "" before
    Python 3.11."""

    innermost: str = ""
    own: str = ""
    package: str = ""
    text: str = ""


@dataclass(frozen=True)
class Place:
    """A line of the user's own code, outside of installed packages."""

    file: str
    line: int


def _is_packaged(file: str) -> bool:
    return "-packages/" in file.replace(os.sep, "/")  # site-, dist-


def is_own_file(file: str) -> bool:
    return is_user_file(file) and not _is_packaged(file) and not file.startswith(_STANDARD)


def own_frames() -> Iterator[tuple[FrameType, bool]]:
    """The running frames of the user's own code, the innermost first. True: no library but PyTorch runs inside of it."""
    frame: FrameType | None = sys._getframe(1)
    is_direct = True
    while frame is not None:
        file = frame.f_code.co_filename
        is_direct = is_direct and not (is_user_file(file) and _is_packaged(file))
        if is_own_file(file):
            yield frame, is_direct
        frame = frame.f_back


def own_place() -> Place | None:
    for frame, _ in own_frames():
        return Place(frame.f_code.co_filename, frame.f_lineno)
    return None


def running_lines() -> Lines:
    innermost = package = text = ""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_user_file(file):
            line = f"{os.path.basename(file)}:{frame.f_lineno}"
            innermost, text = innermost or line, text or _expression(frame.f_code, frame.f_lasti)
            _, found, inside = file.replace(os.sep, "/").rpartition("-packages/")  # site-, dist-
            if not found and not file.startswith(_STANDARD):
                return Lines(innermost, line, package, text)
            package = package or inside.partition("/")[0].removesuffix(".py")
        frame = frame.f_back
    return Lines(innermost, "", package, text)


@functools.lru_cache(maxsize=10_000)
def _expression(code: CodeType, instruction: int) -> str:
    """The source of the call or the operator that runs, on one line, cut after _LONGEST characters."""
    if not hasattr(code, "co_positions"):
        return ""
    first, last, start, end = next(itertools.islice(code.co_positions(), instruction // 2, None), (None,) * 4)
    if first is None or last is None or start is None or end is None:
        return ""
    lines = [linecache.getline(code.co_filename, number).encode() for number in range(first, last + 1)]
    lines[-1], lines[0] = lines[-1][:end], lines[0][:end][start:] if first == last else lines[0][start:]
    text = " ".join(b"".join(lines).decode(errors="replace").split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def user_line() -> str:
    """The innermost line of user code that is running: "model.py:33"."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_user_file(file):
            return f"{os.path.basename(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def depth_of_user() -> int:
    """How many calls above its caller the innermost line of user code is."""
    depth, frame = 0, sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]
    return depth


def shown_to_users(body: Callable[_P, _T]) -> Callable[_P, _T]:
    """body, whose CaptureErrors end at the user's line: without the frames of this package in between."""

    @functools.wraps(body)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return body(*args, **kwargs)
        except CaptureError as error:
            if error.own_fault and os.environ.get(FRAMES):
                raise
            found = error
        cause = found.__cause__
        if cause is not None:
            cause.__traceback__, cause.__suppress_context__ = _users_part(cause.__traceback__), True
        raise found.with_traceback(None) from cause

    return called


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    if trace is None:
        return None
    rest = _users_part(trace.tb_next)
    is_users = is_user_file(trace.tb_frame.f_code.co_filename)
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno) if is_users else rest


class ShownToUsers(contextlib.AbstractContextManager[None]):
    """A context manager whose own errors end at the user's line."""

    def __init__(self, block: contextlib.AbstractContextManager[None]):
        self._enter, self._exit = block.__enter__, block.__exit__

    @shown_to_users
    def __enter__(self) -> None:
        self._enter()

    @shown_to_users
    def __exit__(self, *error: Any) -> bool | None:
        return self._exit(*error)
