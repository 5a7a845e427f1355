"""Products: linear, matmul and its kin, einsum."""

from __future__ import annotations

import torch

from ..ir.graph import Value
from .context import RuleContext, rule
from .einsum import einsum_product
from .sparse import is_sparse, sparse_product


@rule("linear")
def linear(c: RuleContext) -> Value:
    """at::linear: one addmm of matrices and of what lies row by row, else matmul, rounded, and then the bias."""
    x, w = c.value("input"), c.value("weight")
    if w.rank == 1:
        y = product(c, x, w)
        return c.binary("add", y, c.value("bias")) if c.has("bias") else y
    operands = [x, w]
    if c.has("bias"):
        operands.append(c.expand(c.value("bias"), (w.shape[0],)))
    separate = len(operands) == 3 and x.rank != 2 and c.is_scattered("input", range(x.rank))
    return c.node("linear", operands, c.out_shape(), {"separate_bias": True} if separate else {}).value()


@rule("matmul", "mm", "bmm", "dot", "vdot", "mv")
def matmul(c: RuleContext) -> Value:
    second = next(name for name in ("other", "mat2", "tensor", "vec") if name in c.a)
    if is_sparse(c, "self"):
        return sparse_product(c, c.a["self"], c.value(second), "matmul")
    return product(c, c.value("self"), c.value(second), _kernel_with_own_class(c))


# Kernels that autocast lists apart from matmul: PyTorch's CPU lists name neither, CUDA's name mv.
_OWN_CLASS = {"mv": "mv", "addmv": "mv", "dot": "dot", "vdot": "dot"}


def _kernel_with_own_class(c: RuleContext) -> str:
    return _OWN_CLASS.get(c.call.op.split(".")[1], "")


def product(c: RuleContext, x: Value, y: Value, of: str = "") -> Value:
    """torch.matmul; a vector is a matrix with one row, or one column, for its product. of: mv or dot, if it is one."""
    rows, columns = x.rank == 1, y.rank == 1
    x = c.reshape(x, (1, *x.shape)) if rows else x
    y = c.reshape(y, (*y.shape, 1)) if columns else y
    batch = tuple(torch.broadcast_shapes(x.shape[:-2], y.shape[:-2]))
    out = c.node("matmul", [x, y], (*batch, x.shape[-2], y.shape[-1]), {"of": of} if of else {}).value()
    shape = batch + (() if rows else (x.shape[-2],)) + (() if columns else (y.shape[-1],))
    return c.reshape(out, shape)


@rule("addmm", "baddbmm")
def addmm(c: RuleContext) -> Value:
    """beta self + alpha (a @ b): one kernel, rounded once."""
    names = ("mat1", "mat2") if "mat1" in c.a else ("batch1", "batch2")
    if float(c.a["beta"]) == 0 and float(c.a["alpha"]) == 1:  # `self` is not read
        return product(c, c.value(names[0]), c.value(names[1]))
    return _added(c, c.value(names[0]), c.value(names[1]), c.value("self"), float(c.a["alpha"]), float(c.a["beta"]))


def _added(c: RuleContext, x: Value, y: Value, added: Value, alpha: float, beta: float) -> Value:
    attrs = {name: number for name, number in (("alpha", alpha), ("beta", beta)) if number != 1}
    return c.node("addmm", [x, y, added], (*x.shape[:-1], y.shape[-1]), attrs).value()


@rule("addbmm")
def addbmm(c: RuleContext) -> Value:
    """beta self + alpha (the sum over the batch of a @ b): PyTorch adds one product after the other to the result."""
    x, y, total, beta = c.value("batch1"), c.value("batch2"), c.value("self"), float(c.a["beta"])
    if x.shape[0] == 0:
        raise c.unsupported("a batch without matrices")
    for i in range(x.shape[0]):
        left, right = (c.reshape(c.slice(stack, 0, i, i + 1), stack.shape[1:]) for stack in (x, y))
        total, beta = _added(c, left, right, total, float(c.a["alpha"]), beta), 1.0
    return total


@rule("addmv")
def addmv(c: RuleContext) -> Value:
    """beta self + alpha (a @ v)."""
    out = product(c, c.value("mat"), c.value("vec"), _kernel_with_own_class(c))
    alpha, beta = float(c.a["alpha"]), float(c.a["beta"])
    out = out if alpha == 1 else c.scalar("mul", out, alpha)
    if beta == 0:
        return out
    (added,) = c.listed("matmul", c.value("self"))  # autocast casts it, too
    return c.binary("add", out, added, {} if beta == 1 else {"alpha": beta})


@rule("einsum")
def einsum(c: RuleContext) -> Value:
    return einsum_product(c, c.a["equation"], c.values("tensors"))


@rule("_grouped_mm")
def grouped_mm(c: RuleContext) -> Value:
    """Rows up to offs[0] times matrix 0, up to offs[1] times matrix 1, ...: every row's product with all, and its own."""
    x, y = c.value("self"), c.value("mat2")
    if x.rank != 2 or y.rank != 3 or not c.is_tensor("offs") or c.has("bias"):
        raise c.unsupported("rows (M,K) and a matrix per group (G,K,N) with offs are replayed")
    rows, groups, columns = x.shape[0], *y.shape[::2]

    def own(offs: torch.Tensor) -> torch.Tensor:
        group = torch.bucketize(torch.arange(rows), offs.cpu().long(), right=True)
        return group.clamp(max=groups - 1) * rows + torch.arange(rows)

    def unused(offs: torch.Tensor) -> torch.Tensor:
        return (torch.arange(rows) >= int(offs[-1])).reshape(rows, 1)

    at, beyond = c.derive(f"groups{groups}", own, [c.a["offs"]]), c.derive("no_group", unused, [c.a["offs"]])

    def body(x: Value, y: Value) -> Value:
        every = c.reshape(product(c, c.reshape(x, (1, *x.shape)), y), (groups * rows, columns))
        chosen = c.node("index_select", [every, at], (rows, columns), {"dim": 0}).value()
        return c.node("masked_fill", [chosen, beyond], (rows, columns), {"value": 0.0}).value()

    found: Value = c.kernel("grouped_mm", [x, y], body)
    return found
