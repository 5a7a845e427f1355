"""PyTorch's own gradients of a captured step, in FP32 and in FP64, with the captured masks.

From the state before the step; autocast and TF32 off, loss scale 1, no clipping. In FP64 casts between floating
formats do nothing. FP32 also gives the side of each kink that it was on, and a summary of every activation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ..ir.graph import Node
from ..ir.program import Call
from ..model_state import State, Subject, as_real, as_wide, dense, kept_states, replica
from ..normalise.interpreter import Interpreter, Observer
from ..rules.context import KINKS, WINNERS
from ..trace.traced import Traced
from ..watch.kept_draws import unpacked
from ..watch.precision import full_fp32
from ..watch.step import MicroBatch

_AT_ONCE = 1 << 18  # elements: they stay in cache
MOST_LOST = 2.0**-40  # of a gradient's norm: a thousandth of what gate V1 allows
NOISE_RATIO = 0.1  # |g32 - g64| > NOISE_RATIO |g64|: FP32 itself does not determine the element


@dataclass
class MicroReference:
    loss: float = 0.0
    kinks: dict[str, torch.Tensor] = field(default_factory=dict)  # node -> side of each element, or places
    acts: dict[str, list[float]] = field(default_factory=dict)  # node -> l2, absmax, mean, least nonzero magnitude


@dataclass
class Reference:
    """grads: without those that `take` got."""

    loss: float
    grads: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]
    micro: list[MicroReference]


class _Looker(Observer):
    """Kinks and activations by node of the graph."""

    def __init__(self, traced: Traced, into: MicroReference):
        assert traced.graph is not None
        self._ir_of, self._into = traced.ir_of, into
        self._nodes = {node.id: node for node in traced.graph.nodes}

    def _node(self, call: Call) -> Node | None:
        return self._nodes.get(self._ir_of.get(call.name, ""))

    def before(self, call: Call, value: Callable[[str], Any]) -> None:
        node = self._node(call)
        if node is None or not call.refs() or call.is_getitem or node.id in self._into.kinks:
            return  # known: a later call that returns the node's value, as cat([y]) does
        x = value(call.refs()[0])
        if not isinstance(x, torch.Tensor):
            return
        if node.op in KINKS:
            self._into.kinks[node.id] = KINKS[node.op](node.attrs, x.detach())

    def after(self, call: Call, result: Any) -> None:
        node = self._node(call)
        if node is None or not isinstance(result, torch.Tensor) or not result.dtype.is_floating_point:
            return
        y = result.detach()
        magnitude = y.abs().double()
        nonzero = magnitude[magnitude > 0]
        least = float(nonzero.min()) if nonzero.numel() else 0.0
        if y.numel():
            self._into.acts[node.id] = [
                float(y.double().norm()),
                float(magnitude.max()),
                float(y.double().mean()),
                least,
            ]


class _Pools(_Looker):
    """Also the places of winners."""

    def before(self, call: Call, value: Callable[[str], Any]) -> None:
        super().before(call, value)
        node = self._nodes.get(self._ir_of.get(call.name, "").partition(".")[0])
        if node is None or node.op not in WINNERS or call.is_getitem or node.id in self._into.kinks:
            return
        x = value(call.refs()[0]).detach()
        extents = node.out[1][0]
        image = x.reshape((1,) * (4 - x.dim()) + tuple(x.shape)) if x.dim() < 4 else x
        if image.shape[:2] != extents[:2]:
            return  # a pool over one dimension: not recorded
        self._into.kinks[node.id] = WINNERS[node.op](node.attrs, image).to(torch.int32)


def compute(
    subject: Subject,
    state: State,
    micro: list[MicroBatch],
    *,
    double: bool,
    take: Callable[[str, torch.Tensor], None] | None = None,
) -> Reference:
    """Gradients of sum(loss_mult * loss) from `state`. double: in FP64, on the CPU. take: gets each gradient, which then leaves
    memory; `state` then loses its weights, which are not needed twice."""
    device = torch.device("cpu") if double else subject.device
    dtype = torch.float64 if double else torch.float32
    params = {}
    for path in list(state.params):
        tensor = state.params[path] if take is None else state.params.pop(path)
        params[path] = tensor.to(device, as_wide(tensor, dtype), copy=True).requires_grad_(
            subject.params[path].requires_grad
        )
    buffers = {path: _stored(tensor).to(device) for path, tensor in state.buffers.items()}
    found: list[MicroReference] = []
    total = 0.0
    with full_fp32(), torch.enable_grad():
        for one in micro:
            seen = MicroReference()
            leaves = [leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf for leaf in one.leaves]
            draws = {name: [unpacked(draw).to(device) for draw in values] for name, values in one.draws.items()}
            run = Interpreter(
                one.traced.program,
                params,
                buffers,
                leaves,
                draws,
                double=double,
                single=not double and one.traced.computes_narrow,
                kind=one.traced.versions.kind,
                device=device,
                decisions=one.decisions,
                observer=None if double else _Pools(one.traced, seen),
            ).without_autocast()
            loss = run.run()
            if subject.trains:
                (loss * one.loss_mult).sum().backward()
            seen.loss = float(loss.detach().double())
            total += seen.loss
            buffers = run.buffers
            found.append(seen)
    grads = {path: as_real(dense(tensor.grad)) for path, tensor in params.items() if tensor.grad is not None}
    if take is not None:
        for path in list(grads):
            params[path].grad = None
            take(path, grads.pop(path))
    return Reference(total / len(micro), grads, buffers, found)


def _stored(buffer: torch.Tensor) -> torch.Tensor:
    """With the digits that replays read: FP32's, of FP64 buffers too."""
    return buffer.float().double() if buffer.dtype == torch.float64 else buffer


def noise(narrow: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
    """Elements of a gradient that FP32 does not determine."""
    found = torch.empty(wide.shape, dtype=torch.bool)
    parts = zip(
        *(each.reshape(-1).split(_AT_ONCE) for each in (narrow.cpu(), wide)),
        found.view(-1).split(_AT_ONCE),
        strict=True,
    )
    for g32, g64, into in parts:
        torch.gt((g32.double() - g64).abs(), NOISE_RATIO * g64.abs(), out=into)
    return found


def rest_of(narrow: torch.Tensor, wide: torch.Tensor, left_out: torch.Tensor) -> torch.Tensor | None:
    """What FP32 lacks of the gradient in FP64, in FP32. None where both together lose more of it than MOST_LOST. left_out: noise,
    which no gate compares."""
    rest = torch.empty(wide.shape, dtype=torch.float32)
    lost, norm = 0.0, 0.0
    parts = zip(
        *(each.reshape(-1).split(_AT_ONCE) for each in (narrow.cpu(), wide, left_out)),
        rest.view(-1).split(_AT_ONCE),
        strict=True,
    )
    for g32, g64, noisy, into in parts:
        into.copy_(g64 - g32)
        off = g64 - (g32.double() + into)
        lost += float(off[~noisy].square().sum())
        norm += float(g64[~noisy].square().sum())
    return rest if bool(rest.isfinite().all()) and lost <= MOST_LOST**2 * norm else None


def stepped(
    subject: Subject, state: State, hyper: list[dict[str, Any]], reference: Reference
) -> Iterator[tuple[str, torch.Tensor, dict[str, torch.Tensor]]]:
    """Path, weight and optimizer state after one step from the reference's gradients, one weight at a time."""
    for path in state.params:
        optimizer, weight = replica(subject, state, hyper, path)
        if optimizer is not None and (grad := reference.grads.get(path)) is not None:
            own = grad.detach().cpu().float()
            weight.grad = torch.view_as_complex(own) if weight.is_complex() else own
            optimizer.step()
            weight.grad = None
        kept = {} if optimizer is None else optimizer.state.get(weight, {})
        yield path, weight.detach(), kept_states(kept)
