"""Ops whose result is chosen by values: integers that a step keeps, and what depends on them."""

from __future__ import annotations

from .program import Call

_PICKING = {"aten.topk", "aten.sort", "aten.kthvalue", "aten.median", "aten.mode"}
EXTREMES = {"aten.max.dim", "aten.min.dim"}  # kinks of the lane's own, unless the places are read


def picks(call: Call) -> bool:
    """Does the call give elements of its operand, and their places along a dimension?"""
    if call.is_getitem:
        return False
    return call.reads_places or (".".join(call.op.split(".")[:2]) in _PICKING
                                 and any(argument.name == "dim" for argument in call.target._schema.arguments))


def places_of(call: Call) -> str:
    """The name of the places that a call picks."""
    return f"{call.name}@places"
