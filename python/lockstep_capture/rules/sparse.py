"""Products of a sparse matrix that no weight reaches with a dense one: rows taken, times its values, added up."""

from __future__ import annotations

import torch

from ..ir.graph import Value
from ..ir.program import Ref
from .context import RuleContext, Unsupported, rule

_WRITE = "write it as index_select, a product and index_add"


@rule("_sparse_mm")
def sparse_mm(c: RuleContext) -> Value:
    if c.call.op != "aten._sparse_mm.default":
        raise c.unsupported("other sums than plain ones")
    return sparse_product(c, c.a["sparse"], c.value("dense"), "sparse_mm")


def is_sparse(c: RuleContext, name: str) -> bool:
    return isinstance(c.a[name], Ref) and not c.is_computed(name) and c.examples([c.a[name]])[0].layout != torch.strided


def sparse_product(c: RuleContext, matrix: Ref, dense: Value, op: str) -> Value:
    """Elements in the matrix's own order; places that occur twice add up. op: the one whose cast class applies."""
    if c.builder.is_computed(matrix):
        raise Unsupported("a sparse matrix with learned values", _WRITE)
    shape = c.out_shape()
    if dense.rank != 2:
        raise Unsupported("a product of a sparse matrix with no matrix", _WRITE)
    rows, columns = (c.derive(f"sparse{d}", lambda matrix, d=d: _held(matrix)[0][d], [matrix]) for d in (0, 1))
    values = c.derive("sparse_values", lambda matrix: _held(matrix)[1][:, None], [matrix])
    if values.is_empty:
        raise c.unsupported("of a sparse matrix without elements")

    def body(dense: Value, values: Value) -> Value:
        taken = c.node("index_select", [dense, columns], (values.shape[0], dense.shape[1]), {"dim": 0}).value()
        return c.node("index_add", [c.binary("mul", taken, values), rows], shape, {"dim": 0, "shape": shape}).value()

    found: Value = c.kernel(op, [dense, values], body)
    return found


def _held(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Places (2, elements) and values of a matrix in any layout."""
    matrix = matrix.detach()
    matrix = matrix if matrix.layout == torch.sparse_coo else matrix.to_sparse_coo()
    return matrix._indices(), matrix._values()
