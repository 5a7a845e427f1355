"""Ops whose result is chosen by values: integers that a step keeps, and what depends on them."""

from __future__ import annotations

from ..torch_api import op_schema
from .program import Call

_PICKING = {"aten.topk", "aten.sort", "aten.kthvalue", "aten.median", "aten.mode"}
_PLACES = {"aten.argmax", "aten.argmin", "aten.argsort"}
EXTREMES = {"aten.max.dim", "aten.min.dim"}  # kinks of the lane's own, unless the places are read

# The graph's names of comparisons.
COMPARISONS = {
    "gt": "greater",
    "ge": "greater_equal",
    "lt": "less",
    "le": "less_equal",
    "eq": "equal",
    "ne": "not_equal",
    "greater": "greater",
    "greater_equal": "greater_equal",
    "less": "less",
    "less_equal": "less_equal",
    "not_equal": "not_equal",
}


def picks(call: Call) -> bool:
    """Does the call give elements of its operand, and their places along a dimension?"""
    if call.is_getitem:
        return False
    return call.reads_places or (
        _base_name(call) in _PICKING and any(argument.name == "dim" for argument in op_schema(call.target).arguments)
    )


def places_of(call: Call) -> str:
    """The name of the places that a call picks."""
    return f"{call.name}@places"


def can_be_weighed(call: Call) -> bool:
    """Can a lane tell what its own values would have chosen?"""
    if call.is_getitem:
        return False
    if picks(call):
        return _base_name(call) != "aten.mode"
    return _base_name(call) in _PLACES or is_comparison(call)


def is_comparison(call: Call) -> bool:
    return not call.is_getitem and _base_name(call).split(".")[1] in COMPARISONS


def _base_name(call: Call) -> str:
    return ".".join(call.op.split(".")[:2])
