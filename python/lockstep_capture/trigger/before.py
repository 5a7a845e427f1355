"""What a step begins with: generators and buffers. Weights need no copy, the optimizer has not changed them yet."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch

_SMALL = 65536  # elements: such a buffer is copied in each step


class Generators:
    """Python's, NumPy's and PyTorch's, at one moment."""

    def __init__(self, device: torch.device):
        self._python, self._numpy, self._cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
        self._device = device
        self._cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def put_back(self) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda, self._device)


class Buffers:
    """By path, as note() found them. Large ones (masks, tables) are copied again only when their version has changed; kernels
    of norms write running statistics without changing it, and these are small."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[torch.Tensor, int, torch.Tensor]] = {}  # the tensor, its version, a copy

    def note(self, model: torch.nn.Module) -> None:
        found: dict[str, tuple[torch.Tensor, int, torch.Tensor]] = {}
        for path, buffer in model.named_buffers():
            known = self._kept.get(path)
            version = buffer._version
            if known is not None and known[0] is buffer and known[1] == version and buffer.numel() > _SMALL:
                found[path] = known
            else:
                found[path] = buffer, version, buffer.detach().clone()
        self._kept = found

    @contextlib.contextmanager
    def put_back(self, model: torch.nn.Module) -> Iterator[None]:
        """As they were, within it."""
        undo: list[tuple[dict[str, torch.Tensor | None], str, torch.Tensor | None, torch.Tensor | None]] = []
        with torch.no_grad():
            for path, (buffer, _, before) in self._kept.items():
                parent, _, name = path.rpartition(".")
                own = model.get_submodule(parent)._buffers
                if own.get(name) is not buffer:  # the step put another tensor there
                    undo.append((own, name, own.get(name), None))
                    own[name] = before.clone()
                elif not torch.equal(buffer, before):
                    undo.append((own, name, buffer, buffer.detach().clone()))
                    buffer.copy_(before)
        try:
            yield
        finally:
            with torch.no_grad():
                for own, name, now, content in undo:
                    if now is None or content is None:
                        own[name] = now
                    else:
                        now.copy_(content)
