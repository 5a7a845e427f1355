"""What a part's file says of the run besides the capture: outputs, gradients, and how far the copy was from the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from .writer import Writer, escape


@dataclass(frozen=True)
class Placement:
    """Where a tensor's numbers lie on the ranks. text: "S(0) of 2 as rank 1", "": whole on each. shape, offset: of what this
    rank has; splits: dimension -> into how many."""

    text: str = ""
    shape: tuple[int, ...] = ()
    offset: tuple[int, ...] = ()
    splits: tuple[tuple[int, int], ...] = ()


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
