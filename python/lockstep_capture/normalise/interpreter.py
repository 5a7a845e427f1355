"""Runs a Program in PyTorch with the masks given from outside.

In FP32 it repeats the eager model bit for bit (gate V0). In FP64 it is the truth that replays are compared
with: every floating value is double, casts between floating formats do nothing, and what does not depend
on the weights (constants, derived inputs) keeps its FP32 value.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..errors import CaptureError
from ..ir.cumulative import CUMULATIVE
from ..ir.custom_functions import CUSTOM_GRADIENT, GRADIENT_OF, backward_calls, with_backward
from ..ir.decisions import picks
from ..ir.fake_quantize import FAKE_QUANTIZE, in_double
from ..ir.gradients import GRADIENT, differentiated, gradients
from ..ir.program import Call, Program, Ref, map_refs
from ..ir.random_ops import RMS_NORM_EPS, arguments, base_name, random_site
from ..torch_api import op_schema
from .ssa import GRAPH, overwritten

_BATCH_NORM = "aten.batch_norm"


# Ops that PyTorch refuses for operands of several dtypes.
_ONE_DTYPE = {
    f"aten.{name}"
    for name in (
        "linear",
        "matmul",
        "mm",
        "bmm",
        "addmm",
        "baddbmm",
        "mv",
        "dot",
        "conv1d",
        "conv2d",
        "conv3d",
        "convolution",
        "conv_transpose1d",
        "conv_transpose2d",
        "einsum",
        "bilinear",
        "scaled_dot_product_attention",
        "prelu",
        "tensordot",
        "addbmm",
        "lstm",
        "gru",
        "rnn_tanh",
        "rnn_relu",
        "lstm_cell",
        "gru_cell",
        "rnn_tanh_cell",
        "rnn_relu_cell",
    )
}
_PUTS = {"aten.index_put", "aten.index_put_"}


class Observer:
    """Is called for every call. `value` gives the current value of a name."""

    def root(self, name: str, value: torch.Tensor) -> None: ...

    def before(self, call: Call, value: Callable[[str], Any]) -> None: ...

    def after(self, call: Call, result: Any) -> None: ...


class Interpreter:
    """One forward pass.

    params, buffers: by canonical path; buffers are copied before they are changed. leaves: of the batch.
    draws: per random call its drawn tensors; None: PyTorch draws. decisions: integers that were chosen from floats, by
    call; what is not among them is chosen anew. double: FP64, with the kinds of ssa.py: values
    outside of the network keep their own type and are widened where the network reads them. single: FP32, for a loop that
    computes narrower: its weights, and what the network reads from outside, are widened; casts that name a dtype round.
    autocast: (device, dtype) of a block around the whole pass, None for none; cache_enabled: its weight cache.
    device: where constants are put and where the program makes tensors, None: as traced.
    """

    def __init__(
        self,
        program: Program,
        params: Mapping[str, torch.Tensor],
        buffers: Mapping[str, torch.Tensor],
        leaves: list[Any],
        draws: Mapping[str, list[torch.Tensor]] | None,
        *,
        double: bool = False,
        single: bool = False,
        kind: Mapping[str, str] | None = None,
        autocast: tuple[str, torch.dtype] | None = None,
        cache_enabled: bool = True,
        device: torch.device | None = None,
        observer: Observer | None = None,
        decisions: Mapping[str, torch.Tensor] | None = None,
    ):
        self._program, self._draws, self._double, self._single = program, draws, double, single
        self._outer, self._cache, self._observer, self._device = autocast, cache_enabled, observer, device
        self._autocast_device = autocast[0] if autocast is not None else "cpu"
        self._values: dict[str, Any] = {}
        self._decisions = decisions or {}
        self._places = {
            call.args[0].name: self._decisions[call.name]
            for call in program.calls
            if call.is_getitem and call.args[1] == 1 and call.name in self._decisions
        }
        self._kind = kind or {}
        self._differentiated = differentiated(program)
        self.buffers = {path: tensor.clone() for path, tensor in buffers.items()}
        for name, path in program.buffers.items():
            if self._is_graph(name):
                self.buffers[path] = self._wide(self.buffers[path])
            self._values[name] = self.buffers[path]
        written = overwritten(program)
        self._values.update(
            {name: leaves[leaf].clone() if name in written else leaves[leaf] for name, leaf in program.inputs.items()}
        )
        self._values.update({name: self._wide(params[path]) for name, path in program.params.items()})
        self._values.update({name: value.to(device, copy=name in written) for name, value in program.constants.items()})
        for name, value in self._values.items():
            self._values[name] = value = self._leaf(name, value)
            if observer is not None and isinstance(value, torch.Tensor):
                observer.root(name, value)

    def _is_graph(self, name: str) -> bool:
        return self._kind.get(name, GRAPH) == GRAPH

    def _is_outside(self, name: str) -> bool:
        return not self._is_graph(name) or name in self._program.inputs or name in self._program.constants

    def _leaf(self, name: str, value: Any) -> Any:
        """What the program differentiates by has one tensor that all uses read."""
        roots = (self._program.inputs, self._program.constants, self._program.buffers)
        is_root = any(name in table for table in roots)
        own = not isinstance(value, torch.Tensor) or name in self._program.params or (value.grad_fn and not is_root)
        if name not in self._differentiated or own:
            return value
        value = value.detach()
        return self._wide(self._as_held(value) if self._is_outside(name) else value).requires_grad_()

    def _as_held(self, value: Any) -> Any:
        """Values outside of the network keep FP32, as the file has them, even if they take their type from a part of the
        network (empty_like)."""
        return value.float() if self._double and _is_double(value) else value

    def _wide(self, value: Any) -> Any:
        if (
            not (self._double or self._single)
            or not isinstance(value, torch.Tensor)
            or not (value.dtype.is_floating_point or value.dtype.is_complex)
        ):
            return value
        if value.dtype.is_complex:
            return value.to(torch.complex128 if self._double else torch.complex64)
        return value.double() if self._double else value.float()

    def run(self, live: frozenset[str] | None = None) -> torch.Tensor:
        """The loss. live: the calls that are needed, None: all."""
        with self._region():
            for call in self._program.calls:
                if live is not None and call.name not in live:
                    continue
                if call.backward_of and self._observer is None:
                    continue  # runs when its gradient comes
                if self._observer is not None:
                    self._observer.before(call, self._values.__getitem__)
                self._values[call.name] = result = self._leaf(call.name, self._execute(call))
                if self._observer is not None:
                    self._observer.after(call, result)
        return self._values[self._program.loss]

    def value(self, name: str) -> Any:
        return self._values[name]

    @contextlib.contextmanager
    def _region(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if any(call.target is GRADIENT and call.args[3] for call in self._program.calls):
                stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # the one kernel that has second derivatives
            if self._outer is not None:
                device, dtype = self._outer
                stack.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=self._cache))
            yield

    def _execute(self, call: Call) -> Any:
        if call.name in self._decisions:
            return self._decisions[call.name].to(self._device, copy=True)
        if call.target is CUSTOM_GRADIENT:
            return self._custom(call)
        widens = self._double and self._is_graph(call.name)

        def read(ref: Ref) -> Any:
            value = self._values[ref.name]
            if widens and not self._is_graph(ref.name) and isinstance(value, torch.Tensor) and value.is_complex():
                value = value.to(torch.complex64)  # the graph's constants have these digits
            if self._is_outside(ref.name) and ref.name not in self._differentiated:
                value = self._as_held(value)
            if widens or (self._single and self._is_graph(call.name) and self._is_outside(ref.name)):
                return self._wide(value)
            return self._as_held(value)

        args, kwargs = map_refs(call.args, read), map_refs(call.kwargs, read)
        if widens:
            args, kwargs = _replaced(args, _double_dtype), _replaced(kwargs, _double_dtype)
        if (self._single or self._outer is None) and base_name(call) in _ONE_DTYPE:
            args, kwargs = _promoted(args, kwargs)
        if not call.is_getitem and base_name(call) in _PUTS and isinstance(args[2], torch.Tensor):
            args = (*args[:2], args[2].to(args[0].dtype), *args[3:])  # the loop's autocast gave both one type
        if self._device is not None:
            args, kwargs = _replaced(args, self._placed), _replaced(kwargs, self._placed)
        if base_name_is(call, _BATCH_NORM) and arguments(call)["momentum"] == CUMULATIVE:
            args, kwargs = with_argument(call, args, kwargs, "momentum", self._share_of_batch(call))
        if call.name in self._program.assigned:
            return self._assign(self._program.assigned[call.name], args[1])
        with contextlib.ExitStack() as stack:
            if call.autocast is not None and not self._double and self._models_autocast:
                region = call.autocast
                dtype = getattr(torch, region.dtype) if region.dtype else None
                stack.enter_context(
                    torch.autocast(region.device, dtype=dtype, enabled=region.enabled, cache_enabled=region.cache)
                )
            elif call.backward_of:
                stack.enter_context(torch.autocast(self._autocast_device, enabled=False))
                if not call.nograd:  # torch.autograd.grad in the function's backward()
                    stack.enter_context(torch.enable_grad())
            if call.nograd and not call.backward_of:  # _custom() decides
                stack.enter_context(torch.no_grad())
            if call.target is GRADIENT_OF:
                return torch.ones_like(args[0])
            if call.target is GRADIENT:
                return gradients(*args)
            site = random_site(call) if self._draws is not None else None
            if site is not None:
                drawn = self._random(call, site.kind, args, read)
                return self._wide(drawn) if widens and site.kind == "noise" else drawn
            if call.is_getitem:
                return operator.getitem(*args)
            if call.name in self._places and picks(call):
                return _picked(call, args, kwargs, self._places[call.name].to(self._device))
            if call.renames:
                return args[0]  # as a node it would change the order in which gradients add up
            if widens and base_name_is(call, "aten.rms_norm") and arguments(call)["eps"] is None:
                args, kwargs = with_argument(call, args, kwargs, "eps", RMS_NORM_EPS)
            if widens and base_name_is(call, "aten._grouped_mm"):
                return _grouped_product(arguments(Call(call.name, call.target, args, kwargs)))
            if widens and base_name(call) in FAKE_QUANTIZE:
                found = in_double(arguments(Call(call.name, call.target, args, kwargs)))
                return found if "cachemask" in call.op else found[0]
            result = call.target(*args, **kwargs)
            if call.limit is not None:
                result = call.limit.in_dtype(result)
            return self._wide(result) if widens else result

    def _custom(self, call: Call) -> list[torch.Tensor]:
        """The results of a function, with the backward pass that was recorded for it."""
        seeds, rest = backward_calls(self._program, call.name)
        results, operands, wanted = call.args

        def backward(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
            with torch.set_grad_enabled(bool(self._differentiated) and torch.is_grad_enabled()):
                self._values.update({seed.name: gradient for seed, gradient in zip(seeds, gradients, strict=True)})
                for inner in rest:
                    self._values[inner.name] = self._leaf(inner.name, self._execute(inner))
            return [None if ref is None else self._values[ref.name] for ref in wanted]

        wide = [[self._wide(self._values[ref.name]) for ref in refs] for refs in (results, operands)]
        return with_backward(wide[0], wide[1], backward)

    def _assign(self, path: str, value: torch.Tensor) -> torch.Tensor:
        """`self.buffer = ...`: the old tensor keeps its content, which a backward pass may need."""
        self.buffers[path] = value.detach().clone()
        return self.buffers[path]

    def _placed(self, value: Any) -> Any:
        return self._device if isinstance(value, torch.device) else value

    def _share_of_batch(self, call: Call) -> float:
        """Of batch_norm's running statistics: this batch has been counted already."""
        mean = self._program.buffers[arguments(call)["running_mean"].name]
        count = self.buffers.get(mean.replace("running_mean", "num_batches_tracked"))
        return 1.0 / float(count) if count is not None and bool(count) else 0.0

    _models_autocast = True  # references switch the model's own blocks off

    def without_autocast(self) -> Interpreter:
        """References are computed in FP32 throughout: blocks inside the model count as absent."""
        self._models_autocast = False
        return self

    def _random(self, call: Call, kind: str, args: Any, read: Callable[[Ref], Any]) -> Any:
        draws = (self._draws or {}).get(call.name)
        if draws is None:
            raise CaptureError(f"{call.op} ({call.name}): no random numbers were recorded for it")
        named = {name: map_refs(value, read) for name, value in arguments(call).items()}
        if kind == "noise":
            value = draws[0]
            if base_name(call).endswith("_"):
                return args[0].copy_(value)
            # A copy: the model may write to it. randn_like(y) has y's type here, which is not the loop's under autocast.
            like = base_name(call).endswith("_like") and named.get("dtype") is None
            return value.to(named["self"].dtype if like else value.dtype, copy=True)
        if kind == "dropout":
            kept = scale_kept(named["self" if "self" in named else "input"], draws[0], float(named["p"]))
            if base_name(call) == "aten.native_dropout":
                return kept, draws[0]
            return args[0].copy_(kept) if base_name(call).endswith("_") else kept
        if kind == "sdpa":
            return _attention(named, draws[0])
        return _recurrent(call, named, draws)


def _promoted(args: Any, kwargs: Any) -> Any:
    """Floating operands in the widest dtype among them: what a lane without autocast does."""
    dtypes: list[torch.dtype] = []

    def note(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype.is_floating_point:
            dtypes.append(value.dtype)
        return value

    _replaced((args, kwargs), note)
    if len(set(dtypes)) < 2:
        return args, kwargs
    widest = functools.reduce(torch.promote_types, dtypes)
    return _replaced(
        (args, kwargs),
        lambda value: value.to(widest) if isinstance(value, torch.Tensor) and value.dtype.is_floating_point else value,
    )


def _is_double(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.float64


_DOUBLE = {torch.complex64: torch.complex128, torch.complex32: torch.complex128}


def scale_kept(x: torch.Tensor, mask: torch.Tensor, p: float) -> torch.Tensor:
    """dropout with a given mask, with the roundings of ATen's CPU kernel: x * (mask / (1 - p))."""
    if x.is_cuda and mask.shape == x.shape:
        kept = torch.ops.aten.native_dropout_backward(x, mask.bool(), 1 / (1 - p))
        # Strides as native_dropout leaves them: a linear layer adds its bias elsewhere where they are not contiguous.
        return torch.empty_strided(mask.shape, mask.stride(), dtype=x.dtype, device=x.device).copy_(kept)
    return x * mask.to(x.dtype).div(1 - p)


def _attention(a: dict[str, Any], mask: torch.Tensor) -> torch.Tensor:
    """ATen's math backend with a given dropout mask; FP16 and BF16 are widened first, as there."""
    q, k, v = a["query"], a["key"], a["value"]
    device, added = q.device.type, a["attn_mask"]
    if torch.is_autocast_enabled(device) and q.dtype != torch.float64:
        narrow = torch.get_autocast_dtype(device)
        q, k, v = (t.to(narrow) for t in (q, k, v))
        added = added.to(narrow) if added is not None and added.dtype.is_floating_point else added
    dtype = q.dtype
    if dtype in (torch.bfloat16, torch.float16):
        q, k, v = (t.float() for t in (q, k, v))
    if added is not None and added.dtype == torch.bool:  # True keeps; the op below only adds
        added = torch.zeros(added.shape, dtype=q.dtype, device=q.device).masked_fill(~added, -torch.inf)
    elif added is not None:
        added = added.to(q.dtype)
    with torch.autocast(device, enabled=False):
        _, weights = torch.ops.aten._scaled_dot_product_attention_math(
            q, k, v, added, 0.0, a["is_causal"], None, scale=a["scale"], enable_gqa=a["enable_gqa"]
        )
        if a["enable_gqa"] and v.shape[-3] != weights.shape[-3]:
            v = v.repeat_interleave(weights.shape[-3] // v.shape[-3], -3)
        return (scale_kept(weights, mask, float(a["dropout_p"])) @ v).to(dtype)


def _recurrent(call: Call, a: dict[str, Any], masks: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Layer by layer, with the given masks between the layers, (T, N, width) each."""
    lstm = base_name(call) == "aten.lstm"
    states = a["hx"] if lstm else [a["hx"]]
    layers, bidirectional = int(a["num_layers"]), bool(a["bidirectional"])
    directions = 2 if bidirectional else 1
    per_layer = len(a["params"]) // layers
    x = a["input"].transpose(0, 1) if a["batch_first"] else a["input"]
    ends: list[list[torch.Tensor]] = [[] for _ in states]
    for layer in range(layers):
        own = [state[layer * directions : (layer + 1) * directions] for state in states]
        weights = a["params"][layer * per_layer : (layer + 1) * per_layer]
        common = (weights, a["has_biases"], 1, 0.0, a["train"], bidirectional, False)
        x, *last = torch.lstm(x, own, *common) if lstm else torch.gru(x, own[0], *common)
        for end, state in zip(ends, last, strict=True):
            end.append(state)
        if layer + 1 < layers:
            x = scale_kept(x, masks[layer], float(a["dropout"]))
    y = x.transpose(0, 1) if a["batch_first"] else x
    return (y, *(torch.cat(end) for end in ends))


def _picked(
    call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], places: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The elements at recorded places: as topk and the like give them, and their gradients."""
    a = arguments(Call(call.name, call.target, args, kwargs))
    x, dim = a["self"], a["dim"]
    if x.dim() == places.dim():
        return x.gather(dim, places), places
    return x.gather(dim, places.unsqueeze(dim)).squeeze(dim), places


def _grouped_product(a: dict[str, Any]) -> torch.Tensor:
    """aten._grouped_mm of doubles, which PyTorch lacks; rows of no group are 0."""
    x, y, ends = a["self"], a["mat2"], a["offs"].tolist()
    rows = [x[start:end] @ matrix for start, end, matrix in zip([0, *ends], ends, y, strict=False)]
    return torch.cat([*rows, x.new_zeros(x.shape[0] - ends[-1], y.shape[-1])])


def base_name_is(call: Call, name: str) -> bool:
    return not call.is_getitem and base_name(call) == name


def with_argument(
    call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], name: str, value: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments with another one of that name."""
    place = [argument.name for argument in op_schema(call.target).arguments].index(name)
    if place < len(args):
        return (*args[:place], value, *args[place + 1 :]), kwargs
    return args, {**kwargs, name: value}


def _double_dtype(value: Any) -> Any:
    if not isinstance(value, torch.dtype):
        return value
    return torch.float64 if value.is_floating_point else _DOUBLE.get(value, value)


def _replaced(value: Any, body: Callable[[Any], Any]) -> Any:
    """The same structure with body(item) for every number, tensor, dtype, device in it."""
    if isinstance(value, (list, tuple)):
        return type(value)(_replaced(item, body) for item in value)
    if isinstance(value, dict):
        return {key: _replaced(item, body) for key, item in value.items()}
    return body(value)
