"""Copies of what a training step changes: weights, buffers, optimizer state, hyper-parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from .errors import CaptureError, Problem, UnsupportedModelError
from .program import Names

REPLAYED_OPTIMIZERS = ("SGD", "Adam", "AdamW")  # of torch.optim
_STATE_KEYS = ("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer")


def unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """The module that holds the weights, without DistributedDataParallel and torch.compile.

    Throws: UnsupportedModelError for FSDP, whose weights are shards.
    """
    while True:
        names = {kind.__name__ for kind in type(model).__mro__}
        if names & {"FullyShardedDataParallel", "FSDPModule"}:
            raise UnsupportedModelError([Problem(
                "FullyShardedDataParallel", type(model).__name__, "",
                "its weights are shards; capture an unsharded run on one rank")])
        if names & {"DistributedDataParallel", "DataParallel"}:
            model = model.module
        elif "OptimizedModule" in names:
            model = model._orig_mod
        else:
            return model


def host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in host memory that nobody else writes to."""
    return tensor.detach().to("cpu", copy=True)


@dataclass
class State:
    """Everything at one moment, by canonical path."""

    params: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]
    optimizer: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    scale: float = 1.0
    growth_tracker: int = 0


class Subject:
    """The model, its optimizer and scaler, with the names of everything.

    Throws: CaptureError where the optimizer holds a tensor that the model does not have.
    """

    def __init__(self, model: torch.nn.Module, optimizer: Any, scaler: Any = None):
        self.model = unwrap(model)
        self.optimizer, self.scaler = optimizer, scaler
        self.names = Names(self.model)
        self.paths = {id(tensor): paths[0] for tensor, paths in self.names.params}
        self.params = {paths[0]: tensor for tensor, paths in self.names.params}
        self.buffers = {paths[0]: tensor for tensor, paths in self.names.buffers}
        self.device = next(iter(self.params.values())).device if self.params else torch.device("cpu")
        bad = [path for path, tensor in self.params.items()
               if tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16)]
        if bad:
            raise UnsupportedModelError([Problem(
                f"a parameter of {str(self.params[path].dtype).removeprefix('torch.')}", path, "",
                "weights of 32 bits or fewer are replayed; model.float()") for path in bad])
        strangers = [i for i, group in enumerate(optimizer.param_groups) if optimizer is not None
                     for tensor in group["params"] if id(tensor) not in self.paths] if optimizer else []
        if strangers:
            raise CaptureError(f"optimizer: {len(strangers)} of its tensors are no parameters of the model, "
                               "must all be (was the model wrapped or moved after the optimizer was made?)")

    @property
    def scales(self) -> bool:
        return self.scaler is not None and self.scaler.is_enabled()

    @property
    def replays_optimizer(self) -> bool:
        kind = type(self.optimizer)
        return kind.__name__ in REPLAYED_OPTIMIZERS and kind.__module__.startswith("torch.optim")

    def group_of(self, path: str) -> int:
        for number, group in enumerate(self.optimizer.param_groups if self.optimizer else ()):
            if any(self.paths[id(tensor)] == path for tensor in group["params"]):
                return number
        return -1

    def buffer_values(self) -> dict[str, torch.Tensor]:
        """Buffers as they are now: a module may have replaced its tensor."""
        return {path: self.model.get_buffer(path) for path in self.buffers}

    def growth_tracker(self) -> int:
        return int(self.scaler.state_dict()["_growth_tracker"]) if self.scales else 0

    def scale(self) -> float:
        return float(self.scaler.get_scale()) if self.scales else 1.0

    def optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Tensors of the optimizer's state; numbers as tensors without dimensions."""
        found: dict[str, dict[str, torch.Tensor]] = {}
        for parameter, state in self.optimizer.state.items():
            kept = {}
            for key, value in state.items():
                if key in _STATE_KEYS and value is not None:
                    kept[key] = host(value) if isinstance(value, torch.Tensor) else torch.tensor(float(value))
            if kept and id(parameter) in self.paths:
                found[self.paths[id(parameter)]] = kept
        return found

    def state(self) -> State:
        return State({path: host(tensor) for path, tensor in self.params.items()},
                     {path: host(tensor) for path, tensor in self.buffer_values().items()},
                     self.optimizer_state(), self.scale(), self.growth_tracker())

    def hyper(self) -> list[dict[str, Any]]:
        """Per parameter group all keys but the parameters, as plain numbers."""
        return [{key: _plain(value) for key, value in group.items() if key != "params"}
                for group in self.optimizer.param_groups]

    def gradients(self) -> dict[str, torch.Tensor]:
        """Present gradients as they are, not copied. Throws: UnsupportedModelError for sparse ones."""
        found = {path: tensor.grad for path, tensor in self.params.items() if tensor.grad is not None}
        sparse = [path for path, grad in found.items() if grad.is_sparse]
        if sparse:
            raise UnsupportedModelError([Problem("a sparse gradient", path.rpartition(".")[0], "",
                                                 "nn.Embedding(sparse=False)") for path in sparse])
        return found


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return float(value.item())
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def replica(subject: Subject, state: State, hyper: list[dict[str, Any]]) -> tuple[Any, dict[str, torch.Tensor]]:
    """An optimizer of the same kind on copies of the weights, in the given state, one tensor at a time."""
    params = {path: tensor.float().clone().requires_grad_(subject.params[path].requires_grad)
              for path, tensor in state.params.items()}
    groups = []
    for group, values in zip(subject.optimizer.param_groups, hyper, strict=True):
        paths = [subject.paths[id(tensor)] for tensor in group["params"]]
        own = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
        own |= {"foreach": False, "fused": False} if "foreach" in own else {}
        if "capturable" in own:
            own["capturable"] = False
        groups.append({"params": [params[path] for path in paths], **own})
    kind = getattr(torch.optim, type(subject.optimizer).__name__)
    # Options that are not the constructor's (initial_lr, decoupled_weight_decay) go straight into the group.
    made = kind([{"params": group["params"]} for group in groups], lr=groups[0]["lr"])
    for group, values in zip(made.param_groups, groups, strict=True):
        group.update({key: value for key, value in values.items() if key != "params"})
    for path, kept in state.optimizer.items():
        made.state[params[path]] = {key: value.clone() for key, value in kept.items()}
    return made, params
