"""Which shortcuts PyTorch's FP32 sums of products may take on this machine, and how to forbid them for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

_BACKENDS: Any = torch.backends  # its switches are made at run time


def _switches() -> list[tuple[Any, str, Any]]:
    """(owner, attribute, value that means full FP32). torch.backends' older names may not be mixed with these."""
    units = [
        _BACKENDS.cuda.matmul,
        _BACKENDS.cudnn.conv,
        _BACKENDS.cudnn.rnn,
        _BACKENDS.mkldnn.matmul,
        _BACKENDS.mkldnn.conv,
        _BACKENDS.mkldnn.rnn,
    ]
    return [(unit, "fp32_precision", "ieee") for unit in units]


@contextlib.contextmanager
def full_fp32() -> Iterator[None]:
    """No autocast, no TF32 or BF16 inside of FP32 products."""
    switches = _switches()
    kept = [getattr(owner, name) for owner, name, _ in switches]
    try:
        for owner, name, full in switches:
            setattr(owner, name, full)
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            yield
    finally:
        for (owner, name, _), value in zip(switches, kept, strict=True):
            setattr(owner, name, value)


def shortcuts() -> dict[str, Any]:
    """What is allowed now, and how many threads CPU kernels have, as attributes of /amp in a capture file."""
    matmul = _BACKENDS.cuda.matmul
    return {
        "allow_tf32_matmul": matmul.fp32_precision == "tf32",
        "allow_tf32_cudnn": _BACKENDS.cudnn.conv.fp32_precision == "tf32",
        "cpu_products": _BACKENDS.mkldnn.matmul.fp32_precision,
        "threads": np.int32(torch.get_num_threads()),
        "fp16_reduced_precision_reduction": bool(matmul.allow_fp16_reduced_precision_reduction),
        "bf16_reduced_precision_reduction": bool(matmul.allow_bf16_reduced_precision_reduction),
    }


def attention_backends() -> str:
    """The backends of scaled_dot_product_attention that may run now."""
    names = ("flash", "mem_efficient", "cudnn", "math")
    return ",".join(name for name in names if getattr(_BACKENDS.cuda, f"{name}_sdp_enabled")())
