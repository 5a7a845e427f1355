"""Interpolation along one dimension after the other: sums of weighted elements, with PyTorch's own weights."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ..ir.graph import Value
from .context import RuleContext, rule


def exact_constant(c: RuleContext, name: str, tensor: torch.Tensor, of: str = "") -> Value:
    """Doubles as a sum of float32 constants: FP64 lanes have all of them, in FP32 the first one stays.

    of: the composed op whose own constant it is: FP32 in every lane, as inside of PyTorch's kernel.
    """
    total, rest = None, tensor.double()
    for part in range(3):
        piece = rest.float()
        rest = rest - piece.double()
        value = c.derive(f"{name}_{part}", lambda *_, piece=piece: piece, [])
        if of:
            value = c.same("composed_operand", value, {"of": of, "dtype": "fp32", "own": True})
        total = value if total is None else c.binary("add", total, value)
        if not bool(rest.any()):
            break
    assert total is not None
    return total


@rule("upsample_bicubic2d", "upsample_trilinear3d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
def upsample(c: RuleContext) -> Value:
    x = c.value("input" if "input" in c.a else "self")
    mode = "bicubic" if "bicubic" in c.call.op else "linear"
    return interpolated(c, x, mode, antialias="_aa" in c.call.op)


def interpolated(c: RuleContext, x: Value, mode: str, antialias: bool = False) -> Value:
    factors = list(c.a.get("scale_factors") or [])
    if not factors:
        named = [c.a.get(name) for name in ("scales", "scales_d", "scales_h", "scales_w")]
        if any(named):
            raise c.unsupported("call torch.nn.functional.interpolate")
    corners, out = bool(c.a["align_corners"]), c.out_shape()

    def body(x: Value) -> Value:
        for i in range(x.rank - 2):
            dim = x.rank - 1 - i
            factor = float(factors[dim - 2]) if factors else None
            if x.shape[dim] != out[dim] or factor not in (None, 1.0):
                x = _along(
                    c,
                    x,
                    dim,
                    _weights(x.shape[dim], out[dim], factor, mode, corners, antialias),
                    f"{mode}{'_aa' * antialias}_{x.shape[dim]}_{out[dim]}_{factor}_{corners}",
                )
        return x

    found: Value = c.kernel("upsample", [x], body)
    return found


def _weights(extent: int, out: int, factor: float | None, mode: str, corners: bool, antialias: bool) -> torch.Tensor:
    """(out, extent): PyTorch's result for each unit vector."""
    units = torch.eye(extent, dtype=torch.float64)
    size = None if factor else [1, out] if mode == "bicubic" or antialias else out
    if mode == "bicubic" or antialias:
        scale = (1.0, factor) if factor else None
        images = units.reshape(extent, 1, 1, extent)
        given = F.interpolate(
            images,
            size,
            scale,
            mode="bicubic" if mode == "bicubic" else "bilinear",
            align_corners=corners,
            antialias=antialias,
        )
    else:
        given = F.interpolate(units.reshape(extent, 1, extent), size, factor, mode="linear", align_corners=corners)
    return given.reshape(extent, out).T.contiguous()


def _along(c: RuleContext, x: Value, dim: int, weights: torch.Tensor, name: str) -> Value:
    """Sum over the k-th element that an output reads, of all outputs at once."""
    taps = int((weights != 0).sum(1).max())
    largest = weights.abs().topk(taps, 1).indices.sort(1).values
    out = weights.shape[0]
    shape = x.shape[:dim] + (out,) + x.shape[dim + 1 :]
    total: Any = None
    for k in range(taps):
        places = largest[:, k]
        index = c.derive(f"{name}_place{k}", lambda *_, places=places: places, [])
        taken = c.node("index_select", [x, index], shape, {"dim": dim}).value()
        share = exact_constant(
            c,
            f"{name}_share{k}_{x.rank - 1 - dim}",
            weights.gather(1, places[:, None])[:, 0].reshape([-1] + [1] * (x.rank - 1 - dim)),
            of="upsample",
        )
        term = c.binary("mul", taken, share)
        total = term if total is None else c.binary("add", total, term)
    return total
