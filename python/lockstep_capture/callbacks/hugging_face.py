"""A callback that captures what the Trainer of Transformers does.

    trainer = Trainer(..., callbacks=[lockstep_capture.hugging_face.CaptureCallback("run.lscap.h5")])

Callbacks of this Trainer see no batch. So trainer.compute_loss is replaced, in the captured steps only: a block begins
where the Trainer computes the loss of a micro-batch, and ends with on_substep_end or on_optimizer_step.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..capture import Capture
from ..errors import CaptureError
from ..monitor.monitor import Monitor
from ..parts.parts import Parts
from ..watch.hooks import replace
from .blocks import Blocks, Recording, begun, with_monitor

try:
    from transformers import Trainer, TrainerCallback
except ImportError as error:
    raise ImportError(
        f"lockstep_capture.hugging_face needs the package transformers: pip install 'transformers[torch]' ({error})"
    ) from error


class CaptureCallback(TrainerCallback):  # type: ignore[misc]
    """Captures `steps` optimizer steps of Trainer.train() into `path`; each call of train() replaces the file.

    Loss: trainer.compute_loss, with the Trainer's num_items_in_batch. Batches, optimizer, GradScaler, autocast,
    accumulation and clipping are the Trainer's. verify, on_unsupported, watch, and when="fault" with what goes with it: as in
    Capture. monitor=100: a Monitor as well, every 100 steps, into run.live.h5 next to run.lscap.h5. compute_loss is run a few times
    more to trace it; what an override keeps in the Trainer (lists of metrics) then has more entries.

    Throws, in train(): CaptureError for DeepSpeed and for several GPUs in one process; else as Capture.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        steps: int = 8,
        verify: Iterable[int] | None = None,
        on_unsupported: str = "error",
        watch: str | Sequence[str] = (),
        monitor: int | None = None,
        **waiting: Any,
    ):
        self._path = path
        self._options: dict[str, Any] = {
            "steps": steps,
            "verify": verify,
            "on_unsupported": on_unsupported,
            "watch": watch,
            **waiting,
        }
        self._monitor = monitor
        self._trainer: Any = None
        self._blocks: Blocks | None = None
        self._replaced = contextlib.ExitStack()

    # ---- Called by the Trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end()
        self._trainer = _calling_trainer()
        self._blocks = begun(self._capture, self._options["on_unsupported"])

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The Trainer calls its _run_epoch next: an error in there reaches no callback."""
        if self._blocks is None or self._blocks.over:
            return

        def wrap(original: Any) -> Any:
            def run_epoch(*args: Any, **kwargs: Any) -> Any:
                self._replaced.close()
                with self._watched():
                    return original(*args, **kwargs)

            return run_epoch

        self._replaced.close()
        replace(self._replaced, self._trainer, "_run_epoch", wrap)

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._leave()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._leave()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        blocks = self._blocks
        self._end()
        if blocks is not None:
            blocks.finish()

    # ---- The rest

    def _capture(self) -> Recording:
        trainer = self._trainer
        _check(trainer)
        compute_loss = trainer.compute_loss

        def loss_of(model: torch.nn.Module, batch: dict[str, Any]) -> Any:
            return compute_loss(model, batch["inputs"], **batch["options"])

        own = {"scaler": trainer.accelerator.scaler}

        def make(options: dict[str, Any]) -> Capture:
            return Capture(self._path, trainer.model, trainer.optimizer, loss_of, **own, **options)

        watched = {"model": trainer.model_wrapped, "optimizer": trainer.optimizer, **own}
        return with_monitor(self._path, self._monitor, watched, self._options, make)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """compute_loss is replaced until the capture or the epoch ends."""
        blocks = self._blocks
        assert blocks is not None

        def wrap(original: Any) -> Any:
            def compute_loss(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
                if model.training and not args:  # not in an evaluation
                    blocks.enter({"inputs": dict(inputs) if isinstance(inputs, Mapping) else inputs, "options": kwargs})
                return original(model, inputs, *args, **kwargs)

            return compute_loss

        replace(self._replaced, self._trainer, "compute_loss", wrap)
        try:
            yield
        except BaseException as error:
            blocks.fail(error)
            raise
        finally:
            self._replaced.close()

    def _leave(self) -> None:
        if self._blocks is None:
            return
        self._blocks.leave()
        if self._blocks.over:
            self._end()

    def _end(self) -> None:
        """The Trainer is as it was, and free."""
        self._replaced.close()
        self._blocks = self._trainer = None


class PartsCallback(CaptureCallback):
    """Captures modules of the Trainer's model where they run, each as a capture of its own: lockstep_capture.Parts, whose
    options it takes (steps, skip, tokens, rows, max_bytes, reference). The folder must be new or empty.

    Throws, in train(): as CaptureCallback and Parts.
    """

    def __init__(self, folder: str | os.PathLike[str], modules: str | Sequence[str], **options: Any):
        super().__init__(folder)
        self._modules, self._parts_options = modules, options

    def _capture(self) -> Parts:
        trainer = self._trainer
        _check(trainer)
        return Parts(
            self._path,
            trainer.model_wrapped,
            self._modules,
            optimizer=trainer.optimizer,
            scaler=trainer.accelerator.scaler,
            **self._parts_options,
        )


class MonitorCallback(CaptureCallback):
    """Statistics of the Trainer's own run: lockstep_capture.Monitor, whose options it takes (every, modules, on_alarm, ...).

    Throws, in train(): as CaptureCallback and Monitor.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any):
        super().__init__(path)
        self._monitor_options = options

    def _capture(self) -> Monitor:
        trainer = self._trainer
        _check(trainer)
        return Monitor(
            self._path,
            trainer.model_wrapped,
            trainer.optimizer,
            scaler=trainer.accelerator.scaler,
            **self._monitor_options,
        )


def _calling_trainer() -> Any:
    """The Trainer whose method called the callback: it passes its parts to callbacks, not itself."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Trainer):
            return owner
        frame = frame.f_back
    raise CaptureError("CaptureCallback: was called by no transformers.Trainer, must be one of its callbacks")


def _check(trainer: Any) -> None:
    if not hasattr(trainer, "_run_epoch"):
        raise CaptureError(
            "transformers: this version's Trainer has no _run_epoch(), must have it (5.23 has); with older "
            "versions write a loop with lockstep_capture.Capture"
        )
    if trainer.is_deepspeed_enabled:
        raise CaptureError("Trainer: uses DeepSpeed, whose engine holds the weights; capture a run without it")
    if trainer.args.n_gpu > 1:
        raise CaptureError(
            f"Trainer: runs on {trainer.args.n_gpu} GPUs in one process, must be 1: set "
            "CUDA_VISIBLE_DEVICES, or start it with torchrun"
        )
