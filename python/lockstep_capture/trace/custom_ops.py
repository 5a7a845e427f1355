"""Ops of the user's own (torch.library) in the traced pass: recorded as what their Python functions do.

One with a registered gradient becomes a torch.autograd.Function, which custom_functions.py records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import torch_api
from ..rules.context import Unsupported
from ..torch_api import HAS_KERNEL, op_schema

_OTHERS = ("aten", "lockstep_capture", "torchvision", "prims", "quantized", "inductor_prims")


def own_form(
    func: Any, args: Sequence[Any], kwargs: dict[str, Any], device: str, is_computed: Callable[[Any], bool]
) -> Callable[[], Any] | None:
    """What gives the op's result with ops of PyTorch, None: no way is known, or none is needed.

    is_computed: do tensors among these depend on weights? What does not is evaluated by the op itself.
    Throws: Unsupported for what a registered gradient does that a program cannot hold.
    """
    schema = op_schema(func)
    if schema.name.split("::")[0] in _OTHERS:
        return None
    made = torch_api.CUSTOM_OPS.get().get(schema.name)
    if made is None:
        if HAS_KERNEL(func.name(), "CompositeImplicitAutograd"):
            return lambda: func.decompose(*args, **kwargs)
        return None
    kernels = made._backend_fns
    body = kernels.get(device, kernels.get(None))
    if body is None:
        return None
    if getattr(made, "_autocast_dtype", None):
        raise Unsupported(f"{func} with register_autocast", "cast its operands where it is called")
    leaves = torch_api.LEAVES((list(args), kwargs))
    learns = torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in leaves)
    if not schema.is_mutable and not learns and not is_computed(leaves):
        return None
    if made._backward_fn is None or not learns:
        return lambda: _quietly(body, args, kwargs)
    given = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)} | kwargs
    values = [given.get(argument.name, argument.default_value) for argument in schema.arguments]
    only = {a.name: v for a, v in zip(schema.arguments, values, strict=True) if a.kwarg_only}
    plain = [v for a, v in zip(schema.arguments, values, strict=True) if not a.kwarg_only]
    if any(isinstance(value, (list, tuple)) and any(isinstance(x, torch.Tensor) for x in value) for value in plain):
        raise Unsupported(f"{func}, whose gradient is that of a list of tensors", "give it tensors one by one")
    function = _function(schema.name, made, body, only)
    return lambda: function.apply(*plain)


def _quietly(body: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    with torch.no_grad():
        return body(*args, **kwargs)


def _function(name: str, made: Any, body: Callable[..., Any], only: dict[str, Any]) -> type[torch.autograd.Function]:
    def forward(context: Any, *inputs: Any) -> Any:
        output = body(*inputs, **only)
        if made._setup_context_fn is not None:
            more = {"keyword_only_inputs": only} if only else {}
            made._setup_context_fn(ctx=context, inputs=inputs, output=output, **more)
        return output

    def backward(context: Any, *gradients: Any) -> Any:
        return made._backward_fn(context, *gradients)

    return type(
        name, (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    )
