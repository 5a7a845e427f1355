"""One block of a training loop: what was drawn, the loss, the gradients.

A failure in here does not reach the loop: it is reported at the end of the block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .. import torch_api
from ..errors import CaptureError, Problem, UnsupportedModelError, failed
from ..model_state import Subject, world_size
from ..trace.traced import Traced
from ..trace.uncompiled import step_is_compiled, uncompiled
from . import gradients
from .continuity import Continuity
from .forward_pass import ForwardPass, Region, sdpa_if
from .hooks import Events, Listener, watch
from .replayed_gradients import check_gradients
from .step import Micro, Step


class Watcher(Listener):
    def __init__(
        self,
        subject: Subject,
        step: Step,
        traced: Traced,
        batch: Any,
        continuity: Continuity,
        autocast: Region | None,
        note_compiled: Callable[[], None],
        result: torch.Tensor | None = None,
    ):
        """result: of step_fn, for inference, which has no backward pass that shows it."""
        self._subject, self._step, self._traced = subject, step, traced
        self._continuity, self._note_compiled = continuity, note_compiled
        self._forward, self.events = ForwardPass(subject, traced, batch, autocast), Events()
        self._micro: Micro | None = None
        self._result = result
        self._error: CaptureError | None = None
        self._until_step = contextlib.ExitStack()

    @contextlib.contextmanager
    def watch(self) -> Iterator[bool]:
        with sdpa_if(self._traced.hides_masks), watch(self._subject, self.events, self), self._until_step:
            self._until_step.enter_context(uncompiled(self._note_compiled))
            self._until_step.enter_context(self._forward.tap)
            yield True

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """Keeps a failure, so that the loop's step continues. The first failure is reported."""
        error: CaptureError | None = None
        try:
            with torch_api.DISABLE_MODES():
                yield
        except CaptureError as own:
            error = own
        except Exception as other:
            error = failed(other)
        self._error = self._error or error

    def on_backward(self, loss: torch.Tensor) -> None:
        """Weights are still those of the forward pass."""
        self._forward.tap.active = False
        self.events.loss = loss.detach()
        with self._aside():
            self._subject.masters.mark_stale()
            self._continuity.check_masters()
            gradients.check_earlier(self._subject, self._step)
            self._continuity.check_gradients("between two micro-batches")
            self._continuity.check_weights("in the block, before backward()")
            self._continuity.note_buffers()
            self._micro = self._forward.replay(loss, self._step, self._continuity, self.events.cache_enabled)

    def around_backward(self) -> contextlib.AbstractContextManager[None]:
        return self._forward.tap.lifted()

    def on_backward_done(self) -> None:
        with self._aside():
            if self._error is None:
                gradients.check_explained(self._subject, gradients.known_parameters(self._step, self._traced))
            if world_size() > 1:
                return  # somebody else's gradients are in them, or will be
            self._continuity.note_gradients()
            if self._step.replayed is not None and self._micro is not None:
                check_gradients(self._step.replayed, self._subject.gradients())

    @contextlib.contextmanager
    def known_change(self) -> Iterator[None]:
        watched = self._continuity.knows_gradients
        with self._aside():
            self._continuity.check_gradients("after backward()")
        yield
        if watched:
            with self._aside():
                self._continuity.note_gradients()

    def on_clamp(self, limit: float) -> None:
        if self._continuity.knows_gradients:
            with self._aside():
                self._continuity.check_gradients("after backward()")
                self._continuity.note_clamped(limit)

    def on_gradients(self) -> None:
        """The optimizer's step itself runs as without a capture, with what it compiles; but not if it is compiled itself:
        dynamo would trace the hook that this is called from."""
        if torch_api.CURRENT_MODE() is self._forward.tap and not step_is_compiled():
            self._until_step.close()
        with self._aside():
            self._subject.check_layout()
            self._continuity.check_weights("before optimizer.step()")
            self._continuity.check_gradients("before optimizer.step()")
            self._continuity.forget_gradients()
            self._step.hyper = self._subject.hyper()
            if world_size() > 1:
                return  # means over all ranks' batches, of which this file has one
            known = gradients.known_parameters(self._step, self._traced)
            gradients.check_idle(self._subject, known, self._step.reached)
            gradients.record(self._subject, self._step)
            self._step.replayed = None  # all compared: frees a copy of the gradients

    def on_stepped(self) -> None:
        with self._aside():
            self._step.changed = self._continuity.note_weights()

    def _infer(self, result: torch.Tensor) -> None:
        """After a block of inference, which is a step."""
        if self.events.backward_count:
            raise CaptureError(
                "the block of cap.step() called backward(): a capture without an optimizer is one of inference; to capture "
                "training, pass the optimizer"
            )
        self.events.loss, self.events.ended = result, True
        with self._aside():
            self._continuity.check_weights("in the block")
            self._continuity.note_buffers()
            self._micro = self._forward.replay(
                result, self._step, self._continuity, self.events.cache_enabled, trains=False
            )

    def result(self) -> Micro:
        """Throws: CaptureError if the block did something that a capture cannot hold."""
        if self._result is not None:
            self._infer(self._result)
        if self.events.problems:
            raise UnsupportedModelError(self.events.problems)
        if self.events.backward_count > 1:
            raise CaptureError(
                f"the block of cap.step() called backward() {self.events.backward_count} times, must "
                "call it once: give every micro-batch a block of its own, and every network that trains a capture; for SAM, "
                "take the captured steps with its base optimizer"
            )
        if self._error is not None:
            raise self._error
        if self._micro is None:
            raise CaptureError("the block of cap.step() called no backward(), must call it once")
        if self.events.clipping.stage != "none" and not self.events.ended:
            raise UnsupportedModelError(
                [
                    Problem(
                        "clipping before the step's last micro-batch",
                        "the loop",
                        "",
                        "a replay clips once, before the optimizer's step",
                    )
                ]
            )
        trained = self._subject.trains and self.events.ended  # then others may change, see take_others()
        when = "in the block, after optimizer.step()" if trained else "in the block"
        self._continuity.check_weights(when, others=not trained)
        self._continuity.check_buffers("in the block, after the forward pass")
        self._step.has_gradients = any(bool(grad.any()) for grad in self._subject.accumulated())
        return self._micro
