"""Inverses and exponential functions of small matrices, spelled out: a few nodes for each row."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..ir.graph import Value
from .context import RuleContext, rule
from .custom_functions import with_gradient
from .products import product

MOST_ROWS = 32
# exp(A) = exp(A / 4)^4. The series' first term left out is 4^31 / 31! = 2^-51 where |A / 4| is 4.
_SQUARINGS, _DEGREE, _LARGEST_NORM = 2, 30, 16.0


@rule("linalg_inv", "inverse", "linalg_inv_ex")
def inverse(c: RuleContext) -> Any:
    a = c.value("A" if "A" in c.a else "self")
    found: Value = c.kernel("linalg_inv", [a], lambda a: _inverse(c, a))
    return [found, None] if "_ex" in c.call.op else found


@rule("linalg_solve")
def solve(c: RuleContext) -> Value:
    a, b, left = c.value("A"), c.value("B"), bool(c.a["left"])
    is_vector = b.rank == 1 or (b.rank == a.rank - 1 and b.shape == a.shape[:-1])

    def body(a: Value, b: Value) -> Value:
        if is_vector:
            b = c.reshape(b, (*b.shape, 1) if left else (*b.shape[:-1], 1, b.shape[-1]))
        y = product(c, _inverse(c, a), b) if left else product(c, b, _inverse(c, a))
        return c.reshape(y, c.out_shape())

    found: Value = c.kernel("linalg_solve", [a, b], body)
    return found


def _inverse(c: RuleContext, a: Value) -> Value:
    """Gauss-Jordan elimination of (A | 1); the pivot is the largest number of a column, each lane's own."""
    n, count = a.shape[-1], math.prod(a.shape[:-2])
    if n > MOST_ROWS:
        raise c.unsupported(f"inverses of at most {MOST_ROWS} rows are replayed")
    identity = c.expand(c.derive(f"identity{n}", torch.eye, [n]), (count, n, n))
    both = c.node("cat", [c.reshape(a, (count, n, n)), identity], (count, n, 2 * n), {"dim": 2}).value()
    one = c.expand(c.derive("number1.0", lambda n: torch.tensor(n, dtype=torch.float32), [1.0]), (count, 1))
    free, pivots = c.expand(one, (count, n)), []
    for k in range(n):
        column = c.slice(both, 2, k, k + 1)
        size = c.binary("mul", c.same("abs", c.reshape(column, (count, n))), free)
        size = c.binary("add", size, c.scalar("sub", free, 1.0))  # -1 in rows that were pivots
        outputs = [((count, 1), "f32"), ((count, 1), "i32")]
        place = c.node("max_dim", [size], outputs, {"dim": 1, "keepdim": True}).value(1)
        pivot = c.node("scatter_add", [one, place], (count, n), {"dim": 1, "shape": (count, n)}).value()
        both = _eliminated(c, both, column, c.reshape(pivot, (count, n, 1)), k)
        free = c.binary("sub", free, pivot)
        pivots.append(c.reshape(pivot, (count, 1, n)))
    order = c.node("cat", pivots, (count, n, n), {"dim": 1}).value() if n > 1 else pivots[0]
    found = c.reshape(product(c, order, c.slice(both, 2, n, 2 * n)), a.shape)

    def gradient(inside: RuleContext, dy: Value) -> list[Value]:
        turned = inside.permute(found, [*range(found.rank - 2), found.rank - 1, found.rank - 2])
        return [inside.same("neg", product(inside, product(inside, turned, dy), turned))]

    return with_gradient(c, found, [a], gradient)


def _eliminated(c: RuleContext, rows: Value, column: Value, pivot: Value, k: int) -> Value:
    """The pivot's row, divided by its number in the column, is subtracted from the others. pivot: 1 in that row, else 0."""
    row = c.reduce("sum", c.binary("mul", rows, pivot), [1], keepdim=True)
    row = c.binary("div", row, c.slice(row, 2, k, k + 1))
    others = c.binary("sub", rows, c.binary("mul", column, row))
    others = c.binary("mul", others, c.scalar("add", c.same("neg", pivot), 1.0))
    return c.binary("add", others, c.binary("mul", row, pivot))


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
