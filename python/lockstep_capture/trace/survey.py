"""One run of step_fn that finds what a program cannot hold: gradients of gradients; and mistakes in step_fn itself (step_function.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ..errors import CaptureError, Problem, UnsupportedModelError
from ..ir.program import StepModule
from .frontend_run import MADE_ELSEWHERE, Observed, copied, observe
from .modules import ModuleStack
from .step_function import calls_backward, raised, raised_in_fp32
from .untouched import untouched
from .user_code import user_line

_GRADIENT = "torch.autograd.grad in the forward pass"
_GRADIENT_HINT = (
    "a loss of gradients (gradient penalty) is not replayed; take differences: (f(x + h) - f(x - h)) / (2 * h)"
)


def survey(
    step: StepModule, batch: Any, device: torch.device, autocast: torch.dtype | None
) -> tuple[Observed, list[Problem]]:
    """The path of step_fn under the loop's autocast, and what in it is unsupported.

    Throws: CaptureError for step_fn's own errors, for a backward() in it, and for a result that is no loss.
    """
    problems: list[Problem] = []
    try:
        return observe(step, batch, device, autocast, lambda modules: _noting_gradients(problems, modules)), problems
    except UnsupportedModelError as error:  # what an unsupported call made comes from nowhere, too
        known = [problem for problem in error.problems if not problems or problem.what != MADE_ELSEWHERE]
        raise UnsupportedModelError(problems + known) from None
    except CaptureError:
        raise
    except Exception as error:  # step_fn's, if it fails unwatched as well
        _check_unwatched(step, batch, device, autocast)
        raise error


def check_in_fp32(step: StepModule, batch: Any, device: torch.device) -> None:
    """Runs step_fn once more, without the loop's autocast, as the reference gradients do. Throws: CaptureError."""
    try:
        with torch.enable_grad(), torch.autocast(device.type, enabled=False):
            step.step_fn(step.model, copied(batch, device))
    except Exception as error:
        raise raised_in_fp32(step.step_fn, batch, error) from error


def _check_unwatched(step: StepModule, batch: Any, device: torch.device, autocast: torch.dtype | None) -> None:
    with (
        untouched(step),
        torch.enable_grad(),
        torch.autocast(device.type, dtype=autocast, enabled=autocast is not None, cache_enabled=False),
    ):
        try:
            step.step_fn(step.model, copied(batch, device))
        except CaptureError:
            raise
        except Exception as error:
            raise raised(step.step_fn, batch, error) from error


@contextlib.contextmanager
def _noting_gradients(problems: list[Problem], modules: ModuleStack) -> Iterator[None]:
    """Lists gradients that the forward pass takes by itself; backward(), which would change .grad, ends the run."""
    engine: Any = torch.autograd
    run_original = engine._engine_run_backward

    def note(what: str, hint: str) -> None:
        problem = Problem(what, modules.path, user_line(), hint)
        if problem not in problems:
            problems.append(problem)

    def run(*args: Any, accumulate_grad: bool, **kwargs: Any) -> Any:
        if accumulate_grad:
            raise calls_backward(user_line())
        note(_GRADIENT, _GRADIENT_HINT)
        return run_original(*args, accumulate_grad=accumulate_grad, **kwargs)

    try:
        engine._engine_run_backward = run
        yield
    finally:
        engine._engine_run_backward = run_original
