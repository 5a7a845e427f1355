"""One part of one step as a capture file: its loss is the inner product of its output with the recorded gradient.

Traced from the copies, after the step. That loss has exactly the gradients of the run, so the file is an ordinary
capture, stored with the run's outputs and gradients (write/part_checks.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .. import torch_api
from ..capture import Capture
from ..errors import CaptureError
from ..model_state import alone, as_real, rank, world_size
from ..trace.named_values import watch_value
from ..write.part_checks import CallChecks, PartChecks, Placement
from .calls import OUTPUT, Call, PartStep, is_float
from .copies import arguments_by_name, as_it_is, leaves_by_name
from .distance import distance
from .replicas import in_place_of, replica, split
from .slices import Slice, extents_of, slice_of

_MOST_OFF = {torch.float32: 1e-4, torch.float64: 1e-4}  # of an output, by its norm: another order of sums
_MOST_OFF_NARROW = 2e-2


LOSS_OVER = ("tokens", "rows")
_PLAIN = (bool, int, float, str, torch.dtype, torch.device)


@dataclass(frozen=True)
class Cut:
    """How much of the batch a file keeps. None: all."""

    tokens: int | None = None
    rows: int | None = None


class _Form:
    """How a call is made from named tensors, without any of them: calls of the same form share a graph."""

    def __init__(
        self,
        path: str,
        leaves: dict[str, Any],
        shape: Any,
        dtypes: dict[str, torch.dtype],
        graded: list[str],
        loss_over: str,
    ):
        """leaves: of the arguments, in order. dtypes: of the floating results. graded: those that got a gradient."""
        self._loss_over = loss_over
        self.path, self.dtypes, self.graded, self._shape = path, dtypes, graded, shape
        self._names = list(leaves)
        # An argument given twice stays one tensor: attention of x to itself takes another path than of equal tensors.
        firsts: dict[int, str] = {}
        self._of = {
            name: firsts.setdefault(id(leaf), name) for name, leaf in leaves.items() if isinstance(leaf, torch.Tensor)
        }
        self._constants = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves.values()]

    @property
    def given(self) -> list[str]:
        """Names of the tensors among the arguments, each tensor once."""
        return list(dict.fromkeys(self._of.values()))

    def is_like(self, other: _Form) -> bool:
        same = (
            self._names == other._names
            and self._of == other._of
            and self._shape == other._shape
            and self.graded == other.graded
        )
        return (
            same
            and self.dtypes == other.dtypes
            and all(
                a is b or (type(a) is type(b) and isinstance(a, _PLAIN) and a == b)
                for a, b in zip(self._constants, other._constants, strict=True)
            )
        )

    def run(self, module: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The module's floating results, in the dtypes that the run had: FSDP casts what a module returns."""
        values = [
            inputs[self._of[name]] if name in self._of else as_it_is(constant)
            for name, constant in zip(self._names, self._constants, strict=True)
        ]
        args, kwargs = torch_api.UNFLATTEN(values, self._shape)
        found = leaves_by_name(module(*args, **kwargs), OUTPUT)
        return {name: _in_dtype(leaf, self.dtypes[name]) for name, leaf in found.items() if name in self.dtypes}

    def inner_product(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        outputs = self.run(model.get_submodule(self.path), batch["inputs"])
        for name in self.graded:
            watch_value(name, outputs[name])
        gradients = batch["output_gradients"]
        terms = [
            _product(as_real(outputs[name]).float(), as_real(gradients[name]).float(), self._loss_over)
            for name in self.graded
        ]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total


def _product(output: torch.Tensor, gradient: torch.Tensor, loss_over: str) -> torch.Tensor:
    """Their inner product, through the sum of each token's features, or of each row's: the program squares what these
    lose. The features of a picture's places are on the second axis."""
    terms = output * gradient
    if terms.ndim < 2:
        return terms.sum()
    if loss_over == "rows":
        return terms.flatten(1).sum(-1).sum()
    return terms.sum(1 if terms.ndim > 3 else -1).sum()


class _PartCall:
    """One call as the micro-batch of a capture: the batch has its tensors, everything else is constant."""

    def __init__(self, part: PartStep, call: Call, cut: Cut, loss_over: str):
        self.call = call
        leaves = arguments_by_name(part.module.forward, call.args, call.kwargs)
        outputs = leaves_by_name(call.output, OUTPUT)
        self.slice: Slice | None = None
        if cut != Cut():
            found = slice_of(extents_of(leaves, part.path), cut.tokens, cut.rows)
            self.slice = found if found.cuts else None
        self.outputs = {name: self._cut(leaf) for name, leaf in outputs.items() if is_float(leaf)}
        self.output_gradients = {name: self._cut(leaf) for name, leaf in call.output_gradients.items()}
        self.input_gradients = {name: self._cut(leaf) for name, leaf in call.input_gradients.items()}
        self.form = _Form(
            part.path,
            leaves,
            torch_api.FLATTEN((call.args, call.kwargs))[1],
            {name: tensor.dtype for name, tensor in self.outputs.items()},
            list(self.output_gradients),
            loss_over,
        )
        self.inputs = {name: self._cut(leaves[name]) for name in self.form.given}
        self.input_gradients = {name: g for name, g in self.input_gradients.items() if name in self.inputs}

    def _cut(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self.slice is None else self.slice.of(tensor)

    def batch(self, device: torch.device, form: int, scale: float) -> dict[str, Any]:
        """Gradients without the loss scale, which the capture's own scaler puts back."""
        return {
            "form": form,
            "inputs": {name: tensor.to(device) for name, tensor in self.inputs.items()},
            "output_gradients": {
                name: (tensor.to(device).float() / scale if scale != 1 else tensor.to(device))
                for name, tensor in self.output_gradients.items()
            },
        }

    @contextlib.contextmanager
    def as_in_run(self, device: torch.device) -> Iterator[None]:
        """Generators and autocast as the module found them."""
        self.call.draws.put_back(device)
        kind, dtype = self.call.autocast or (device.type, None)
        with torch.autocast(kind, dtype=dtype, enabled=dtype is not None, cache_enabled=self.call.caches):
            yield


def _in_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


@contextlib.contextmanager
def _generators_kept(device: torch.device) -> Iterator[None]:
    pythons, numpys = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(pythons)
            np.random.set_state(numpys)


class _NoCollectives(torch_api.DispatchMode):  # type: ignore[misc]
    """The copy runs on this rank alone: others would never answer."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        space = func.namespace if hasattr(func, "namespace") else ""
        if space.startswith(("c10d", "_c10d")):
            raise CaptureError(
                f"it talks to other ranks in its forward pass ({func}): choose modules inside of it that do not"
            )
        return func(*args, **(kwargs or {}))


def write_part(
    path: str, part: PartStep, *, step: int, scale: float, cut: Cut, reference: bool, loss_over: str
) -> PartChecks:
    """scale: the run's loss scale. reference: PyTorch's own gradients in FP32 and FP64 too, for gates V1 and V3. loss_over:
    of what the run's loss is a mean, one of LOSS_OVER.

    Throws: CaptureError with everything that hinders.
    """
    calls = _usable_calls(part)
    device = part.device
    _keep_own_columns(part, calls)
    weights = {name: tensor.to(device) for name, tensor in part.weights.items()}
    buffers = {name: tensor.to(device).clone() for name, tensor in part.buffers.items()}
    module = split(replica(part.module, weights, buffers, part.frozen), part.placements)
    for name, inner in module.named_modules():
        inner.training = calls[0].training.get(name, inner.training)
    prepared = [_PartCall(part, call, cut, loss_over) for call in calls]
    ranks = rank(), world_size()
    with alone(), _generators_kept(device), torch.enable_grad():
        first = {name: buffer.clone() for name, buffer in module.named_buffers()}
        checks = _compare(part, module, prepared, step, scale, ranks)
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                buffer.copy_(first[name])
        for weight in module.parameters():
            weight.grad = None
        _capture(path, part, module, prepared, scale, checks, reference)
    return checks


def _keep_own_columns(part: PartStep, calls: list[Call]) -> None:
    """A linear layer that tensor parallelism splits by columns gives this rank's alone: so does the part."""
    placement = part.placements.get("weight")
    output = calls[0].output
    if not isinstance(part.module, torch.nn.Linear) or placement is None or not isinstance(output, torch.Tensor):
        return
    if not any(dimension == 0 for dimension, _ in placement.splits) or output.shape[-1] != placement.shape[0]:
        return
    for name, weight in part.weights.items():
        part.weights[name] = weight.narrow(0, placement.offset[0], placement.shape[0]).contiguous()
    for name, (gradient, lies) in part.run_gradients.items():
        first = lies.offset[0] - placement.offset[0]
        part.run_gradients[name] = gradient, dataclasses.replace(lies, offset=(first, *lies.offset[1:]))
    part.own_columns = placement.text
    part.placements = {}


def _usable_calls(part: PartStep) -> list[Call]:
    """Those that returned and got a gradient."""
    problems = list(part.problems)
    found = [call for call in part.calls if call.returned and call.output_gradients]
    if not part.calls:
        problems.append("was not called in the step")
    elif not found:
        problems.append(
            "no gradient reached its output: is it frozen with all before it, under no_grad, left out of the loss, or a view "
            "that is changed in place afterwards (then return a copy)?"
        )
    if part.weights.keys() <= part.frozen and found:
        problems.append("has no weight that trains: choose the module around it")
    if len({call.autocast for call in found}) > 1 or len({call.caches for call in found}) > 1:
        problems.append("is called under different autocast settings: choose modules inside of each")
    if problems:
        raise CaptureError("; ".join(problems))
    return found


def _compare(
    part: PartStep, module: torch.nn.Module, calls: list[_PartCall], step: int, scale: float, ranks: tuple[int, int]
) -> PartChecks:
    """Runs the copy forward and backward as the run did."""
    worst, checks = 0.0, PartChecks({})
    worst_input = 0.0
    for one in calls:
        # Tensors of their own: their gradients must not be added to by the capture's backward pass.
        inputs = {name: tensor.to(part.device).detach() for name, tensor in one.inputs.items()}
        for name in one.input_gradients:
            inputs[name].requires_grad_()
        with one.as_in_run(part.device), _NoCollectives():
            outputs = one.form.run(module, inputs)
        off = distance(outputs, one.outputs)
        worst = max(worst, off)
        limit = max(_MOST_OFF.get(tensor.dtype, _MOST_OFF_NARROW) for tensor in one.outputs.values())
        if not off <= limit:
            raise CaptureError(_other_output(off, one))
        roots = [outputs[name] for name in one.output_gradients]
        grads = [tensor.to(part.device) for tensor in one.output_gradients.values()]
        weights = [weight for weight in module.parameters() if weight.requires_grad]
        graded = [inputs[name] for name in one.input_gradients]
        torch.autograd.backward(roots, grads, inputs=[*weights, *graded])
        own = {name: tensor.grad for name, tensor in inputs.items() if tensor.grad is not None}
        theirs = {name: one.input_gradients[name] for name in own}
        worst_input = max(worst_input, distance(own, theirs))
        checks.calls.append(
            CallChecks(
                one.outputs,
                {name: tensor.detach().cpu() for name, tensor in own.items()},
                one.call.micro,
                one.call.order,
            )
        )
    total = {name: weight.grad.cpu() for name, weight in module.named_parameters() if weight.grad is not None}
    checks.gradients = {f"{part.path}.{name}": gradient for name, gradient in total.items()}
    checks.placements = {f"{part.path}.{name}": placement for name, placement in part.placements.items()}
    is_cut = any(one.slice is not None for one in calls)
    checks.attributes = {
        "module": part.path,
        "class": f"{type(module).__module__}.{type(module).__qualname__}",
        "step": step,
        "rank": ranks[0],
        "world_size": ranks[1],
        "loss_scale": scale,
        "own_columns": part.own_columns,
        "output": _in_words(worst),
        "output_off": worst,
        "input_gradient": "of a slice"
        if is_cut
        else _inputs_in_words(worst_input, sum(len(call.input_gradients) for call in checks.calls)),
        "gradient": _gradients_in_words(part, total, is_cut, ranks[1], checks),
        "recomputed": part.recomputed,
        **_kept(calls),
    }
    return checks


def _other_output(off: float, one: _PartCall) -> str:
    how = f"off by {off:.1e} of its norm" if math.isfinite(off) else "of another form"
    if one.slice is not None:
        return (
            f"on a slice of the batch its output is {how}: it mixes tokens or rows, or draws random numbers; "
            "leave tokens= and rows= out"
        )
    return (
        f"run alone, its output is {how}: it reads or changes something besides its arguments, weights and buffers "
        "(a cache, an attribute, a collective); choose modules inside of it"
    )


def _in_words(off: float) -> str:
    return "bit-exact" if off == 0 else f"off by {off:.1e} of its norm"


def _inputs_in_words(off: float, count: int) -> str:
    """The run's gradient of an input is that of everything that reads it."""
    if count == 0:
        return "none"
    return _in_words(off) + (": others read it too" if off >= _MOST_OFF_NARROW else "")


def _gradients_in_words(
    part: PartStep, own: dict[str, torch.Tensor], is_cut: bool, ranks: int, checks: PartChecks
) -> str:
    """Fills checks.run_gradients where the run's are others."""
    if is_cut:
        return "of a slice"
    if not part.run_gradients:
        return "not known: none was found after backward()"
    # Weights that got none in one of both have zeros there: zero_grad(set_to_none=False).
    known = {name: found for name, found in part.run_gradients.items() if name in own or bool(found[0].any())}
    theirs = {name: gradient for name, (gradient, _) in known.items()}
    here = {name: _region(gradient, known, name) for name, gradient in own.items() if name not in part.tied}
    off = distance({name: here[name] for name in here if name in theirs or bool(here[name].any())}, theirs)
    others = "".join(f"; {name} is also {path}, not compared" for name, path in part.tied.items())
    if off == 0:
        return "bit-exact" + others
    checks.run_gradients = {f"{part.path}.{name}": found for name, found in part.run_gradients.items()}
    if ranks > 1:
        return "of all ranks: `lockstep verify` of the folder compares them" + others
    return _in_words(off) + others


def _region(gradient: torch.Tensor, run: dict[str, tuple[torch.Tensor, Placement]], name: str) -> torch.Tensor:
    """What this rank has of it in the run."""
    placement = run[name][1] if name in run else Placement()
    if not placement.splits or gradient.shape == placement.shape:
        return gradient
    for dimension, (start, length) in enumerate(zip(placement.offset, placement.shape, strict=True)):
        gradient = gradient.narrow(dimension, start, length)
    return gradient


def _kept(calls: list[_PartCall]) -> dict[str, Any]:
    cut = next((one.slice for one in calls if one.slice is not None), None)
    if cut is None:
        return {}
    return {"kept_rows": cut.rows, "kept_tokens": cut.tokens, "rows": cut.whole.rows, "tokens": cut.whole.tokens}


def _capture(
    path: str,
    part: PartStep,
    module: torch.nn.Module,
    calls: list[_PartCall],
    scale: float,
    checks: PartChecks,
    reference: bool,
) -> None:
    model = in_place_of(part.path, module)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(weights, lr=0.0)
    scaler = None
    if scale != 1:
        scaler = torch.amp.GradScaler(part.device.type, init_scale=scale, growth_interval=2**31 - 1)
    region = calls[0].call.autocast
    forms: list[_Form] = []
    numbers = [_number_in(forms, one.form) for one in calls]

    def inner_product(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        return forms[batch["form"]].inner_product(model, batch)

    capture = Capture(
        path,
        model,
        optimizer,
        inner_product,
        scaler=scaler,
        autocast=None if region is None else region[1],
        steps=1,
        verify=[0] if reference else [],
        quiet=True,
        part=checks,
    )
    with capture:
        for number, one in enumerate(calls):
            batch = one.batch(part.device, numbers[number], scale)
            one.call.draws.put_back(part.device)
            with capture.step(batch):
                with one.as_in_run(part.device):
                    loss = inner_product(model, batch)
                (loss if scaler is None else scaler.scale(loss)).backward(inputs=weights)
                if number + 1 == len(calls):
                    if scaler is None:
                        optimizer.step()
                    else:
                        scaler.step(optimizer)
                        scaler.update()


def _number_in(forms: list[_Form], form: _Form) -> int:
    for number, known in enumerate(forms):
        if form.is_like(known):
            return number
    forms.append(form)
    return len(forms) - 1


def file_name(path: str) -> str:
    return path.replace("%", "%25").replace(os.sep, "%2F") + ".lscap.h5"
