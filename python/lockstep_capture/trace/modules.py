"""Which module's forward is running, and how often each ran."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules import module as torch_module


class ModuleStack:
    """Which module's forward is running; `path` "" outside of all."""

    def __init__(self, model: torch.nn.Module):
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._stack: list[str] = []
        self.inside = 0  # how many of the model's forwards are running
        self.calls = dict.fromkeys(self._paths.values(), 0)

    @property
    def path(self) -> str:
        return self._stack[-1] if self._stack else ""

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        def enter(module: torch.nn.Module, args: Any) -> None:
            path = self._paths.get(id(module))
            self._stack.append(self.path if path is None else path)
            if path is not None:
                self.calls[path] += 1
                self.inside += 1

        def leave(module: torch.nn.Module, args: Any, result: Any) -> None:
            self._stack.pop()
            self.inside -= id(module) in self._paths

        first = torch_module.register_module_forward_pre_hook(enter)
        second = torch_module.register_module_forward_hook(leave, always_call=True)
        try:
            yield
        finally:
            first.remove()
            second.remove()
