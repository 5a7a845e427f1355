"""Elements picked by their values: which ones is recorded with the step, their values are replayed.

A recorded choice is a `decision` of the graph, so that lanes can tell where their own values would have chosen
otherwise.
"""

from __future__ import annotations

from typing import Any

from ..ir.decisions import COMPARISONS, is_comparison, picks, places_of
from ..ir.graph import Value
from ..ir.program import Ref
from .context import RuleContext, rule


@rule("topk", "sort", "kthvalue", "median", "mode")
def picked(c: RuleContext) -> Any:
    """[values, places]: the values gathered at the recorded places."""
    if not picks(c.call):
        raise c.unsupported("give the dimension: x.flatten().median(0)[0]")
    x = c.value("self")
    if x.rank == 0:
        raise c.unsupported("a tensor without dimensions")
    index = c.decision()
    if index is None:
        index = _along_dim(c, Ref(places_of(c.call)), 1)
    value = c.node("gather", [x, index], index.shape, {"dim": c.a["dim"] % x.rank}).value()
    return [c.reshape(value, c.out_shape(0)), index]


def _along_dim(c: RuleContext, places: Ref, slot: int | None) -> Value:
    """The recorded places, with the dimension along which they were picked."""
    rank = len(c.shape_of("self"))
    if len(c.out_shape(slot)) == rank:
        return c.derive("", lambda places: places, [places])
    dim = c.a["dim"] % rank
    return c.derive("picked", lambda places: places.unsqueeze(dim), [places])


def decided(c: RuleContext) -> Value:
    """The node of a recorded choice, in the form that `decision` has. Requires: can_be_weighed(c.call)."""
    if is_comparison(c.call):
        return _compared(c)
    x, attrs = c.value("self"), _chosen_by(c)
    if x.rank == 0:
        raise c.unsupported("a tensor without dimensions")
    if picks(c.call):
        recorded = _along_dim(c, Ref(places_of(c.call)), 1)
    elif c.a["dim"] is None:
        x = c.reshape(x, [_elements(x)])
        recorded = c.derive("flat", lambda place: place.reshape(1), [Ref(c.call.name)])
    else:
        recorded = _along_dim(c, Ref(c.call.name), None)
    attrs["dim"] = 0 if c.a["dim"] is None else c.a["dim"] % x.rank
    return c.node("decision", [x, recorded], [(recorded.shape, "i32")], attrs).value()


def _elements(x: Value) -> int:
    count = 1
    for extent in x.shape:
        count *= extent
    return count


def _chosen_by(c: RuleContext) -> dict[str, Any]:
    name = c.call.op.split(".")[1]
    if name in ("argmax", "max"):
        return {"by": "largest"}
    if name in ("argmin", "min"):
        return {"by": "smallest"}
    if name == "topk":
        return {"by": "largest" if c.a["largest"] else "smallest"}
    if name in ("sort", "argsort"):
        return {"by": "descending" if c.a["descending"] else "ascending"}
    extent = c.shape_of("self")[c.a["dim"]]
    return {"by": "rank", "rank": c.a["k"] - 1 if name == "kthvalue" else (extent - 1) // 2}


def _compared(c: RuleContext) -> Value:
    recorded = c.derive("", lambda mask: mask, [Ref(c.call.name)])
    attrs: dict[str, Any] = {"by": COMPARISONS[c.call.op.split(".")[1]]}
    operands = [c.value("self")]
    if isinstance(c.a["other"], Ref):
        operands.append(c.value("other"))
    else:
        attrs["scalar"] = float(c.a["other"])
    return c.node("decision", [*operands, recorded], [(recorded.shape, "i32")], attrs).value()
