"""torchvision with its operators for CPUs, where it is installed."""

import pathlib
import sys
import tempfile

import pytest
import torch

STUDY = pathlib.Path(__file__).resolve().parents[1] / "study"
APART = pathlib.Path(sys.prefix) / "apart"  # packages that other libraries shall not find


def torchvision_ops():
    """torchvision.ops; skips the calling test where the operators are missing."""
    before = list(sys.path)
    sys.path += [str(STUDY), str(APART)]
    try:
        from zoo.packages import load_empty_cuda

        load_empty_cuda(pathlib.Path(tempfile.mkdtemp()))
        ops = pytest.importorskip("torchvision.ops", reason="torchvision is not installed", exc_type=ImportError)
    finally:
        sys.path[:] = before
    if not hasattr(torch.ops.torchvision, "deform_conv2d"):
        pytest.skip("torchvision's library of operators does not load with this PyTorch")
    return ops
