"""Hooks that count, set for one measured step and removed after it: module outputs, their gradients, weights, weight
gradients, updates, the optimizer's state. A step that is not measured has no hooks."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from .. import torch_api
from ..parts.names import own_path
from ..watch.own_pass import is_own_pass
from .tally import LARGEST, Counts, Updates, count, count_update, merged, plain

ATTENTION_LOGITS = "attention_logits"  # the op of their sites
_MOST_LOGITS = 1 << 24  # formed at a time
_MASKED = -1e3  # a bias up to here is a mask
_FORMATS = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.complex64: "fp32",
    torch.complex128: "fp64",
}
_FORMATS |= {
    getattr(torch, name): format
    for name, format in (("float8_e4m3fn", "fp8_e4m3"), ("float8_e5m2", "fp8_e5m2"))
    if hasattr(torch, name)
}


_marks = itertools.count()


class Key(NamedTuple):
    """A site. name: of the weight or state in the layer; "" of a module's output."""

    layer: str
    role: str
    name: str = ""


@dataclass
class Found:
    """What one rank has of a site in one step. largest_micro, bad_micro: the micro-batch of the largest magnitude, and the
    first with a value that is not finite, -1: none; float64 tensors."""

    counts: Counts
    largest_micro: torch.Tensor
    bad_micro: torch.Tensor
    updates: torch.Tensor | None = None  # tally.UPDATE_NUMBERS


@dataclass
class Place:
    """What does not change of a site."""

    op: str
    shape: tuple[int, ...]
    format: str
    scaled: bool


def format_of(tensor: torch.Tensor) -> str:
    return _FORMATS.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))


def parameters_by_layer(modules: dict[str, torch.nn.Module]) -> dict[tuple[str, str], torch.nn.Parameter]:
    """(layer, name) -> parameter, each once, of the modules that hold them themselves."""
    found: dict[tuple[str, str], torch.nn.Parameter] = {}
    seen: set[int] = set()
    for path, module in modules.items():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                found[path, name] = parameter
    return found


class Taps:
    """One optimizer step. fail: receives an error of the counting, which never reaches the loop."""

    def __init__(
        self,
        modules: dict[str, torch.nn.Module],
        optimizer: Any,
        *,
        scaled: bool,
        attention: bool,
        updates: bool,
        fail: Callable[[Exception], None],
    ):
        self._modules, self._optimizer, self._scaled = modules, optimizer, scaled
        self._attention, self._counts_updates, self._fail = attention, updates, fail
        self.parameters = parameters_by_layer(modules)
        self._micro = -1
        self._mark = next(_marks)
        self._handles: list[Any] = []  # of hooks on tensors, which may outlive the step
        self._running: list[str] = []  # modules, the innermost last
        self._before: dict[tuple[str, str], torch.Tensor] = {}
        self._bad_gradients: dict[tuple[str, str], torch.Tensor] = {}
        self._has_gradients = self._has_weights = self._has_updates = False
        groups = [] if optimizer is None else optimizer.param_groups
        stepped = {id(tensor) for group in groups for tensor in group["params"]}
        self._stepped = {place for place, parameter in self.parameters.items() if id(parameter) in stepped}
        self.found: dict[Key, Found] = {}
        self.places: dict[Key, Place] = {}

    def close(self) -> None:
        """After the step: no hook stays on a tensor that lives on."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._before.clear()

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Around one micro-batch. Hooks that are set now run after those of FSDP, which gathers the weights."""
        self._micro += 1
        handles: list[Any] = []
        try:
            for path, module in self._modules.items():
                handles.append(module.register_forward_pre_hook(self._entered(path)))
                handles.append(module.register_forward_hook(self._left(path), always_call=True))
            with _Logits(self) if self._attention else contextlib.nullcontext():
                yield
        finally:
            for handle in handles:
                handle.remove()
            self._running.clear()

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        try:
            with torch_api.DISABLE_MODES(), torch_api.NO_TORCH_FUNCTION(), torch.no_grad():
                yield
        except Exception as error:
            self._fail(error)

    # ---- Activations

    def _entered(self, path: str) -> Callable[..., None]:
        def entered(module: torch.nn.Module, args: Any) -> None:
            if not is_own_pass():
                self._running.append(path)

        return entered

    def _left(self, path: str) -> Callable[..., None]:
        def left(module: torch.nn.Module, args: Any, output: Any) -> None:
            if is_own_pass():
                return
            if self._running:
                self._running.pop()
            with self._aside():
                self._take_output(path, module, output)

        return left

    def _take_output(self, path: str, module: torch.nn.Module, output: Any) -> None:
        """A tensor that an inner module gave already is not counted again. In a backward pass a checkpoint computes it once
        more, with a graph that may be the one that gradients pass."""
        is_again = torch_api.RUNNING_BACKWARD() != -1
        for leaf in torch_api.LEAVES(output):
            if not isinstance(leaf, torch.Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
                continue
            mark = (self._mark, self._micro, 0 if leaf.is_inference() else leaf._version)
            if getattr(leaf, "_lockstep_counted", None) == mark:
                continue
            leaf._lockstep_counted = mark  # type: ignore[attr-defined]
            if not is_again:
                key = Key(path, "activation")
                self._note_place(key, module, leaf)
                self.add(key, count(leaf))
            if leaf.requires_grad:
                self._handles.append(leaf.register_hook(self._gradient(path, module, self._micro)))

    def _gradient(self, path: str, module: torch.nn.Module, micro: int) -> Callable[[torch.Tensor], None]:
        def arrived(gradient: torch.Tensor) -> None:
            with self._aside():
                key = Key(path, "grad_activation")
                self._note_place(key, module, gradient, self._scaled)
                self.add(key, count(gradient), micro)

        return arrived

    def take_logits(self, query: torch.Tensor, key: torch.Tensor, mask: Any, is_causal: bool, scale: Any) -> None:
        """q k^T / sqrt(d) of one call plus a bias, in FP32, masked ones as zeros. Shapes: (..., L, d), (..., S, d)."""
        with self._aside():
            factor = query.shape[-1] ** -0.5 if scale is None else scale
            if query.dim() > 2 and key.shape[-3] not in (1, query.shape[-3]):  # grouped heads
                key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
            rows, columns = query.shape[-2], key.shape[-2]
            outer = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
            query, key = query.expand(*outer, *query.shape[-2:]), key.expand(*outer, *key.shape[-2:])
            site = Key(self._running[-1] if self._running else "", "activation", ATTENTION_LOGITS)
            self.places.setdefault(
                site, Place(ATTENTION_LOGITS, (*outer, rows, columns), format_of(query), scaled=False)
            )
            if is_causal:
                mask = torch.ones(rows, columns, dtype=torch.bool, device=query.device).tril()
            mask = None if mask is None else mask.expand(*outer, rows, columns)
            some = max(1, _MOST_LOGITS // max(columns, 1))
            for place in itertools.product(*map(range, outer)):
                for start in range(0, rows, some):
                    part = slice(start, start + some)
                    logits = (
                        query[place][part].to(torch.float32) * factor @ key[place].to(torch.float32).transpose(-2, -1)
                    )
                    if mask is not None:
                        logits = _masked(logits, mask[place][part])
                    self.add(site, count(logits))

    # ---- Weights

    def note_gradients(self) -> None:
        """After a micro-batch's backward pass: which of them made a gradient infinite or NaN."""
        with self._aside():
            own = {place: plain(p.grad) for place, p in self.parameters.items() if p.grad is not None}
            norms = {place: torch.linalg.vector_norm(g, torch.inf) for place, g in own.items() if g.numel()}
            for place, norm in norms.items():
                before = self._bad_gradients.get(place)
                now = torch.where(norm.isfinite(), -1.0, float(self._micro)).to(torch.float64)
                self._bad_gradients[place] = now if before is None else torch.where(before < 0, now, before)

    def take_gradients(self) -> None:
        """Once a step: as the backward passes left them, before unscaling and clipping."""
        if self._has_gradients:
            return
        self._has_gradients = True
        with self._aside():
            for (layer, name), parameter in self.parameters.items():
                if parameter.grad is None or (layer, name) not in self._stepped:
                    continue
                key = Key(layer, "grad_weight", name)
                self._note_place(key, self._modules[layer], parameter.grad, self._scaled)
                self.add(key, count(parameter.grad), self._micro if self._micro == 0 else -1)
                bad = self._bad_gradients.get((layer, name))
                if bad is not None:
                    self.found[key].bad_micro = bad

    def take_weights(self, will_step: bool) -> None:
        """Before the optimizer's step: as the forward pass used them. A copy of them stays until after the step."""
        if self._has_weights:
            return
        self._has_weights = True
        with self._aside():
            for (layer, name), parameter in self.parameters.items():
                key = Key(layer, "weight", name)
                self._note_place(key, self._modules[layer], parameter)
                self.add(key, count(parameter), -1)
                if will_step and self._counts_updates and (layer, name) in self._stepped and parameter.grad is not None:
                    self._before[layer, name] = plain(parameter).clone()

    def take_updates(self) -> None:
        """After it."""
        if self._has_updates:
            return
        self._has_updates = True
        with self._aside():
            for (layer, name), before in self._before.items():
                parameter = self.parameters[layer, name]
                updates = count_update(before, parameter, parameter.grad)
                key = Key(layer, "update", name)
                self._note_place(key, self._modules[layer], parameter)
                self._add_update(key, updates)
            self._before.clear()
            for (layer, name), parameter in self.parameters.items():
                for state, value in self._states(parameter):
                    key = Key(layer, "optimizer_state", f"{name}.{state}")
                    self._note_place(key, self._modules[layer], value)
                    self.add(key, count(value), -1)

    def note_states(self) -> None:
        """The places of the optimizer's state, which it makes in its first step."""
        for (layer, name), parameter in self.parameters.items():
            for state, value in self._states(parameter):
                self._note_place(Key(layer, "optimizer_state", f"{name}.{state}"), self._modules[layer], value)

    def _states(self, parameter: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        state = getattr(self._optimizer, "state", {})
        for name, value in state.get(parameter, {}).items() if parameter in state else ():
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 0:
                yield name, value

    def _note_place(self, key: Key, module: torch.nn.Module, tensor: torch.Tensor, scaled: bool = False) -> None:
        if key not in self.places:
            self.places[key] = Place(type(module).__name__, tuple(tensor.shape), format_of(tensor), scaled)

    def add(self, key: Key, counts: Counts, micro: int | None = None) -> None:
        micro = self._micro if micro is None else micro
        now = torch.full((), float(micro), dtype=torch.float64, device=counts.numbers.device)
        bad = torch.where(counts.histogram[-1] > 0, now, -1.0)
        known = self.found.get(key)
        if known is None:
            self.found[key] = Found(counts, now, bad)
            return
        is_larger = counts.numbers[LARGEST] > known.counts.numbers[LARGEST]
        known.largest_micro = torch.where(is_larger, now, known.largest_micro)
        known.bad_micro = torch.where(known.bad_micro < 0, bad, known.bad_micro)
        known.counts = merged(known.counts, counts)

    def _add_update(self, key: Key, updates: Updates) -> None:
        self.add(key, updates.counts, -1)
        self.found[key].updates = updates.numbers


def _masked(logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    if mask.dtype == torch.bool:
        return torch.where(mask, logits, 0.0)
    return torch.where(mask > _MASKED, logits + mask, 0.0)


class _Logits(TorchFunctionMode):
    """Sees calls of scaled_dot_product_attention, however it was imported."""

    def __init__(self, taps: Taps):
        super().__init__()
        self._taps = taps

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_loops = torch_api.RUNNING_BACKWARD() == -1 and not is_own_pass()
        if function is torch.nn.functional.scaled_dot_product_attention and is_loops:
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")
            given = dict(zip(names, args, strict=False)) | kwargs
            self._taps.take_logits(
                given["query"],
                given["key"],
                given.get("attn_mask"),
                bool(given.get("is_causal")),
                given.get("scale"),
            )
        return function(*args, **kwargs)


def chosen_modules(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """All, by the path that a user of the unwrapped model would write; a wrapper gives way to what it holds."""
    return {own_path(path): module for path, module in model.named_modules()}
