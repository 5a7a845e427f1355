"""Which shortcuts PyTorch's FP32 sums of products may take on this machine, and how to forbid them for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from ..torch_api import PRECISION_BY_UNIT

_BACKENDS: Any = torch.backends  # its switches are made at run time
_CPU_PRODUCTS = {"highest": "ieee", "high": "tf32", "medium": "bf16"}


class _Switch(NamedTuple):
    get: Callable[[], Any]
    set: Callable[[Any], None]
    full: Any  # the value that means full FP32


def _attribute(owner: Any, name: str, full: Any) -> _Switch:
    return _Switch(lambda: getattr(owner, name), lambda value: setattr(owner, name, value), full)


def _switches() -> list[_Switch]:
    if not PRECISION_BY_UNIT:
        products = _Switch(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest")
        return [products, _attribute(_BACKENDS.cudnn, "allow_tf32", False)]
    units = [
        _BACKENDS.cuda.matmul,
        _BACKENDS.cudnn.conv,
        _BACKENDS.cudnn.rnn,
        _BACKENDS.mkldnn.matmul,
        _BACKENDS.mkldnn.conv,
        _BACKENDS.mkldnn.rnn,
    ]
    return [_attribute(unit, "fp32_precision", "ieee") for unit in units]


@contextlib.contextmanager
def full_fp32() -> Iterator[None]:
    """No autocast, no TF32 or BF16 inside of FP32 products."""
    switches = _switches()
    kept = [switch.get() for switch in switches]
    try:
        for switch in switches:
            switch.set(switch.full)
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            yield
    finally:
        for switch, value in zip(switches, kept, strict=True):
            switch.set(value)


def _allowed() -> tuple[bool, bool, str]:
    """TF32 in cuBLAS and in cuDNN, and what the CPU's products may use."""
    matmul, cudnn = _BACKENDS.cuda.matmul, _BACKENDS.cudnn
    if not PRECISION_BY_UNIT:
        return matmul.allow_tf32, cudnn.allow_tf32, _CPU_PRODUCTS[torch.get_float32_matmul_precision()]
    return matmul.fp32_precision == "tf32", cudnn.conv.fp32_precision == "tf32", _BACKENDS.mkldnn.matmul.fp32_precision


def shortcuts() -> dict[str, Any]:
    """What is allowed now, and how many threads CPU kernels have, as attributes of /amp in a capture file."""
    tf32_matmul, tf32_cudnn, cpu_products = _allowed()
    matmul = _BACKENDS.cuda.matmul
    return {
        "allow_tf32_matmul": tf32_matmul,
        "allow_tf32_cudnn": tf32_cudnn,
        "cpu_products": cpu_products,
        "threads": np.int32(torch.get_num_threads()),
        "fp16_reduced_precision_reduction": bool(matmul.allow_fp16_reduced_precision_reduction),
        "bf16_reduced_precision_reduction": bool(matmul.allow_bf16_reduced_precision_reduction),
    }


def attention_backends() -> str:
    """The backends of scaled_dot_product_attention that may run now."""
    names = ("flash", "mem_efficient", "cudnn", "math")
    return ",".join(name for name in names if getattr(_BACKENDS.cuda, f"{name}_sdp_enabled")())
