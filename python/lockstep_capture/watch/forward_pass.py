"""The forward pass of one block: what it got, what it drew, and its repetition from the graph (gate V0)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..errors import CaptureError
from ..model_state import Subject
from ..normalise.interpreter import Interpreter
from ..normalise.observers import Snapshots
from ..trace.batches import leaves_of
from ..trace.traced import Traced
from .continuity import Continuity
from .gradients import reached
from .kept_draws import kept
from .loss_factor import check_result, loss_factor, written_factors
from .mask_tap import MaskTap
from .replayed_gradients import is_repeatable
from .step import Micro, MicroBatch, Step

Region = tuple[str, torch.dtype]  # device and dtype of torch.autocast


class ForwardPass:
    """Made before the block runs: batch and buffers are copied. tap: sees the random numbers drawn in the block."""

    def __init__(self, subject: Subject, traced: Traced, batch: Any, autocast: Region | None):
        self._subject, self._traced, self._autocast = subject, traced, autocast
        self._leaves = [
            leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf
            for leaf in leaves_of(batch, subject.device)[0]
        ]
        self._buffers = {path: buffer.clone() for path, buffer in subject.buffer_values().items()}
        self.tap = MaskTap()

    def replay(
        self, loss: torch.Tensor, step: Step, continuity: Continuity, cache_enabled: bool, *, trains: bool = True
    ) -> Micro:
        """Gate V0, which also gives the values that Python computes for the graph. trains: loss is that of backward()."""
        traced, draws = self._traced, self._draws()
        traced.outside.check_after()
        snapshots = Snapshots(traced.versions)
        # Names of their own, so that hooks on the weights are not called.
        params = {
            path: tensor.detach().requires_grad_(tensor.requires_grad) for path, tensor in self._subject.params.items()
        }
        # With gradients, as in the loop: without them some kernels (LSTM on the CPU) compute other bits.
        with torch.enable_grad(), sdpa_if(traced.hides_masks or self._ran_math_alone()):
            run = Interpreter(
                traced.program,
                params,
                self._buffers,
                self._leaves,
                draws,
                autocast=self._autocast,
                cache_enabled=cache_enabled,
                observer=snapshots,
            )
            replayed = run.run()
            step.reached |= reached(replayed, params)
            if trains:
                traced.factor = loss_factor(replayed, loss, traced.factor)
            else:
                check_result(replayed, loss)
                traced.factor = 1.0
            factor = traced.factor
            if step.replayed is not None:
                one_number = len(written_factors(loss, replayed)) <= 1
                step.replayed.add(
                    replayed, params, factor, one_number and is_repeatable(traced.program, self._subject.device)
                )
        if traced.graph is None:
            traced.normalise(snapshots, len(self.tap.attention))
        assert traced.graph is not None
        continuity.check_forward(traced.graph, traced.versions, self._buffers, run.buffers)
        inputs = [entry.compute(*[snapshots.values[name] for name in entry.operands]) for entry in traced.graph.inputs]
        torch_ops = {site.call: op for site, op in zip(traced.sites, self._ops(), strict=True)}
        kinds = {site.call: site.kind for site in traced.sites}
        masks = {call: [kept(draw, kinds[call]) for draw in values] for call, values in draws.items()}
        self.tap.draws.clear()  # a block lasts until the optimizer has stepped
        return Micro(
            MicroBatch(traced, self._leaves, masks, factor, snapshots.decisions),
            0,
            float(replayed.detach().double()),
            inputs,
            torch_ops,
            self._attention(),
            self.tap.backends,
        )

    def _ran_math_alone(self) -> bool:
        """Where some calls took a fused kernel, PyTorch chooses for each call as it did in the loop."""
        return not self.tap.attention and self._traced.attention_count() > 0

    def _attention(self) -> set[str]:
        ran_math = self._traced.attention_count() > len(self.tap.attention)
        return {*self.tap.attention, *({"math"} if ran_math else ())}

    def _draws(self) -> dict[str, list[torch.Tensor]]:
        """The k-th draw belongs to the k-th call that draws."""
        if self.tap.hides_dropout:
            raise CaptureError(
                "dropout between the layers of an LSTM, GRU or RNN: cuDNN draws it where the capture cannot record "
                "it; run the captured steps under torch.backends.cudnn.flags(enabled=False)"
            )
        left = list(self.tap.draws)
        wanted = sum(site.draws for site in self._traced.sites)
        if len(left) != wanted:
            raise CaptureError(
                f"random numbers: {len(left)} draws were seen, the graph has {wanted}; the forward "
                "pass in the block must be step_fn's, once, before backward"
            )
        found = {}
        for site in self._traced.sites:
            found[site.call] = [left.pop(0).value for _ in range(site.draws)]
        return found

    def _ops(self) -> list[str]:
        ops, place = [], 0
        for site in self._traced.sites:
            ops.append(self.tap.draws[place].op)
            place += site.draws
        return ops


@contextlib.contextmanager
def sdpa_if(math: bool) -> Iterator[None]:
    """Attention in the math backend, if the loop used it, or has dropout, whose mask fused kernels hide."""
    with sdpa_kernel(SDPBackend.MATH) if math else contextlib.nullcontext():
        yield
