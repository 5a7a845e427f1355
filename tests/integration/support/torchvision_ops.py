"""torchvision with its operators for CPUs, where it is installed."""

import pathlib
import sys
import tempfile

import pytest
import torch

STUDY = pathlib.Path(__file__).resolve().parents[1] / "study"


def torchvision_ops():
    """torchvision.ops; skips the calling test where the operators are missing."""
    sys.path.append(str(STUDY))
    from zoo.packages import load_empty_cuda
    load_empty_cuda(pathlib.Path(tempfile.mkdtemp()))
    ops = pytest.importorskip("torchvision.ops", reason="torchvision is not installed", exc_type=Exception)
    if not hasattr(torch.ops.torchvision, "deform_conv2d"):
        pytest.skip("torchvision's library of operators does not load beside this PyTorch")
    return ops
