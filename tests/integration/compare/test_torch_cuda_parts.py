"""What happens between the parts of an op under CUDA's autocast, against PyTorch's parts on the CPU.

cross_entropy is log_softmax in the logits' format and nll_loss in FP32; a convolution is rounded before its bias is added.
"""

import numpy as np
import pytest
import torch
from op_tool import random_arrays, run_op
from test_torch_ops_nn import labels, run_forward

F = torch.nn.functional

ON_CUDA = 'extends = "torch-autocast-fp16"\n[storage]\ninput = "fp16"\nweight = "fp16"\n'


def cuda_policy(tmp_path, more=""):
    path = tmp_path / "cuda.toml"
    path.write_text(ON_CUDA + more)
    return path


class CudaLogSoftmax(torch.autograd.Function):
    """log_softmax of FP16 logits to FP16, FP32 inside, as PyTorch's CUDA kernels."""

    @staticmethod
    def forward(ctx, x):
        y = torch.log_softmax(x.float(), 1).half()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        assert dy.dtype == torch.half
        return (dy.float() - y.float().exp() * dy.float().sum(1, keepdim=True)).half()


def cross_entropy_in_parts(x, target, weight, reduction, smoothing):
    """at::cross_entropy_loss part by part, as CUDA's autocast runs it."""
    log_p = CudaLogSoftmax.apply(x)
    nll = F.nll_loss(log_p.float(), target, weight, reduction=reduction)
    if smoothing == 0:
        return nll
    terms = log_p if weight is None else log_p * weight.reshape(1, -1, *[1] * (x.dim() - 2))
    smooth = -terms.sum(1, dtype=torch.float32).masked_fill(target == -100, 0.0)
    if reduction == "sum":
        smooth = smooth.sum()
    elif reduction == "mean":
        kept = target != -100
        smooth = smooth.sum() / (kept.sum() if weight is None else weight[target[kept]].sum())
    return (1 - smoothing) * nll + smoothing / x.shape[1] * smooth


def distance_in_fp16_ulps(ours, theirs):
    return np.abs(ours - theirs) / np.maximum(
        np.spacing(np.abs(theirs).astype(np.float16)).astype(np.float64), 2.0**-24
    )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(64, 11), (3, 4, 5, 7)])
def test_cross_entropy_rounds_log_probabilities_as_cuda_autocast_does(tmp_path, reduction, smoothing, weighted, shape):
    x = (4 * random_arrays(21, shape)[0]).astype(np.float16)
    target = labels(22, (shape[0], *shape[2:]), shape[1], ignored=(1, 2))
    weight = np.linspace(0.5, 2, shape[1]).astype(np.float16).astype(np.float32) if weighted else None
    logits = torch.tensor(x, requires_grad=True)
    expected = cross_entropy_in_parts(
        logits, torch.tensor(target).long(), None if weight is None else torch.tensor(weight), reduction, smoothing
    )
    dy = np.full(expected.shape, 512.0)  # a loss scale
    expected.backward(torch.tensor(dy, dtype=torch.float32))
    operands = [x, target] + ([weight] if weighted else [])
    (y, *_), (dx, *_) = run_op(
        "cross_entropy",
        operands,
        {"reduction": reduction, "label_smoothing": smoothing},
        dy,
        dtype="fp32",
        policy=str(cuda_policy(tmp_path)),
        constants=[2] if weighted else [],
    )
    # A flip of one rounding, where the two exponentials or logarithms differ in FP32's last bit.
    flip = 2.0**-11 * np.abs(expected.detach().numpy()).max()
    assert np.abs(y - expected.detach().numpy()).max() <= flip + 2e-6 * np.abs(y).max()
    ulps = distance_in_fp16_ulps(dx.astype(np.float16), logits.grad.double().numpy())  # cast where it enters a layer
    assert ulps.max() <= 1 and (ulps == 0).mean() > 0.98, (ulps.max(), (ulps == 0).mean())

    # As one op the gradients are others: the test can tell.
    whole = cuda_policy(tmp_path, '[autocast]\ncross_entropy = "whole"\n')
    _, (other, *_) = run_op(
        "cross_entropy",
        operands,
        {"reduction": reduction, "label_smoothing": smoothing},
        dy,
        dtype="fp32",
        policy=str(whole),
        constants=[2] if weighted else [],
    )
    assert (distance_in_fp16_ulps(other.astype(np.float16), logits.grad.double().numpy()) != 0).mean() > 0.2


def test_a_loss_scale_overflows_inside_cross_entropy(tmp_path):
    """65536 as the gradient of the one log-probability is infinite in FP16."""
    x = np.zeros((1, 4), np.float16)
    _, (dx, *_) = run_op(
        "cross_entropy", [x, np.array([1])], {}, np.array(65536.0), dtype="fp32", policy=str(cuda_policy(tmp_path))
    )
    assert not np.isfinite(dx).any()
    _, (dx, *_) = run_op(
        "cross_entropy", [x, np.array([1])], {}, np.array(32768.0), dtype="fp32", policy=str(cuda_policy(tmp_path))
    )
    assert np.isfinite(dx).all()


@pytest.mark.parametrize("op", ["conv2d", "conv_transpose2d"])
def test_a_convolution_is_rounded_before_its_bias_under_cuda_autocast(tmp_path, op):
    x, w, b = (a.astype(np.float16) for a in random_arrays(23, (2, 3, 6, 6), (3, 3, 3, 3), (3,)))
    function = getattr(F, op)
    products = function(torch.tensor(x).double(), torch.tensor(w).double())
    rounded = products.half() + torch.tensor(b).reshape(1, -1, 1, 1)  # FP16 plus FP16, one rounding
    (y,) = run_forward(op, [x, w, b], {}, rounded, dtype="fp32", policy=str(cuda_policy(tmp_path)))
    ulps = distance_in_fp16_ulps(y, rounded.double().numpy())
    assert ulps.max() <= 1 and (ulps == 0).mean() > 0.99
    fused = cuda_policy(tmp_path, '[gemm]\nconv_bias = "fused"\n')
    (y,) = run_forward(op, [x, w, b], {}, rounded, dtype="fp32", policy=str(fused))
    assert (distance_in_fp16_ulps(y, rounded.double().numpy()) != 0).mean() > 0.05
