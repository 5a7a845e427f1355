"""nn.LSTM and nn.GRU, which are ops of their own. (nn.RNN and single cells: cells.py.)"""

from __future__ import annotations

from typing import Any

from ..ir.random_ops import random_site
from . import packed
from .context import RuleContext, rule


@rule("lstm", "gru")
def recurrent(c: RuleContext) -> Any:
    """Outputs y, h_n (, c_n), and what the op saves for its gradient (docs: ops lstm, gru)."""
    lstm = c.call.op.startswith("aten.lstm")
    if "batch_first" not in c.a:
        return packed.recurrent(c, "lstm" if lstm else "gru")
    x = c.value("input")
    if x.rank != 3:
        raise c.unsupported("give the input a batch dimension")
    states = c.values("hx") if lstm else [c.value("hx")]
    weights = c.values("params")
    layers, directions = int(c.a["num_layers"]), 2 if c.a["bidirectional"] else 1
    hidden, state = states[-1].shape[-1], states[0].shape[-1]
    batch_first, bias = bool(c.a["batch_first"]), bool(c.a["has_biases"])
    attrs: dict[str, Any] = {
        "layers": layers,
        "bidirectional": directions == 2,
        "batch_first": batch_first,
        "has_bias": bias,
    }
    if bias and c.is_scattered("input", (1, 0, 2) if batch_first else (0, 1, 2)):
        attrs["separate_bias"] = True  # as in linear, where a cell's products are ATen's
    site = random_site(c.call)
    time, batch = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
    width, cells = directions * state, layers * directions
    projects = lstm and state != hidden
    if projects:
        attrs["proj_size"] = state
    saved = [((cells, time, batch, 4 * hidden), "f32")]
    if lstm:
        saved.append(((cells, time, batch, hidden), "f32"))
    saved.append(((cells, time, batch, state), "f32"))
    if projects:
        saved.append(((cells, time, batch, hidden), "f32"))
    if site is not None:
        attrs |= {"dropout": site.p, "training": True}
        between = (layers - 1, time, batch, width)
        saved += [(between, "i32"), (between, "f32")]
    outputs = [(c.out_shape(0), "f32"), *((s.shape, "f32") for s in states), *saved]
    node = c.node("lstm" if lstm else "gru", [x, *states, *weights], outputs, attrs)
    return [node.value(slot) for slot in range(1 + len(states))]
