"""What PyTorch's CPU kernels can do on this machine: some need AVX-512."""

import functools

import pytest
import torch

# PyTorch's CPU kernels of BF16 were modelled where the CPU multiplies BF16 itself. Elsewhere it takes others, and gate
# V7 of a capture may fail.
with open("/proc/cpuinfo") as cpu_facts:
    MODELLED_BF16 = "avx512_bf16" in cpu_facts.read()
AVX2_ONLY = torch.backends.cpu.get_cpu_capability() == "AVX2"


@functools.cache
def has_low_precision_lstm():
    """oneDNN has no BF16 or FP16 LSTM without AVX-512; PyTorch then raises instead of falling back."""
    try:
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            torch.nn.LSTM(4, 4)(torch.zeros(2, 1, 4))
    except RuntimeError as error:
        assert "primitive descriptor" in str(error), error
        return False
    return True


def need_low_precision_lstm():
    if not has_low_precision_lstm():
        pytest.skip("PyTorch has no BF16 LSTM on this CPU (oneDNN needs AVX-512)")
