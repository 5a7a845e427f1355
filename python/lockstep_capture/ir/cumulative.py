"""BatchNorm(momentum=None): the running statistics are the mean over all batches so far.

PyTorch reads the count and hands 1/count on as a number, which a graph of static numbers cannot hold. While the
model is traced, a name that is no momentum replaces it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from .. import torch_api

CUMULATIVE = -1.0  # as the momentum of a batch_norm: 1 / num_batches_tracked


@contextlib.contextmanager
def named_momentum(model: torch.nn.Module) -> Iterator[None]:
    batch_norm = torch_api.BATCH_NORM.get()
    changed = [module for module in model.modules() if isinstance(module, batch_norm) and module.momentum is None]
    try:
        for module in changed:
            module.momentum = CUMULATIVE
        yield
    finally:
        for module in changed:
            module.momentum = None
