"""What the calls of chosen modules got and gave in a running step. Only copies are made here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import torch_api
from ..errors import CaptureError, failed
from ..watch.forward_pass import Region
from ..write.part_checks import Placement
from .copies import Copies, arguments_by_name, is_distributed, leaves_by_name
from .names import own_path

OUTPUT = "output"  # name of a module's result that is a single tensor


def is_float(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and (leaf.dtype.is_floating_point or leaf.dtype.is_complex)


@dataclass
class Draws:
    """Generators at one moment."""

    cpu: torch.Tensor
    device: torch.Tensor | None

    @staticmethod
    def now(device: torch.device) -> Draws:
        return Draws(torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None)

    def put_back(self, device: torch.device) -> None:
        torch.set_rng_state(self.cpu)
        if self.device is not None:
            torch.cuda.set_rng_state(self.device, device)


@dataclass
class Call:
    """One call of a module in the forward pass of one micro-batch. Gradients are those of the loss that the loop called
    backward on, by name of the leaf; of an input from everything that reads it, not from this module alone."""

    micro: int
    order: int  # among all calls of chosen modules in the step
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    draws: Draws
    autocast: Region | None
    caches: bool  # of autocast
    training: dict[str, bool]
    has_grad: bool  # the pass was recorded for a backward pass
    output: Any = None
    output_gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    input_gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    returned: bool = False


@dataclass
class PartStep:
    """One module in one optimizer step. weights, buffers: as the first call found them, by path in the module.
    run_gradients: of the run itself after the last backward pass: sums over all calls, means over ranks where those
    are reduced, and what the loss scale left."""

    path: str
    module: torch.nn.Module
    device: torch.device
    calls: list[Call] = field(default_factory=list)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    frozen: set[str] = field(default_factory=set)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    placements: dict[str, Placement] = field(default_factory=dict)
    run_gradients: dict[str, tuple[torch.Tensor, Placement]] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)  # weight -> where a module outside of the part holds it too
    own_columns: str = ""  # which of a split linear layer's, if the part has them alone
    recomputed: int = 0
    problems: list[str] = field(default_factory=list)

    def refuse(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


def device_of(leaves: Iterable[Any], module: torch.nn.Module) -> torch.device:
    """Where the module computes: its weights may rest elsewhere (FSDP's offloading)."""
    for leaf in [*leaves, *module.parameters(), *module.buffers()]:
        if is_float(leaf):
            return leaf.device
    return torch.device("cpu")


class Taps:
    """Hooks on the chosen modules, for one optimizer step."""

    def __init__(self, modules: dict[str, torch.nn.Module], tied: dict[str, dict[str, str]], copies: Copies):
        self.parts = {
            path: PartStep(path, module, torch.device("cpu"), tied=tied[path]) for path, module in modules.items()
        }
        self._copies, self._micro, self._order = copies, -1, 0
        self._handles: list[Any] = []
        self._open: dict[str, list[Call]] = {path: [] for path in modules}  # calls that have not returned

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Around one micro-batch. Hooks that are set now run after those of FSDP, which gathers the weights."""
        self._micro += 1
        try:
            for part in self.parts.values():
                before, after = self._safely(part, self._before), self._safely(part, self._after)
                self._handles.append(part.module.register_forward_pre_hook(before, with_kwargs=True))
                self._handles.append(part.module.register_forward_hook(after, with_kwargs=True))
            yield
        finally:
            for handle in self._handles:
                handle.remove()
            self._handles.clear()
            for calls in self._open.values():
                calls.clear()

    def note_gradients(self) -> None:
        """After a backward pass: the run's own gradients of the chosen modules' weights."""
        for part in self.parts.values():
            if not part.calls:
                continue
            with self._aside(part):
                for path, weight in part.module.named_parameters():
                    if weight.grad is not None and own_path(path) not in part.tied:
                        part.run_gradients[own_path(path)] = (self._local(weight.grad), placement_of(weight.grad))

    @contextlib.contextmanager
    def _aside(self, part: PartStep) -> Iterator[None]:
        """What fails costs the part, not the user's step: on one rank of several the others would wait for ever. Modes of
        the loop (selective checkpointing) do not see the copies."""
        try:
            with torch_api.DISABLE_MODES(), torch.no_grad():
                yield
        except CaptureError as error:
            part.refuse(str(error))
        except Exception as error:
            part.refuse(str(failed(error)))

    def _safely(self, part: PartStep, body: Callable[..., None]) -> Callable[..., None]:
        def hook(module: torch.nn.Module, *given: Any) -> None:
            has_grad = torch.is_grad_enabled()
            with self._aside(part):
                body(part, module, has_grad, *given)

        return hook

    def _local(self, gradient: torch.Tensor) -> torch.Tensor:
        """Of a distributed one what this rank has: nothing is sent."""
        own = gradient.to_local() if is_distributed(gradient) else gradient  # type: ignore[attr-defined]
        return self._copies.keep(own)

    def _before(
        self, part: PartStep, module: torch.nn.Module, has_grad: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if torch_api.RUNNING_BACKWARD() != -1:
            part.recomputed += 1  # by a checkpoint
            return
        leaves = arguments_by_name(module.forward, args, kwargs)
        if not part.calls:
            part.device = device_of(leaves.values(), module)
            if part.device.type not in ("cpu", "cuda"):
                raise CaptureError(f"it runs on {part.device}, must be on the CPU or a CUDA device")
        self._keep_state(part)
        kept_args, kept_kwargs = self._copies.keep_all((args, kwargs))
        call = Call(
            self._micro,
            self._order,
            kept_args,
            kept_kwargs,
            Draws.now(part.device),
            _region(part.device),
            bool(torch.is_autocast_cache_enabled()),
            {own_path(path): inner.training for path, inner in module.named_modules()},
            has_grad,
        )
        self._order += 1
        for name, leaf in leaves.items():
            if is_float(leaf) and leaf.requires_grad and has_grad:
                self._on_gradient(part, leaf, call.input_gradients, name)
        part.calls.append(call)
        self._open[part.path].append(call)

    def _after(
        self,
        part: PartStep,
        module: torch.nn.Module,
        has_grad: bool,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
    ) -> None:
        if torch_api.RUNNING_BACKWARD() != -1:
            self._after_recomputation(part, arguments_by_name(module.forward, args, kwargs), output)
            return
        if not self._open[part.path]:  # it was called before the block
            return
        call = self._open[part.path].pop()
        call.output = self._copies.keep_all(output)
        call.returned = True
        self._watch_output(part, call, output)

    def _watch_output(self, part: PartStep, call: Call, output: Any) -> None:
        for name, leaf in leaves_by_name(output, OUTPUT).items():
            if is_float(leaf) and leaf.requires_grad:
                self._on_gradient(part, leaf, call.output_gradients, name)

    def _after_recomputation(self, part: PartStep, arguments: dict[str, Any], output: Any) -> None:
        """A reentrant checkpoint runs first without gradients: those come to the recomputed output."""
        waiting = [call for call in part.calls if call.returned and not call.has_grad]
        leaves = leaves_by_name(output, OUTPUT)
        for call in waiting:
            mine = leaves_by_name(call.output, OUTPUT)
            if mine.keys() == leaves.keys() and all(
                not isinstance(leaf, torch.Tensor) or torch.equal(leaf.detach().cpu(), mine[name])
                for name, leaf in leaves.items()
            ):
                call.has_grad = True
                for name, leaf in arguments.items():
                    if is_float(leaf) and leaf.requires_grad:
                        self._on_gradient(part, leaf, call.input_gradients, name)
                self._watch_output(part, call, output)
                return

    def _on_gradient(self, part: PartStep, tensor: torch.Tensor, into: dict[str, torch.Tensor], name: str) -> None:
        """Until the micro-batch ends: a tensor may outlive it."""

        def hook(gradient: torch.Tensor) -> None:
            with self._aside(part):
                into[name] = self._copies.keep(gradient)

        self._handles.append(tensor.register_hook(hook))

    def _keep_state(self, part: PartStep) -> None:
        """Weights and buffers before the module's first call of the step."""
        for path, weight in part.module.named_parameters():
            own = own_path(path)
            if own not in part.weights:
                part.weights[own] = self._copies.keep(weight)
                part.placements[own] = placement_of(weight)
                if not weight.requires_grad:
                    part.frozen.add(own)
        for path, buffer in part.module.named_buffers():
            if own_path(path) not in part.buffers:
                part.buffers[own_path(path)] = self._copies.keep(buffer)


def placement_of(tensor: torch.Tensor) -> Placement:
    if not is_distributed(tensor):
        return Placement()
    mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    text, splits = [], []
    for number, placement in enumerate(placements):
        text.append(f"{placement} of {mesh.size(number)} as rank {mesh.get_local_rank(number)}")
        if placement.is_shard():
            splits.append((int(placement.dim), int(mesh.size(number))))
    shape, offset = torch_api.LOCAL_SHAPE(tensor.shape, mesh, placements)
    return Placement(", ".join(text), tuple(shape), tuple(offset), tuple(splits))


def _region(device: torch.device) -> Region | None:
    kind = device.type
    return (kind, torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else None
