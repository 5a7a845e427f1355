"""Parts: modules of a model too large to capture whole, recorded where they run, each as a capture of its own.

The running step is only copied from. After it, part by part, the module is rebuilt from the copies, run once more,
compared with the run, traced and written. docs/parts.md is the guide.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .. import torch_api
from ..arguments import model_problems, scaler_problems
from ..errors import CaptureError, failed
from ..model_state import inside_wrappers, rank, unwrap_optimizer, world_size
from ..trace.uncompiled import uncompiled
from ..trace.user_code import ShownToUsers, depth_of_user, user_line
from ..version import __version__
from ..watch.hooks import around_step, replace
from ..write.part_checks import PartChecks
from .calls import PartStep, Taps
from .copies import Copies
from .names import check_wrappers, chosen, tied_weights
from .part_file import LOSS_OVER, Cut, file_name, write_part
from .replicas import plain_class

INDEX = "parts.json"
_NOTHING: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
_MEGA = 1e6
_REFERENCE_BYTES = 13  # a weight's in FP32, in FP64 what that lacks, after the step, and a bit: rounded up


class Parts:
    """Captures modules of `model` into `folder`, a file for each module and step, as they run:

        parts = lockstep_capture.Parts("parts/", model, ["model.layers.{0,16,31}", "lm_head"], optimizer=optimizer)
        for batch in loader:
            with parts.step(batch):
                ...  # the unchanged body

    modules: paths or patterns; `*` stays within one level of a path, `**` does not. optimizer: a step ends with the block that
    calls its step(); None: every block is a step. scaler: the loop's GradScaler. steps: how many are captured; skip: how many
    pass before. tokens, rows: how much of the batch is kept, from its beginning; the gradients in the file are then those of that
    slice. max_bytes: of all files of this rank together; a part that would exceed it is refused. reference: adds PyTorch's
    gradients in FP32 and FP64, 12 bytes per parameter, for two more gates of `lockstep verify`. loss_over: of what the loss is a
    mean: "tokens" (places of a picture, too), or "rows", the examples of the batch; the second order of a part's effect needs it.

    Plain modules, DDP, FSDP2 and tensor parallelism; every rank writes into a folder of its own. A part that cannot be captured
    is listed as refused, with the reason, in parts.json and in a warning; training goes on. Throws: CaptureError here, before
    anything runs, where an argument is wrong.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        model: torch.nn.Module,
        modules: str | Sequence[str],
        *,
        optimizer: Any = None,
        scaler: Any = None,
        steps: int = 1,
        skip: int = 0,
        tokens: int | None = None,
        rows: int | None = None,
        max_bytes: int | None = None,
        reference: bool = False,
        loss_over: str = "tokens",
        quiet: bool = False,
    ):
        patterns = [modules] if isinstance(modules, str) else list(modules)
        counts = {"steps": steps, "tokens": tokens, "rows": rows, "max_bytes": max_bytes}
        problems = [
            f"{name}: is {value!r}, must be a whole number of at least 1"
            for name, value in counts.items()
            if value is not None and not (isinstance(value, int) and value >= 1)
        ]
        if not (isinstance(skip, int) and skip >= 0):
            problems.append(f"skip: is {skip!r}, must be a whole number of at least 0")
        if loss_over not in LOSS_OVER:
            problems.append(f"loss_over: is {loss_over!r}, must be one of {', '.join(LOSS_OVER)}")
        problems += [*model_problems(model), *scaler_problems(scaler)]
        self._folder = os.path.join(os.fspath(folder), f"rank{rank()}")
        if os.path.exists(os.path.join(self._folder, INDEX)):
            problems.append(f"folder: {self._folder} holds parts already, must be new or empty")
        if problems:
            raise CaptureError("; ".join(problems))
        self._model: torch.nn.Module = inside_wrappers(model)  # FSDP2's modules are welcome
        self._modules = chosen(self._model, patterns)
        check_wrappers(self._modules)
        self._class = plain_class(self._model)
        self._tied = {path: tied_weights(self._model, path, module) for path, module in self._modules.items()}
        self._optimizer = None if optimizer is None else unwrap_optimizer(optimizer)
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._steps, self._skip, self._cut = steps, skip, Cut(tokens, rows)
        self._most_bytes, self._reference, self._quiet = max_bytes, reference, quiet
        self._loss_over = loss_over
        self._done, self._seen, self._closed, self._inside = 0, 0, False, False
        self._taps: Taps | None = None
        self._copies = Copies()
        self._scale = 1.0
        self._written_bytes = 0
        self._rows: list[dict[str, Any]] = []
        self._told_compiled, self._skipped = False, False
        os.makedirs(self._folder, exist_ok=True)
        self._write_index()

    @property
    def finished(self) -> bool:
        """True once nothing more will be captured."""
        return self._closed

    def step(self, batch: Any = None) -> contextlib.AbstractContextManager[None]:
        """Around the body of the loop for one (micro-)batch; does nothing after the last captured step. batch: not looked at;
        what modules are called with is what counts."""
        return _NOTHING if self._closed else ShownToUsers(self._block())

    def finish(self) -> None:
        """Ends the capture; micro-batches without an optimizer step are left out."""
        if not self._closed:
            self._close()

    close = finish

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        self.finish()

    def _close(self) -> None:
        self._closed = True
        self._taps = None
        self._modules = {}
        self._write_index()

    @contextlib.contextmanager
    def _block(self) -> Iterator[None]:
        if self._inside:
            raise CaptureError("parts.step(): a block inside a block; each micro-batch needs its own")
        ended: list[bool] = [] if self._optimizer is not None else [True]
        self._inside = True
        try:
            with contextlib.ExitStack() as stack:
                if self._optimizer is not None:
                    around_step(stack, self._optimizer, lambda *_: None, lambda *_: ended.append(True))
                if self._scaler is not None and self._optimizer is not None:
                    self._watch_skipped(stack, ended)
                if self._seen >= self._skip:
                    self._watch(stack)
                yield
        except BaseException:
            self._close()  # the files that are complete stay
            raise
        finally:
            self._inside = False
        if self._skipped:  # the scaler found an infinite gradient: the next step is taken
            self._skipped, self._taps = False, None
            return
        if not ended:
            return
        self._seen += 1
        if self._taps is not None:
            try:
                self._take()
            except Exception as error:
                self._warn(str(failed(error)))
                self._close()

    def _watch_skipped(self, stack: contextlib.ExitStack, ended: list[bool]) -> None:
        """A scaler that found an infinite gradient does not call the optimizer."""

        def wrap(original: Any) -> Any:
            def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
                result = original(optimizer, *args, **kwargs)
                if not ended and unwrap_optimizer(optimizer) is self._optimizer:
                    self._skipped = True
                return result

            return step

        replace(stack, self._scaler, "step", wrap)

    def _watch_other_scalers(self, stack: contextlib.ExitStack) -> None:
        def wrap(original: Any) -> Any:
            def scale(scaler: Any, outputs: Any) -> Any:
                if scaler is not self._scaler and scaler.is_enabled() and self._taps is not None:
                    for part in self._taps.parts.values():
                        part.refuse("a GradScaler that Parts does not know scales its loss: Parts(..., scaler=scaler)")
                return original(scaler, outputs)

            return scale

        replace(stack, torch.amp.GradScaler, "scale", wrap)

    def _watch(self, stack: contextlib.ExitStack) -> None:
        if self._taps is None:
            self._copies = Copies()
            self._taps = Taps(self._modules, self._tied, self._copies)
            self._scale = float(self._scaler.get_scale()) if self._scaler is not None else 1.0
        taps = self._taps
        running: list[bool] = []

        def wrap(original: Any) -> Any:
            def backward(*args: Any, **kwargs: Any) -> Any:
                if running:  # within another: a reentrant checkpoint
                    return original(*args, **kwargs)
                running.append(True)
                try:
                    result = original(*args, **kwargs)
                finally:
                    running.clear()
                taps.note_gradients()
                return result

            return backward

        replace(stack, torch.autograd, "backward", wrap)
        self._watch_other_scalers(stack)
        stack.enter_context(uncompiled(self._tell_compiled))
        stack.enter_context(taps.watch())

    def _tell_compiled(self) -> None:
        if not self._told_compiled:
            self._told_compiled = True
            self._warn(
                f"torch.compile: the captured steps run the code that is called at {user_line()} uncompiled, which may "
                "change their bits; later steps run compiled"
            )

    def _take(self) -> None:
        """After the step: traces and writes, part by part. A failure costs the part, not the run."""
        assert self._taps is not None
        taps, self._taps = self._taps, None
        self._copies.wait()
        step = self._seen - 1
        self._say(
            f"step {step}: {len(taps.parts)} part{'s' * (len(taps.parts) != 1)} of {self._folder} are traced and written now, "
            f"from {self._copies.bytes / _MEGA:.3g} MB of copies"
        )
        for part in sorted(taps.parts.values(), key=lambda one: one.calls[0].order if one.calls else 0):
            self._take_part(part, step)
            part.calls.clear()
            part.weights.clear()
            part.run_gradients.clear()
            self._write_index()
        self._done += 1
        if self._done == self._steps:
            self._close()
            captured = sum(row["status"] == "captured" for row in self._rows)
            self._say(
                f"{self._folder} is complete: {captured} of {len(self._rows)} captured, {self._written_bytes / _MEGA:.3g} MB. "
                f"Next: lockstep verify {os.path.dirname(self._folder) or '.'}"
            )

    def _take_part(self, part: PartStep, step: int) -> None:
        file = os.path.join(f"step{step:06d}", file_name(part.path))
        place = os.path.join(self._folder, file)
        row: dict[str, Any] = {"module": part.path, "step": step, "file": file, "calls": len(part.calls)}
        try:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            self._check_bytes(part)
            checks = write_part(
                place,
                part,
                step=step,
                scale=self._scale,
                cut=self._cut,
                reference=self._reference,
                loss_over=self._loss_over,
            )
            row |= {"status": "captured", **_shown(checks)}
            self._written_bytes += os.path.getsize(place)
        except CaptureError as error:
            row |= {"status": "refused", "why": str(error)}
        except Exception as error:
            row |= {"status": "refused", "why": str(failed(error))}
        self._rows.append(row)
        if row["status"] == "refused":
            self._warn(f"{part.path} was not captured: {row['why']}")

    def _check_bytes(self, part: PartStep) -> None:
        if self._most_bytes is None:
            return
        activations = [
            leaf
            for call in part.calls
            for leaf in torch_api.LEAVES(
                (call.args, call.kwargs, call.output, call.output_gradients, call.input_gradients)
            )
            if isinstance(leaf, torch.Tensor)
        ]
        gradients = [*part.weights.values(), *(gradient for gradient, _ in part.run_gradients.values())]
        tensors = [*part.weights.values(), *gradients, *part.buffers.values(), *activations]
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        size += _REFERENCE_BYTES * self._reference * sum(tensor.numel() for tensor in part.weights.values())
        if self._written_bytes + size > self._most_bytes:
            raise CaptureError(
                f"{self._written_bytes:,} bytes are written, it takes up to {size:,} more, max_bytes is "
                f"{self._most_bytes:,}"
            )

    def _write_index(self) -> None:
        index = {
            "format": "lockstep-parts",
            "format_version": 1,
            "capture_version": __version__,
            "torch_version": str(torch.__version__),
            "model_class": f"{self._class.__module__}.{self._class.__qualname__}",
            "rank": rank(),
            "world_size": world_size(),
            "complete": self._closed,
            "parts": self._rows,
        }
        place = os.path.join(self._folder, INDEX)
        try:
            with open(f"{place}.partial", "w", encoding="utf-8") as file:
                json.dump(index, file, indent=1)
            os.replace(f"{place}.partial", place)
        except OSError as error:
            self._warn(f"{place} could not be written: {error}")

    def _warn(self, text: str) -> None:
        warnings.warn(f"lockstep_capture: {text}", stacklevel=1 + depth_of_user())

    def _say(self, text: str) -> None:
        if not self._quiet:
            print(f"lockstep_capture: {text}", file=sys.stderr)


def _shown(checks: PartChecks) -> dict[str, Any]:
    return {name: checks.attributes[name] for name in ("output", "input_gradient", "gradient", "loss_scale")}
