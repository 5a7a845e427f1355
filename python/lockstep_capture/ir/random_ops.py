"""Which ATen ops draw random numbers, what they draw, and how many draws one call makes.

A *draw* is one event that MaskTap sees below autograd: the keep-mask of a dropout, or a noise tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..torch_api import op_schema
from .program import Call, Program

_DROPOUTS = {"aten.dropout", "aten.dropout_", "aten.feature_dropout", "aten.feature_dropout_", "aten.native_dropout"}
_RECURRENT = {"aten.lstm", "aten.gru"}
ATTENTION = "aten.scaled_dot_product_attention"
NOISE = {
    "aten.randn",
    "aten.rand",
    "aten.randn_like",
    "aten.rand_like",
    "aten.normal_",
    "aten.uniform_",
    "aten.bernoulli",
    "aten.bernoulli_",
    "aten.randint",
    "aten.randint_like",
    "aten.randperm",
    "aten.normal",
    "aten.multinomial",
    "aten.exponential_",
}

RMS_NORM_EPS = 2.0**-23  # torch.nn.RMSNorm(eps=None): the machine epsilon of FP32, in FP64 too


def base_name(call: Call) -> str:
    """`aten.add` of `aten.add.Tensor`."""
    return ".".join(call.op.split(".")[:2])


def arguments(call: Call) -> dict[str, Any]:
    """All arguments of the call by the names of its schema, defaults included."""
    found: dict[str, Any] = {}
    for i, argument in enumerate(op_schema(call.target).arguments):
        if i < len(call.args) and not argument.kwarg_only:
            found[argument.name] = call.args[i]
        elif argument.name in call.kwargs:
            found[argument.name] = call.kwargs[argument.name]
        else:
            found[argument.name] = argument.default_value if argument.has_default_value() else None
    return found


@dataclass(frozen=True)
class RandomSite:
    """A call that draws: kind "dropout", "lstm", "sdpa" or "noise"; p is the share that is dropped."""

    call: str
    kind: str
    p: float
    draws: int


def random_site(call: Call) -> RandomSite | None:
    """What the call draws, None for nothing (p = 0, evaluation mode, one layer)."""
    if call.is_getitem:
        return None
    name = base_name(call)
    if name in NOISE:
        return RandomSite(call.name, "noise", 0.0, 1)
    if name in _DROPOUTS:
        a = arguments(call)
        p = float(a["p"])
        active = bool(a["train"]) and 0 < p < 1
        return RandomSite(call.name, "dropout", p, 1) if active else None
    if name in _RECURRENT:
        a = arguments(call)
        draws = int(a["num_layers"]) - 1
        active = bool(a["train"]) and float(a["dropout"]) > 0 and draws > 0
        return RandomSite(call.name, "lstm", float(a["dropout"]), draws) if active else None
    if name == ATTENTION:
        p = float(arguments(call)["dropout_p"])
        return RandomSite(call.name, "sdpa", p, 1) if p > 0 else None
    return None


def random_sites(program: Program) -> list[RandomSite]:
    """In the order in which PyTorch draws."""
    return [site for call in program.calls if (site := random_site(call)) is not None]
