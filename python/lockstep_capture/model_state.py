"""Copies of what a training step changes: weights, buffers, optimizer state, hyper-parameters."""

from __future__ import annotations

import contextlib
import contextvars
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .errors import SCRIPTED_HINT, CaptureError, Problem, UnsupportedModelError
from .ir.attributes import Attribute
from .ir.program import Names
from .masters import Masters, find_masters

REPLAYED_OPTIMIZERS = ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Muon", "Adafactor")  # of torch.optim
_OF_OTHERS = {"transformers.optimization": ("Adafactor",)}  # by module, with rules of their own
# Of their methods, those that decide what an update is.
_RULES = ("step", "_init_group", "_get_lr", "_get_options", "_rms", "_approx_sq_grad")
_OF_TORCHAO = {  # of torchao.optim: the rule in torch.optim, [optimizer] state_codes
    f"Adam{decay}{width}": (f"Adam{decay}", codes)
    for decay in ("", "W")
    for width, codes in (("8bit", "dynamic8"), ("4bit", "dynamic4"), ("Fp8", "fp8_e4m3"))
}
_BLOCKS = {"dynamic8": 256, "dynamic4": 128, "fp8_e4m3": 256}  # torchao's own sizes, which policies have
_OF_BITSANDBYTES = {"Adam8bit": "AdamW", "AdamW8bit": "AdamW"}  # the rule: both decay the weight before the step
_BITSANDBYTES_CODES = "dynamic8_bitsandbytes_cpu"
_BITSANDBYTES_LEAST = 4096  # smaller states stay FP32
_WRAPPERS = {"accelerate", "lightning", "pytorch_lightning"}  # whose optimizers call the inner one's step() and no more
_STATE_KEYS = (
    *("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer"),
    *("sum", "square_avg", "grad_avg"),
    *("row_var", "col_var", "variance"),
    *("exp_avg_sq_row", "exp_avg_sq_col"),
)
_LOST_AXES = {"exp_avg_sq_row": -1, "exp_avg_sq_col": -2}  # that transformers leaves out, of length 1 in a capture


_SHARDED = {"FullyShardedDataParallel", "FSDPModule"}

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.complex64)
_WIDE = (torch.float32, torch.complex64)
_FLOAT_HINT = "model.float() before the optimizer is made"


def _kinds(value: Any) -> set[str]:
    return {kind.__name__ for kind in type(value).__mro__}


def inside_wrappers(model: Any) -> Any:
    """Without DistributedDataParallel and torch.compile."""
    while _kinds(model) & {"DistributedDataParallel", "DataParallel", "OptimizedModule"}:
        model = model._orig_mod if "OptimizedModule" in _kinds(model) else model.module
    return model


def unwrap(model: Any) -> torch.nn.Module:
    """The module that holds the weights, without DistributedDataParallel and torch.compile.

    Throws: CaptureError for what is no module; UnsupportedModelError for FSDP, whose weights are shards.
    """
    model = inside_wrappers(model)
    if not isinstance(model, torch.nn.Module):
        raise CaptureError(f"model: is a {type(model).__name__}, must be a torch.nn.Module")
    problems = [
        Problem(
            "FullyShardedDataParallel",
            path or type(model).__name__,
            "",
            "its weights are shards; capture an unsharded run on one rank",
        )
        for path, module in model.named_modules()
        if _kinds(module) & _SHARDED
    ]
    problems += [
        Problem(
            f"a parameter of {type(tensor).__name__}",
            path,
            "",
            "capture an unsharded run on one rank"
            if "DTensor" in _kinds(tensor)
            else "run the model once before, so that its shape is known",
        )
        for path, tensor in model.named_parameters()
        if _kinds(tensor) & {"DTensor", "UninitializedParameter"}
    ]
    scripted = [path for path, module in model.named_modules() if "ScriptModule" in _kinds(module)]
    problems += [
        Problem("a TorchScript module", path or type(model).__name__, "", SCRIPTED_HINT)
        for path in scripted
        if not any(path.startswith(f"{other}." if other else other) for other in scripted if other != path)
    ]
    if world_size() > 1:  # its forward pass waits for the other ranks, where nobody traces
        problems += [
            Problem("SyncBatchNorm on several ranks", path, "", "capture a run on one rank")
            for path, module in model.named_modules()
            if "SyncBatchNorm" in _kinds(module)
        ]
    if problems:
        raise UnsupportedModelError(problems)
    return model


def unwrap_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer itself, without what Lightning or Accelerate put around it. Throws: CaptureError."""
    inner = optimizer
    while hasattr(inner, "optimizer") and type(inner).__module__.partition(".")[0] in _WRAPPERS:
        inner = inner.optimizer
    if not isinstance(inner, torch.optim.Optimizer):
        raise CaptureError(f"optimizer: is a {type(optimizer).__name__}, must be a torch.optim.Optimizer")
    return inner


_ALONE: contextvars.ContextVar[bool] = contextvars.ContextVar("alone", default=False)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Within it this process is the only one: what it traces knows nothing of other ranks."""
    token = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(token)


def _joined() -> bool:
    return not _ALONE.get() and torch.distributed.is_available() and torch.distributed.is_initialized()


def world_size() -> int:
    return torch.distributed.get_world_size() if _joined() else 1


def rank() -> int:
    return torch.distributed.get_rank() if _joined() else 0


def host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in host memory that nothing else writes to."""
    return tensor.detach().to("cpu", copy=True)


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """With the zeros that a sparse one leaves out. Repeated rows are added as coalesce() does: the order of to_dense()
    depends on the strides of the values."""
    return tensor.coalesce().to_dense() if tensor.is_sparse else tensor


def _of_torchao(optimizer: Any) -> tuple[str, str]:
    """The rule in torch.optim of torchao's optimizer, and the codes of its states; two empty texts for others, and where it
    has options that no policy has."""
    own: Any = type(optimizer)
    for kind in own.__mro__:
        if kind.__module__.startswith("torchao.optim") and kind.__name__ in _OF_TORCHAO:
            rule, codes = _OF_TORCHAO[kind.__name__]
            same = inspect.unwrap(own.step) is inspect.unwrap(kind.step)
            others = any(group.get("amsgrad") for group in optimizer.param_groups) or optimizer.bf16_stochastic_round
            return (rule, codes) if same and not others and optimizer.block_size == _BLOCKS[codes] else ("", "")
    return "", ""


def _of_bitsandbytes(optimizer: Any) -> tuple[str, str]:
    """The same of bitsandbytes' optimizers on the CPU. Their GPU kernels encode in another way."""
    own: Any = type(optimizer)
    for kind in own.__mro__:
        if kind.__module__.startswith("bitsandbytes.optim") and kind.__name__ in _OF_BITSANDBYTES:
            rules = ("step", "init_state", "update_step")
            same = all(inspect.unwrap(getattr(own, name)) is inspect.unwrap(getattr(kind, name)) for name in rules)
            args, overrides = optimizer.args, optimizer.mng.pid2config or optimizer.mng.module_weight_config_triple
            usual = args.min_8bit_size == _BITSANDBYTES_LEAST and not (args.max_unorm or args.skip_zeros or overrides)
            tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
            on_cpu = all(tensor.device.type == "cpu" for tensor in tensors)
            known = same and usual and on_cpu and not optimizer.is_paged
            return (_OF_BITSANDBYTES[kind.__name__], _BITSANDBYTES_CODES) if known else ("", "")
    return "", ""


def _of_coded(optimizer: Any) -> tuple[str, str]:
    return _of_torchao(optimizer) if _of_torchao(optimizer)[0] else _of_bitsandbytes(optimizer)


def state_codes(optimizer: Any) -> str:
    """In which codes a library keeps the states of this optimizer between two steps, as policies name it; "": in none."""
    return _of_coded(optimizer)[1]


def rule_of(optimizer: Any) -> type[torch.optim.Optimizer] | None:
    """The class whose update this optimizer makes, if a replay knows it: its own, or that of a parent whose rule it leaves
    as it is."""
    own = type(optimizer)
    if optimizer is not None and any(group.get("maximize") for group in optimizer.param_groups):
        return None
    if name := _of_coded(optimizer)[0]:
        rule: type[torch.optim.Optimizer] = getattr(torch.optim, name)
        return rule
    for kind in own.__mro__:
        is_torch = kind.__module__.startswith("torch.optim")
        known = REPLAYED_OPTIMIZERS if is_torch else _OF_OTHERS.get(kind.__module__, ())
        if kind.__name__ in known:
            # PyTorch wraps step() anew in each class.
            rules = [name for name in _RULES if hasattr(kind, name)]
            same = all(inspect.unwrap(getattr(own, name)) is inspect.unwrap(getattr(kind, name)) for name in rules)
            return kind if same else None
        if is_torch:
            return None
    return None


def kept_states(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Those that a capture holds, as whole numbers in the shapes that a capture has."""
    if "state1" in state:  # bitsandbytes'
        names = {"state1": ("exp_avg", "qmap1", "absmax1"), "state2": ("exp_avg_sq", "qmap2", "absmax2")}
        state = {"step": state["step"]} | {
            name: _decoded(state[own], state[levels], state[scales]) if levels in state else state[own]
            for own, (name, levels, scales) in names.items()
        }
    found = {}
    for key, value in state.items():
        if key not in _STATE_KEYS or value is None:
            continue
        if hasattr(value, "codes"):  # torchao's
            value = value.dequantize()
        if key in _LOST_AXES:
            value = value.unsqueeze(_LOST_AXES[key])
        found[key] = host(dense(value)) if isinstance(value, torch.Tensor) else torch.tensor(float(value))
    return found


def _decoded(codes: torch.Tensor, levels: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """A state of bitsandbytes, whose blocks have 256 codes."""
    block = _BLOCKS["dynamic8"]
    each = scales.repeat_interleave(block)[: codes.numel()].reshape(codes.shape)
    return levels[codes.to(torch.int64)] * each


@dataclass
class State:
    """Everything at one moment, by canonical path."""

    params: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]
    optimizer: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    scale: float = 1.0
    growth_tracker: int = 0


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as a capture holds them: real and imaginary part along a last dimension."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def as_wide(tensor: torch.Tensor, dtype: torch.dtype) -> torch.dtype:
    """The dtype of its numbers in that precision."""
    return dtype.to_complex() if tensor.is_complex() else dtype


def _some(paths: list[str]) -> str:
    """The first of them."""
    most = 4
    return ", ".join(paths[:most]) + (f" and {len(paths) - most} more" if len(paths) > most else "")


def _dtype_problems(params: dict[str, torch.Tensor]) -> list[Problem]:
    """One for each dtype that a capture cannot hold."""
    paths: dict[str, list[str]] = {}
    for path, tensor in params.items():
        if tensor.dtype not in _DTYPES:
            paths.setdefault(str(tensor.dtype).removeprefix("torch."), []).append(path)
    return [
        Problem(
            f"{len(found)} of {len(params)} parameters are {dtype}, must be float32, bfloat16, float16 or complex64",
            _some(found),
            "",
            _FLOAT_HINT,
        )
        for dtype, found in paths.items()
    ]


def _device_problems(params: dict[str, torch.Tensor]) -> list[Problem]:
    paths: dict[str, list[str]] = {}
    for path, tensor in params.items():
        paths.setdefault(str(tensor.device), []).append(path)
    if "meta" in paths:
        return [
            Problem(
                f"{len(paths['meta'])} of {len(params)} parameters are on meta, must have values",
                _some(paths["meta"]),
                "",
                "load the weights first",
            )
        ]
    return [
        Problem(
            f"{len(found)} of {len(params)} parameters are on {device}, must all be on one device",
            _some(found),
            "",
            "model.to(device)",
        )
        for device, found in paths.items()
        if len(paths) > 1
    ]


class Subject:
    """The model, its optimizer and scaler, with the names of everything. attributes: further state, in addition to the buffers.
    trains: False for inference, whose steps are forward passes.

    Throws: CaptureError where the optimizer holds a tensor that the model does not have.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Any,
        scaler: Any = None,
        attributes: Sequence[Attribute] = (),
        *,
        trains: bool = True,
    ):
        self.model, self.trains = unwrap(model), trains
        self.optimizer = None if optimizer is None else unwrap_optimizer(optimizer)
        if "LBFGS" in _kinds(self.optimizer):
            raise CaptureError(
                f"optimizer: {type(self.optimizer).__name__} runs forward and backward pass several times in a step, a "
                "captured step has one of each: take the captured steps with torch.optim.SGD(model.parameters(), lr=...)"
            )
        self.scaler = scaler
        self.graded_inputs: frozenset[str] = frozenset()  # paths of the batch that a gradient goes back to
        self.attributes = attributes
        self.names = Names(self.model, attributes)
        self.paths = {id(tensor): paths[0] for tensor, paths in self.names.params}
        self.params = {paths[0]: tensor for tensor, paths in self.names.params}
        self.buffers = {paths[0]: tensor for tensor, paths in self.names.buffers}
        self.device = next(iter(self.params.values())).device if self.params else torch.device("cpu")
        problems = [*_dtype_problems(self.params), *_device_problems(self.params)]
        if problems:
            raise UnsupportedModelError(problems)
        held = [tensor for group in self.groups() for tensor in group["params"]]
        self.masters = Masters(find_masters(self.params, held), self.params)
        self.paths |= {id(master): path for path, master in self.masters.held.items()}
        strangers = sum(id(tensor) not in self.paths for tensor in held)
        if strangers:
            raise CaptureError(
                f"optimizer: {strangers} of its tensors are not parameters of the model, "
                "must all be, or FP32 masters whose rounded values are its weights (was the model wrapped or "
                "moved after the optimizer was made?)"
            )
        if len(held) != len({id(tensor) for tensor in held}):
            raise CaptureError("optimizer: holds a parameter twice, must hold it once")
        self._layout = self._layout_now()

    def groups(self) -> list[dict[str, Any]]:
        """Without the parameters that are state of the forward pass, which the optimizer passes by."""
        state = {id(attribute.value) for attribute in self.attributes}
        found: list[dict[str, Any]] = [] if self.optimizer is None else self.optimizer.param_groups
        return [group | {"params": [t for t in group["params"] if id(t) not in state]} for group in found]

    def _layout_now(self) -> list[list[int]]:
        return [
            [id(tensor) for tensor in self.model.parameters()],
            *([id(tensor) for tensor in group["params"]] for group in self.groups()),
        ]

    def check_layout(self) -> None:
        """Throws: CaptureError where parameters, groups or names of buffers are others than at the capture's begin."""
        if self._layout_now() != self._layout:
            raise CaptureError(
                "the model's parameters, or the optimizer's groups, were replaced during the capture: "
                "begin the capture after that"
            )
        added = [path for path, _ in self.model.named_buffers() if path not in self.names]
        if added:
            raise CaptureError(
                f"{_some(added)}: the forward pass of the first captured step made this buffer; "
                "run the model once before the capture begins"
            )

    @property
    def narrow(self) -> torch.dtype | None:
        """The dtype below FP32 that most of such weights have."""
        dtypes = [tensor.dtype for tensor in self.params.values() if tensor.dtype not in _WIDE]
        return max(set(dtypes), key=dtypes.count) if dtypes else None

    def weights(self) -> dict[str, torch.Tensor]:
        """What the optimizer steps: the parameters, or their masters."""
        return {**self.params, **self.masters.held}

    def held(self) -> dict[str, torch.Tensor]:
        """The parameters that the optimizer changes."""
        return {self.paths[id(tensor)]: tensor for group in self.groups() for tensor in group["params"]}

    def accumulated(self) -> list[torch.Tensor]:
        """What backward() left in .grad."""
        return [dense(tensor.grad) for path in self.held() if (tensor := self.params[path]).grad is not None]

    def raw_gradients(self) -> list[torch.Tensor]:
        """What the optimizer finds in .grad, of any kind."""
        return [tensor.grad for group in self.groups() for tensor in group["params"] if tensor.grad is not None]

    @property
    def scales(self) -> bool:
        return self.scaler is not None and self.scaler.is_enabled()

    @property
    def replays_optimizer(self) -> bool:
        return rule_of(self.optimizer) is not None

    def group_of(self, path: str) -> int:
        for number, group in enumerate(self.groups()):
            if any(self.paths[id(tensor)] == path for tensor in group["params"]):
                return number
        return -1

    def buffer_values(self) -> dict[str, torch.Tensor]:
        """Buffers as they are now: a module may have replaced its tensor."""
        plain = {attribute.path: attribute.value for attribute in self.attributes}
        for path, value in plain.items():
            if not isinstance(value, torch.Tensor):
                raise CaptureError(
                    f"{path}: the model keeps a tensor here from step to step, now it is {value!r}: reset it with "
                    "zero_() in the forward pass, or end the capture before"
                )
        return {path: plain[path] if path in plain else self.model.get_buffer(path) for path in self.buffers}

    def growth_tracker(self) -> int:
        return int(self.scaler.state_dict()["_growth_tracker"]) if self.scales else 0

    def scale(self) -> float:
        """As the scaler's tensor has it, which is in FP32; before its first step, the scale it was made with."""
        return float(torch.tensor(self.scaler.get_scale(), dtype=torch.float32)) if self.scales else 1.0

    def optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Tensors of the optimizer's state; numbers as tensors without dimensions. None where updates are recorded."""
        found: dict[str, dict[str, torch.Tensor]] = {}
        states = self.optimizer.state if self.optimizer is not None and self.replays_optimizer else {}
        for parameter, state in states.items():
            kept = kept_states(state)
            if kept and id(parameter) in self.paths:
                found[self.paths[id(parameter)]] = kept
        return found

    def state(self) -> State:
        return State(
            {path: host(tensor) for path, tensor in self.weights().items()},
            {path: host(tensor) for path, tensor in self.buffer_values().items()},
            self.optimizer_state(),
            self.scale(),
            self.growth_tracker(),
        )

    def hyper(self) -> list[dict[str, Any]]:
        """Per parameter group all keys but the parameters, as plain numbers."""
        return [{key: _plain(value) for key, value in group.items() if key != "params"} for group in self.groups()]

    def gradients(self) -> dict[str, torch.Tensor]:
        """The gradients that the optimizer finds, not copied but for sparse ones."""
        now = {
            path: self.masters.gradient(path) if path in self.masters.held else tensor.grad
            for path, tensor in self.held().items()
        }
        return {path: as_real(dense(grad)) for path, grad in now.items() if grad is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return float(value.item())
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def replica(subject: Subject, state: State, hyper: list[dict[str, Any]], path: str) -> tuple[Any, torch.Tensor]:
    """An optimizer of the same kind for a copy of one weight, in the given state, and the copy. None: no group has it."""

    def wide(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(as_wide(tensor, torch.float32), copy=True)

    weight = wide(state.params[path]).requires_grad_(subject.params[path].requires_grad)
    number = subject.group_of(path)
    if number < 0:
        return None, weight
    own = {key: tuple(value) if isinstance(value, list) else value for key, value in hyper[number].items()}
    own |= {"foreach": False, "fused": False} if "foreach" in own else {}
    if "capturable" in own:
        own["capturable"] = False
    kind: Any = rule_of(subject.optimizer)
    # Options that are not the constructor's (initial_lr, decoupled_weight_decay) go straight into the group.
    made = kind([weight], lr=own["lr"], **({"relative_step": False} if "relative_step" in own else {}))
    made.param_groups[0].update({key: value for key, value in own.items() if key != "params"})
    if path in state.optimizer:
        made.state[weight] = {
            key: wide(value.squeeze(_LOST_AXES[key]) if key in _LOST_AXES else value)
            for key, value in state.optimizer[path].items()
        }
    return made, weight
