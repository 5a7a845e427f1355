"""Complex numbers: pairs of real values. The gradient of a pair is PyTorch's, dL/dRe + i dL/dIm.

What is linear with real coefficients (sums, movements) is the real op on each part. Matrix products and convolutions
are real ones of the parts. Functions of elements are one kernel each: FP32 inside, rounded once. Autocast leaves complex
tensors alone, so none of these nodes are under it; it widens what becomes a complex tensor.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..ir.graph import Complex, Value
from ..ir.program import Autocast, Ref, iterate_refs, map_refs
from ..ir.random_ops import base_name
from .context import COMPLEX_HINT, Made, Rule, RuleContext, Unsupported, find_rule, rule
from .math import root

_BY_PART = set(
    "contiguous clone alias lift_fresh lift_fresh_copy detach view reshape _unsafe_view view_as reshape_as flatten "
    "unflatten unsqueeze squeeze numpy_T mT permute transpose swapaxes t movedim moveaxis expand expand_as "
    "broadcast_to broadcast_tensors repeat tile repeat_interleave slice narrow select split split_with_sizes chunk "
    "tensor_split unbind cat concat concatenate stack roll flip rot90 diagonal diag diag_embed tril triu "
    "constant_pad_nd pad gather index_select index masked_select take copy fill zero index_put index_add index_copy "
    "index_fill scatter scatter_add select_scatter slice_scatter masked_scatter masked_fill where add sub subtract "
    "rsub neg negative sum mean cumsum trace unfold resolve_conj resolve_neg".split()
)
_PRODUCTS = set(
    "matmul mm bmm dot mv einsum tensordot outer ger chain_matmul linalg_multi_dot linear "
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d".split()
)
_OF_MAGNITUDE = {"norm", "linalg_vector_norm", "frobenius_norm"}
_NUMBERS = {"self", "other", "value"}  # arguments that may be numbers
_OUTSIDE = Autocast(False, "bfloat16", "cpu", True)
COMPLEX_RULES: dict[str, Rule] = {}
Operand = Complex | Value


def short_name(c: RuleContext) -> str:
    return base_name(c.call).split(".")[1].rstrip("_")


def complex_rule(c: RuleContext) -> Rule:
    """For a call that reads or makes complex values."""
    name, plain = base_name(c.call).split(".")[1], find_rule(c.call)
    if (own := COMPLEX_RULES.get(name) or COMPLEX_RULES.get(name.rstrip("_"))) is not None:
        return own
    name = name.rstrip("_")
    if plain is not None and name in _BY_PART:
        return lambda c: by_part(c, plain)
    if plain is not None and name in _PRODUCTS:
        return lambda c: _product(c, plain)
    if plain is not None and name in _OF_MAGNITUDE:
        return lambda c: _of_magnitude(c, plain)
    raise Unsupported(c.call.op, COMPLEX_HINT)


def complex_op(*names: str) -> Callable[[Rule], Rule]:
    def register(body: Rule) -> Rule:
        COMPLEX_RULES.update({name: lambda c: body(_outside_autocast(c)) for name in names})
        return body

    return register


def _outside_autocast(c: RuleContext) -> RuleContext:
    there = copy.copy(c)
    there.call = replace(c.call, autocast=_OUTSIDE)
    return there


def _with(c: RuleContext, body: Callable[[Ref], Any]) -> RuleContext:
    """With body(ref) in the place of each operand."""
    there = copy.copy(c)
    there.a = map_refs(c.a, body)
    return there


def operand(c: RuleContext, name: str) -> Operand:
    """A complex one or a real one."""
    return c.builder.parts(c.a[name], c.call) if c.builder.is_complex(c.a[name]) else c.value(name)


def by_part(c: RuleContext, body: Rule) -> Any:
    """Each part by itself; the imaginary part of real operands is 0."""
    if isinstance(c.a.get("alpha"), complex):
        raise c.unsupported("write the sum as x + alpha * y")
    c, found = _outside_autocast(c), []
    for part in ("real", "imag"):

        def chosen(ref: Ref, part: str = part) -> Ref:
            if c.builder.is_complex(ref) or (part == "imag" and c.builder.is_float(ref)):
                return Made(ref.name, getattr(c.builder.parts(ref, c.call), part))
            return ref

        there = _with(c, chosen)
        for name in _NUMBERS & set(there.a):
            if isinstance(there.a[name], (int, float, complex)):
                there.a[name] = getattr(complex(there.a[name]), part)
        found.append(body(there))
    if isinstance(found[0], list):
        return [Complex(*parts) for parts in zip(*found, strict=True)]
    return Complex(*found)


def _product(c: RuleContext, body: Rule) -> Complex:
    """Linear in each operand: the sum over all choices of their parts, times i for each imaginary one."""
    c = _outside_autocast(c)
    c.a, bias = {**c.a}, c.a.get("bias")
    if bias is not None:
        c.a["bias"] = None
    count = sum(map(c.builder.is_complex, iterate_refs(c.a)))
    total: list[Value | None] = [None, None]
    for choice in itertools.product(("real", "imag"), repeat=count):
        left, power = list(choice), choice.count("imag")
        term = body(
            _with(
                c,
                lambda ref, left=left: (
                    Made(ref.name, getattr(c.builder.parts(ref, c.call), left.pop(0)))  # type: ignore[misc]
                    if c.builder.is_complex(ref)
                    else ref
                ),
            )
        )
        so_far = total[power % 2]
        total[power % 2] = term if so_far is None else c.binary("sub" if power % 4 > 1 else "add", so_far, term)
    real, imag = total
    assert real is not None and imag is not None
    if bias is None:
        return Complex(real, imag)
    added = c.builder.parts(bias, c.call)
    behind = [1] * (real.rank - 2) if "conv" in c.call.op else []
    return Complex(
        *(c.binary("add", y, c.reshape(b, [*b.shape, *behind])) for y, b in ((real, added.real), (imag, added.imag)))
    )


def kernel(c: RuleContext, operands: Sequence[Operand], body: Callable[..., Operand], of: str = "complex") -> Any:
    """One kernel of PyTorch: FP32 inside, rounded once."""
    first = [z.real if isinstance(z, Complex) else z for z in operands]  # a pair's parts have one format
    second = [z.imag for z in operands if isinstance(z, Complex)]

    def flattened(*values: Value) -> Value | list[Value]:
        left = list(values[len(first) :])
        inside = [Complex(x, left.pop(0)) if isinstance(z, Complex) else x for z, x in zip(operands, values)]
        y = body(*inside)
        return [y.real, y.imag] if isinstance(y, Complex) else y

    found = c.kernel(of, first, flattened, second)
    return Complex(*found) if isinstance(found, list) else found


# Arithmetic inside a kernel
def times(c: RuleContext, z: Operand, w: Operand) -> Operand:
    if isinstance(w, Value):
        return (
            c.binary("mul", z, w)
            if isinstance(z, Value)
            else Complex(*(c.binary("mul", part, w) for part in (z.real, z.imag)))
        )
    if isinstance(z, Value):
        return times(c, w, z)
    return Complex(
        c.binary("sub", c.binary("mul", z.real, w.real), c.binary("mul", z.imag, w.imag)),
        c.binary("add", c.binary("mul", z.real, w.imag), c.binary("mul", z.imag, w.real)),
    )


def _scaled(c: RuleContext, z: Operand, factor: complex) -> Operand:
    def by(x: Value, number: float) -> Value:
        return c.scalar("mul", x, number)

    if isinstance(z, Value):
        return Complex(by(z, factor.real), by(z, factor.imag))
    real, imag = by(z.real, factor.real), by(z.imag, factor.real)
    if factor.imag == 0:
        return Complex(real, imag)
    return Complex(c.binary("sub", real, by(z.imag, factor.imag)), c.binary("add", imag, by(z.real, factor.imag)))


def _squared(c: RuleContext, z: Complex) -> Value:
    return c.binary("add", c.binary("mul", z.real, z.real), c.binary("mul", z.imag, z.imag))


def _conjugate(c: RuleContext, z: Complex) -> Complex:
    return Complex(z.real, c.same("neg", z.imag))


def _length(c: RuleContext, z: Complex) -> Value:
    """|z|, whose slope is 0 at 0."""
    return root(c, _squared(c, z))


def _over(c: RuleContext, z: Operand, w: Operand) -> Operand:
    if isinstance(w, Complex):
        z, w = times(c, z, _conjugate(c, w)), _squared(c, w)
    if isinstance(z, Value):
        return c.binary("div", z, w)
    return Complex(c.binary("div", z.real, w), c.binary("div", z.imag, w))


def _from_polar(c: RuleContext, size: Value, angle: Value) -> Complex:
    return Complex(c.binary("mul", size, c.same("cos", angle)), c.binary("mul", size, c.same("sin", angle)))


def _angle(c: RuleContext, z: Complex) -> Value:
    return c.binary("atan2", z.imag, z.real)


@complex_op("mul", "multiply")
def mul(c: RuleContext) -> Any:
    z, other = operand(c, "self"), c.a["other"]
    if not isinstance(other, Ref):
        return kernel(c, [z], lambda z: _scaled(c, z, complex(other)))
    return kernel(c, [z, operand(c, "other")], lambda z, w: times(c, z, w))


@complex_op("div", "divide", "true_divide")
def div(c: RuleContext) -> Any:
    z, other = operand(c, "self"), c.a["other"]
    if not isinstance(other, Ref):
        return kernel(c, [z], lambda z: _scaled(c, z, 1 / complex(other)))
    return kernel(c, [z, operand(c, "other")], lambda z, w: _over(c, z, w))


@complex_op("reciprocal")
def reciprocal(c: RuleContext) -> Any:
    def inverse(z: Complex) -> Operand:
        size = _squared(c, z)
        return Complex(c.binary("div", z.real, size), c.same("neg", c.binary("div", z.imag, size)))

    return kernel(c, [operand(c, "self")], inverse)


@complex_op("abs", "absolute")
def absolute(c: RuleContext) -> Any:
    return kernel(c, [operand(c, "self")], lambda z: _length(c, z))


@complex_op("angle", "arg")
def angle(c: RuleContext) -> Any:
    return kernel(c, [operand(c, "self")], lambda z: _angle(c, z))


@complex_op("sgn", "sign")
def sgn(c: RuleContext) -> Any:
    """z / |z|, 0 at 0."""

    def direction(z: Complex) -> Operand:
        size = _length(c, z)
        zero = c.mask("equal", [size], size.shape, {"scalar": 0.0})
        size = c.node("masked_fill", [size, zero], size.shape, {"value": 1.0}).value()
        return Complex(
            *(
                c.node("masked_fill", [c.binary("div", part, size), zero], part.shape, {"value": 0.0}).value()
                for part in (z.real, z.imag)
            )
        )

    return kernel(c, [operand(c, "self")], direction)


@complex_op("exp")
def exp(c: RuleContext) -> Any:
    return kernel(c, [operand(c, "self")], lambda z: _from_polar(c, c.same("exp", z.real), z.imag))


@complex_op("log")
def log(c: RuleContext) -> Any:
    return kernel(c, [operand(c, "self")], lambda z: Complex(c.same("log", _length(c, z)), _angle(c, z)))


@complex_op("sqrt")
def sqrt(c: RuleContext) -> Any:
    return kernel(c, [operand(c, "self")], lambda z: _power(c, z, 0.5))


@complex_op("pow", "square")
def power(c: RuleContext) -> Any:
    exponent = 2 if short_name(c) == "square" else c.a["exponent"]
    if isinstance(exponent, (Ref, complex)) or not isinstance(c.a["self"], Ref):
        raise c.unsupported("only powers of a complex tensor with a real number are replayed; write exp(y * log(x))")
    return kernel(c, [operand(c, "self")], lambda z: _power(c, z, float(exponent)))


def _power(c: RuleContext, z: Complex, exponent: float) -> Operand:
    """Small integers by products, others by size and angle."""
    if exponent in range(1, 9):
        found: Operand = z
        for _ in range(int(exponent) - 1):
            found = times(c, found, z)
        return found
    size = c.same("pow", _length(c, z), {"exponent": exponent})
    return _from_polar(c, size, c.scalar("mul", _angle(c, z), exponent))


def _of_magnitude(c: RuleContext, body: Rule) -> Any:
    c = _outside_autocast(c)
    size = kernel(c, [operand(c, "self")], lambda z: _length(c, z))
    return body(_with(c, lambda ref: Made(ref.name, size)))


# From real to complex and back
def view_as_complex(c: RuleContext) -> Complex:
    return halves(c, *c.listed("complex", c.value("self")))


def halves(c: RuleContext, x: Value) -> Complex:
    """Of a last dimension of 2."""
    last = x.rank - 1
    return Complex(*(c.reshape(c.slice(x, last, i, i + 1), x.shape[:-1]) for i in (0, 1)))


@complex_op("view_as_real")
def view_as_real(c: RuleContext) -> Value:
    return as_pairs(c, c.builder.parts(c.a["self"], c.call))


def as_pairs(c: RuleContext, z: Complex) -> Value:
    """Real and imaginary part along a last dimension."""
    parts = [c.reshape(part, (*part.shape, 1)) for part in (z.real, z.imag)]
    return c.node("cat", parts, (*z.shape, 2), {"dim": len(z.shape)}).value()


def from_two(c: RuleContext) -> Any:
    names = ("real", "imag") if "real" in c.a else ("abs", "angle")
    first, second = c.listed("complex", *(c.value(name) for name in names))
    c = _outside_autocast(c)
    if "real" in c.a:
        return Complex(c.expand(first, c.out_shape()), c.expand(second, c.out_shape()))
    return kernel(c, [first, second], lambda size, angle: _from_polar(c, size, angle))


# These are under autocast.
COMPLEX_RULES |= {"view_as_complex": view_as_complex, "complex": from_two, "polar": from_two}


@complex_op("real")
def real_part(c: RuleContext) -> Any:
    return c.builder.parts(c.a["self"], c.call).real


@complex_op("imag")
def imaginary_part(c: RuleContext) -> Any:
    return c.builder.parts(c.a["self"], c.call).imag


@complex_op("conj", "_conj", "conj_physical", "_conj_physical")
def conj(c: RuleContext) -> Any:
    return _conjugate(c, c.builder.parts(c.a["self"], c.call))


@complex_op("mH", "adjoint", "matrix_H")
def adjoint(c: RuleContext) -> Any:
    plain = find_rule(c.call)
    assert plain is not None
    return _conjugate(c, by_part(c, plain))


@complex_op("vdot", "linalg_vecdot")
def vdot(c: RuleContext) -> Any:
    """The sum of conj(x) y."""
    x, y = (c.builder.parts(ref, c.call) for ref in iterate_refs(c.a))
    terms = kernel(c, [x, y], lambda x, y: times(c, _conjugate(c, x), y))
    dims = [int(c.a["dim"])] if "dim" in c.a else None
    return Complex(c.reduce("sum", terms.real, dims), c.reduce("sum", terms.imag, dims))


@complex_op("to", "_to_copy", "type_as")
def cast(c: RuleContext) -> Any:
    """To another complex dtype nothing changes, a real tensor becomes FP32; to a real dtype the real part stays."""
    z = operand(c, "self")
    if isinstance(z, Value):
        return Complex(c.same("cast", z, {"dtype": "fp32"}), c.zeros(z.shape))
    return z if c.builder.type_of(c.call.name)[1].is_complex else z.real


@rule("_neg_view", "resolve_neg", "resolve_conj", "real")
def of_real(c: RuleContext) -> Value:
    """Of a real tensor. `_neg_view` is what PyTorch makes of a conjugate's imaginary part."""
    x = c.any_value("self")
    return c.same("neg", x) if "_neg_view" in c.call.op else x
