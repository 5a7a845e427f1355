"""One block of a training loop: what was drawn, the loss, the gradients.

A failure in here does not reach the loop: it is reported at the end of the block.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, Mapping

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import _disable_current_modes

from .continuity import Continuity
from .errors import CaptureError, Problem, UnsupportedModelError, failed
from .hooks import Events, Listener, gradient_factor, watch
from .interpreter import Interpreter
from .kept_draws import kept
from .loss_factor import loss_factor, written_factors
from .mask_tap import MaskTap
from .model_state import Subject, world_size
from .normalise import Snapshots
from .recorder import Micro, Step
from .reference import MicroBatch
from .replayed_gradients import check_gradients, is_repeatable
from .traced import Traced, leaves_of

Region = tuple[str, torch.dtype]  # device and dtype of torch.autocast


class Watcher(Listener):
    def __init__(self, subject: Subject, step: Step, traced: Traced, batch: Any, continuity: Continuity,
                 autocast: Region | None):
        self._subject, self._step, self._traced = subject, step, traced
        self._continuity, self._autocast = continuity, autocast
        self._leaves = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf
                        for leaf in leaves_of(batch, subject.device)[0]]
        self._buffers = {path: buffer.clone() for path, buffer in subject.buffer_values().items()}
        self._tap, self.events = MaskTap(), Events()
        self._micro: Micro | None = None
        self._error: CaptureError | None = None

    @contextlib.contextmanager
    def watch(self) -> Iterator[bool]:
        with sdpa_if(self._traced.hides_masks), watch(self._subject, self.events, self), self._tap:
            yield True

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """Keeps a failure, so that the loop's step continues. The first failure is reported."""
        error: CaptureError | None = None
        try:
            with _disable_current_modes():
                yield
        except CaptureError as own:
            error = own
        except Exception as other:
            error = failed(other)
        self._error = self._error or error

    def on_backward(self, loss: torch.Tensor) -> None:
        """Weights are still those of the forward pass."""
        self._tap.active = False
        self.events.loss = loss.detach()
        with self._aside():
            self._check_earlier_gradients()
            self._continuity.check_gradients("between two micro-batches")
            self._continuity.check_weights("in the block, before backward()")
            self._continuity.note_buffers()
            self._micro = self._replay(loss)

    def _check_earlier_gradients(self) -> None:
        """Gradients of other batches are in .grad where this step began earlier, and only there."""
        there = any(bool(grad.any()) for grad in self._subject.raw_gradients() if not grad.is_sparse)
        if there and not self._step.micro:
            raise CaptureError("gradients: some existed before the step's first backward(), must be none: begin the "
                               "capture between two optimizer steps, and call zero_grad() in each")
        if not there and self._step.has_gradients:
            raise CaptureError("gradients: those of the step's earlier micro-batches are gone; zero_grad() belongs "
                               "after optimizer.step()")

    def _replay(self, loss: torch.Tensor) -> Micro:
        """Gate V0, which also gives the values that Python computes for the graph."""
        traced, draws = self._traced, self._draws()
        traced.outside.check()
        snapshots = Snapshots(traced.versions)
        # Names of their own, so that hooks on the weights are not called.
        params = {path: tensor.detach().requires_grad_(tensor.requires_grad)
                  for path, tensor in self._subject.params.items()}
        # With gradients, as in the loop: without them some kernels (LSTM on the CPU) compute other bits.
        with torch.enable_grad(), sdpa_if(traced.hides_masks or self._ran_math()):
            run = Interpreter(traced.program, params, self._buffers, self._leaves, draws, autocast=self._autocast,
                              cache_enabled=self.events.cache_enabled, observer=snapshots)
            replayed = run.run()
            self._step.reached |= reached(replayed, params)
            traced.factor = factor = loss_factor(replayed, loss, traced.factor)
            if self._step.replayed is not None:
                one_number = len(written_factors(loss, replayed)) <= 1
                self._step.replayed.add(replayed, params, factor,
                                        one_number and is_repeatable(traced.program, self._subject.device))
        if traced.graph is None:
            traced.normalise(snapshots, len(self._tap.attention))
        assert traced.graph is not None
        self._continuity.check_forward(traced.graph, traced.versions.read_buffers, self._buffers, run.buffers)
        inputs = [entry.compute(*[snapshots.values[name] for name in entry.operands])
                  for entry in traced.graph.inputs]
        torch_ops = {site.call: op for site, op in zip(traced.sites, self._ops(), strict=True)}
        kinds = {site.call: site.kind for site in traced.sites}
        masks = {call: [kept(draw, kinds[call]) for draw in values] for call, values in draws.items()}
        self._tap.draws.clear()  # a block lasts until the optimizer has stepped
        return Micro(MicroBatch(traced, self._leaves, masks, factor), 0, float(replayed.detach().double()), inputs,
                     torch_ops, self._attention(), self._tap.backends)

    def _ran_math(self) -> bool:
        return self._traced.attention_count() > len(self._tap.attention)

    def _attention(self) -> set[str]:
        return {*self._tap.attention, *({"math"} if self._ran_math() else ())}

    def _draws(self) -> dict[str, list[torch.Tensor]]:
        """The k-th draw belongs to the k-th call that draws."""
        left = list(self._tap.draws)
        wanted = sum(site.draws for site in self._traced.sites)
        if len(left) != wanted:
            raise CaptureError(f"random numbers: {len(left)} draws were seen, the graph has {wanted}; the forward "
                               "pass in the block must be step_fn's, once, before backward")
        found = {}
        for site in self._traced.sites:
            found[site.call] = [left.pop(0).value for _ in range(site.draws)]
        return found

    def _ops(self) -> list[str]:
        ops, place = [], 0
        for site in self._traced.sites:
            ops.append(self._tap.draws[place].op)
            place += site.draws
        return ops

    def on_backward_done(self) -> None:
        with self._aside():
            self._check_explained()
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
        with self._aside():
            self._subject.check_layout()
            self._continuity.check_weights("before optimizer.step()")
            self._continuity.check_gradients("before optimizer.step()")
            self._continuity.forget_gradients()
            step, factor = self._step, gradient_factor(self._subject)
            step.hyper = self._subject.hyper()
            if world_size() > 1:
                return  # means over all ranks' batches, of which this file has one
            self._check_idle()
            for path, grad in self._subject.gradients().items():
                step.grad_norms[path] = float(grad.double().norm()) * factor
                if step.pre is not None:
                    step.grads[path] = (grad.detach().float() * factor).cpu() if factor != 1 \
                        else grad.detach().cpu().clone()

    def _check_idle(self) -> None:
        """A gradient of zeros decays and moves a weight; no gradient does not. A replay has only the latter."""
        moving = {self._subject.paths[id(tensor)] for group in self._subject.groups() if moves_by_zero(group)
                  for tensor in group["params"]}
        idle = [path for path, grad in self._subject.gradients().items()
                if path in moving & self._known() - self._step.reached and not bool(grad.any())]
        if idle:
            raise CaptureError(f"{len(idle)} weights that no gradient of the step reaches have a gradient of zeros, and the "
                               f"optimizer moves them by it, e.g. {idle[0]}: call zero_grad() without set_to_none=False")

    def on_stepped(self) -> None:
        with self._aside():
            self._continuity.note_weights()

    def result(self) -> Micro:
        """Throws: CaptureError if the block did something that a capture cannot hold."""
        if self.events.problems:
            raise UnsupportedModelError(self.events.problems)
        if self.events.backward_count > 1:
            raise CaptureError(f"the block of cap.step() called backward() {self.events.backward_count} times, must "
                               "call it once: give every micro-batch a block of its own")
        if self._error is not None:
            raise self._error
        if self._micro is None:
            raise CaptureError("the block of cap.step() called no backward(), must call it once")
        if self.events.clipping.stage != "none" and not self.events.ended:
            raise UnsupportedModelError([Problem("clipping before the step's last micro-batch", "the loop", "",
                                                 "a replay clips once, before the optimizer's step")])
        self._continuity.check_weights("in the block, after optimizer.step()")
        self._continuity.check_buffers("in the block, after the forward pass")
        self._step.has_gradients = any(bool(grad.any()) for grad in self._subject.raw_gradients())
        return self._micro

    def _known(self) -> set[str]:
        """Parameters that the graphs of the step read."""
        traced = [micro.batch.traced for micro in self._step.micro] + [self._traced]
        return {name for one in traced if one.graph is not None for name, *_ in one.graph.params}

    def _check_explained(self) -> None:
        """Without this check, a parameter whose gradient is in no graph of the step would be ignored silently."""
        known = self._known()
        lost = [path for path, grad in self._subject.gradients().items() if path not in known and bool(grad.any())]
        if lost and self._error is None:
            raise CaptureError(f"{len(lost)} parameters got a gradient that the graph does not explain, e.g. "
                               f"{lost[0]}: step_fn must compute everything that the loop calls backward on")


def moves_by_zero(group: Mapping[str, Any]) -> bool:
    """Whether an optimizer's step changes weights of this group whose gradient is zero: by decay, or by what it keeps."""
    return "betas" in group or any(float(group.get(key) or 0) != 0 for key in ("weight_decay", "momentum", "lambd"))


def reached(loss: torch.Tensor, params: Mapping[str, torch.Tensor]) -> set[str]:
    """The parameters that backward() of the loss would reach."""
    paths = {id(tensor): path for path, tensor in params.items()}
    nodes, seen = [loss.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [following for following, _ in node.next_functions]
    leaves = {id(node.variable) for node in seen if hasattr(node, "variable")}
    return {path for leaf, path in paths.items() if leaf in leaves}


@contextlib.contextmanager
def sdpa_if(math: bool) -> Iterator[None]:
    """Attention in the math backend, if the loop used it, or has dropout, whose mask fused kernels hide."""
    with sdpa_kernel(SDPBackend.MATH) if math else contextlib.nullcontext():
        yield
