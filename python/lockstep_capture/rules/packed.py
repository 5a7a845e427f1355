"""Packed sequences: their rows in a padded tensor, and recurrent layers over them step by step.

A sequence that has ended keeps its state; the batch sizes are data of the step, so that batches of other lengths share
a graph if they have as many rows and steps.
"""

from __future__ import annotations

from typing import Any

import torch

from ..ir.graph import Value
from .context import RuleContext, rule
from .gates import gates, joined, leading


def _packed_places(sizes: torch.Tensor, width: int) -> torch.Tensor:
    """Where row after row of the packed data is in (T N) padded rows."""
    return torch.cat([torch.arange(int(size)) + step * width for step, size in enumerate(sizes)])


def _padded_places(sizes: torch.Tensor, width: int) -> torch.Tensor:
    """(T N): the packed row of each padded one; of a sequence that has ended any row."""
    start = sizes.cumsum(0) - sizes
    return (start.reshape(-1, 1) + torch.minimum(torch.arange(width), sizes.reshape(-1, 1) - 1)).reshape(-1)


def _running(sizes: torch.Tensor, width: int) -> torch.Tensor:
    """(T,N,1): has the sequence not ended?"""
    return (torch.arange(width) < sizes.reshape(-1, 1)).unsqueeze(2)


def _rows(c: RuleContext, x: Value, index: Value, shape: tuple[int, ...]) -> Value:
    taken = c.node("index_select", [x, index], index.shape + x.shape[1:], {"dim": 0}).value()
    return c.reshape(taken, shape)


@rule("_pack_padded_sequence")
def pack(c: RuleContext) -> list[Any]:
    x = c.value("input")
    x = c.permute(x, [1, 0, *range(2, x.rank)]) if c.a["batch_first"] else x
    width = x.shape[1]

    def places(lengths: torch.Tensor) -> torch.Tensor:
        lengths = lengths.cpu()
        return _packed_places((lengths > torch.arange(int(lengths.max())).reshape(-1, 1)).sum(1), width)

    index = c.derive("packed", places, [c.a["lengths"]])
    flat = c.reshape(x, (x.shape[0] * width, *x.shape[2:]))
    return [_rows(c, flat, index, c.out_shape(0)), None]


@rule("_pad_packed_sequence")
def pad(c: RuleContext) -> list[Any]:
    x, sizes, shape = c.value("data"), c.a["batch_sizes"], c.out_shape(0)
    steps = c.shape_of("batch_sizes")[0]
    width = shape[0] if c.a["batch_first"] else shape[1]
    total = shape[1] if c.a["batch_first"] else shape[0]
    index = c.derive(f"padded{width}", lambda sizes: _padded_places(sizes.cpu(), width), [sizes])
    ended = c.derive(
        f"ended{width}_{x.rank}",
        lambda sizes: ~_running(sizes.cpu(), width).reshape(-1, width, *[1] * (x.rank - 1)),
        [sizes],
    )
    y = _rows(c, x, index, (steps, width, *x.shape[1:]))
    filling = float(c.a["padding_value"])
    y = c.node("masked_fill", [y, ended], y.shape, {"value": filling}).value()
    if total > steps:
        pads = [0, 0] * (y.rank - 1) + [0, total - steps]
        y = c.node("pad", [y], (total, *y.shape[1:]), {"pads": pads, "value": filling}).value()
    return [c.permute(y, [1, 0, *range(2, y.rank)]) if c.a["batch_first"] else y, None]


def recurrent(c: RuleContext, kind: str) -> list[Value]:
    """kind: lstm, gru, tanh or relu. Outputs: packed rows, and the states at each sequence's end."""
    layers, directions = int(c.a["num_layers"]), 2 if c.a["bidirectional"] else 1
    starts = c.values("hx") if kind == "lstm" else [c.value("hx")]
    if kind == "lstm" and starts[0].shape[-1] != starts[1].shape[-1]:
        raise c.unsupported("projections over packed sequences")
    data, sizes, weights = c.value("data"), c.a["batch_sizes"], c.values("params")
    steps, width = c.shape_of("batch_sizes")[0], starts[0].shape[1]
    index = c.derive(f"padded{width}", lambda sizes: _padded_places(sizes.cpu(), width), [sizes])
    back = c.derive(f"packed{width}", lambda sizes: _packed_places(sizes.cpu(), width), [sizes])
    running = c.derive(f"running{width}", lambda sizes: _running(sizes.cpu(), width), [sizes])
    masks = [c.reshape(c.slice(running, 0, step, step + 1), (width, 1)) for step in range(steps)]
    x = _rows(c, data, index, (steps, width, *data.shape[1:]))
    each = 4 if c.a["has_biases"] else 2
    ends: list[list[Value]] = [[] for _ in starts]
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            cell = layer * directions + direction
            states = [c.reshape(c.slice(start, 0, cell, cell + 1), start.shape[1:]) for start in starts]
            found, last = _run(c, kind, x, states, weights[cell * each : (cell + 1) * each], masks, bool(direction))
            for end, state in zip(ends, last, strict=True):
                end.append(leading(c, state))
            outputs.append(joined(c, [leading(c, y) for y in found], 0))
        x = joined(c, outputs, 2)
    flat = c.reshape(x, (steps * width, x.shape[2]))
    return [_rows(c, flat, back, c.out_shape(0)), *(joined(c, end, 0) for end in ends)]


def _run(
    c: RuleContext, kind: str, x: Value, states: list[Value], weights: list[Value], masks: list[Value], backwards: bool
) -> tuple[list[Value], list[Value]]:
    """The hidden states in the order of time, and the last states."""
    w_ih, w_hh, *biases = weights
    b_ih, b_hh = biases or (None, None)
    own = gates(c, x, w_ih, b_ih)
    found: dict[int, Value] = {}
    for step in reversed(range(len(masks))) if backwards else range(len(masks)):
        given = c.reshape(c.slice(own, 0, step, step + 1), own.shape[1:])
        new = _cell(c, kind, given, gates(c, states[0], w_hh, b_hh), states)
        found[step] = new[0]
        states = [
            c.node("where", [masks[step], after, before], before.shape).value()
            for after, before in zip(new, states, strict=True)
        ]
    return [found[step] for step in range(len(masks))], states


def _cell(c: RuleContext, kind: str, own: Value, last: Value, states: list[Value]) -> list[Value]:
    size = states[0].shape[-1]

    def part(value: Value, k: int) -> Value:
        return c.slice(value, 1, k * size, (k + 1) * size)

    if kind == "lstm":
        total = c.binary("add", own, last)
        i, f, o = (c.same("sigmoid", part(total, k)) for k in (0, 1, 3))
        cell = c.binary("add", c.binary("mul", f, states[1]), c.binary("mul", i, c.same("tanh", part(total, 2))))
        return [c.binary("mul", o, c.same("tanh", cell)), cell]
    if kind == "gru":
        r, z = (c.same("sigmoid", c.binary("add", part(own, k), part(last, k))) for k in (0, 1))
        n = c.same("tanh", c.binary("add", part(own, 2), c.binary("mul", r, part(last, 2))))
        return [c.binary("add", c.binary("mul", c.binary("sub", states[0], n), z), n)]
    return [c.same(kind, c.binary("add", own, last))]
