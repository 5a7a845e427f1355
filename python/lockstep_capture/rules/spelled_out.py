"""Ops that PyTorch itself writes out as others: recorded as those others where autocast does not list them.

Recurrent stacks with dropout that no node has are recorded layer by layer: packed sequences, nn.RNN.
"""

from __future__ import annotations

from typing import Any

import torch

from ..torch_api import HAS_KERNEL, op_schema, overload_name

_JOINED_OR_CUT = {
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "block_diag",
    "cartesian_prod",
    "column_stack",
    "combinations",
    "diagflat",
    "dsplit",
    "dstack",
    "fliplr",
    "flipud",
    "hsplit",
    "hstack",
    "meshgrid",
    "msort",
    "pad_sequence",
    "ravel",
    "row_stack",
    "swapdims",
    "take_along_dim",
    "unsafe_chunk",
    "vander",
    "vsplit",
    "vstack",
}
_ARITHMETIC = {
    "corrcoef",
    "cov",
    "cumulative_trapezoid",
    "diff",
    "fft_fftshift",
    "fft_ifftshift",
    "float_power",
    "gradient",
    "inner",
    "kron",
    "ldexp",
    "linalg_matmul",
    "linalg_matrix_norm",
    "linalg_matrix_power",
    "linalg_norm",
    "linalg_vander",
    "logdet",
    "matrix_power",
    "nanmean",
    "norm_except_dim",
    "positive",
    "special_logit",
    "special_logsumexp",
    "special_multigammaln",
    "special_xlogy",
    "sum_to_size",
    "trapezoid",
    "trapz",
}
_OTHER_NAMES = {
    "absolute",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "fix",
    "special_digamma",
    "special_erf",
    "special_erfc",
    "special_erfinv",
    "special_exp2",
    "special_expit",
    "special_expm1",
    "special_gammaln",
    "special_log1p",
    "special_psi",
    "special_round",
    "special_sinc",
}
_OF_NEW_TENSORS = {"dtype", "layout", "device", "pin_memory"}
_NAMES = {f"aten::{name}{end}" for name in _JOINED_OR_CUT | _ARITHMETIC | _OTHER_NAMES for end in ("", "_")}


def is_spelled_out(func: Any) -> bool:
    """Is the op recorded as the ops that func.decompose() calls?"""
    if op_schema(func).name not in _NAMES or not HAS_KERNEL(func.name(), "CompositeImplicitAutograd"):
        return False
    return not any(
        torch.is_autocast_enabled(device) and HAS_KERNEL(func.name(), f"Autocast{device.upper()}")
        for device in ("cpu", "cuda")
    )


def plain_form(func: Any, kwargs: dict[str, Any]) -> Any:
    """Of an op with one out=, the same op without; None for other ops."""
    outs = [argument.name for argument in op_schema(func).arguments if argument.is_out]
    if len(outs) != 1 or kwargs.get(outs[0]) is None:
        return None
    wanted = [(a.name, str(a.type)) for a in op_schema(func).arguments if not a.is_out]
    packet = getattr(getattr(torch.ops, func.namespace), op_schema(func).name.split("::")[1])
    for name in packet.overloads():
        overload = getattr(packet, name)
        left_out = _OF_NEW_TENSORS if _makes_a_tensor(overload) else set()
        if [(a.name, str(a.type)) for a in op_schema(overload).arguments if a.name not in left_out] == wanted:
            return overload
    return None


def _makes_a_tensor(func: Any) -> bool:
    """As eye() does. With out=, its type is that of the result."""
    return any(argument.name == "layout" for argument in op_schema(func).arguments)


def written_out(plain: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The op without out=, and a copy."""
    (name,) = [argument.name for argument in op_schema(func).arguments if argument.is_out]
    given = {key: value for key, value in kwargs.items() if key != name}
    if _makes_a_tensor(plain):
        given |= {"dtype": kwargs[name].dtype, "device": kwargs[name].device}
    result = plain(*args, **given)
    if kwargs[name].shape != result.shape:
        kwargs[name].resize_(result.shape)
    return kwargs[name].copy_(result)


def form_of_each(func: Any) -> Any:
    """torch.Tensor.lerp_ for _foreach_lerp_: what an op on lists of tensors does with each; None for other ops."""
    name = op_schema(func).name.removeprefix("aten::_foreach_")
    return None if name == op_schema(func).name else getattr(torch.Tensor, name, None)


def one_by_one(form: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    count = len(args[0])
    lists = [isinstance(value, (list, tuple)) for value in args]
    own = [[value[i] if is_list else value for value, is_list in zip(args, lists, strict=True)] for i in range(count)]
    names = [argument.name for argument in op_schema(func).arguments]
    if "value" in names[: len(args)]:  # of addcmul and addcdiv, which take it by name
        place = names.index("value")
        own, values = [one[:place] + one[place + 1 :] for one in own], [one[place] for one in own]
        return _changed_or(func, [form(*one, value=value) for one, value in zip(own, values, strict=True)])
    return _changed_or(func, [form(*one, **kwargs) for one in own])


def _changed_or(func: Any, found: list[Any]) -> list[Any] | None:
    """Ops in place return nothing."""
    return None if op_schema(func).name.endswith("_") else found


_STACKS = {"aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"}
_WITH_DROPOUT = {"aten::lstm", "aten::gru"}  # over padded sequences: a node of their own draws between its layers


def draws_between_layers(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Is it a recurrent stack with dropout that no node has?"""
    name = op_schema(func).name
    if name not in _STACKS or (name in _WITH_DROPOUT and overload_name(func) != "data"):
        return False
    a = _named(func, args, kwargs)
    return bool(a["train"]) and a["dropout"] > 0 and a["num_layers"] > 1


def layer_by_layer(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """The same op on one layer after the other, and dropout between them, as PyTorch's kernel computes it."""
    a = _named(func, args, kwargs)
    x, layers, directions = args[0], a["num_layers"], 2 if a["bidirectional"] else 1
    is_lstm = op_schema(func).name == "aten::lstm"
    states = a["hx"] if is_lstm else [a["hx"]]
    each = len(a["params"]) // layers
    ends: list[list[torch.Tensor]] = [[] for _ in states]
    for layer in range(layers):
        own = [state[layer * directions : (layer + 1) * directions] for state in states]
        given = a | {
            next(iter(a)): x,
            "hx": own if is_lstm else own[0],
            "num_layers": 1,
            "dropout": 0.0,
            "params": a["params"][layer * each : (layer + 1) * each],
        }
        x, *last = func(*given.values())
        for end, state in zip(ends, last, strict=True):
            end.append(state)
        if layer + 1 < layers:
            x = torch.dropout(x, a["dropout"], True)
    return x, *(torch.cat(end) for end in ends)


def _named(func: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    return dict(zip((argument.name for argument in op_schema(func).arguments), args)) | kwargs
