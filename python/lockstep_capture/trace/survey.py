"""One run of step_fn that finds what a program cannot hold, and mistakes in step_fn itself (step_function.py)."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import CaptureError
from ..ir.program import StepModule
from .frontend_run import Observed, copied, observe
from .step_function import raised, raised_in_fp32
from .untouched import untouched


def survey(step: StepModule, batch: Any, device: torch.device, autocast: torch.dtype | None) -> Observed:
    """The path of step_fn under the loop's autocast.

    Throws: CaptureError for step_fn's own errors, for a backward() in it, for what a program cannot hold, and for a result
    that is no loss.
    """
    try:
        return observe(step, batch, device, autocast)
    except CaptureError:
        raise
    except Exception as error:  # step_fn's, if it fails unwatched as well
        unwatched(step, batch, device, autocast)
        raise error


def check_in_fp32(step: StepModule, batch: Any, device: torch.device) -> None:
    """Runs step_fn once more, without the loop's autocast, as the reference gradients do. Throws: CaptureError."""
    try:
        with torch.enable_grad(), torch.autocast(device.type, enabled=False):
            step.step_fn(step.model, copied(batch, device))
    except Exception as error:
        raise raised_in_fp32(step.step_fn, batch, error) from error


def unwatched(step: StepModule, batch: Any, device: torch.device, autocast: torch.dtype | None) -> torch.Tensor:
    """The result of a run that nothing observes, and that changes nothing. Throws: CaptureError for step_fn's errors."""
    with (
        untouched(step),
        torch.enable_grad(),
        torch.autocast(device.type, dtype=autocast, enabled=autocast is not None, cache_enabled=False),
    ):
        try:
            return step.step_fn(step.model, copied(batch, device)).detach()
        except CaptureError:
            raise
        except Exception as error:
            raise raised(step.step_fn, batch, error) from error
