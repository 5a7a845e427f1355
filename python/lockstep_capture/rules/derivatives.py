"""Gradients of nodes, as nodes: what torch.autograd.grad inside the step computes, op by op.

A formula that is one kernel of PyTorch's is one here (Site.fused): FP32 inside, rounded once. The values are those of
PyTorch's derivatives at kinks as well: relu'(0) = 0, |0|' = 0, halves for equal operands of a maximum.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from ..ir.graph import Node, Shape, Value
from ..ir.program import Ref
from .context import LOG_ONE_PLUS_EXP, RuleContext, Unsupported, reduced
from .products import product
from .upsampling import exact_constant

# Ops whose operands autocast may cast: their gradients go back to the operand's format.
_CAST_BY_AUTOCAST = {
    *("linear", "matmul", "addmm", "conv2d", "conv_transpose2d", "sdpa", "layer_norm", "rms_norm", "group_norm"),
    *(
        "softmax",
        "log_softmax",
        "exp",
        "log",
        "rsqrt",
        "reciprocal",
        "softplus",
        "expm1",
        "log1p",
        "tan",
        "asin",
        "acos",
    ),
    *("sinh", "cosh", "pow", "sum", "cumsum", "logsumexp", "cross_entropy", "mse_loss", "l1_loss", "smooth_l1_loss"),
    *("huber_loss", "bce_with_logits", "upsample_nearest2d", "upsample_bilinear2d", "scatter_add", "index_add", "cat"),
    *("add", "sub", "mul", "div", "minimum", "maximum", "where", "atan2"),
}


class Site:
    """A node that is differentiated: operands x, results y, the gradients dy of these, None where there is none."""

    def __init__(self, c: RuleContext, node: Node, dy: Sequence[Value | None], depends: set[str], inside_kernel: bool):
        self.c, self.node, self.a, self._inside, self._depends = c, node, node.attrs, inside_kernel, depends
        self.x = [value_of(c, name) for name in node.inputs]
        self.y = [node.value(slot) for slot in range(len(node.out))]
        self.all_dy = list(dy)

    @property
    def dy(self) -> Value:
        """Of an op with one result that has a gradient. Throws: Unsupported where another has one."""
        found = self.all_dy[0]
        if found is None or any(other is not None for other in self.all_dy[1:]):
            raise Unsupported(f"a gradient of a further result of {self.node.aten}")
        return found

    def needs(self, operand: int) -> bool:
        return operand < len(self.x) and self.x[operand].id in self._depends

    def factors(self, count: int) -> list[Value]:
        """The first operands of a product as autocast gave them to it: PyTorch saves these, not what they were cast from."""
        if self._inside:
            return self.x[:count]
        there = copy.copy(self.c)
        there.call = replace(self.c.call, autocast=self.node.autocast)
        return there.listed(str(self.a.get("of") or self.node.op), *self.x[:count])

    def fused(self, operands: Sequence[Value], body: Callable[..., Any], masks: Sequence[Value] = ()) -> Any:
        """One kernel of PyTorch's."""
        if self._inside:
            return body(*operands, *masks)
        of = "batch_norm" if self.node.aten.startswith("aten.instance_norm") else self.node.op
        return self.c.kernel(of, operands, body, masks)

    def cast_back(self, gradients: Sequence[Value | None]) -> list[Value | None]:
        """In the formats of the operands, as PyTorch's engine gives them."""
        if self._inside or self.node.op not in _CAST_BY_AUTOCAST:
            return list(gradients)
        return [
            None if dx is None or not self.needs(i) else self.c.node("cast_like", [dx, self.x[i]], dx.shape).value()
            for i, dx in enumerate(gradients)
        ]


Derivative = Callable[[Site], list[Value | None]]
DERIVATIVES: dict[str, Derivative] = {}


def derivative(*names: str) -> Callable[[Derivative], Derivative]:
    def register(body: Derivative) -> Derivative:
        for name in names:
            assert name not in DERIVATIVES, name
            DERIVATIVES[name] = lambda at, body=body: at.cast_back(body(at))  # type: ignore[misc]
        return body

    return register


def value_of(c: RuleContext, name: str) -> Value:
    """A value of the graph by its id."""
    graph = c.builder.graph
    kind, _, rest = name.partition(":")
    if kind == "p":
        shape = next(shape for own, shape, _, _ in graph.params if own == rest)
        return Value(name, shape, "f32")
    if kind == "b":
        shape, dtype = next((shape, dtype) for own, shape, dtype, _ in graph.buffers if own == rest)
        return Value(name, shape, dtype)
    if kind == "c":
        tensor = graph.constants[rest]
        return Value(name, tuple(tensor.shape), "f32" if tensor.dtype.is_floating_point else "i32")
    if name.startswith("in"):
        entry = graph.inputs[int(name[2:])]
        return Value(name, entry.shape, entry.dtype)
    number, _, slot = name.partition(".")
    node = next(node for node in graph.nodes if node.id == number)
    return node.value(int(slot or 0))


def number(c: RuleContext, value: float) -> Value:
    return c.derive(f"number{value!r}", lambda n: torch.tensor(n, dtype=torch.float32), [value])


def summed_to(c: RuleContext, x: Value, shape: Shape) -> Value:
    """The gradient of an operand that was broadcast from `shape`."""
    if x.shape == shape:
        return x
    missing = x.rank - len(shape)
    dims = [d for d in range(x.rank) if d < missing or (shape[d - missing] == 1 and x.shape[d] != 1)]
    return c.reshape(c.reduce("sum", x, dims) if dims else x, shape)


def filled(c: RuleContext, x: Value, mask: Value, value: float = 0.0) -> Value:
    return c.node("masked_fill", [x, mask], x.shape, {"value": value}).value()


def _test(c: RuleContext, op: str, x: Value, than: float) -> Value:
    return c.mask(op, [x], x.shape, {"scalar": than})


def _negated(c: RuleContext, mask: Value) -> Value:
    return _test(c, "equal", c.mask_as_number(mask), 0.0)


def _where(c: RuleContext, mask: Value, x: Value, y: Value) -> Value:
    return c.node("where", [mask, x, y], tuple(torch.broadcast_shapes(mask.shape, x.shape, y.shape))).value()


def _transposed(c: RuleContext, x: Value) -> Value:
    return c.permute(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])


# Functions of one number: f(c, s, dy, attrs), s being y where the first column says so, else x.
def _silu(c: RuleContext, x: Value, dy: Value, a: dict[str, Any]) -> Value:
    s = c.same("sigmoid", x)
    rest = c.scalar("add", c.binary("mul", x, c.scalar("add", c.same("neg", s), 1)), 1)
    return c.binary("mul", c.binary("mul", dy, s), rest)


_TANH_CUBE = 0.044715  # of gelu's approximation


def _gelu(c: RuleContext, x: Value, dy: Value, a: dict[str, Any]) -> Value:
    square = c.binary("mul", x, x)
    if a.get("approximate") == "tanh":
        root = math.sqrt(2 / math.pi)
        t = c.same("tanh", c.binary("mul", x, c.scalar("add", c.scalar("mul", square, _TANH_CUBE * root), root)))
        slope = c.scalar("add", c.scalar("mul", square, 3 * _TANH_CUBE * root), root)
        steep = c.binary("mul", c.scalar("add", c.same("neg", c.binary("mul", t, t)), 1), c.binary("mul", x, slope))
        return c.binary("mul", dy, c.scalar("mul", c.binary("add", c.scalar("add", t, 1), steep), 0.5))
    below = c.scalar("mul", c.scalar("add", c.same("erf", c.scalar("mul", x, math.sqrt(0.5))), 1), 0.5)
    density = c.scalar("mul", c.same("exp", c.scalar("mul", square, -0.5)), 1 / math.sqrt(2 * math.pi))
    return c.binary("mul", dy, c.binary("add", below, c.binary("mul", x, density)))


def _abs(c: RuleContext, x: Value, dy: Value, a: dict[str, Any]) -> Value:
    signed = _where(c, _test(c, "less", x, 0), c.same("neg", dy), dy)
    return filled(c, signed, _test(c, "equal", x, 0))


def _hardswish(c: RuleContext, x: Value, dy: Value, a: dict[str, Any]) -> Value:
    slope = filled(c, c.scalar("add", c.scalar("mul", x, 1 / 3), 0.5), _test(c, "less_equal", x, -3))
    return c.binary("mul", dy, filled(c, slope, _test(c, "greater_equal", x, 3), 1.0))


def _hardsigmoid(c: RuleContext, x: Value, dy: Value, a: dict[str, Any]) -> Value:
    inner = filled(c, c.scalar("mul", dy, 1 / 6), _test(c, "less_equal", x, -3))
    return filled(c, inner, _test(c, "greater_equal", x, 3))


def _leaky_relu(c: RuleContext, x: Value, dy: Value, a: dict[str, Any]) -> Value:
    return _where(c, _test(c, "greater", x, 0), dy, c.scalar("mul", dy, a.get("negative_slope", 0.01)))


def _elu(c: RuleContext, x: Value, dy: Value, a: dict[str, Any]) -> Value:
    low = c.scalar("mul", c.same("exp", c.same("clamp", x, {"max": 0.0})), a.get("alpha", 1.0))
    return _where(c, _test(c, "greater", x, 0), dy, c.binary("mul", dy, low))


def _softplus(c: RuleContext, x: Value, dy: Value, a: dict[str, Any]) -> Value:
    beta = a.get("beta", 1.0)
    curved = c.binary("mul", dy, c.same("sigmoid", c.scalar("mul", x, beta)))
    return _where(c, _test(c, "greater", c.scalar("mul", x, beta), a.get("threshold", 20.0)), dy, curved)


def _one_plus_square(c: RuleContext, x: Value, sign: float = 1.0, one: float = 1.0) -> Value:
    return c.scalar("add", c.scalar("mul", c.binary("mul", x, x), sign), one)


def _over_root(c: RuleContext, x: Value, dy: Value, sign: float, one: float) -> Value:
    """dy / sqrt(one + sign x^2)."""
    return c.binary("mul", dy, c.same("rsqrt", _one_plus_square(c, x, sign, one)))


_X, _Y = "x", "y"
_OF_ONE_NUMBER: dict[str, tuple[str, Callable[[RuleContext, Value, Value, dict[str, Any]], Value]]] = {
    "relu": (_Y, lambda c, y, dy, a: filled(c, dy, _test(c, "less_equal", y, 0))),
    "neg": (_X, lambda c, x, dy, a: c.same("neg", dy)),
    "abs": (_X, _abs),
    "sqrt": (_Y, lambda c, y, dy, a: c.binary("div", dy, c.scalar("mul", y, 2))),
    "rsqrt": (_Y, lambda c, y, dy, a: c.binary("mul", c.scalar("mul", dy, -0.5), _cube(c, y))),
    "reciprocal": (_Y, lambda c, y, dy, a: c.binary("mul", c.same("neg", dy), c.binary("mul", y, y))),
    "exp": (_Y, lambda c, y, dy, a: c.binary("mul", dy, y)),
    "log": (_X, lambda c, x, dy, a: c.binary("div", dy, x)),
    "tanh": (_Y, lambda c, y, dy, a: c.binary("mul", dy, _one_plus_square(c, y, -1))),
    "sigmoid": (
        _Y,
        lambda c, y, dy, a: c.binary("mul", c.binary("mul", dy, c.scalar("add", c.same("neg", y), 1)), y),
    ),
    "silu": (_X, _silu),
    "gelu": (_X, _gelu),
    "hardswish": (_X, _hardswish),
    "hardsigmoid": (_X, _hardsigmoid),
    "leaky_relu": (_X, _leaky_relu),
    "elu": (_X, _elu),
    "softplus": (_X, _softplus),
    "erf": (
        _X,
        lambda c, x, dy, a: c.binary(
            "mul", dy, c.scalar("mul", c.same("exp", c.same("neg", c.binary("mul", x, x))), 2 / math.sqrt(math.pi))
        ),
    ),
    "expm1": (_Y, lambda c, y, dy, a: c.binary("mul", dy, c.scalar("add", y, 1))),
    "log1p": (_X, lambda c, x, dy, a: c.binary("div", dy, c.scalar("add", x, 1))),
    "exp2": (_Y, lambda c, y, dy, a: c.scalar("mul", c.binary("mul", dy, y), math.log(2))),
    "sin": (_X, lambda c, x, dy, a: c.binary("mul", dy, c.same("cos", x))),
    "cos": (_X, lambda c, x, dy, a: c.same("neg", c.binary("mul", dy, c.same("sin", x)))),
    "tan": (_Y, lambda c, y, dy, a: c.binary("mul", dy, _one_plus_square(c, y))),
    "asin": (_X, lambda c, x, dy, a: _over_root(c, x, dy, -1, 1)),
    "acos": (_X, lambda c, x, dy, a: c.same("neg", _over_root(c, x, dy, -1, 1))),
    "atan": (_X, lambda c, x, dy, a: c.binary("div", dy, _one_plus_square(c, x))),
    "sinh": (_X, lambda c, x, dy, a: c.binary("mul", dy, c.same("cosh", x))),
    "cosh": (_X, lambda c, x, dy, a: c.binary("mul", dy, c.same("sinh", x))),
    "asinh": (_X, lambda c, x, dy, a: _over_root(c, x, dy, 1, 1)),
    "acosh": (_X, lambda c, x, dy, a: _over_root(c, x, dy, 1, -1)),
    "atanh": (_X, lambda c, x, dy, a: c.binary("div", dy, _one_plus_square(c, x, -1))),
    "lgamma": (_X, lambda c, x, dy, a: c.binary("mul", dy, c.same("digamma", x))),
}


def _cube(c: RuleContext, x: Value) -> Value:
    return c.binary("mul", c.binary("mul", x, x), x)


@derivative(*_OF_ONE_NUMBER)
def of_one_number(at: Site) -> list[Value | None]:
    side, formula = _OF_ONE_NUMBER[at.node.op]
    saved = at.y[0] if side == _Y else at.x[0]
    return [at.fused([at.dy, saved], lambda dy, s: formula(at.c, s, dy, at.a))]


@derivative("clamp")
def clamp(at: Site) -> list[Value | None]:
    """On a bound clamp passes the gradient on; hardtanh and relu6 do not."""
    strict = any(name in at.node.aten for name in ("hardtanh", "relu6"))
    dy = at.dy
    for name, beyond in (("min", "less"), ("max", "greater")):
        if name in at.a:
            dy = filled(at.c, dy, _test(at.c, beyond + "_equal" * strict, at.x[0], float(at.a[name])))
    return [dy]


@derivative("floor", "ceil", "round", "trunc")
def without_slope(at: Site) -> list[Value | None]:
    return [at.c.zeros(at.x[0].shape)]


# Arithmetic
@derivative("add", "sub")
def add(at: Site) -> list[Value | None]:
    c, dy = at.c, at.dy
    if len(at.x) == 1:
        return [dy]
    factor = float(at.a.get("alpha", 1)) * (-1 if at.node.op == "sub" else 1)
    scaled = dy if factor == 1 else c.same("neg", dy) if factor == -1 else c.scalar("mul", dy, factor)
    return [summed_to(c, dx, x.shape) if at.needs(i) else None for i, (dx, x) in enumerate(zip((dy, scaled), at.x))]


@derivative("mul")
def mul(at: Site) -> list[Value | None]:
    c, dy = at.c, at.dy
    if len(at.x) == 1:
        return [c.scalar("mul", dy, at.a["scalar"])]
    return [summed_to(c, c.binary("mul", dy, at.x[1 - i]), at.x[i].shape) if at.needs(i) else None for i in range(2)]


@derivative("div")
def div(at: Site) -> list[Value | None]:
    c, dy = at.c, at.dy
    if len(at.x) == 1:
        return [c.scalar("div", dy, at.a["scalar"])]
    x, y = at.x
    dx = summed_to(c, c.binary("div", dy, y), x.shape) if at.needs(0) else None
    if not at.needs(1):
        return [dx, None]
    slope = c.binary("div", at.y[0], y)
    return [dx, summed_to(c, c.binary("mul", c.same("neg", dy), slope), y.shape)]


@derivative("minimum", "maximum")
def extreme(at: Site) -> list[Value | None]:
    c, dy = at.c, at.dy
    equal = c.mask("equal", at.x, dy.shape)
    shared = _where(c, equal, c.scalar("mul", dy, 0.5), dy)
    lost = ("greater", "less") if at.node.op == "minimum" else ("less", "greater")
    return [
        summed_to(c, filled(c, shared, c.mask(op, at.x, dy.shape)), x.shape) if at.needs(i) else None
        for i, (op, x) in enumerate(zip(lost, at.x))
    ]


@derivative("atan2")
def atan2(at: Site) -> list[Value | None]:
    c, (x, y) = at.c, at.x
    square = c.binary("add", c.binary("mul", x, x), c.binary("mul", y, y))
    share = filled(c, c.binary("div", at.dy, square), _test(c, "equal", square, 0))  # at (0, 0) PyTorch gives 0
    return [
        summed_to(c, c.binary("mul", share, y), x.shape),
        summed_to(c, c.binary("mul", share, c.same("neg", x)), y.shape),
    ]


@derivative("pow")
def power(at: Site) -> list[Value | None]:
    c, dy, x = at.c, at.dy, at.x[0]
    if len(at.x) == 1:
        exponent = float(at.a["exponent"])
        if exponent == 0:
            return [c.zeros(x.shape)]
        slope = x if exponent == 2 else c.same("pow", x, {"exponent": exponent - 1}) if exponent != 1 else None
        return [dy if slope is None else c.binary("mul", dy, c.scalar("mul", slope, exponent))]
    e = at.x[1]
    found: list[Value | None] = [None, None]
    if at.needs(0):
        none = _test(c, "equal", c.expand(e, dy.shape), 0)
        slope = c.binary("mul", e, c.binary("pow", x, c.scalar("add", e, -1)))
        found[0] = summed_to(c, filled(c, c.binary("mul", dy, slope), none), x.shape)
    if at.needs(1):
        base = c.expand(x, dy.shape)
        empty = _test(c, "equal", base, 0)
        slope = c.binary("mul", at.y[0], c.same("log", filled(c, base, empty, 1.0)))
        found[1] = summed_to(c, c.binary("mul", dy, slope), e.shape)
    return found


@derivative("where")
def where(at: Site) -> list[Value | None]:
    c, dy, (mask, x, y) = at.c, at.dy, at.x
    return [
        None,
        summed_to(c, filled(c, dy, _negated(c, mask)), x.shape) if at.needs(1) else None,
        summed_to(c, filled(c, dy, mask), y.shape) if at.needs(2) else None,
    ]


@derivative("masked_fill")
def masked_fill(at: Site) -> list[Value | None]:
    return [filled(at.c, at.dy, at.x[1]), None]


@derivative("prelu")
def prelu(at: Site) -> list[Value | None]:
    c, dy, (x, w) = at.c, at.dy, at.x
    wide = c.reshape(w, w.shape + (1,) * (x.rank - 2)) if w.rank == 1 and x.rank > 1 else w
    positive = _test(c, "greater", x, 0)
    share = filled(c, c.binary("mul", dy, x), positive)
    return [
        _where(c, positive, dy, c.binary("mul", dy, wide)) if at.needs(0) else None,
        c.reshape(summed_to(c, share, wide.shape), w.shape) if at.needs(1) else None,
    ]


# Casts and borders of kernels
@derivative("cast", "cast_like")
def cast(at: Site) -> list[Value | None]:
    c, x = at.c, at.x[0]
    return [c.node("cast_like", [at.dy, x], x.shape).value(), *[None] * (len(at.x) - 1)]


@derivative("composed_operand")
def composed_operand(at: Site) -> list[Value | None]:
    """The end of the kernel of the gradient, in the operand's format."""
    c, dy, x = at.c, at.dy, at.x[0]
    op = "composed_result" if "dtype" in at.a else "cast_like"
    return [c.node(op, [dy, x], x.shape, {"of": at.a["of"]} if "dtype" in at.a else {}).value()]


# Ops whose gradient has a wrong slope, and what to write instead.
_WRONG_SLOPES = {
    # Its gradient enters as a number: losses.py.
    "aten.binary_cross_entropy.default": "use binary_cross_entropy_with_logits, without the sigmoid",
    # PyTorch's own second derivative differs from central differences (torch 2.6 to 2.14, on CPUs).
    "aten._weight_norm.default": "PyTorch's own second derivative of weight_norm is wrong; write g * v / v.norm() out",
}


# Their gradients are kernels whose second derivative PyTorch takes with fixed statistics (2.6 to 2.13, on CPUs; 2.14 refuses
# batch_norm's itself). instance_norm is PyTorch's batch_norm.
_WRONG_THIRD = {"layer_norm", "batch_norm"}


@derivative("composed_result")
def composed_result(at: Site) -> list[Value | None]:
    if at.node.aten in _WRONG_SLOPES:
        raise Unsupported(f"the gradient of {at.node.aten} inside the step", _WRONG_SLOPES[at.node.aten])
    if at.a["of"] in _WRONG_THIRD and not at.c.call.nograd:
        raise Unsupported(
            f"the gradient of a gradient of {at.a['of']} inside the step",
            f"PyTorch's own third derivative of {at.a['of']} is wrong; write (x - mean) / (var + eps).sqrt() out",
        )
    return [at.c.same("composed_operand", at.dy, {"of": at.a["of"], "dtype": "fp32"}), *[None] * (len(at.x) - 1)]


@derivative("dropout")
def dropout(at: Site) -> list[Value | None]:
    c, kept = at.c, at.c.mask_as_number(at.y[1])
    scale = 1 / (1 - float(at.a["p"]))
    return [at.fused([at.dy], lambda dy, mask: c.scalar("mul", c.binary("mul", dy, mask), scale), [kept])]


@derivative("custom_gradient")
def custom_gradient(at: Site) -> list[Value | None]:
    """The recorded backward pass, in place."""
    c, backward, results = at.c, at.node.backward, int(at.a["results"])
    assert backward is not None
    names = {f"dy{slot}": dy if dy is not None else c.zeros(at.y[slot].shape) for slot, dy in enumerate(at.all_dy)}
    names |= {f"x{slot}": at.y[slot] if slot < results else x for slot, x in enumerate(at.x)}
    for node in backward.nodes:
        if node.backward is not None:
            raise Unsupported("a torch.autograd.Function whose backward pass applies another one")
        made = c.node(node.op, [names[name] for name in node.inputs], node.out, node.attrs)
        names |= {node.value(slot).id: made.value(slot) for slot in range(len(node.out))}
    return [names[name] if name else None for name in backward.gradients]


# Sums
def _kept(x: Value, dims: Sequence[int] | None) -> Shape:
    places = reduced(x.rank, dims)
    return tuple(1 if i in places else extent for i, extent in enumerate(x.shape))


@derivative("sum", "mean")
def sum_(at: Site) -> list[Value | None]:
    c, x = at.c, at.x[0]
    wide = c.expand(c.reshape(at.dy, _kept(x, at.a.get("dims"))), x.shape)
    count = math.prod(x.shape[dim] for dim in reduced(x.rank, at.a.get("dims")))
    return [wide if at.node.op == "sum" else c.scalar("div", wide, count)]


@derivative("amax")
def amax(at: Site) -> list[Value | None]:
    c, x = at.c, at.x[0]
    kept = _kept(x, at.a.get("dims"))
    other = c.mask("not_equal", [x, c.expand(c.reshape(at.y[0], kept), x.shape)], x.shape)
    count = c.reduce("sum", filled(c, c.expand(number(c, 1.0), x.shape), other), at.a.get("dims"), True)
    share = c.binary("div", c.reshape(at.dy, kept), c.reshape(count, kept))
    return [filled(c, c.expand(share, x.shape), other)]


@derivative("max_dim")
def max_dim(at: Site) -> list[Value | None]:
    c, x, dim = at.c, at.x[0], int(at.a["dim"])
    kept = _kept(x, [dim])
    places, dy = c.reshape(at.y[1], kept), c.reshape(at.dy, kept)
    return [c.node("scatter_add", [dy, places], x.shape, {"dim": dim, "shape": x.shape}).value()]


@derivative("var_mean")
def var_mean(at: Site) -> list[Value | None]:
    c, x, (dvar, dmean) = at.c, at.x[0], at.all_dy
    dims, kept = at.a.get("dims"), _kept(x, at.a.get("dims"))
    count = math.prod(x.shape[dim] for dim in reduced(x.rank, dims))
    parts = []
    if dvar is not None:
        centred = c.binary("sub", x, c.reshape(at.y[1], kept))
        slope = c.scalar("mul", centred, 2 / (count - float(at.a.get("correction", 1))))
        parts.append(c.binary("mul", c.reshape(dvar, kept), slope))
    if dmean is not None:
        parts.append(c.expand(c.scalar("div", c.reshape(dmean, kept), count), x.shape))
    return [parts[0] if len(parts) == 1 else c.binary("add", parts[0], parts[1])]


def _reversed(c: RuleContext, x: Value, dim: int) -> Value:
    order = c.derive(f"reversed{x.shape[dim]}", lambda n: torch.arange(n - 1, -1, -1), [x.shape[dim]])
    return c.node("index_select", [x, order], x.shape, {"dim": dim}).value()


@derivative("cumsum")
def cumsum(at: Site) -> list[Value | None]:
    c, dim = at.c, int(at.a["dim"])
    return [_reversed(c, c.same("cumsum", _reversed(c, at.dy, dim), {"dim": dim}), dim)]


@derivative("logsumexp")
def logsumexp(at: Site) -> list[Value | None]:
    c, x, kept = at.c, at.x[0], _kept(at.x[0], at.a.get("dims"))
    share = c.same("exp", c.binary("sub", x, c.reshape(at.y[0], kept)))
    return [c.binary("mul", c.reshape(at.dy, kept), share)]


@derivative("softmax")
def softmax(at: Site) -> list[Value | None]:
    c, dim = at.c, int(at.a["dim"])

    def body(dy: Value, y: Value) -> Value:
        return c.binary("mul", y, c.binary("sub", dy, c.reduce("sum", c.binary("mul", dy, y), [dim], True)))

    return [at.fused([at.dy, at.y[0]], body)]


@derivative("log_softmax")
def log_softmax(at: Site) -> list[Value | None]:
    c, dim = at.c, int(at.a["dim"])

    def body(dy: Value, y: Value) -> Value:
        return c.binary("sub", dy, c.binary("mul", c.same("exp", y), c.reduce("sum", dy, [dim], True)))

    return [at.fused([at.dy, at.y[0]], body)]


# Movement
@derivative("reshape")
def reshape(at: Site) -> list[Value | None]:
    return [at.c.reshape(at.dy, at.x[0].shape)]


@derivative("permute")
def permute(at: Site) -> list[Value | None]:
    dims = [int(dim) for dim in at.a["dims"]]
    return [at.c.permute(at.dy, [dims.index(dim) for dim in range(len(dims))])]


@derivative("expand")
def expand(at: Site) -> list[Value | None]:
    return [summed_to(at.c, at.dy, at.x[0].shape)]


@derivative("slice")
def slice_(at: Site) -> list[Value | None]:
    c, dy, x, dim = at.c, at.dy, at.x[0], int(at.a["dim"])
    start, step = int(at.a["start"]), int(at.a.get("step", 1))
    places = range(x.shape[dim])[start : int(at.a["end"]) : step]
    if step == 1:
        pads = [0, 0] * (x.rank - 1 - dim) + [places[0], x.shape[dim] - places[-1] - 1]
        return [c.node("pad", [dy], x.shape, {"pads": pads}).value()]
    at_places = c.derive(f"places{places}", lambda: torch.tensor(list(places)), [])
    return [c.node("index_add", [dy, at_places], x.shape, {"dim": dim, "shape": x.shape}).value()]


@derivative("cat")
def cat(at: Site) -> list[Value | None]:
    dim, start, found = int(at.a.get("dim", 0)), 0, []
    for x in at.x:
        found.append(at.c.slice(at.dy, dim, start, start + x.shape[dim]))
        start += x.shape[dim]
    return list(found)


@derivative("pad")
def pad(at: Site) -> list[Value | None]:
    return [at.c.node("pad", [at.dy], at.x[0].shape, {"pads": [-int(width) for width in at.a["pads"]]}).value()]


@derivative("pixel_shuffle", "pixel_unshuffle")
def pixel_shuffle(at: Site) -> list[Value | None]:
    back = "pixel_unshuffle" if at.node.op == "pixel_shuffle" else "pixel_shuffle"
    return [at.c.node(back, [at.dy], at.x[0].shape, dict(at.a)).value()]


@derivative("gather", "index_select")
def gather(at: Site) -> list[Value | None]:
    op, (x, index) = {"gather": "scatter_add", "index_select": "index_add"}[at.node.op], at.x
    own_type = at.a.get("gradient_own_type", "cuda" if at.node.op == "gather" else "none")
    attrs = {"dim": int(at.a.get("dim", 0)), "shape": x.shape, "own_type": own_type}
    return [at.c.node(op, [at.dy, index], x.shape, attrs).value(), None]


@derivative("scatter_add", "index_add")
def scatter_add(at: Site) -> list[Value | None]:
    op, (x, index) = {"scatter_add": "gather", "index_add": "index_select"}[at.node.op], at.x
    return [at.c.node(op, [at.dy, index], x.shape, {"dim": int(at.a.get("dim", 0))}).value(), None]


@derivative("scatter_amax")
def scatter_amax(at: Site) -> list[Value | None]:
    """Equal largest elements share the gradient."""
    c, (x, index), dim = at.c, at.x, int(at.a["dim"])

    def read(of: Value) -> Value:
        return c.node("gather", [of, index], x.shape, {"dim": dim}).value()

    other = c.mask("not_equal", [x, read(at.y[0])], x.shape)
    one = filled(c, c.expand(number(c, 1.0), x.shape), other)
    count = c.node("scatter_add", [one, index], at.y[0].shape, {"dim": dim, "shape": at.y[0].shape}).value()
    return [filled(c, c.binary("div", read(at.dy), read(count)), other), None]


@derivative("embedding")
def embedding(at: Site) -> list[Value | None]:
    c, (w, index) = at.c, at.x
    count = math.prod(index.shape)
    rows = c.reshape(at.dy, (count, w.shape[1]))
    attrs = {"dim": 0, "shape": w.shape, "own_type": "cpu"}
    dw = c.node("index_add", [rows, c.reshape(index, (count,))], w.shape, attrs).value()
    row = int(at.a.get("padding_idx", -1))
    if row >= 0:
        own = c.derive(f"row{row}", lambda n: (torch.arange(n) == row).reshape(n, 1), [w.shape[0]])
        dw = filled(c, dw, own)
    return [dw, None]


# Products
@derivative("linear")
def linear(at: Site) -> list[Value | None]:
    c, dy, (x, w) = at.c, at.dy, at.factors(2)
    rows = math.prod(x.shape[:-1])
    flat = c.reshape(dy, (rows, w.shape[0]))
    return [
        c.reshape(product(c, flat, w), x.shape) if at.needs(0) else None,
        product(c, _transposed(c, flat), c.reshape(x, (rows, x.shape[-1]))) if at.needs(1) else None,
        c.reduce("sum", flat, [0]) if at.needs(2) else None,
    ][: len(at.x)]


def _factors(at: Site, dy: Value) -> list[Value | None]:
    c, (x, y) = at.c, at.factors(2)
    return [
        summed_to(c, product(c, dy, _transposed(c, y)), x.shape) if at.needs(0) else None,
        summed_to(c, product(c, _transposed(c, x), dy), y.shape) if at.needs(1) else None,
    ]


@derivative("matmul")
def matmul(at: Site) -> list[Value | None]:
    return _factors(at, at.dy)


@derivative("addmm")
def addmm(at: Site) -> list[Value | None]:
    c, dy = at.c, at.dy
    alpha, beta = (float(at.a.get(name, 1)) for name in ("alpha", "beta"))
    added = dy if beta == 1 else c.scalar("mul", dy, beta)
    return [
        *_factors(at, dy if alpha == 1 else c.scalar("mul", dy, alpha)),
        summed_to(c, added, at.x[2].shape) if at.needs(2) else None,
    ]


def _pair(value: Any) -> list[int]:
    return [int(value)] * 2 if isinstance(value, (int, float)) else [int(item) for item in value]


def _convolution(a: dict[str, Any]) -> tuple[list[int], list[int], list[int], int]:
    """stride, dilation, padding of the sides (top, bottom, left, right), groups."""
    padding = _pair(a.get("padding", 0))
    sides = padding if len(padding) == 4 else [padding[0], padding[0], padding[1], padding[1]]
    return _pair(a.get("stride", 1)), _pair(a.get("dilation", 1)), sides, int(a.get("groups", 1))


def _spread(c: RuleContext, dy: Value, w: Value, image: Shape, a: dict[str, Any]) -> Value:
    """The gradient of a convolution by its image: a transposed convolution, with the padding cut off."""
    stride, dilation, sides, groups = _convolution(a)
    extents = [image[2 + i] + sides[2 * i] + sides[2 * i + 1] for i in range(2)]
    reach = [(dy.shape[2 + i] - 1) * stride[i] + dilation[i] * (w.shape[2 + i] - 1) + 1 for i in range(2)]
    attrs = {"stride": stride, "padding": [0, 0], "dilation": dilation, "groups": groups, "output_padding": [0, 0]}
    whole = c.node("conv_transpose2d", [dy, w], (image[0], w.shape[1] * groups, *reach), attrs).value()
    rest = [extents[i] - reach[i] for i in range(2)]
    pads = [-sides[2], rest[1] - sides[3], -sides[0], rest[0] - sides[1]]
    return whole if not any(pads) else c.node("pad", [whole], image, {"pads": pads}).value()


def _kernel_of(c: RuleContext, x: Value, dy: Value, kernel: Shape, a: dict[str, Any]) -> Value:
    """The gradient of a convolution by its weight (O, C/groups, R, S): a convolution of x by dy, over the batch."""
    stride, dilation, sides, groups = _convolution(a)
    n, channels, outputs = x.shape[0], x.shape[1], dy.shape[1]
    own = channels // groups
    images = c.permute(c.reshape(x, (n, groups, own, *x.shape[2:])), [2, 1, 0, 3, 4])
    images = c.reshape(images, (own, groups * n, *x.shape[2:]))
    filters = c.permute(dy, [1, 0, 2, 3])
    extents = [
        (x.shape[2 + i] + sides[2 * i] + sides[2 * i + 1] - stride[i] * (dy.shape[2 + i] - 1) - 1) // dilation[i] + 1
        for i in range(2)
    ]
    attrs = {"stride": dilation, "padding": sides, "dilation": stride, "groups": groups}
    found = c.node("conv2d", [images, filters], (own, outputs, *extents), attrs).value()
    for i in range(2):
        found = c.slice(found, 2 + i, 0, kernel[2 + i])
    return c.permute(found, [1, 0, 2, 3])


@derivative("conv2d")
def conv2d(at: Site) -> list[Value | None]:
    c, dy, (x, w) = at.c, at.dy, at.factors(2)
    return [
        _spread(c, dy, w, x.shape, at.a) if at.needs(0) else None,
        _kernel_of(c, x, dy, w.shape, at.a) if at.needs(1) else None,
        c.reduce("sum", dy, [0, 2, 3]) if at.needs(2) else None,
    ][: len(at.x)]


@derivative("conv_transpose2d")
def conv_transpose2d(at: Site) -> list[Value | None]:
    c, dy, (x, w) = at.c, at.dy, at.factors(2)
    found: list[Value | None] = [None] * len(at.x)
    if at.needs(0):
        stride, dilation, sides, groups = _convolution(at.a)
        extents = [
            (dy.shape[2 + i] + sides[2 * i] + sides[2 * i + 1] - dilation[i] * (w.shape[2 + i] - 1) - 1) // stride[i]
            + 1
            for i in range(2)
        ]
        attrs = {"stride": stride, "padding": sides, "dilation": dilation, "groups": groups}
        dx = c.node("conv2d", [dy, w], (x.shape[0], x.shape[1], *extents), attrs).value()
        for i in range(2):
            dx = c.slice(dx, 2 + i, 0, x.shape[2 + i])
        found[0] = dx
    if at.needs(1):
        found[1] = _kernel_of(c, dy, x, w.shape, at.a)
    if at.needs(2):
        found[2] = c.reduce("sum", dy, [0, 2, 3])
    return found


@derivative("sdpa")
def sdpa(at: Site) -> list[Value | None]:
    """As PyTorch's math backend, which alone has second derivatives."""
    c, dy, (q, k, v) = at.c, at.dy, at.factors(3)
    if at.a.get("gqa") or "dropout_p" in at.a:
        raise Unsupported(
            f"the gradient of {at.node.aten} with dropout or enable_gqa inside the step",
            "write the attention out: softmax(q @ k.transpose(-2, -1) * scale + mask) @ v",
        )
    scale = float(at.a["scale"])
    scores = c.scalar("mul", product(c, q, _transposed(c, k)), scale)
    for mask in at.x[3:]:
        scores = c.binary("add", scores, mask) if mask.is_float else filled(c, scores, _negated(c, mask), -math.inf)
    if at.a.get("causal"):
        later = c.derive("later", lambda n, m: ~torch.ones(n, m, dtype=torch.bool).tril(), list(scores.shape[-2:]))
        scores = filled(c, scores, later, -math.inf)
    weights = c.same("softmax", scores, {"dim": scores.rank - 1})
    dweights = product(c, dy, _transposed(c, v))
    total = c.reduce("sum", c.binary("mul", dweights, weights), [scores.rank - 1], True)
    dscores = c.scalar("mul", c.binary("mul", weights, c.binary("sub", dweights, total)), scale)
    return [
        product(c, dscores, k) if at.needs(0) else None,
        product(c, _transposed(c, dscores), q) if at.needs(1) else None,
        product(c, _transposed(c, weights), dy) if at.needs(2) else None,
        *[None] * (len(at.x) - 3),
    ]


# Norms: y = (x - mean) inv w + b; dx = inv (g - mean(g) - n mean(g n)) with g = dy w, n = (x - mean) inv.
def _normed(
    at: Site, x: Value, dy: Value, w: Value | None, dims: list[int], *, centred: bool = True
) -> tuple[Value | None, Value]:
    """dx, and dy n, whose sums are dw. w: in a shape that broadcasts."""
    c, eps = at.c, float(at.a["eps"])
    if centred:
        kept = _kept(x, dims)
        node = c.node("var_mean", [x], [(kept, "f32")] * 2, {"dims": dims, "correction": 0.0, "keepdim": True})
        spread, x = node.value(0), c.binary("sub", x, node.value(1))
    else:
        spread = c.reduce("mean", c.binary("mul", x, x), dims, True)
    inv = c.same("rsqrt", c.scalar("add", spread, eps))
    n = c.binary("mul", x, inv)
    share = c.binary("mul", dy, n)
    if not at.needs(0):
        return None, share
    g = dy if w is None else c.binary("mul", dy, w)
    dx = c.binary("sub", g, c.binary("mul", n, c.reduce("mean", c.binary("mul", g, n), dims, True)))
    if centred:
        dx = c.binary("sub", dx, c.reduce("mean", g, dims, True))
    return c.binary("mul", dx, inv), share


def _norm(
    at: Site, w: Value | None, b: Value | None, shape: Shape, dims: list[int], wide: Shape, *, centred: bool = True
) -> list[Value | None]:
    """Gradients by x, w, b, one kernel. shape: of x for the statistics over `dims`; wide: of w against it."""
    c, x = at.c, at.x[0]
    operands = [x, at.dy] + ([w] if w is not None else [])

    def body(x: Value, dy: Value, *weight: Value) -> list[Value]:
        own = [c.reshape(item, wide) for item in weight]
        x, dy = c.reshape(x, shape), c.reshape(dy, shape)
        dx, share = _normed(at, x, dy, own[0] if own else None, dims, centred=centred)
        found = [c.reshape(dx, at.x[0].shape)] if dx is not None else []
        if w is not None and at.needs(1):
            found.append(c.reshape(summed_to(c, share, wide), w.shape))
        if b is not None and at.needs(2):
            found.append(c.reshape(summed_to(c, dy, wide), b.shape))
        return found

    left = list(at.fused(operands, body))
    wanted = [at.needs(0), w is not None and at.needs(1), b is not None and at.needs(2)]
    return [left.pop(0) if want else None for want in wanted]


@derivative("layer_norm", "rms_norm")
def layer_norm(at: Site) -> list[Value | None]:
    x, ndim = at.x[0], int(at.a.get("normalized_ndim", 1))
    w, b = (at.x[i] if i < len(at.x) else None for i in (1, 2))
    dims = list(range(x.rank - ndim, x.rank))
    wide = (1,) * (x.rank - ndim) + x.shape[x.rank - ndim :]
    return _norm(at, w, b, x.shape, dims, wide, centred=at.node.op == "layer_norm")[: len(at.x)]


@derivative("group_norm")
def group_norm(at: Site) -> list[Value | None]:
    x, groups = at.x[0], int(at.a["groups"])
    w, b = (at.x[i] if i < len(at.x) else None for i in (1, 2))
    shape = (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    wide = (1, groups, x.shape[1] // groups) + (1,) * (x.rank - 2)
    return _norm(at, w, b, shape, list(range(2, len(shape))), wide)[: len(at.x)]


@derivative("batch_norm")
def batch_norm(at: Site) -> list[Value | None]:
    """In training through the batch's statistics."""
    c, x = at.c, at.x[0]
    affine = at.a.get("affine", True)
    w, b = at.x[1:3] if affine else (None, None)
    wide = (1, x.shape[1]) + (1,) * (x.rank - 2)
    if at.a["training"]:
        found = _norm(at, w, b, x.shape, [0, *range(2, x.rank)], wide)
    else:
        mean, var = at.x[3:5] if affine else at.x[1:3]
        dy, inv = at.dy, c.reshape(c.same("rsqrt", c.scalar("add", var, float(at.a["eps"]))), wide)
        g = dy if w is None else c.binary("mul", dy, c.reshape(w, wide))
        n = c.binary("mul", c.binary("sub", x, c.reshape(mean, wide)), inv)
        found = [
            c.binary("mul", g, inv) if at.needs(0) else None,
            c.reshape(summed_to(c, c.binary("mul", dy, n), wide), w.shape) if w is not None and at.needs(1) else None,
            c.reshape(summed_to(c, dy, wide), b.shape) if b is not None and at.needs(2) else None,
        ]
    found = found if affine else found[:1]
    return [*found, *[None] * (len(at.x) - len(found))]


# Pools and upsampling: y = M x N^T for every image, with constant matrices M and N.
@derivative("max_pool2d")
def max_pool2d(at: Site) -> list[Value | None]:
    c, x = at.c, at.x[0]
    lines, count = x.shape[:2], math.prod(at.y[0].shape[2:])
    dy, places = (c.reshape(item, (*lines, count)) for item in (at.dy, at.y[1]))
    shape = (*lines, x.shape[2] * x.shape[3])
    return [c.reshape(c.node("scatter_add", [dy, places], shape, {"dim": 2, "shape": shape}).value(), x.shape)]


@derivative("avg_pool2d", "adaptive_avg_pool2d", "upsample_nearest2d", "upsample_bilinear2d")
def resampled(at: Site) -> list[Value | None]:
    c, x = at.c, at.x[0]
    if "divisor_override" in at.a:
        raise Unsupported(f"the gradient of {at.node.aten} with divisor_override inside the step")
    rows, columns = (_weights(at, i) for i in range(2))

    def body(dy: Value) -> Value:
        wide = c.node("matmul", [dy, columns], (*dy.shape[:3], x.shape[3])).value()
        return c.node("matmul", [_transposed(c, rows), wide], x.shape).value()

    return [at.fused([at.dy], body)]


def _weights(at: Site, i: int) -> Value:
    """(out, in): what each of the outputs along dimension 2 + i takes of the inputs."""
    a, extent, out = at.a, at.x[0].shape[2 + i], at.y[0].shape[2 + i]
    scale = a.get("scale")
    factor = None if scale is None else float(scale if isinstance(scale, (int, float)) else scale[i])

    def matrix() -> torch.Tensor:
        one = torch.eye(extent).double().unsqueeze(0)
        if at.node.op == "avg_pool2d":
            k, s, p = (_pair(a[name])[i] for name in ("kernel", "stride", "padding"))
            found = F.avg_pool1d(one, k, s, p, bool(a["ceil_mode"]), bool(a["count_include_pad"]))
        elif at.node.op == "adaptive_avg_pool2d":
            found = F.adaptive_avg_pool1d(one, out)
        else:
            size = None if factor is not None else out
            mode = "nearest" if "nearest" in at.node.op else "linear"
            corners = None if mode == "nearest" else bool(a.get("align_corners"))
            found = F.interpolate(one, size, factor, mode, corners)
        return found[0].t().contiguous()

    return exact_constant(at.c, f"{at.node.op}_{extent}_{out}_{sorted(a.items())}_{i}", matrix())


# Losses
def _each(at: Site, x: Value) -> Value:
    """The loss's gradient for every term."""
    c, reduction = at.c, at.a["reduction"]
    dy = at.dy if reduction == "none" else c.expand(c.reshape(at.dy, (1,) * x.rank), x.shape)
    return c.scalar("div", dy, math.prod(x.shape)) if reduction == "mean" else dy


@derivative("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
def pointwise_loss(at: Site) -> list[Value | None]:
    c, name = at.c, at.node.op

    def body(x: Value, target: Value, dy: Value) -> list[Value]:
        gap = c.binary("sub", x, target)
        if name == "l1_loss" or (name == "smooth_l1_loss" and not float(at.a["beta"])):
            dx = _abs(c, gap, dy, {})
        elif name == "mse_loss":
            dx = c.binary("mul", dy, c.scalar("mul", gap, 2))
        else:
            limit = float(at.a["delta" if name == "huber_loss" else "beta"])
            slope = c.same("clamp", gap, {"min": -limit, "max": limit})
            dx = c.binary("mul", dy, slope if name == "huber_loss" else c.scalar("div", slope, limit))
        return [dx, c.same("neg", dx)]

    return list(at.fused([*at.x, _each(at, at.x[0])], body))


@derivative("bce_with_logits")
def bce_with_logits(at: Site) -> list[Value | None]:
    """w ((1 - t) x + (1 + (p - 1) t) softplus(-x)), operands x, t, w?, p?"""
    c, (x, target), weights = at.c, at.x[:2], at.x[2:]
    shape = x.shape

    def body(x: Value, t: Value, dy: Value, *positive: Value) -> list[Value]:
        s = c.same("sigmoid", x)
        if not positive:
            return [c.binary("mul", dy, c.binary("sub", s, t)), c.same("neg", c.binary("mul", dy, x))]
        more = c.expand(c.scalar("add", positive[0], -1), shape)
        bent = c.binary("mul", c.scalar("add", c.binary("mul", more, t), 1), c.scalar("add", s, -1))
        dx = c.binary("mul", dy, c.binary("add", c.scalar("add", c.same("neg", t), 1), bent))
        low = c.same("softplus", c.same("neg", x), LOG_ONE_PLUS_EXP)
        return [dx, c.binary("mul", dy, c.binary("sub", c.binary("mul", more, low), x))]

    dy = _each(at, x)
    dy = c.binary("mul", dy, weights[0]) if weights else dy
    return [*at.fused([x, target, dy], body, weights[1:]), *[None] * len(weights)]


@derivative("kl_div")
def kl_div(at: Site) -> list[Value | None]:
    c, (x, target) = at.c, at.x
    if at.needs(1):
        raise Unsupported(f"the gradient of {at.node.aten} by its target inside the step", "write the sum out")

    def body(target: Value, dy: Value) -> Value:
        return c.same("neg", c.binary("mul", dy, c.same("exp", target) if at.a["log_target"] else target))

    return [at.fused([target, _each(at, x)], body), None]


def _integers(c: RuleContext, x: Value) -> tuple[list[Ref], Callable[..., torch.Tensor]]:
    """What Python computes an integer operand from, and how."""
    if x.id.startswith("c:"):
        tensor = c.builder.graph.constants[x.id[2:]]
        return [], lambda: tensor
    if x.id.startswith("in"):
        entry = c.builder.graph.inputs[int(x.id[2:])]
        return [Ref(name) for name in entry.operands], entry.compute
    node = next(node for node in c.builder.graph.nodes if node.id == x.id)
    if node.op != "reshape":
        raise Unsupported("a gradient inside the step of a loss whose targets are computed from activations")
    refs, compute = _integers(c, value_of(c, node.inputs[0]))
    return refs, lambda *values: compute(*values).reshape(x.shape)


@derivative("cross_entropy")
def cross_entropy(at: Site) -> list[Value | None]:
    """-sum over the classes of q log_softmax(x), with shares q that the targets alone give: dx = (softmax(x) sum q - q) dy."""
    c, x, a = at.c, at.x[0], at.a
    if len(at.x) > 2 and not at.x[2].id.startswith("c:"):
        raise Unsupported(f"the gradient of {at.node.aten} with weights that are computed, inside the step")
    weight = c.builder.graph.constants[at.x[2].id[2:]].float() if len(at.x) > 2 else None
    refs, compute = _integers(c, at.x[1])

    ignored, smoothing = int(a.get("ignore_index", -100)), float(a.get("label_smoothing", 0))
    label = f"{x.shape}{ignored}{at.x[1].id}{'' if weight is None else at.x[2].id}"

    def weights(target: torch.Tensor) -> torch.Tensor:
        """Of each position's class; 0 where it is ignored."""
        wide = torch.ones(x.shape[1]) if weight is None else weight
        return (wide[target.masked_fill(target == ignored, 0)] * (target != ignored)).unsqueeze(1)

    def hits(*values: torch.Tensor) -> torch.Tensor:
        target = compute(*values).cpu().long()
        places = target.masked_fill(target == ignored, 0).unsqueeze(1)
        return torch.zeros(x.shape).scatter_(1, places, weights(target))

    def spread(*values: torch.Tensor) -> torch.Tensor:
        """Of label smoothing: every class's weight, where the position is not ignored."""
        wide = torch.ones(x.shape[1]) if weight is None else weight
        counted = (compute(*values).cpu() != ignored).unsqueeze(1)
        return wide.reshape(-1, *[1] * (x.rank - 2)).expand(x.shape) * counted

    q = c.derive(f"hits{label}", hits, refs)
    masks = [q, c.derive(f"spread{label}", spread, refs)] if smoothing else [q]
    dy = c.reshape(at.dy, (x.shape[0], 1, *x.shape[2:]) if a.get("reduction") == "none" else (1,) * x.rank)

    def body(x: Value, dy: Value, hit: Value, *others: Value) -> Value:
        q = hit
        for other in others:
            part = c.scalar("mul", other, smoothing / x.shape[1])
            q = c.binary("add", c.scalar("mul", hit, 1 - smoothing), part)
        if a.get("reduction", "mean") == "mean":
            dy = c.binary("div", dy, c.reshape(c.reduce("sum", hit, None), (1,) * x.rank))
        every = c.binary("mul", c.same("softmax", x, {"dim": 1}), c.reduce("sum", q, [1], True))
        return c.binary("mul", c.binary("sub", every, q), dy)

    return [at.fused([x, dy], body, masks), *[None] * (len(at.x) - 1)]
