"""What a part's file says of the run besides the capture: outputs, gradients, and how far the copy was from the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..write.writer import Writer, escape
from .calls import Placement


@dataclass
class CallChecks:
    """Of one micro-batch of the file: one call of the module. By name of the leaf."""

    outputs: dict[str, torch.Tensor]
    input_gradients: dict[str, torch.Tensor]
    micro: int  # of the run
    order: int


@dataclass
class PartChecks:
    """attributes: what the comparison of the copy with the run found, in words and as a distance. gradients: of the weights, by
    the copy, with the run's loss scale; run_gradients: the run's own, where they differ; both by path in the large model."""

    attributes: dict[str, Any]
    calls: list[CallChecks] = field(default_factory=list)
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    run_gradients: dict[str, tuple[torch.Tensor, Placement]] = field(default_factory=dict)
    placements: dict[str, Placement] = field(default_factory=dict)

    def graded_inputs(self) -> frozenset[str]:
        """As the graph has them."""
        return frozenset(f"batch['inputs'][{name!r}]" for call in self.calls for name in call.input_gradients)

    def write(self, writer: Writer) -> None:
        writer.attributes("part", self.attributes)
        for path, placement in self.placements.items():
            if placement.text:
                writer.attributes(f"part/placements/{escape(path)}", {"of": placement.text})
        for path, gradient in self.gradients.items():
            writer.tensor(f"part/gradients/{escape(path)}", gradient, owned=True)
        for path, (gradient, placement) in self.run_gradients.items():
            place = {"offset": np.array(placement.offset, dtype=np.int64)} if placement.splits else {}
            writer.tensor(f"part/run_gradients/{escape(path)}", gradient, place, owned=True)
        for number, call in enumerate(self.calls):
            group = f"part/calls/{number:03d}"
            writer.attributes(group, {"micro": call.micro, "order": call.order})
            for name, tensor in call.outputs.items():
                writer.tensor(f"{group}/outputs/{escape(name)}", tensor, packed=True)
            for name, tensor in call.input_gradients.items():
                writer.tensor(f"{group}/input_gradients/{escape(name)}", tensor, packed=True)


def distance(own: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """0.0: the same bits; else the norm of the difference over the norm. Infinite where names or shapes differ, or one
    has a number where the other has none."""
    if own.keys() != theirs.keys() or any(own[name].shape != theirs[name].shape for name in own):
        return float("inf")
    off = norm = 0.0
    for name, tensor in own.items():
        other = theirs[name].to(tensor.device)
        if tensor.dtype == other.dtype and torch.equal(_bits(tensor), _bits(other)):
            norm += float(other.detach().abs().double().square().sum())
            continue
        a, b = tensor.detach().double(), other.detach().double()
        same = (a == b) | (a.isnan() & b.isnan())
        off += float((a - b)[~same].square().sum())
        norm += float(b.square().sum())
    return 0.0 if off == 0 else (off / norm) ** 0.5 if norm > 0 else float("inf")


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    widths = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    plain = tensor.detach().contiguous()
    return plain.view(widths[plain.element_size()]) if plain.dtype in _FLOATS else plain


_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
