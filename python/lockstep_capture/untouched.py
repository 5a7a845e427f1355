"""Tracing runs somebody's model a few times; afterwards neither the model nor any random number may know of it."""

from __future__ import annotations

import contextlib
import random
from typing import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def untouched(model: torch.nn.Module) -> Iterator[None]:
    """Attributes and buffers of all modules, which gradients there are, and the global random generators are restored
    on the way out.

    Not restored: gradients set to zero in place, what a module appends to a list of its own, its own generators, files.
    """
    modules = [(module, dict(vars(module)), dict(module._buffers)) for module in model.modules()]
    values = {id(buffer): (buffer, buffer.clone()) for _, _, buffers in modules
              for buffer in buffers.values() if buffer is not None}
    grads = [(parameter, parameter.grad) for parameter in model.parameters()]
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        for module, attributes, buffers in modules:
            own = vars(module)
            for name in [name for name in own if name not in attributes]:
                del own[name]
            own.update(attributes)
            module._buffers.clear()
            module._buffers.update(buffers)
        for parameter, grad in grads:
            parameter.grad = grad
        with torch.no_grad():
            for buffer, value in values.values():
                buffer.copy_(value)
