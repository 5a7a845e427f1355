"""Which ops the installed PyTorch runs in the low format, in FP32 or in the widest format of their operands, under autocast.

Asked of PyTorch itself: every op with a kernel of its own for autocast is called with tensors that hold no numbers, up to
the first op that it calls in turn. The casts before that show the list that the op is on. Works for CUDA's lists without a
GPU. Knows no preset, but compares lists with one.
"""

import contextlib
from typing import Any

import tomllib
import torch

DEVICES = {"cpu": "torch-autocast-bf16-cpu", "cuda": "torch-autocast-fp16"}  # with the presets of their lists
KINDS = ("low_precision", "fp32", "promote")
_SHAPES = ((4, 4), (4,), (2, 4, 4), (2, 4, 4, 4), (2, 4, 4, 4, 4))
_APART = {"_cudnn_rnn"}  # its kernel casts packed weights; lanes have [recurrent] cells
_WIDE, _NARROW = torch.float32, torch.float16


class _Ended(BaseException):
    """The dtype was asked for, or the op called what it consists of."""


class _NoNumbers(torch.Tensor):
    """Knows whether a cast to `wanted` was `seen`."""

    wanted, seen = _WIDE, False

    @staticmethod
    def __new__(cls, shape: Any, dtype: torch.dtype, device: str) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (*args, *(kwargs or {}).values())
        to_fp32 = func in (torch.ops.aten._softmax.default, torch.ops.aten._log_softmax.default) and args[2]
        _NoNumbers.seen = cls.wanted in given or (to_fp32 and cls.wanted is _WIDE)
        if cls.seen or func is not torch.ops.aten._to_copy.default:
            raise _Ended
        return _NoNumbers(args[0].shape, kwargs["dtype"], args[0].device.type)


def installed(device: str) -> dict[str, str]:
    """By op, "conv_transpose2d.input": one of KINDS, "refused" (by autocast), or "" (the casts were not seen)."""
    key, prefix = f"Autocast{device.upper()}", "aten::"
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith(prefix) and not _is_named(name)]
    kept = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, _NARROW)
    try:
        with torch.no_grad():
            return {
                name.removeprefix(prefix): _kind(name.removeprefix(prefix), device)
                for name in sorted(names)
                if torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
            }
    finally:
        torch.set_autocast_enabled(device, kept[0])
        torch.set_autocast_dtype(device, kept[1])


def _is_named(op: str) -> bool:
    """An overload for named tensors, which are gone since PyTorch 2.13."""
    return "dimname" in op.lower() or ".names_" in op


def _kind(name: str, device: str) -> str:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")
    # Ops with a dtype are never of low precision; without a GPU their kernels crash on FP32.
    kinds = [("low_precision", [_WIDE], _NARROW), ("fp32", [_NARROW], _WIDE), ("promote", [_NARROW, _WIDE], _WIDE)]
    if any(argument.name == "dtype" for argument in op._schema.arguments):
        kinds = kinds[1:2]
    for shape in _SHAPES:
        for kind, dtypes, wanted in kinds:
            try:
                if _casts(op, shape, dtypes, wanted, device):
                    return kind
            except RuntimeError as error:  # most: of shapes that do not fit
                if "unsafe to autocast" in str(error):
                    return "refused"
    return ""


def _casts(op: Any, shape: Any, dtypes: list[torch.dtype], wanted: torch.dtype, device: str) -> bool:
    """To the wanted dtype? dtypes: of the tensors in turn."""
    _NoNumbers.wanted, _NoNumbers.seen, made = wanted, False, 0

    def tensor() -> Any:
        nonlocal made
        made += 1
        return _NoNumbers(shape, dtypes[min(made, len(dtypes)) - 1], device)

    def value(kind: str) -> Any:
        if kind in ("Tensor", "Optional[Tensor]"):
            return tensor()
        if kind in ("List[Tensor]", "List[Optional[Tensor]]"):
            return [tensor(), tensor()]
        return {"int": 1, "bool": False, "float": 0.5, "number": 1, "str": "", "List[int]": [1, 1]}.get(kind)

    args, kwargs = [], {}
    for argument in op._schema.arguments:
        has_default = argument.has_default_value() and "Tensor" not in str(argument.type)
        given = argument.default_value if has_default else value(str(argument.type))
        if not argument.kwarg_only:
            args.append(given)
        elif not has_default:
            kwargs[argument.name] = given
    with contextlib.suppress(_Ended, IndexError, ValueError, TypeError):
        op(*args, **kwargs)
    return _NoNumbers.seen


def of_preset(text: dict[str, str], name: str) -> dict[str, str]:
    """By op, as installed(). text: of every preset, by name and version; name: `torch-autocast-fp16:2.12`."""
    preset = tomllib.loads(text[name])
    lists = preset.get("autocast", {})
    found = of_preset(text, preset["extends"]) if "extends" in preset else {}
    for kind in KINDS:
        found |= dict.fromkeys(lists.get(kind, ()), kind)
    return found


def differences(torchs: dict[str, str], presets: dict[str, str]) -> list[str]:
    """ "op: list of torch, list of the preset". A preset's op without an overload means all of them. torchs: of installed();
    ops that autocast refuses are on no list."""
    torchs = {op: kind for op, kind in torchs.items() if kind != "refused" and op not in _APART}
    presets = {op: kind for op, kind in presets.items() if not _is_named(op)}
    found = []
    for op, kind in torchs.items():
        other = presets.get(op, presets.get(op.partition(".")[0], "none"))
        if kind != other:
            found.append(f"{op} (torch: {kind or 'not seen'}, preset: {other})")
    known = {*torchs, *(op.partition(".")[0] for op in torchs)}
    return sorted([*found, *(f"{op} (torch: none, preset: {kind})" for op, kind in presets.items() if op not in known)])
