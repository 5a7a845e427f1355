"""A function whose backward pass the user wrote: one node that carries that pass (docs/graph-json.md)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

from ..ir.custom_functions import backward_calls
from ..ir.graph import Node, RecordedBackward, Value
from ..ir.program import Ref
from ..ir.random_ops import random_site
from .context import RULES, RuleContext, Unsupported


def gradient_of(c: RuleContext) -> Value:
    """A name; the node's own backward pass calls it dy0, dy1, ..."""
    return Value(f"dy{c.a['slot']}", c.out_shape(), "f32")


def custom_gradient(c: RuleContext) -> list[Value]:
    name = c.call.name
    _check_values(c)
    quiet = replace(c.call, nograd=True)  # no gradient passes through what the function did
    inside = replace(quiet, backward_of=name)
    operands = [c.builder.operand(ref, quiet, True) for key in ("results", "operands") for ref in c.a[key]]
    found = [c.builder.operand(ref, inside, True).id if isinstance(ref, Ref) else "" for ref in c.a["gradients"]]
    return _carrying(c, name, operands, found)


def _carrying(c: RuleContext, name: str, operands: list[Value], found: list[str]) -> list[Value]:
    """A node that carries the backward pass of that name. operands: results, then what `found` are the gradients of."""
    count = len(operands) - len(found)
    types = {item.id: (item.shape, item.dtype) for item in operands}
    backward = _Backward(
        [node for node in c.builder.graph.nodes if node.backward_of == name], [item.id for item in operands]
    )
    gradients = [backward.use(item) if item else "" for item in found]
    node = c.builder.add(
        "custom_gradient",
        [item.id for item in operands],
        {"results": count},
        [types[item.id] for item in operands[:count]],
        c.call,
    )
    node.inputs = backward.operands
    node.backward = RecordedBackward(
        backward.finished(), [*[""] * count, *gradients, *[""] * (len(backward.operands) - len(operands))]
    )
    return [node.value(slot) for slot in range(count)]


def with_gradient(
    c: RuleContext, y: Value, operands: list[Value], body: Callable[[RuleContext, Value], list[Value]]
) -> Value:
    """y, whose gradient dy makes those of the operands: body(context, dy), outside of autocast; each of its nodes rounds."""
    if c.call.nograd:
        return y
    inside, name = copy.copy(c), f"{c.call.name} {y.id}"
    inside.call = replace(c.call, autocast=None, backward_of=name)
    gradients = body(inside, Value("dy0", y.shape, "f32"))
    return _carrying(c, name, [y, *operands], [gradient.id for gradient in gradients])[0]


def _check_values(c: RuleContext) -> None:
    """What is recorded of a step was recorded in its forward pass, where no gradient was known."""
    seeds, calls = backward_calls(c.builder.program, c.call.name)
    from_gradient = {call.name for call in seeds}
    for call in calls:
        reads = from_gradient & set(call.refs())
        from_gradient |= {call.name} if reads else set()
        draws = random_site(call) is not None
        if c.builder.is_live(call) and (draws or (reads and c.builder.is_recorded(call))):
            raise Unsupported(
                "a custom autograd.Function whose backward pass "
                + ("draws random numbers" if draws else "picks elements by the values of the gradient"),
                "torch.where(condition, a, b) chooses between values",
            )


class _Backward:
    """Collects, from the gradients back, the nodes that they need, and the values from outside that these read."""

    def __init__(self, nodes: list[Node], operands: list[str]):
        self._known = {node.id: node for node in nodes}
        self._taken: set[str] = set()
        self.nodes: list[Node] = []
        self.operands = list(operands)

    def use(self, value: str) -> str:
        """The value's name in the backward pass."""
        number, _, slot = value.partition(".")
        if value.startswith("dy"):
            return value
        if number in self._known:
            self._take(number)
            return value
        if value not in self.operands:
            self.operands.append(value)
        return f"x{self.operands.index(value)}"

    def _take(self, number: str) -> None:
        if number not in self._taken:
            self._taken.add(number)
            node = self._known[number]
            inputs = [self.use(value) for value in node.inputs]
            self.nodes.append(replace(node, inputs=inputs, nograd=False, backward_of=""))

    def finished(self) -> list[Node]:
        return sorted(self.nodes, key=lambda node: int(node.id[1:]))


RULES["lockstep_capture.gradient_of"] = gradient_of
RULES["lockstep_capture.custom_gradient"] = custom_gradient
