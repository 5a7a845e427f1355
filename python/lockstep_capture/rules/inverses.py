"""Factorisations, inverses, determinants and exponential functions of matrices, spelled out.

An elimination takes a few nodes for each row; the inverse of a triangular matrix a few for each doubling of its blocks,
all blocks of one size at once. What solves with a triangle multiplies with its inverse: the error of x is of the order of
n u |L^-1| |L| |L^-1| |b|, which is that of substitution but for a right-hand side that makes a small x.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..ir.graph import Value
from .context import RuleContext, rule
from .custom_functions import with_gradient
from .functions import multiplied
from .products import product

MOST_ROWS = 256  # of an elimination
# exp(A) = exp(A / 4)^4. The series' first term left out is 4^31 / 31! = 2^-51 where |A / 4| is 4.
_SQUARINGS, _DEGREE, _LARGEST_NORM = 2, 30, 16.0


def _turned(c: RuleContext, x: Value) -> Value:
    return c.permute(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])


def _stack(c: RuleContext, x: Value) -> Value:
    """(count, rows, columns)."""
    return c.reshape(x, (math.prod(x.shape[:-2]), *x.shape[-2:]))


def _constant(c: RuleContext, name: str, body: Callable[..., torch.Tensor], *numbers: int) -> Value:
    return c.derive("_".join([name, *map(str, numbers)]), body, list(numbers))


def _ones(c: RuleContext, shape: tuple[int, ...]) -> Value:
    return c.expand(c.derive("number1.0", lambda n: torch.tensor(n, dtype=torch.float32), [1.0]), shape)


def _without(c: RuleContext, x: Value, upper: bool, diagonal: int) -> Value:
    """Zeros above (upper) or below the diagonal of that number."""
    n, m = x.shape[-2:]

    def mask(n: int, m: int, upper: int, diagonal: int) -> torch.Tensor:
        ones = torch.ones(n, m, dtype=torch.int64)
        return ones.triu(diagonal) if upper else ones.tril(diagonal)

    at = c.expand(_constant(c, "outside", mask, n, m, int(upper), diagonal), x.shape)
    return c.node("masked_fill", [x, at], x.shape, {"value": 0.0}).value()


def _lower(c: RuleContext, x: Value) -> Value:
    return _without(c, x, True, 1)


def _diagonal(c: RuleContext, x: Value) -> Value:
    """(count, n) of (count, n, n)."""
    count, n = x.shape[:2]
    places = _constant(c, "diagonal_places", lambda n: torch.arange(n) * (n + 1), n)
    return c.node("index_select", [c.reshape(x, (count, n * n)), places], (count, n), {"dim": 1}).value()


def _triangle(c: RuleContext, x: Value, upper: bool, unit: bool = False) -> Value:
    """A stack of lower triangles: what LAPACK reads of x."""
    x = _stack(c, x)
    x = _turned(c, x) if upper else x
    if not unit:
        return _lower(c, x)
    return c.binary("add", _without(c, x, True, 0), _constant(c, "identity", torch.eye, x.shape[-1]))


def _triangular_inverse(c: RuleContext, x: Value) -> Value:
    """Of a stack of lower triangles: ((A, 0), (C, B))^-1 = ((A^-1, 0), (-B^-1 C A^-1, B^-1))."""
    count, n = x.shape[:2]
    size = 1 << (n - 1).bit_length()
    full = x
    if size > n:
        full = c.node("pad", [x], (count, size, size), {"pads": [0, size - n, 0, size - n], "value": 0.0}).value()
        more = _constant(c, "more_ones", lambda n, size: torch.diag((torch.arange(size) >= n).float()), n, size)
        full = c.binary("add", full, more)
    flat = c.reshape(full, (count, size * size))
    y = c.reshape(c.binary("div", _ones(c, (count, size)), _diagonal(c, full)), (count, size, 1, 1))
    half = 1
    while half < size:
        pairs = size // (2 * half)

        def below(size: int, half: int) -> torch.Tensor:
            places = torch.arange(size * size).reshape(size // (2 * half), 2 * half, size // (2 * half), 2 * half)
            return places[:, half:, :, :half].diagonal(0, 0, 2).permute(2, 0, 1).reshape(-1)

        places = _constant(c, "below", below, size, half)
        corner = c.node("index_select", [flat, places], (count, places.shape[0]), {"dim": 1}).value()
        corner = c.reshape(corner, (count, pairs, half, half))
        both = c.reshape(y, (count, pairs, 2, half, half))
        first, second = (c.reshape(c.slice(both, 2, i, i + 1), corner.shape) for i in (0, 1))
        corner = c.same("neg", product(c, product(c, second, corner), first))
        wide = (count, pairs, half, 2 * half)
        top = c.node("pad", [first], wide, {"pads": [0, half], "value": 0.0}).value()
        bottom = c.node("cat", [corner, second], wide, {"dim": 3}).value()
        half *= 2
        y = c.node("cat", [top, bottom], (count, pairs, half, half), {"dim": 2}).value()
    y = c.reshape(y, (count, size, size))
    return c.slice(c.slice(y, 1, 0, n), 2, 0, n)


def _with_gradient_of_inverse(c: RuleContext, y: Value, x: Value, triangular: bool = False) -> Value:
    """-Y^T dY Y^T."""

    def gradient(inside: RuleContext, dy: Value) -> list[Value]:
        turned = _turned(inside, y)
        dx = product(inside, product(inside, turned, dy), turned)
        return [inside.same("neg", _lower(inside, dx) if triangular else dx)]

    return with_gradient(c, y, [x], gradient)


def _batched(c: RuleContext, body: Callable[[Value], Value], x: Value) -> Value:
    """body of a stack of matrices, in the shape of x's batch."""
    y = body(_stack(c, x))
    return c.reshape(y, (*x.shape[:-2], *y.shape[1:]))


def _inverse_triangle(c: RuleContext, x: Value, upper: bool, unit: bool = False) -> Value:
    lower = _triangle(c, x, upper, unit)
    y = _with_gradient_of_inverse(c, _triangular_inverse(c, lower), lower, triangular=True)
    return c.reshape(_turned(c, y) if upper else y, x.shape)


def _rows_limit(c: RuleContext, n: int) -> None:
    if n > MOST_ROWS:
        raise c.unsupported(
            f"eliminations of at most {MOST_ROWS} rows are replayed, a few nodes for each; this has {n}"
        )


# Cholesky
def _cholesky(c: RuleContext, a: Value) -> Value:
    """L of a stack: the columns from the left, each taken off the rest. PyTorch reads the lower half of A."""
    count, n = a.shape[:2]
    _rows_limit(c, n)
    rest, columns = a, []
    for k in range(n):
        column = c.slice(rest, 2, k, k + 1)
        column = c.binary("div", column, c.same("sqrt", c.slice(column, 1, k, k + 1)))
        columns.append(column)
        if k + 1 < n:
            rest = c.binary("sub", rest, c.binary("mul", column, c.reshape(column, (count, 1, n))))
    y = c.node("cat", columns, (count, n, n), {"dim": 2}).value() if n > 1 else columns[0]
    y = _lower(c, y)

    def gradient(inside: RuleContext, dy: Value) -> list[Value]:
        """(S + S^T) / 2 with S = L^-T F L^-1, F the lower half of L^T dL, its diagonal halved."""
        half = _constant(inside, "half_diagonal", lambda n: torch.ones(n, n).tril() - torch.eye(n) / 2, n)
        back = _triangular_inverse(inside, y)
        inner = inside.binary("mul", product(inside, _turned(inside, y), dy), half)
        outer = product(inside, product(inside, _turned(inside, back), inner), back)
        return [inside.scalar("mul", inside.binary("add", outer, _turned(inside, outer)), 0.5)]

    return with_gradient(c, y, [a], gradient)


@rule("linalg_cholesky", "linalg_cholesky_ex", "cholesky")
def cholesky(c: RuleContext) -> Any:
    upper = bool(c.a["upper"])

    def body(a: Value) -> Value:
        a = _turned(c, a) if upper else a
        y = _batched(c, lambda a: _cholesky(c, a), a)
        return _turned(c, y) if upper else y

    found: Value = c.kernel("linalg_cholesky", [c.value("self")], body)
    return [found, None] if "_ex" in c.call.op else found


@rule("linalg_solve_triangular", "triangular_solve")
def solve_triangular(c: RuleContext) -> Any:
    old = "triangular_solve" in c.call.op.split(".")[1].removeprefix("linalg_") and "A" in c.a
    a, b = (c.value("A"), c.value("self")) if old else (c.value("self"), c.value("B"))
    left, upper, unit = bool(c.a.get("left", True)), bool(c.a["upper"]), bool(c.a["unitriangular"])

    def body(a: Value, b: Value) -> Value:
        inverse = _inverse_triangle(c, a, upper, unit)
        inverse = _turned(c, inverse) if c.a.get("transpose") else inverse
        return product(c, inverse, b) if left else product(c, b, inverse)

    found: Value = c.kernel("linalg_solve_triangular", [a, b], body)
    return [found, None] if old else found


@rule("cholesky_solve", "cholesky_inverse")
def with_factor(c: RuleContext) -> Value:
    """(L L^T)^-1, or that times b."""
    upper, solves = bool(c.a["upper"]), "cholesky_solve" in c.call.op

    def body(factor: Value, *b: Value) -> Value:
        inverse = _inverse_triangle(c, factor, upper)
        inverse = _turned(c, inverse) if upper else inverse
        return product(c, _turned(c, inverse), product(c, inverse, b[0]) if b else inverse)

    operands = [c.value("input2"), c.value("self")] if solves else [c.value("self")]
    found: Value = c.kernel("cholesky_solve" if solves else "cholesky_inverse", operands, body)
    return found


# LU
@dataclass
class _Factors:
    """Of each matrix A of a stack: order A = lower upper. order: zeros and ones; lower: a diagonal of ones."""

    order: Value
    lower: Value
    upper: Value


def _factors(c: RuleContext, a: Value) -> _Factors:
    """The pivot is the largest number of a column, each lane's own. Rows that were pivots become zeros."""
    count, n = a.shape[:2]
    _rows_limit(c, n)
    one, free = _ones(c, (count, 1)), _ones(c, (count, n))
    rest, pivots, rows, columns = a, [], [], []
    for k in range(n):
        column = c.slice(rest, 2, k, k + 1)
        size = c.binary("mul", c.same("abs", c.reshape(column, (count, n))), free)
        size = c.binary("add", size, c.scalar("sub", free, 1.0))  # -1 in rows that were pivots
        outputs = [((count, 1), "f32"), ((count, 1), "i32")]
        place = c.node("max_dim", [size], outputs, {"dim": 1, "keepdim": True}).value(1)
        pivot = c.node("scatter_add", [one, place], (count, n), {"dim": 1, "shape": (count, n)}).value()
        free = c.binary("sub", free, pivot)
        row = c.reduce("sum", c.binary("mul", rest, c.reshape(pivot, (count, n, 1))), [1], keepdim=True)
        pivots.append(c.reshape(pivot, (count, 1, n)))
        rows.append(row)
        if k + 1 < n:
            left = c.binary("mul", column, c.reshape(free, (count, n, 1)))
            columns.append(c.binary("div", left, c.slice(row, 2, k, k + 1)))
            rest = c.binary("sub", rest, c.binary("mul", columns[-1], row))
    order, upper = (
        c.node("cat", parts, (count, n, n), {"dim": 1}).value() if n > 1 else parts[0] for parts in (pivots, rows)
    )
    lower = _constant(c, "identity", torch.eye, n)
    if n > 1:
        below = c.node("cat", columns, (count, n, n - 1), {"dim": 2}).value()
        below = c.node("pad", [below], (count, n, n), {"pads": [0, 1], "value": 0.0}).value()
        lower = c.binary("add", product(c, order, below), lower)
    return _Factors(order, c.expand(lower, (count, n, n)), _without(c, upper, False, -1))


def _inverse_of(c: RuleContext, made: _Factors) -> Value:
    upper = _turned(c, _triangular_inverse(c, _turned(c, made.upper)))
    return product(c, product(c, upper, _triangular_inverse(c, made.lower)), made.order)


def _inverse(c: RuleContext, a: Value) -> Value:
    return _with_gradient_of_inverse(c, _batched(c, lambda a: _inverse_of(c, _factors(c, a)), a), a)


@rule("linalg_inv", "inverse", "linalg_inv_ex")
def inverse(c: RuleContext) -> Any:
    a = c.value("A" if "A" in c.a else "self")
    found: Value = c.kernel("linalg_inv", [a], lambda a: _inverse(c, a))
    return [found, None] if "_ex" in c.call.op else found


@rule("linalg_solve", "linalg_solve_ex")
def solve(c: RuleContext) -> Any:
    a, b, left = c.value("A"), c.value("B"), bool(c.a["left"])
    is_vector = b.rank == 1 or (b.rank == a.rank - 1 and b.shape == a.shape[:-1])
    slot = 0 if "_ex" in c.call.op else None

    def body(a: Value, b: Value) -> Value:
        if is_vector:
            b = c.reshape(b, (*b.shape, 1) if left else (*b.shape[:-1], 1, b.shape[-1]))
        y = product(c, _inverse(c, a), b) if left else product(c, b, _inverse(c, a))
        return c.reshape(y, c.out_shape(slot))

    found: Value = c.kernel("linalg_solve", [a, b], body)
    return found if slot is None else [found, None]


def _sign(c: RuleContext, order: Value) -> Value:
    """(count): the determinant of each order, by its number of inversions."""
    count, n = order.shape[:2]
    line = _constant(c, "line", lambda n: torch.arange(n, dtype=torch.float32).reshape(n, 1), n)
    places = product(c, order, line)
    pairs = [c.expand(x, order.shape) for x in (places, c.reshape(places, (count, 1, n)))]
    above = c.mask_as_number(c.mask("greater", pairs, order.shape))
    half = c.scalar("mul", c.reduce("sum", _without(c, above, False, 0), [1, 2]), 0.5)
    odd = c.binary("sub", half, c.same("floor", half))  # 0.5
    return c.scalar("add", c.scalar("mul", odd, -4.0), 1.0)


def _scaled_inverse(c: RuleContext, made: _Factors, scale: Value, shape: tuple[int, ...]) -> Value:
    """scale A^-T; A^-T is the gradient of ln |det A|."""
    turned = c.reshape(_turned(c, _inverse_of(c, made)), shape)
    return c.binary("mul", c.reshape(scale, (*scale.shape, 1, 1)), turned)


@rule("linalg_det", "det")
def det(c: RuleContext) -> Value:
    def body(a: Value) -> Value:
        made = _factors(c, _stack(c, a))
        y = c.binary("mul", _sign(c, made.order), multiplied(c, _diagonal(c, made.upper), 1))
        y = c.reshape(y, a.shape[:-2])
        return with_gradient(
            c, y, [a], lambda inside, dy: [_scaled_inverse(inside, made, inside.binary("mul", dy, y), a.shape)]
        )

    found: Value = c.kernel("linalg_det", [c.value("A" if "A" in c.a else "self")], body)
    return found


@rule("linalg_slogdet", "slogdet", "logdet")
def slogdet(c: RuleContext) -> Any:
    """Sign and ln |det|; logdet: ln det, NaN where that is negative."""
    alone = ".logdet" in c.call.op

    def body(a: Value) -> list[Value]:
        made = _factors(c, _stack(c, a))
        diagonal = _diagonal(c, made.upper)
        negative = c.mask_as_number(c.mask("less", [diagonal], diagonal.shape, {"scalar": 0.0}))
        signs = multiplied(c, c.scalar("add", c.scalar("mul", negative, -2.0), 1.0), 1)
        sign = c.reshape(c.binary("mul", _sign(c, made.order), signs), a.shape[:-2])
        y = c.reshape(c.reduce("sum", c.same("log", c.same("abs", diagonal)), [1]), a.shape[:-2])
        if alone:
            below = c.mask("less", [sign], sign.shape, {"scalar": 0.0})
            y = c.node("masked_fill", [y, below], y.shape, {"value": math.nan}).value()
        y = with_gradient(c, y, [a], lambda inside, dy: [_scaled_inverse(inside, made, dy, a.shape)])
        return [y] if alone else [c.same("detach", sign), y]

    found = c.kernel("linalg_slogdet", [c.value("A" if "A" in c.a else "self")], body)
    return found[0] if alone else found


@rule("linalg_lu")
def lu(c: RuleContext) -> list[Value]:
    """Of square matrices: P, L, U."""
    a = c.value("A")
    if not c.a["pivot"] or a.shape[-1] != a.shape[-2]:
        raise c.unsupported("of square matrices, with pivot=True")

    def body(a: Value) -> list[Value]:
        made = _factors(c, _stack(c, a))
        parts = [c.same("detach", _turned(c, made.order)), made.lower, made.upper]
        return [c.reshape(part, a.shape) for part in parts]

    found: list[Value] = c.kernel("linalg_lu", [a], body)
    return found


@rule("matrix_exp", "linalg_matrix_exp")
def matrix_exp(c: RuleContext) -> Value:
    """By the series. Matrices of a norm above 16 give NaN."""

    def body(a: Value) -> Value:
        n = a.shape[-1]
        identity = c.derive(f"identity{n}", torch.eye, [n])
        part = c.scalar("mul", a, 0.5**_SQUARINGS)
        y = c.expand(identity, a.shape)
        for k in range(_DEGREE, 0, -1):
            y = c.binary("add", c.scalar("div", product(c, part, y), float(k)), identity)
        for _ in range(_SQUARINGS):
            y = product(c, y, y)
        sums = c.reduce("sum", c.same("abs", a), [a.rank - 2], keepdim=True)
        norm = c.reduce("amax", sums, [a.rank - 1], keepdim=True)
        beyond = c.mask("greater", [norm], norm.shape, {"scalar": _LARGEST_NORM})
        return c.node("masked_fill", [y, c.expand(beyond, a.shape)], a.shape, {"value": math.nan}).value()

    found: Value = c.kernel("matrix_exp", [c.value("self")], body)
    return found
