"""A callback that captures what Lightning's Trainer does.

    L.Trainer(..., callbacks=[lockstep_capture.lightning.CaptureCallback("run.lscap.h5")])

A block is a batch: it begins with on_train_batch_start and ends with on_train_batch_end.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..capture import Capture
from ..errors import CaptureError
from ..monitor.monitor import Monitor
from ..parts.parts import Parts
from ..trace.step_function import StepFunction
from .blocks import Blocks, Recording, begun, with_monitor

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")  # the same code under two names
_DTYPES = {"16-mixed": "float16", "bf16-mixed": "bfloat16"}
_LOGGING = ("log", "log_dict")


def _base() -> Any:
    """Lightning's Callback: of the package that is in use, else of the first that is installed."""
    for package in sorted(_PACKAGES, key=lambda name: name not in sys.modules):
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(package).Callback
    raise ImportError(
        "lockstep_capture.lightning needs the package lightning or pytorch-lightning: pip install lightning"
    )


Callback: Any = _base()


class CaptureCallback(Callback):  # type: ignore[misc]
    """Captures `steps` optimizer steps of Trainer.fit() into `path`; each call of fit() replaces the file.

    loss_of(module, batch): the loss of a batch, by default training_step without its log() and log_dict(). Give one where
    training_step does more than to compute a loss (torchmetrics). Optimizer, GradScaler, autocast, accumulation and clipping
    are the Trainer's. verify, on_unsupported, watch, and when="fault" with what goes with it: as in Capture. monitor=100: a
    Monitor as well, every 100 steps, into run.live.h5 next to run.lscap.h5.

    Throws, in fit(): CaptureError for manual optimization; else as Capture.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        loss_of: StepFunction | None = None,
        steps: int = 8,
        verify: Iterable[int] | None = None,
        on_unsupported: str = "error",
        watch: str | Sequence[str] = (),
        monitor: int | None = None,
        **waiting: Any,
    ):
        super().__init__()
        self._path, self._loss_of = path, loss_of
        self._options: dict[str, Any] = {
            "steps": steps,
            "verify": verify,
            "on_unsupported": on_unsupported,
            "watch": watch,
            **waiting,
        }
        self._monitor = monitor
        self._blocks: Blocks | None = None
        self._index = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._blocks = begun(lambda: self._capture(trainer, pl_module), self._options["on_unsupported"])

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self._blocks is not None:
            self._index = batch_idx
            self._blocks.enter(batch)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._blocks is not None:
            self._blocks.leave()
            if self._blocks.over:
                self._blocks = None

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self._blocks is not None:
            self._blocks.skip("on_train_batch_start returned -1")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        blocks, self._blocks = self._blocks, None
        if blocks is not None:
            blocks.fail(exception)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        blocks, self._blocks = self._blocks, None
        if blocks is not None:
            blocks.finish()

    def _capture(self, trainer: Any, module: Any) -> Recording:
        _check(module)
        precision = trainer.precision_plugin
        own = {"model": module, "optimizer": trainer.optimizers[0], "scaler": getattr(precision, "scaler", None)}

        def make(options: dict[str, Any]) -> Capture:
            return Capture(
                self._path,
                **own,
                step_fn=self._loss_of or self._training_step,
                autocast=_DTYPES.get(str(precision.precision)),
                **options,
            )

        return with_monitor(self._path, self._monitor, own, self._options, make)

    def _training_step(self, module: torch.nn.Module, batch: Any) -> Any:
        step: Any = module.training_step
        wanted = len(inspect.signature(step).parameters)
        with _without_logging(module):
            result = step(batch, self._index) if wanted > 1 else step(batch)
        return result["loss"] if isinstance(result, Mapping) and "loss" in result else result


class PartsCallback(CaptureCallback):
    """Captures modules of the Trainer's model where they run, each as a capture of its own: lockstep_capture.Parts, whose
    options it takes (steps, skip, tokens, rows, max_bytes, reference). Paths are those in the LightningModule. The folder must
    be new or empty.

    Throws, in fit(): as CaptureCallback and Parts.
    """

    def __init__(self, folder: str | os.PathLike[str], modules: str | Sequence[str], **options: Any):
        super().__init__(folder)
        self._modules, self._parts_options = modules, options

    def _capture(self, trainer: Any, module: Any) -> Parts:
        _check(module)
        return Parts(
            self._path,
            module,
            self._modules,
            optimizer=trainer.optimizers[0],
            scaler=getattr(trainer.precision_plugin, "scaler", None),
            **self._parts_options,
        )


class MonitorCallback(CaptureCallback):
    """Statistics of the Trainer's own run: lockstep_capture.Monitor, whose options it takes (every, modules, on_alarm, ...).

    Throws, in fit(): as CaptureCallback and Monitor.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any):
        super().__init__(path)
        self._monitor_options = options

    def _capture(self, trainer: Any, module: Any) -> Monitor:
        _check(module)
        return Monitor(
            self._path,
            module,
            trainer.optimizers[0],
            scaler=getattr(trainer.precision_plugin, "scaler", None),
            **self._monitor_options,
        )


def _check(module: Any) -> None:
    if not module.automatic_optimization:
        raise CaptureError(
            "LightningModule: automatic_optimization is False, must be True: with manual optimization "
            "put lockstep_capture.Capture around the body of training_step"
        )


@contextlib.contextmanager
def _without_logging(module: torch.nn.Module) -> Iterator[None]:
    """log() outside of the Trainer's own call of training_step would count twice, or fail."""
    attributes = vars(module)
    own = {name: attributes[name] for name in _LOGGING if name in attributes}
    attributes.update(dict.fromkeys(_LOGGING, _nothing))
    try:
        yield
    finally:
        for name in _LOGGING:
            del attributes[name]
        attributes.update(own)


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass
