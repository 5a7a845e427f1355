"""One eager run that finds what a graph cannot hold: values that steer Python, custom autograd functions,
gradients of gradients; and for mistakes in step_fn itself (step_function.py).

Tracing stops at the first such thing; this finds them all, with the module and the line of each.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any, Iterator

import torch
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import CaptureError, Problem
from .step_function import StepFunction, calls_backward, check_result, raised, raised_in_fp32
from .user_code import user_line

_VALUE_OPS = {"aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten._unique2",
              "aten.unique_consecutive", "aten.unique_dim", "aten.is_nonzero", "aten.equal"}
CONTROL_FLOW = "data-dependent control flow"
_CONTROL_HINT = "the graph of a step is fixed: no if, loop, .item() or x[mask] on values of tensors"
CUSTOM_FUNCTION = "custom autograd.Function"
_CUSTOM_HINT = "its backward is unknown to Lockstep; write the forward pass with torch ops"
_GRADIENT = "torch.autograd.grad in the forward pass"
_GRADIENT_HINT = "a loss of gradients (gradient penalty) is not replayed"


class ModuleStack:
    """Which module's forward is running; `path` "" outside of all."""

    def __init__(self, model: torch.nn.Module):
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._stack: list[str] = []
        self.calls = dict.fromkeys(self._paths.values(), 0)

    @property
    def path(self) -> str:
        return self._stack[-1] if self._stack else ""

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        def enter(module: torch.nn.Module, args: Any) -> None:
            path = self._paths.get(id(module))
            self._stack.append(self.path if path is None else path)
            if path is not None:
                self.calls[path] += 1

        def leave(module: torch.nn.Module, args: Any, result: Any) -> None:
            self._stack.pop()

        first = torch_module.register_module_forward_pre_hook(enter)
        second = torch_module.register_module_forward_hook(leave, always_call=True)
        try:
            yield
        finally:
            first.remove()
            second.remove()


class _ValueOps(TorchDispatchMode):
    def __init__(self, modules: ModuleStack, problems: list[Problem]):
        super().__init__()
        self._modules, self._problems = modules, problems

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = ".".join(str(func).split(".")[:2])
        if name in _VALUE_OPS or (name == "aten.index" and _has_mask(args[1])):
            problem = Problem(CONTROL_FLOW, self._modules.path, user_line(), _CONTROL_HINT)
            if problem not in self._problems:
                self._problems.append(problem)
        return func(*args, **(kwargs or {}))


def _has_mask(indices: Any) -> bool:
    """x[mask]: as many elements as the mask has true ones."""
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


@dataclass
class Survey:
    """values: places where values steer the forward pass. functions: gradients by hand. calls: by module."""

    values: list[Problem] = field(default_factory=list)
    functions: list[Problem] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)


def survey(model: torch.nn.Module, step_fn: StepFunction, batch: Any, device: torch.device,
           autocast: torch.dtype | None) -> Survey:
    """Runs step_fn once, under the autocast of the loop, within untouched(), which undoes its changes.

    Throws: CaptureError for step_fn's own errors, for a backward() in it, and for a result that is no loss.
    """
    found, modules = Survey(), ModuleStack(model)
    with _noting_gradients(found.functions, modules), torch.enable_grad(), \
            torch.autocast(device.type, dtype=autocast, enabled=autocast is not None, cache_enabled=False):
        try:
            with modules.watch(), _ValueOps(modules, found.values):
                result = step_fn(model, batch)
        except CaptureError:
            raise
        except Exception:  # step_fn's, if it fails unwatched as well
            result = _unwatched(model, step_fn, batch)
    check_result(step_fn, result)
    found.calls = modules.calls
    return found


def check_in_fp32(model: torch.nn.Module, step_fn: StepFunction, batch: Any, device: torch.device) -> None:
    """Runs step_fn once more, without the loop's autocast, as the reference gradients do. Throws: CaptureError."""
    try:
        with torch.enable_grad(), torch.autocast(device.type, enabled=False):
            step_fn(model, batch)
    except Exception as error:
        raise raised_in_fp32(step_fn, batch, error) from error


def _unwatched(model: torch.nn.Module, step_fn: StepFunction, batch: Any) -> Any:
    try:
        return step_fn(model, batch)
    except CaptureError:
        raise
    except Exception as error:
        raise raised(step_fn, batch, error) from error


@contextlib.contextmanager
def _noting_gradients(problems: list[Problem], modules: ModuleStack) -> Iterator[None]:
    """Lists gradients that the forward pass takes by itself; backward(), which would change .grad, ends the run."""
    apply_original = torch.autograd.Function.__dict__["apply"]
    engine: Any = torch.autograd
    run_original = engine._engine_run_backward

    def note(what: str, hint: str) -> None:
        problem = Problem(what, modules.path, user_line(), hint)
        if problem not in problems:
            problems.append(problem)

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        note(f"{CUSTOM_FUNCTION} {cls.__name__}", _CUSTOM_HINT)
        return apply_original.__get__(None, cls)(*args, **kwargs)

    def run(*args: Any, accumulate_grad: bool, **kwargs: Any) -> Any:
        if accumulate_grad:
            raise calls_backward(user_line())
        note(_GRADIENT, _GRADIENT_HINT)
        return run_original(*args, accumulate_grad=accumulate_grad, **kwargs)

    try:
        torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment, method-assign]
        engine._engine_run_backward = run
        yield
    finally:
        torch.autograd.Function.apply = apply_original  # type: ignore[method-assign]
        engine._engine_run_backward = run_original
