"""Elements picked by their values: which ones is recorded with the step, their values are replayed."""

from __future__ import annotations

from typing import Any

import torch

from ..ir.decisions import places_of, picks
from ..ir.program import Ref
from .context import RuleContext, rule


@rule("topk", "sort", "kthvalue", "median", "mode")
def picked(c: RuleContext) -> Any:
    """[values, places]: the values gathered at the recorded places."""
    if not picks(c.call):
        raise c.unsupported("give the dimension")
    x = c.value("self")
    if x.rank == 0:
        raise c.unsupported("a tensor without dimensions")
    dim = c.a["dim"] % x.rank
    flat = len(c.out_shape(0)) < x.rank
    index = c.derive("picked" if flat else "", (lambda places: places.unsqueeze(dim)) if flat else (lambda places: places),
                     [Ref(places_of(c.call))])
    value = c.node("gather", [x, index], index.shape, {"dim": dim}).value()
    return [c.reshape(value, c.out_shape(0)), index]
