"""Matrix products under other names, and small functions of matrices."""

from __future__ import annotations

import math

import torch

from ..ir.graph import Value
from .context import HINTS, RuleContext, rule
from .math import length_of, root
from .products import product


@rule("tensordot")
def tensordot(c: RuleContext) -> Value:
    """One matrix product; the dimensions that are summed over come last and first."""
    x, y = c.value("self"), c.value("other")
    first, second = [d % x.rank for d in c.a["dims_self"]], [d % y.rank for d in c.a["dims_other"]]
    rows, columns = [d for d in range(x.rank) if d not in first], [d for d in range(y.rank) if d not in second]

    def size(value: Value, dims: list[int]) -> int:
        return math.prod(value.shape[d] for d in dims)

    left = c.reshape(c.permute(x, rows + first), (size(x, rows), size(x, first)))
    right = c.reshape(c.permute(y, second + columns), (size(y, second), size(y, columns)))
    return c.reshape(product(c, left, right), c.out_shape())


@rule("chain_matmul", "linalg_multi_dot")
def chain(c: RuleContext) -> Value:
    """From left to right: PyTorch takes the cheapest order."""
    first, *others = c.values("matrices" if "matrices" in c.a else "tensors")
    for other in others:
        first = product(c, first, other)
    return first


@rule("addr")
def addr(c: RuleContext) -> Value:
    """beta self + alpha x y^T."""
    x, y, alpha, beta = c.value("vec1"), c.value("vec2"), float(c.a["alpha"]), float(c.a["beta"])
    outer = c.binary("mul", c.reshape(x, (*x.shape, 1)), y)
    outer = outer if alpha == 1 else c.scalar("mul", outer, alpha)
    return outer if beta == 0 else c.binary("add", outer, c.value("self"), {} if beta == 1 else {"alpha": beta})


@rule("trace")
def trace(c: RuleContext) -> Value:
    def total(x: Value) -> Value:
        rows, columns = x.shape
        places = c.derive(
            f"diagonal{rows}x{columns}_0", lambda r, n: torch.arange(r * n).reshape(r, n).diagonal(), [rows, columns]
        )
        flat = c.reshape(x, (rows * columns,))
        return c.reduce("sum", c.node("index_select", [flat, places], places.shape, {"dim": 0}).value(), None)

    found: Value = c.kernel("trace", [c.value("self")], total)
    return found


@rule("linalg_cross", "cross")
def cross(c: RuleContext) -> Value:
    x, y = c.value("self"), c.value("other")
    shape = c.out_shape()
    dim = c.a.get("dim")
    dim = shape.index(3) if dim is None else int(dim) % len(shape)
    x, y = c.expand(x, shape), c.expand(y, shape)

    def turned(value: Value, by: int) -> Value:
        index = c.derive(f"turned{by}", lambda by: (torch.arange(3) + by) % 3, [by])
        return c.node("index_select", [value, index], shape, {"dim": dim}).value()

    return c.binary("sub", c.binary("mul", turned(x, 1), turned(y, 2)), c.binary("mul", turned(x, 2), turned(y, 1)))


@rule("cdist", "_cdist_forward", "_euclidean_dist")
def cdist(c: RuleContext) -> Value:
    """|x_i - y_j|. For p = 2 and more than 25 rows PyTorch takes sqrt(x^2 - 2 x y + y^2), a product."""
    order = float(c.a.get("p", 2.0))
    x, y = c.value("x1"), c.value("x2")
    many = max(x.shape[-2], y.shape[-2]) > 25 and c.a.get("compute_mode") != 2 or c.a.get("compute_mode") == 1
    out = c.out_shape()

    def apart(x: Value, y: Value) -> Value:
        x, y = c.reshape(x, (*x.shape[:-1], 1, x.shape[-1])), c.reshape(y, (*y.shape[:-2], 1, *y.shape[-2:]))
        difference = c.binary("sub", x, y)
        return length_of(c, difference, order, [difference.rank - 1], False)

    def by_product(x: Value, y: Value) -> Value:
        def squares(value: Value) -> Value:
            return c.reduce("sum", c.binary("mul", value, value), [value.rank - 1], True)

        def ones(value: Value) -> Value:
            one = c.derive("number1.0", lambda n: torch.tensor(n, dtype=torch.float32), [1.0])
            return c.expand(one, (*value.shape[:-1], 1))

        def joined(*parts: Value) -> Value:
            shape = (*parts[0].shape[:-1], sum(part.shape[-1] for part in parts))
            return c.node("cat", parts, shape, {"dim": len(shape) - 1}).value()

        left = joined(c.scalar("mul", x, -2.0), squares(x), ones(x))
        right = joined(y, ones(y), squares(y))
        total = product(c, left, c.permute(right, [*range(right.rank - 2), right.rank - 1, right.rank - 2]))
        return root(c, c.same("clamp", total, {"min": 0.0}))

    found: Value = c.kernel("cdist", [x, y], by_product if many and order == 2 else apart)
    return c.reshape(found, out)


@rule("pdist", "_pdist_forward")
def pdist(c: RuleContext) -> Value:
    """|x_i - x_j| for i < j, row by row."""
    x, order = c.value("self"), float(c.a["p"])
    rows = x.shape[0]

    def body(x: Value) -> Value:
        sides = [
            c.derive(f"pair{side}_{rows}", lambda n, side=side: torch.triu_indices(n, n, 1)[side], [rows])
            for side in (0, 1)
        ]
        left, right = (
            c.node("index_select", [x, side], (*side.shape, x.shape[1]), {"dim": 0}).value() for side in sides
        )
        return length_of(c, c.binary("sub", left, right), order, [1], False)

    found: Value = c.kernel("pdist", [x], body)
    return found


@rule("dist")
def dist(c: RuleContext) -> Value:
    order = float(c.a["p"])
    found: Value = c.kernel(
        "dist",
        [c.value("self"), c.value("other")],
        lambda x, y: length_of(c, c.binary("sub", x, y), order, None, False),
    )
    return found


@rule("renorm")
def renorm(c: RuleContext) -> Value:
    """Slices of a dimension whose norm is above maxnorm, scaled by maxnorm / (norm + 1e-7)."""
    order, dim, most = float(c.a["p"]), int(c.a["dim"]), float(c.a["maxnorm"])

    def body(x: Value) -> Value:
        others = [d for d in range(x.rank) if d != dim % x.rank]
        length = length_of(c, x, order, others, True)
        share = c.scalar("mul", c.same("reciprocal", c.scalar("add", length, 1e-7)), most)
        above = c.mask("greater", [length], length.shape, {"scalar": most})
        one = c.derive("number1.0", lambda n: torch.tensor(n, dtype=torch.float32), [1.0])
        return c.binary("mul", x, c.node("where", [above, share, one], length.shape).value())

    found: Value = c.kernel("renorm", [c.value("self")], body)
    return found


_WAYS_OUT = {
    "linalg_qr qr linalg_householder_product linalg_pinv linalg_lstsq": "torch.linalg.cholesky, solve and inv are: of a "
    "tall A of full rank, Q = A inv(cholesky(A.mT @ A).mT), and pinv(A) = torch.linalg.solve(A.mT @ A, A.mT)",
    "linalg_lu_factor linalg_lu_solve": "torch.linalg.lu, solve and slogdet are",
    "linalg_svd _linalg_svd linalg_svdvals svd linalg_eigh _linalg_eigh linalg_eigvalsh linalg_eig linalg_eigvals": "train "
    "their result as a parameter, or detach() it",
}
for _names, _hint in _WAYS_OUT.items():
    for _name in _names.split():
        HINTS[f"aten.{_name}"] = f"not replayed; {_hint}"
