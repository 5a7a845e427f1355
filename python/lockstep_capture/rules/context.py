"""What a normalising rule may use: the call's operands as graph values, and nodes to add.

Shapes of nodes that a rule adds between are computed here; a rule whose last node does not have the shape
that PyTorch gave is an error of this package and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from ..errors import Problem
from ..ir.graph import Node, Shape, Value
from ..ir.graph_builder import GraphBuilder, StoredBuffers
from ..ir.program import Call, Ref
from ..ir.random_ops import arguments, base_name


class Unsupported(Exception):
    """A rule cannot express this call; the hint says what to write instead."""

    def __init__(self, what: str, hint: str = ""):
        super().__init__(what)
        self.what, self.hint = what, hint


COMPLEX_HINT = "has no form for complex numbers here; write the real and the imaginary part as two tensors"


@dataclass(frozen=True)
class Made(Ref):
    """An operand that a rule made: a part of that value, or zeros of its shape."""

    value: Value


class RuleContext:
    """One call while it is normalised. `a`: its arguments by name (Refs resolved by value(), number(), ...)."""

    def __init__(self, builder: GraphBuilder, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.builder, self.call = builder, call
        self.a = arguments(Call(call.name, call.target, args, kwargs))

    @property
    def plain_attention(self) -> bool:
        """PyTorch took the math backend for all of scaled_dot_product_attention."""
        return self.builder.plain_attention

    @property
    def stored(self) -> StoredBuffers:
        """The model's parameters and buffers (normalise/stored_values.py)."""
        return self.builder.stored

    # Operands
    def has(self, name: str) -> bool:
        return self.a.get(name) is not None

    def value(self, name: str) -> Value:
        """A floating operand; integer tensors that do not depend on weights are converted (type promotion)."""
        return self.builder.operand(self.a[name], self.call, want_float=True)

    def any_value(self, name: str) -> Value:
        return self.builder.operand(self.a[name], self.call, want_float=None)

    def mask_of(self, name: str) -> Value:
        """A floating or integer operand whose format the op decides itself."""
        return self.builder.operand(self.a[name], self.call, want_float=None, follows=False)

    def integer(self, name: str) -> Value:
        found = self.builder.operand(self.a[name], self.call, want_float=False)
        if found.is_float:
            raise Unsupported(self.call.op, f"operand {name} is floating, must be an integer tensor")
        return found

    def values(self, name: str) -> list[Value]:
        return [self.builder.operand(item, self.call, want_float=True) for item in self.a[name]]

    def is_tensor(self, name: str) -> bool:
        return isinstance(self.a.get(name), Ref)

    def tensor_is_float(self, name: str) -> bool:
        return self.builder.is_float(self.a[name])

    def dtype_of(self, name: str) -> torch.dtype:
        return self.builder.dtype_of(self.a[name])

    def is_computed(self, name: str) -> bool:
        """Is the tensor a part of the network, not a constant or something of the batch?"""
        return self.builder.is_computed(self.a[name])

    def like(self, name: str) -> Value | None:
        """The value whose format in each lane a tensor has: itself, or that whose dtype it took. None: it has one of its own."""
        found = self.builder.format_of(self.a[name])
        return None if found is None else self.builder.operand(found, self.call, want_float=True)

    def is_learned(self, x: Value) -> bool:
        """Does a gradient pass it on its way to a weight?"""
        return self.builder.is_learned(x)

    def is_scattered(self, name: str, dims: Sequence[int]) -> bool:
        """Do the operand's elements, permuted, lie in another order than row by row? Casts keep the order."""
        return not self.builder.layout(self.a[name]).permute(*dims).is_contiguous()

    def memory_of(self, name: str) -> torch.Tensor | None:
        """Which of the operand's elements each place of its memory holds; None where that holds others as well."""
        return self.builder.memory(self.a[name])

    def shape_of(self, name: str) -> Shape:
        return self.builder.type_of(self.a[name].name)[0]

    def constant(self, name: str) -> torch.Tensor | None:
        """The tensor, if it depends on neither batch nor weights."""
        return self.builder.constant(self.a[name])

    def constant_number(self, name: str) -> float | None:
        """Of a tensor that depends on nothing and has one element."""
        return self.builder.constant_number(self.a[name])

    def number(self, name: str) -> float:
        """A Python number, or a constant tensor of one element."""
        found = self.a[name]
        if isinstance(found, Ref):
            constant = self.builder.constant_number(found)
            if constant is None:
                raise Unsupported(self.call.op, f"{name} must be a number, not a tensor that is computed")
            return constant
        return float(found)

    def out_shape(self, slot: int | None = None) -> Shape:
        return self.builder.type_of(self.call.name, slot)[0]

    # Nodes
    def node(
        self,
        op: str,
        inputs: Sequence[Value],
        shapes: Sequence[tuple[Shape, str]] | Shape,
        attrs: dict[str, Any] | None = None,
    ) -> Node:
        """shapes: of one floating output, or (shape, dtype) of every output."""
        if not shapes or isinstance(shapes[0], int):
            shapes = [(cast(Shape, tuple(shapes)), "f32")]
        outputs = cast(list[tuple[Shape, str]], list(shapes))
        return self.builder.add(op, [value.id for value in inputs], attrs or {}, outputs, self.call)

    def same(self, op: str, x: Value, attrs: dict[str, Any] | None = None) -> Value:
        """A node whose output has x's shape."""
        return self.node(op, [x], x.shape, attrs).value()

    def zeros(self, shape: Shape) -> Value:
        return self.expand(self.derive("number0.0", lambda n: torch.tensor(n, dtype=torch.float32), [0.0]), shape)

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        shape = tuple(int(extent) for extent in shape)
        if shape == x.shape:
            return x
        return self.node("reshape", [x], [(shape, x.dtype)], {"shape": shape}).value()

    def permute(self, x: Value, dims: Sequence[int]) -> Value:
        dims = [dim % x.rank for dim in dims]
        if dims == list(range(x.rank)):
            return x
        shape = tuple(x.shape[dim] for dim in dims)
        return self.node("permute", [x], [(shape, x.dtype)], {"dims": dims}).value()

    def expand(self, x: Value, shape: Sequence[int]) -> Value:
        shape = tuple(shape)
        if shape == x.shape:
            return x
        return self.node("expand", [x], [(shape, x.dtype)], {"shape": shape}).value()

    def slice(self, x: Value, dim: int, start: int, end: int, step: int = 1) -> Value:
        extent = x.shape[dim]
        shape = tuple(len(range(start, end, step)) if i == dim else e for i, e in enumerate(x.shape))
        if (start, end, step) == (0, extent, 1):
            return x
        attrs = {"dim": dim, "start": start, "end": end} | ({"step": step} if step != 1 else {})
        return self.node("slice", [x], [(shape, x.dtype)], attrs).value()

    def binary(self, op: str, x: Value, y: Value, attrs: dict[str, Any] | None = None) -> Value:
        shape = tuple(torch.broadcast_shapes(x.shape, y.shape))
        return self.node(op, [x, y], shape, attrs).value()

    def scalar(self, op: str, x: Value, number: float, attrs: dict[str, Any] | None = None) -> Value:
        return self.same(op, x, {"scalar": float(number), **(attrs or {})})

    def mask(self, op: str, operands: Sequence[Value], shape: Shape, attrs: dict[str, Any] | None = None) -> Value:
        """A comparison: an integer tensor of 0 and 1."""
        return self.node(op, operands, [(shape, "i32")], attrs).value()

    def mask_as_number(self, mask: Value) -> Value:
        """1.0 where the mask is not 0, else 0.0."""
        return self.builder.mask_as_number(mask, self.call)

    def reduce(self, op: str, x: Value, dims: Sequence[int] | None, keepdim: bool = False) -> Value:
        places = reduced(x.rank, dims)
        attrs: dict[str, Any] = {} if dims is None or not list(dims) else {"dims": places}
        if keepdim:
            attrs["keepdim"] = True
        return self.node(op, [x], reduced_shape(x.shape, places, keepdim), attrs).value()

    def listed(self, op: str, *operands: Value) -> list[Value]:
        """The operands as autocast gives them to `op`, which is several kernels in PyTorch too: each part then rounds."""
        return [self.same("composed_operand", x, {"of": op}) for x in operands]

    def kernel(self, op: str, operands: Sequence[Value], body: Callable[..., Any], masks: Sequence[Value] = ()) -> Any:
        """One kernel of PyTorch: body(*operands, *masks), or each of a list of results, in FP32 inside, rounded once.

        Autocast treats it as `op`, whatever classes the parts have (lockstep list ops). masks: numbers that PyTorch's
        kernel makes of integers, whose format says nothing about the result's.
        """

        def rounded(y: Value) -> Value:
            return self.node("composed_result", [y, *operands], y.shape, {"of": op}).value()

        found = body(*(self.same("composed_operand", x, {"of": op, "dtype": "fp32"}) for x in (*operands, *masks)))
        return [rounded(y) for y in found] if isinstance(found, list) else rounded(found)

    def derive(self, name: str, body: Callable[..., torch.Tensor], operands: Sequence[Any]) -> Value:
        """An integer tensor computed from constants and the batch alone, e.g. an index in another form."""
        return self.builder.derive(name, body, operands, self.call)

    def decision(self) -> Value | None:
        """The places that this call picked, as a node that lanes can weigh; None: they cannot."""
        return self.builder.decision_of(self.call)

    def dtype_of_index(self, ref: Ref) -> torch.dtype:
        """Of one of a list of operands."""
        return self.builder.dtype_of(ref)

    def examples(self, refs: Sequence[Ref]) -> list[torch.Tensor]:
        """The operands of derive() in the traced run; only their shapes may matter."""
        return self.builder.examples(refs)

    def unsupported(self, hint: str = "") -> Unsupported:
        return Unsupported(self.call.op, hint)


def reduced(rank: int, dims: Sequence[int] | None) -> list[int]:
    return sorted(dim % rank for dim in dims) if dims else list(range(rank))


def reduced_shape(shape: Shape, dims: Sequence[int], keepdim: bool) -> Shape:
    if keepdim:
        return tuple(1 if i in dims else extent for i, extent in enumerate(shape))
    return tuple(extent for i, extent in enumerate(shape) if i not in dims)


def pair(value: Any) -> list[int]:
    """Two integers from one, or from a list of one or two."""
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    return [int(items[0]), int(items[-1])]


def problem_of(error: Unsupported, call: Call) -> Problem:
    return call.place.problem(error.what, error.hint)


Rule = Callable[[RuleContext], Any]
RULES: dict[str, Rule] = {}


HINTS: dict[str, str] = {}  # of ops without a rule: what to write instead


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule for `aten.<name>`."""

    def register(body: Rule) -> Rule:
        for name in names:
            assert f"aten.{name}" not in RULES, name
            RULES[f"aten.{name}"] = body
        return body

    return register


def find_rule(call: Call) -> Rule | None:
    """The rule of an op; an in-place op has that of its plain form."""
    name = base_name(call)
    return RULES.get(name) or (RULES.get(name[:-1]) if name.endswith("_") else None)


# Ops of Lockstep's whose slope jumps, and what a capture records of them: the elements of the operand on one side of
# the jump (OpMeaning::kink in src/graph/op.h), or the place of each winner in its plane (OpMeaning::winner_output).
Attributes = dict[str, Any]
KINKS: dict[str, Callable[[Attributes, torch.Tensor], torch.Tensor]] = {}
WINNERS: dict[str, Callable[[Attributes, torch.Tensor], torch.Tensor]] = {}
# Of a softplus that stands for ln(1 + e^x): from 40 on x itself, in FP64 too, where e^x may overflow.
LOG_ONE_PLUS_EXP: Attributes = {"beta": 1.0, "threshold": 40.0}


def positive_side(attrs: Attributes, x: torch.Tensor) -> torch.Tensor:
    return x > 0


def no_rule(call: Call) -> Unsupported:
    """An op of activations that has no rule. (Of the batch alone Python evaluates it.)"""
    other = "not among Lockstep's ops"
    if not call.op.startswith(("aten.", "torchvision.")):
        other = "a kernel outside of PyTorch: write it in Python, with ops of PyTorch, as a torch.library.custom_op"
    return Unsupported(call.op, HINTS.get(base_name(call), other))
