"""One report of a public tracker, rebuilt as a small network of our own, and what is right to say about it.

The right answer is written before the first run: the kinds that the lane's first finding may have, and where it must
point. Where: a line that ends in the comment `# the fault: NAME`, or one of `words`. Each network has a healthy
counterpart, which is the same network without the fault, or the same network in the format that its user went back to.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

STEPS = 8


@dataclass
class Setup:
    """What debug() is called with. cycle: so many steps are replayed. options: of the capture."""

    model: torch.nn.Module
    batches: Sequence[Any]
    loss_of: Callable[..., torch.Tensor]
    lanes: Sequence[str]
    optimizer: torch.optim.Optimizer | None = None
    cycle: int | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.optimizer is None:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)


@dataclass(frozen=True)
class Report:
    """had: what the user saw. answer: what is right to say, in words, for the reader who grades. make(healthy): a Setup.
    graded: a reader's verdict after the run, and a word why."""

    name: str
    group: str
    link: str
    field: str
    had: str
    make: Callable[[bool], Setup]
    kinds: Sequence[str]
    words: Sequence[str] = ()
    answer: str = ""
    graded: str = ""
    graded_healthy: str = ""

    def places(self) -> list[str]:
        """Words of which the first three lines must have one: "language.py:41" of each marked line, and `words`."""
        module = inspect.getmodule(self.make)
        marked = re.compile(rf"# the fault: {re.escape(self.name)}$")
        lines = enumerate(inspect.getsource(module).splitlines(), 1)
        file = (module.__file__ or "").rpartition("/")[2]
        return [f"{file}:{number}" for number, line in lines if marked.search(line)] + list(self.words)
