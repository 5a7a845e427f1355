"""torch.autograd.Function in the traced pass: its backward is run once, on gradients of 1, and recorded as well.

The loop's own gradients decide whether that was right: a verify step compares them bit for bit with those of the program.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch.autograd.function import FunctionCtx

from .. import torch_api
from ..errors import CaptureError, first_line
from ..ir.custom_functions import CUSTOM_GRADIENT, GRADIENT_OF
from ..ir.program import Place, Ref

_OUT_OF_PYTORCH = (
    "compute it with ops of PyTorch: the work of NumPy, a kernel of your own or another library leaves no trace"
)


class Recording(Protocol):
    """What the recorder of a pass offers. paused: nothing is recorded now."""

    paused: bool

    def place(self) -> Place: ...

    def refuse(self, what: str, place: Place, hint: str) -> None: ...

    def known(self, tensor: torch.Tensor) -> str | None:
        """The name of a tensor that a call made, or of one that shows the same memory in the same way."""

    def new_name(self, wanted: str) -> str: ...

    def add_call(self, target: Any, args: Any, place: Place, name: str = "") -> str: ...

    def add_item(self, call: str, slot: int, tensor: torch.Tensor, place: Place) -> None: ...

    def backward(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Around the backward pass: calls belong to it."""

    def seed(self, tensor: torch.Tensor, name: str) -> None:
        """The tensor is the gradient of that name."""

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """Nothing within is recorded."""


_RECORDINGS: list[tuple[int, Recording]] = []  # with the thread of each
# applies: _forward runs a function; records: apply was called with gradients enabled, and not while paused.
_STATE = threading.local()


@contextlib.contextmanager
def functions(recording: Recording) -> Iterator[None]:
    """Records the functions that this thread applies.

    Function.apply is Python or C, by version, and libraries keep it (`relu = Relu.apply`): what all of them do is to look
    up setup_context and then, without gradients, forward on the class.
    """
    meta = torch_api.FUNCTION_META.get()
    _RECORDINGS.append((threading.get_ident(), recording))
    meta.__getattribute__ = _looked_up
    try:
        yield
    finally:
        _RECORDINGS.pop()
        if not _RECORDINGS:
            del meta.__getattribute__


def _looked_up(cls: Any, name: str) -> Any:
    found = type.__getattribute__(cls, name)
    if name not in ("setup_context", "forward") or getattr(_STATE, "applies", False):
        return found
    if not _RECORDINGS or _RECORDINGS[-1][0] != threading.get_ident():
        return found
    if name == "setup_context":
        _STATE.records = torch.is_grad_enabled() and not _RECORDINGS[-1][1].paused
        return found
    if torch.is_grad_enabled() or not getattr(_STATE, "records", False):
        return found
    return functools.wraps(found)(lambda *args, **kwargs: _forward(cls, *args, **kwargs))


def _forward(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """In the place of cls.forward within apply: applies the function once more, with gradients, and records it. PyTorch
    then makes its own call's node the gradient of the results, which torch.autograd.grad in the step runs."""
    context = args[0] if args and isinstance(args[0], FunctionCtx) else None
    args = args if context is None else args[1:]
    _STATE.applies = True
    try:
        with torch.enable_grad():
            if cls is torch_api.CHECKPOINT.get():  # runs the function again in its backward pass: the same gradients
                _STATE.applies = False
                return args[0](*args[2:])
            results = cls.apply(*args, **kwargs)
            _record(_RECORDINGS[-1][1], cls, [*args, *kwargs.values()], results)
    finally:
        _STATE.applies = False
    if context is not None:
        made = results if isinstance(results, (tuple, list)) else [results]
        fixed = [one for one in made if isinstance(one, torch.Tensor) and not one.requires_grad]
        context.mark_non_differentiable(*fixed)
        for one in made:
            if isinstance(one, torch.Tensor) and isinstance(one.grad_fn, FunctionCtx):
                context.save_for_backward(*one.grad_fn.saved_tensors)
                vars(context).update(vars(one.grad_fn))
                break
    return results


@contextlib.contextmanager
def _no_autocast() -> Iterator[None]:
    """As backward() runs: without a block that the recording would note."""
    kept = {device: torch.is_autocast_enabled(device) for device in ("cpu", "cuda")}
    try:
        for device in kept:
            torch.set_autocast_enabled(device, False)
        yield
    finally:
        for device, enabled in kept.items():
            torch.set_autocast_enabled(device, enabled)


def _record(recording: Recording, cls: Any, args: list[Any], results: Any) -> None:
    all_results = list(results) if isinstance(results, (tuple, list)) else [results]
    made = [item for item in all_results if isinstance(item, torch.Tensor) and item.requires_grad]
    if not made:
        return
    what, place = f"custom autograd.Function {cls.__name__}", recording.place()
    if any(result is arg for result in made for arg in args):
        return recording.refuse(f"{what}, which changes its operand", place, "return a new tensor instead")
    names = [recording.known(result) for result in made]
    if None in names:
        return recording.refuse(f"{what}, whose result no op made", place, _OUT_OF_PYTORCH)
    name = recording.new_name("custom_gradient")
    wanted = [number for number, arg in enumerate(args) if isinstance(arg, torch.Tensor) and arg.requires_grad]
    try:
        gradients = _gradients(recording, cls, name, [str(one) for one in names], all_results, args, wanted, place)
    except Exception as error:
        hint = (
            "use_reentrant=False"
            if "heckpoint" in cls.__name__
            else "its backward must compute the gradients from saved tensors, with ops of PyTorch"
        )
        if isinstance(error, CaptureError) and "backward()" in str(error) and hint != "use_reentrant=False":
            hint = "torch.autograd.grad(outputs, inputs, dy) in its backward, in the place of backward()"
        text = str(error).split(" (")[0] if isinstance(error, CaptureError) else first_line(error)
        return recording.refuse(f"{what}: its backward could not be recorded: {text}", place, hint)
    unknown = [number for number, gradient in gradients.items() if gradient is None]
    if unknown:
        return recording.refuse(f"{what}, whose backward returns a gradient that no op made", place, _OUT_OF_PYTORCH)
    operands = [recording.known(args[number]) for number in wanted]
    call = recording.add_call(
        CUSTOM_GRADIENT,
        (
            [Ref(str(one)) for one in names],
            [Ref(str(one)) for one in operands],
            [Ref(str(gradients[number])) if number in gradients else None for number in wanted],
        ),
        place,
        name,
    )
    for slot, result in enumerate(made):
        recording.add_item(call, slot, result, place)


def _gradients(
    recording: Recording,
    cls: Any,
    name: str,
    results: list[str],
    all_results: list[Any],
    args: list[Any],
    wanted: list[int],
    place: Place,
) -> dict[int, str | None]:
    """By number of the operand; those that get none are missing."""
    with recording.backward(name), torch.no_grad(), _no_autocast():
        left, seeds, context = list(results), [], None
        for result in all_results:
            if not isinstance(result, torch.Tensor) or not result.requires_grad:
                seeds.append(torch.zeros_like(result) if isinstance(result, torch.Tensor) else None)
                continue
            with recording.aside():
                seed = torch.ones_like(result)
            seeds.append(seed)
            slot, context = len(results) - len(left), result.grad_fn
            recording.seed(seed, recording.add_call(GRADIENT_OF, (Ref(left.pop(0)), slot), place))
        found = cls.backward(context, *seeds)
        found = found if isinstance(found, (tuple, list)) else (found,)
        gradients = {}
        for number in wanted:
            gradient = found[number] if number < len(found) else None
            if gradient is not None:
                fitting = gradient if gradient.shape == args[number].shape else gradient.sum_to_size(args[number].shape)
                gradients[number] = recording.known(fitting)
        return gradients
