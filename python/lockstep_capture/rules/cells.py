"""Recurrent cells, and nn.RNN step by step. (nn.LSTM and nn.GRU are ops of their own: recurrent.py.)"""

from __future__ import annotations

from typing import Any

from ..ir.graph import Value
from . import packed
from .context import RuleContext, rule
from .gates import gates, joined, leading


def _optional(c: RuleContext, name: str) -> Value | None:
    return c.value(name) if c.has(name) else None


@rule("gru_cell")
def gru_cell(c: RuleContext) -> Value:
    """r, z = sigmoid, n = tanh(W_in x + b_in + r (W_hn h + b_hn)), h = (h - n) z + n."""
    h = c.value("hx")
    size = h.shape[-1]
    own = gates(c, c.value("input"), c.value("w_ih"), _optional(c, "b_ih"))
    last = gates(c, h, c.value("w_hh"), _optional(c, "b_hh"))

    def part(value: Value, k: int) -> Value:
        return c.slice(value, value.rank - 1, k * size, (k + 1) * size)

    r, z = (c.same("sigmoid", c.binary("add", part(own, k), part(last, k))) for k in (0, 1))
    n = c.same("tanh", c.binary("add", part(own, 2), c.binary("mul", r, part(last, 2))))
    return c.binary("add", c.binary("mul", c.binary("sub", h, n), z), n)


@rule("lstm_cell")
def lstm_cell(c: RuleContext) -> Any:
    """Gates i, f, g, o: c = f c + i g, h = o tanh(c)."""
    hidden, cell = c.values("hx")
    x = c.value("input")

    def products(value: Value, kind: str) -> Value:
        bias = [c.value(f"b_{kind}")] if c.has(f"b_{kind}") else []
        weight = c.value(f"w_{kind}")
        return c.node("linear", [value, weight, *bias], (*value.shape[:-1], weight.shape[0])).value()

    total = c.binary("add", products(x, "ih"), products(hidden, "hh"))
    size = cell.shape[-1]
    part = [c.slice(total, total.rank - 1, k * size, (k + 1) * size) for k in range(4)]
    i, f, o = (c.same("sigmoid", part[k]) for k in (0, 1, 3))
    new = c.binary("add", c.binary("mul", f, cell), c.binary("mul", i, c.same("tanh", part[2])))
    return [c.binary("mul", o, c.same("tanh", new)), new]


@rule("rnn_tanh_cell", "rnn_relu_cell")
def rnn_cell(c: RuleContext) -> Value:
    own = gates(c, c.value("input"), c.value("w_ih"), _optional(c, "b_ih"))
    last = gates(c, c.value("hx"), c.value("w_hh"), _optional(c, "b_hh"))
    return c.same("tanh" if "tanh" in c.call.op else "relu", c.binary("add", own, last))


@rule("rnn_tanh", "rnn_relu")
def rnn(c: RuleContext) -> list[Value]:
    """Step by step: h = f(W_ih x + b_ih + W_hh h + b_hh); the products with x come before the loop."""
    if "batch_first" not in c.a:
        return packed.recurrent(c, "tanh" if "tanh" in c.call.op else "relu")
    layers, directions = int(c.a["num_layers"]), 2 if c.a["bidirectional"] else 1
    x, starts, weights = c.value("input"), c.value("hx"), c.values("params")
    if x.rank != 3:
        raise c.unsupported("give the input a batch dimension")
    scattered = c.is_scattered("input", (1, 0, 2) if c.a["batch_first"] else (0, 1, 2))
    x = c.permute(x, [1, 0, 2]) if c.a["batch_first"] else x
    per_cell = 4 if c.a["has_biases"] else 2
    ends = []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            cell = layer * directions + direction
            w_ih, w_hh, *biases = weights[cell * per_cell : (cell + 1) * per_cell]
            h = c.reshape(c.slice(starts, 0, cell, cell + 1), starts.shape[1:])
            steps = _rnn_steps(
                c, x, h, (w_ih, w_hh), biases or [None, None], bool(direction), separate_bias=layer == 0 and scattered
            )  # as in linear
            ends.append(steps[0] if direction else steps[-1])
            outputs.append(joined(c, [leading(c, step) for step in steps], 0))
        x = joined(c, outputs, 2)
    y = c.permute(x, [1, 0, 2]) if c.a["batch_first"] else x
    return [y, joined(c, [leading(c, end) for end in ends], 0)]


def _rnn_steps(
    c: RuleContext,
    x: Value,
    h: Value,
    weights: tuple[Value, Value],
    biases: Any,
    backwards: bool,
    *,
    separate_bias: bool,
) -> list[Value]:
    """The hidden states in the order of time. x (T,N,C), h (N,H)."""
    own = gates(c, x, weights[0], biases[0], separate_bias=separate_bias)
    time = x.shape[0]
    found: dict[int, Value] = {}
    for step in reversed(range(time)) if backwards else range(time):
        total = c.binary(
            "add", c.reshape(c.slice(own, 0, step, step + 1), own.shape[1:]), gates(c, h, weights[1], biases[1])
        )
        found[step] = h = c.same("tanh" if "tanh" in c.call.op else "relu", total)
    return [found[step] for step in range(time)]
