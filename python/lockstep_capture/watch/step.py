"""What the blocks of one optimizer step recorded, as it goes to the writer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ..model_state import State
from ..trace.traced import Traced
from .hooks import Events
from .kept_draws import Kept
from .replayed_gradients import Replayed


@dataclass
class MicroBatch:
    """One micro-batch: its forward pass, leaves, random draws by call, the factor of its loss, and what was chosen."""

    traced: Traced
    leaves: list[Any]
    draws: dict[str, list[Kept]]
    loss_mult: float
    decisions: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass
class Micro:
    """What one block recorded, ready to be written."""

    batch: MicroBatch
    graph: int
    loss: float
    inputs: list[torch.Tensor]
    torch_ops: dict[str, str]  # call -> op that drew
    attention: set[str]  # kernels of scaled_dot_product_attention that ran
    backends: str  # of scaled_dot_product_attention that were allowed


@dataclass
class Step:
    """What one optimizer step recorded. pre, replayed: the state before it, and what its gradients must be, on verify
    steps only. has_gradients: after its last micro-batch so far. reached: parameters that its losses depend on. changed: weights that
    the optimizer changed."""

    number: int
    events: Events
    hyper: list[dict[str, Any]]
    scale_before: float
    micro: list[Micro] = field(default_factory=list)
    grad_norms: dict[str, float] = field(default_factory=dict)
    grads: dict[str, torch.Tensor] = field(default_factory=dict)
    pre: State | None = None
    replayed: Replayed | None = None
    has_gradients: bool = False
    reached: set[str] = field(default_factory=set)
    changed: list[str] = field(default_factory=list)
