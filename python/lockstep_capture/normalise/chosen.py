"""Which integers are chosen from activations outside of the graph: they are recorded, as dropout masks are.

A mask that only joins others and chooses between values (torch.where) is the graph's own: each lane compares its own
numbers. What picks elements, counts them or gives an index cannot be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..ir.decisions import COMPARISONS
from ..ir.program import Call, Program
from ..ir.random_ops import base_name, random_site
from ..torch_api import op_schema

_COMPARISONS = {*COMPARISONS, "isnan"}
JOINS = {
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "__and__",
    "__or__",
    "__xor__",
    "logical_not",
    "bitwise_not",
}
SAME_ORDER = {
    "view",
    "reshape",
    "_unsafe_view",
    "view_as",
    "reshape_as",
    "flatten",
    "unflatten",
    "unsqueeze",
    "squeeze",
    "contiguous",
    "clone",
    "alias",
}
MOVES = SAME_ORDER | {
    "transpose",
    "permute",
    "t",
    "expand",
    "expand_as",
    "broadcast_to",
    "select",
    "slice",
    "narrow",
    "repeat",
    "unbind",
    "split",
    "chunk",
    "getitem",
}
_PICKS_BY_MASK = {
    "index",
    "index_put",
    "masked_select",
    "masked_scatter",
    "repeat_interleave",
    "scaled_dot_product_attention",
}


def _short(call: Call) -> str:
    return "getitem" if call.is_getitem else base_name(call).split(".")[1]


def chosen_outside(
    program: Program, is_float: Mapping[str, bool], weights: set[str], written: Mapping[str, Iterable[str]]
) -> set[str]:
    """Names of calls with integer results that are computed from activations and are no part of the graph.

    weights: values that depend on weights before the first call. written: call -> further values that it writes to.
    Requires: is_float for every value.
    """
    inside, masks, chosen = set(weights), set[str](), set[str]()
    for call in program.calls:
        site = random_site(call)
        if site is not None and site.kind == "noise":
            continue
        reads = set(call.refs()) & inside
        if not reads and site is None:
            continue
        in_place = not call.is_getitem and op_schema(call.target).name.endswith("_")
        from_activations = any(is_float.get(name, False) or name in masks for name in reads)
        if is_float.get(call.name, False) or in_place or not from_activations:
            inside |= {call.name, *written.get(call.name, ())}
            if reads & masks and not is_float.get(call.name, False):
                masks.add(call.name)
        elif _short(call) in _COMPARISONS | JOINS or (_short(call) in MOVES and reads <= masks):
            inside.add(call.name)
            masks.add(call.name)
        else:
            chosen.add(call.name)
    chosen |= masks & program.read  # a branch of Python's
    for call in reversed(program.calls):  # from what cannot use a mask of the graph back to the comparisons
        reads = set(call.refs()) & masks
        in_place = (
            not call.is_getitem and op_schema(call.target).name.endswith("_") and not is_float.get(call.name, False)
        )
        if call.name in chosen or _short(call).rstrip("_") in _PICKS_BY_MASK or in_place:
            chosen |= reads
            chosen |= {call.name} if call.name in masks else set()
    return chosen
