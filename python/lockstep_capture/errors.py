"""Errors that list at once everything that a capture refuses."""

from __future__ import annotations

import os
import traceback
from collections import OrderedDict
from dataclasses import dataclass

FRAMES = "LOCKSTEP_FRAMES"  # set in the environment: the frames of this package, for whoever mends it
_LONGEST = 160  # characters of another library's error in a message of ours


class CaptureError(RuntimeError):
    """An error that the user can correct: what, the value, the constraint, a hint. own_fault: nobody but this package can."""

    own_fault = False


@dataclass(frozen=True)
class Problem:
    """One occurrence of something that Lockstep cannot replay."""

    what: str  # "aten.grid_sampler.default", "in-place on a view"
    module: str = ""  # path of the module that did it
    source: str = ""  # "model.py:88"
    hint: str = ""


SCRIPTED_HINT = "set PYTORCH_JIT=0 in the environment, which leaves functions and modules in Python"


class UnsupportedModelError(CaptureError):
    """All that Lockstep cannot replay of a model, in one message: op, count, modules, lines, hint."""

    def __init__(self, problems: list[Problem]):
        self.problems = list(problems)
        super().__init__(describe(self.problems))


def describe(problems: list[Problem]) -> str:
    """One line per kind of problem, with every place where it occurs."""
    kinds: OrderedDict[tuple[str, str], list[Problem]] = OrderedDict()
    for problem in problems:
        kinds.setdefault((problem.what, problem.hint), []).append(problem)
    kind_word = "thing" if len(kinds) == 1 else "things"
    place_word = "place" if len(problems) == 1 else "places"
    lines = [f"{len(kinds)} unsupported {kind_word} in {len(problems)} {place_word}; nothing was written:"]
    width = max((len(what) for what, _ in kinds), default=0)
    for (what, hint), found in kinds.items():
        modules = ", ".join(OrderedDict.fromkeys(p.module or "(no module)" for p in found))
        sources = ", ".join(OrderedDict.fromkeys(p.source for p in found if p.source))
        line = f"  {what:<{width}}  x{len(found)}  in {modules}"
        line += f"  ({sources})" if sources else ""
        line += f"  hint: {hint}" if hint else ""
        lines.append(line)
    return "\n".join(lines)


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:_LONGEST] if lines else ''}"


def failed(error: Exception) -> CaptureError:
    """A fault that is not the user's: a capture never lets it reach the training loop as it is."""
    frames = traceback.extract_tb(error.__traceback__)
    where = (
        f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno}; {FRAMES}=1 shows all frames)" if frames else ""
    )
    made = CaptureError(f"the capture failed, training did not: {first_line(error)}{where}")
    made.__cause__ = error
    made.own_fault = True
    return made
