"""Sums and roundings in NumPy, for products that must equal Lockstep's bit for bit."""

import numpy as np
import torch


def bf16(x):
    """Rounded to BF16, as FP32 numbers."""
    return torch.tensor(x).bfloat16().float().numpy()


def chain(a, b):
    """A (M,K) B (K,N) as a chain of fused FP32 operations, k ascending."""
    sums = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        exact = np.outer(a[:, k].astype(np.float64), b[k].astype(np.float64))
        sums = (sums.astype(np.float64) + exact).astype(np.float32)
    return sums
