"""Elementwise ops, reductions and softmaxes, one by one, against PyTorch: values and gradients."""

import torch
from op_tool import compare_with_torch, random_arrays


def test_mul_broadcasts():
    a, b = random_arrays(1, (4, 1, 3), (5, 1))
    print(compare_with_torch("mul", lambda x, y: x * y, [a, b]))


def test_softmax():
    (x,) = random_arrays(2, (5, 7))
    print(compare_with_torch("softmax", lambda x: torch.softmax(x, -1), [x]))
