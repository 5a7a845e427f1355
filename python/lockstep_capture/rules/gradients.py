"""torch.autograd.grad inside the step: reverse-mode differentiation of the nodes made so far, in nodes of their own.

They are forward nodes of the layer that they differentiate, so that lanes round them by the rules for forward ops and the
graph's own autodiff differentiates them once more. derivatives.py has the formulas.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace

import torch

from ..ir.graph import Node, Value
from ..ir.program import Ref
from .context import RULES, RuleContext, Unsupported
from .derivatives import DERIVATIVES, Site

NO_GRADIENT = {"detach", "decision", "greater", "greater_equal", "less", "less_equal", "equal", "not_equal"}


def gradient(c: RuleContext) -> list[Value]:
    """The gradients by all inputs; zeros where none arrives, of which PyTorch gives None or zeros as well."""
    nodes = [node for node in c.builder.graph.nodes if node.backward_of in ("", c.call.backward_of)]
    inside = _inside_kernels(nodes)
    reading = copy.copy(c)
    reading.call = replace(c.call, nograd=False)
    outputs, inputs = (_read(reading, c.a[name]) for name in ("outputs", "inputs"))
    found: dict[str, Value] = {}
    for y, ref in zip(outputs, c.a["seeds"], strict=True):
        seed = c.builder.operand(ref, c.call, True) if isinstance(ref, Ref) else c.derive("one", torch.ones, [()])
        _accumulate(c, found, y, c.expand(seed, y.shape))
    depends, passed = _depending(nodes, inputs)
    for node in reversed(nodes):
        given = [found.get(node.value(slot).id) for slot in range(len(node.out))]
        if any(given) and node.id in passed:
            at = Site(_context_at(c, node), node, given, depends, node.id in inside)
            for x, dx in zip(at.x, _differentiated(at), strict=True):
                if dx is not None and x.id in depends:
                    _accumulate(at.c, found, x, dx)
    return [found[x.id] if x.id in found else c.zeros(x.shape) for x in inputs]


def _read(c: RuleContext, refs: Iterable[Ref]) -> list[Value]:
    return [c.builder.operand(ref, c.call, True) for ref in refs]


def _context_at(c: RuleContext, node: Node) -> RuleContext:
    found = copy.copy(c)
    found.call = replace(c.call, place=node.place)
    return found


def _accumulate(c: RuleContext, found: dict[str, Value], x: Value, dx: Value) -> None:
    found[x.id] = c.binary("add", found[x.id], dx) if x.id in found else dx


def _depending(nodes: list[Node], inputs: list[Value]) -> tuple[set[str], set[str]]:
    """Values, and the nodes, that a gradient may pass on its way to the inputs."""
    values, passed = {x.id for x in inputs}, set()
    for node in nodes:
        if not node.nograd and node.op not in NO_GRADIENT and values & set(node.inputs):
            passed.add(node.id)
            values |= {y.id for slot in range(len(node.out)) if (y := node.value(slot)).is_float}
    return values, passed


def _inside_kernels(nodes: list[Node]) -> set[str]:
    """Nodes that are a part of one kernel of PyTorch's: see RuleContext.kernel()."""
    found: set[str] = set()
    widened: set[str] = set()
    for node in nodes:
        if node.op == "composed_operand":
            widened |= {node.id} if "dtype" in node.attrs else set()
        elif node.op != "composed_result" and widened & {name.partition(".")[0] for name in node.inputs}:
            found.add(node.id)
            widened.add(node.id)
    return found


def _differentiated(at: Site) -> list[Value | None]:
    derivative = DERIVATIVES.get(at.node.op)
    if derivative is None:
        raise Unsupported(
            f"the gradient of {at.node.aten or at.node.op} inside the step (torch.autograd.grad)",
            "it has no second derivative here; compute it with other ops of PyTorch",
        )
    return derivative(at)


RULES["lockstep_capture.gradient"] = gradient
