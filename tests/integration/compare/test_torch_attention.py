"""The flash kernel of PyTorch's CPU in BF16 and FP16, bit by bit: policy [attention] flash = "torch_cpu".

scaled_dot_product_attention picks it for (N,H,T,E) without dropout; emulation/kernels/flash_kernel.cc has its blocks. What may
differ is the order of FP32 sums of n terms, by about sqrt(n) 2^-24, which flips a rounding to p bits with a probability
of sqrt(n) 2^(p - 24); with the roundings on an element's way, of weights, gradients of scores and results, and what
cancels between them, ROUNDINGS times that, and FEW elements more where there are not many. A weight that was rounded
the other way moves an output by less than one ulp of the largest one.
"""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from op_tool import run_op

torch.set_num_threads(1)
NAMES = ("y", "dq", "dk", "dv")
ROUNDINGS, FEW = 8, 3
LOW = {torch.bfloat16: ("torch-autocast-bf16-cpu", 8), torch.float16: ("torch-autocast-fp16-cpu", 11)}
# queries, keys, features: one block and less than a vector of keys; full vectors; two blocks of 32 and a rest; shared
# heads; blocks of 64 queries; two blocks of keys; blocks of 256 queries; rows with no key in their first block.
SHAPES = {
    (12, 12, 8): {},
    (32, 32, 16): {"is_causal": True},
    (70, 40, 16): {"kept": 0.4},
    (40, 37, 16): {"enable_gqa": True},
    (200, 70, 16): {},
    (20, 600, 16): {},
    (800, 40, 8): {},
    (20, 1100, 16): {"kept": 0.01},
}


@pytest.fixture(autouse=True)
def avx512():
    """Vectors of 16 keys are those of AVX-512; with AVX2, of 8, other keys take PyTorch's fast exp."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("PyTorch's kernels for AVX-512 do not run on this CPU")


def both(shape, kind, policy, kept=None, **options):
    """(PyTorch's, ours) of y, dq, dk, dv as FP32 arrays."""
    torch.manual_seed(sum(shape))
    queries, keys, features = shape
    heads = 2 if options.get("enable_gqa") else 4
    q, k, v = (
        torch.randn(2, h, t, features).to(kind).requires_grad_()
        for h, t in ((4, queries), (heads, keys), (heads, keys))
    )
    mask = None if kept is None else torch.rand(2, 1, queries, keys) < kept
    dy = torch.randn(2, 4, queries, features).to(kind)
    y = F.scaled_dot_product_attention(q, k, v, mask, **options)
    assert "FlashAttentionForCpu" in type(y.grad_fn).__name__, "PyTorch chose another kernel"
    y.backward(dy)
    operands = [x.detach().float().numpy() for x in (q, k, v)] + ([] if mask is None else [mask.numpy()])
    attrs = {"model": "flash", "causal": options.get("is_causal", False), "gqa": options.get("enable_gqa", False)}
    (ours, _), gradients = run_op("sdpa", operands, attrs, dy.float().numpy(), dtype="fp32", policy=policy)
    theirs = [x.detach().float().numpy() for x in (y, q.grad, k.grad, v.grad)]
    return list(zip(theirs, [ours, *gradients[:3]], strict=True))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", LOW, ids=str)
def test_bits_of_the_flash_kernel(shape, kind):
    policy, p = LOW[kind]
    options = SHAPES[shape]
    for name, (theirs, ours) in zip(NAMES, both(shape, kind, policy, **options), strict=True):
        if name == "dq" and options.get("is_causal"):  # the first query sees one key: 0 but for what cancels
            theirs, ours = theirs[..., 1:, :], ours[..., 1:, :]
        # A score's gradient that was rounded the other way moves a row of features (seen on Zen 4: 4 of 768 elements).
        others = ROUNDINGS * math.sqrt(max(shape)) * 2.0 ** (p - 24) + (FEW + shape[2]) / theirs.size
        share = (theirs == ours).mean()
        worst = np.abs(theirs - ours).max() / np.abs(theirs).max() * 2 ** (p - 1)
        print(
            f"{kind} {shape} {name}: PyTorch's bits {share:.4f}, at least {1 - others:.4f}; "
            f"worst {worst:.2f} ulp of the largest"
        )
        assert share >= 1 - others, name
        assert worst <= 1, name


def test_other_kernels_do_not_pass():
    """The control: CUDA's preset rounds probabilities after normalisation, whole rows at a time."""
    shares = [(theirs == ours).mean() for theirs, ours in both((40, 40, 16), torch.bfloat16, "torch-autocast-bf16")]
    assert max(shares) < 0.9, shares
