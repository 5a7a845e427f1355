"""Three lines in a PyTorch loop bring its model, batches, optimizer, scaler and masks into Lockstep.

    cap = lockstep_capture.Capture("run.lscap.h5", model, optimizer, step_fn, scaler=scaler, autocast="bfloat16")
    for batch in loader:
        with cap.step(batch):
            ...  # the unchanged body

docs/pytorch.md is the guide, docs/pytorch-limits.md says what is not supported. check() tests a model without writing a
file, and debug() says in one call which formats would break its training. hugging_face.CaptureCallback and
lightning.CaptureCallback capture the loops of Trainers.
"""

import importlib
import importlib.util
from typing import Any

if importlib.util.find_spec("torch") is None:
    raise ImportError("lockstep_capture needs PyTorch: pip install torch, or pip install 'lockstep-numerics[torch]'")

from .capture import Capture
from .check import check
from .debug import Debugged, debug
from .errors import CaptureError, Problem, UnsupportedModelError
from .monitor.alarm import Alarm, wandb_alert
from .monitor.monitor import Monitor
from .offline import capture
from .parts.parts import Parts
from .read_run import read_run  # the function hides its module; pandas is imported when it is called
from .trace.named_values import watch_value
from .version import __version__

__all__ = [
    "Alarm",
    "Capture",
    "CaptureError",
    "Debugged",
    "Monitor",
    "Parts",
    "Problem",
    "UnsupportedModelError",
    "__version__",
    "capture",
    "check",
    "debug",
    "read_run",
    "wandb_alert",
    "watch_value",
]

_CALLBACKS = ("hugging_face", "lightning")  # in callbacks/; they import packages that few have all of


def __getattr__(name: str) -> Any:
    if name in _CALLBACKS:
        return importlib.import_module(f".callbacks.{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
