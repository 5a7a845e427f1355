"""Finds what a capture would refuse, without writing one.

    python -m lockstep_capture.check package.module:factory

factory() returns (model, step_fn, batch). Exit code 0: all is supported, 1: not, 2: usage.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from .arguments import dtype_of
from .errors import CaptureError, Problem, UnsupportedModelError, describe
from .model_state import Subject
from .trace.step_function import StepFunction
from .trace.traced import Traced, see, unknown_state
from .trace.uncompiled import uncompiled
from .trace.user_code import shown_to_users


@dataclass
class Support:
    """problems: empty when everything can be captured. ops: how often each of Lockstep's ops is in the graph."""

    problems: list[Problem]
    ops: dict[str, int]
    frontend: str = ""

    @property
    def ok(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        if self.problems:
            return describe(self.problems)
        ops = ", ".join(f"{op} x{count}" for op, count in sorted(self.ops.items()))
        return f"supported ({self.frontend}): {sum(self.ops.values())} nodes: {ops}"


@shown_to_users
def check(
    model: torch.nn.Module,
    step_fn: StepFunction,
    batch: Any,
    *,
    autocast: str | torch.dtype | None = None,
    inference: bool = False,
) -> Support:
    """Traces step_fn(model, batch) and lists everything that a capture would refuse. Writes and changes nothing.

    autocast: as in Capture. inference: as for a capture without an optimizer. Throws: CaptureError if step_fn itself fails, or returns no loss.
    """
    dtype = dtype_of(autocast)
    try:
        with uncompiled():
            subject = Subject(model, None, trains=not inference)
            seen = see(subject, step_fn, batch, dtype)
            if state := unknown_state(subject, seen):
                subject = Subject(model, None, attributes=state, trains=not inference)
                seen = see(subject, step_fn, batch, dtype)
            traced = Traced(subject, seen, dtype)
            problems = traced.support_problems(seen.leaves)
    except UnsupportedModelError as error:
        return Support(error.problems, {})
    if problems or traced.graph is None:
        return Support(problems, {}, traced.program.frontend)
    return Support([], dict(Counter(node.op for node in traced.graph.nodes)), traced.program.frontend)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or ":" not in arguments[0]:
        print(
            "usage: python -m lockstep_capture.check MODULE:FACTORY   (FACTORY() returns model, step_fn, batch)",
            file=sys.stderr,
        )
        return 2
    module, _, name = arguments[0].partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        model, step_fn, batch = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        print(f"{arguments[0]}: {error}; must name a function that returns (model, step_fn, batch)", file=sys.stderr)
        return 2
    try:
        support = check(model, step_fn, batch)
    except CaptureError as error:
        print(error, file=sys.stderr)
        return 2
    print(support)
    return 0 if support.ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
