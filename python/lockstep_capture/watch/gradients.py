"""The gradients of one optimizer step: which the graphs explain, and which would move a weight in the loop alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..errors import CaptureError
from ..model_state import Subject
from ..trace.traced import Traced
from .hooks import gradient_factor
from .step import Step


def known_parameters(step: Step, traced: Traced) -> set[str]:
    """Parameters that the graphs of the step read; traced: the graph of its newest micro-batch."""
    graphs = [micro.batch.traced.graph for micro in step.micro] + [traced.graph]
    return {name for graph in graphs if graph is not None for name, *_ in graph.params}


def check_earlier(subject: Subject, step: Step) -> None:
    """Gradients of other batches are in .grad where this step began earlier, and only there."""
    there = any(bool(grad.any()) for grad in subject.accumulated())
    if there and not step.micro:
        raise CaptureError(
            "gradients: some existed before the step's first backward(), must be none: begin the "
            "capture between two optimizer steps, and call zero_grad() in each"
        )
    if not there and step.has_gradients:
        raise CaptureError(
            "gradients: those of the step's earlier micro-batches are gone; zero_grad() belongs after optimizer.step()"
        )


def check_explained(subject: Subject, known: set[str]) -> None:
    """Without this check, a parameter whose gradient is in no graph of the step would be ignored silently."""
    lost = [path for path, grad in subject.gradients().items() if path not in known and bool(grad.any())]
    if lost:
        raise CaptureError(
            f"{len(lost)} parameters got a gradient that the graph does not explain, e.g. "
            f"{lost[0]}: step_fn must compute everything that the loop calls backward on"
        )


def check_idle(subject: Subject, known: set[str], reached: set[str]) -> None:
    """A gradient of zeros decays and moves a weight; no gradient does not. A replay has only the latter, but where it
    takes recorded updates."""
    if not subject.replays_optimizer:
        return
    moving = {
        subject.paths[id(tensor)] for group in subject.groups() if moves_by_zero(group) for tensor in group["params"]
    }
    idle = [
        path for path, grad in subject.gradients().items() if path in moving & known - reached and not bool(grad.any())
    ]
    empty = sorted(
        path for path in (set(subject.gradients()) & moving & reached) - known if subject.params[path].numel()
    )
    if empty:
        raise CaptureError(
            f"{len(empty)} weights get a gradient of zeros from tensors without elements, and the optimizer "
            f"moves them by it, e.g. {empty[0]}: leave the layer out where nothing goes through it"
        )
    if idle:
        raise CaptureError(
            f"{len(idle)} weights that no gradient of the step reaches have a gradient of zeros, and the "
            f"optimizer moves them by it, e.g. {idle[0]}: call zero_grad() without set_to_none=False"
        )


def record(subject: Subject, step: Step) -> None:
    """Norms of all gradients without the loss scale; the gradients themselves on verify steps."""
    factor = gradient_factor(subject)
    for path, grad in subject.gradients().items():
        step.grad_norms[path] = float(grad.double().norm()) * factor
        if step.pre is not None:
            step.grads[path] = (grad.detach().float() * factor).cpu() if factor != 1 else grad.detach().cpu().clone()


def moves_by_zero(group: Mapping[str, Any]) -> bool:
    """Whether an optimizer's step changes weights of this group whose gradient is zero: by decay, or by what it keeps."""
    return "betas" in group or any(
        float(group.get(key) or 0) != 0 for key in ("weight_decay", "momentum", "lambd", "beta1")
    )


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
