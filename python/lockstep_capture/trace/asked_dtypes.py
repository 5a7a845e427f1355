"""Which dtypes the model asks for by name, and which by example: `x.float()` or `x.to(y.dtype)`.

An FP32 model traced as it is shows neither: `x.float()` is x itself there, and y.dtype is float32 like everything
else. So the trace runs under autocast, where y.dtype is low precision, with AskedDtypes around it: a cast to a low dtype that
was read off a tensor is traced as `type_as` that tensor, a new tensor of such a dtype (the masks that F.multi_head_attention
makes in the query's dtype, a recurrent net's first state) is followed by `type_as`. Knows nothing of torch.export.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

LOW = (torch.bfloat16, torch.float16)
_NAMED = {torch.Tensor.float: torch.float32, torch.Tensor.half: torch.float16, torch.Tensor.bfloat16: torch.bfloat16}
_CASTS = {torch.Tensor.to, torch.Tensor.type, torch.Tensor.type_as, *_NAMED}
_FACTORIES = {torch.arange, torch.empty, torch.eye, torch.full, torch.linspace, torch.ones, torch.tensor, torch.zeros,
              torch.scalar_tensor, torch.as_tensor, torch.rand, torch.randn, torch.zeros_like, torch.ones_like,
              torch.full_like, torch.empty_like, torch.rand_like, torch.randn_like, torch.Tensor.new_zeros,
              torch.Tensor.new_ones, torch.Tensor.new_full, torch.Tensor.new_empty, torch.Tensor.new_tensor}
# Random numbers are drawn as the loop draws them.
_DRAWN = {torch.rand, torch.randn, torch.rand_like, torch.randn_like, torch.empty, torch.empty_like,
          torch.Tensor.new_empty}
# Their numbers need not be numbers of a low dtype.
_FILLED = {torch.full_like, torch.Tensor.new_full, torch.Tensor.new_tensor}


class AskedDtypes(TorchFunctionMode):
    """low: dtype of the trace's autocast. stays_fp32: the loop itself has no autocast, so that what the model makes in
    a tensor's dtype is FP32 in the loop. by_name: casts and new tensors (by their number) that name `low` themselves.

    by_example: numbers of those that were taken to follow a tensor, of the last pass.
    """

    def __init__(self, low: torch.dtype, stays_fp32: bool, by_name: frozenset[int] = frozenset()):
        super().__init__()
        self._low, self._stays_fp32, self._by_name = low, stays_fp32, by_name
        self._example: torch.Tensor | None = None  # the last one whose dtype was read and low
        self._count = 0
        self.by_example: set[int] = set()

    def __enter__(self) -> "AskedDtypes":
        self._example, self._count, self.by_example = None, 0, set()
        return super().__enter__()  # type: ignore[no-any-return]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__self__", None) is torch.Tensor.dtype:
            found = func(*args, **kwargs)
            if found == self._low:
                self._example = args[0]
            return found
        if func in _CASTS:
            return self._cast(func, args, kwargs)
        if func in _FACTORIES and kwargs.get("dtype") is not None:
            return self._make(func, args, kwargs)
        if func in _FILLED and kwargs.get("dtype") is None and args[0].dtype == self._low:
            return torch.Tensor.type_as(func(*args, **{**kwargs, "dtype": torch.float32}), args[0])
        return func(*args, **kwargs)

    def _is_by_example(self, asked: torch.dtype | None) -> bool:
        """Does the next cast or new tensor follow a tensor, or name its dtype? Every one is counted, under any low dtype."""
        number, self._count = self._count, self._count + 1
        if asked != self._low or self._example is None or number in self._by_name:
            return False
        self.by_example.add(number)
        return True

    def _make(self, func: Any, args: Any, kwargs: Any) -> Any:
        if not self._is_by_example(kwargs["dtype"]):
            return func(*args, **kwargs)
        if self._stays_fp32 or func not in _DRAWN:
            kwargs = {**kwargs, "dtype": torch.float32}
        return torch.Tensor.type_as(func(*args, **kwargs), self._example)

    def _cast(self, func: Any, args: Any, kwargs: Any) -> Any:
        x, asked = args[0], _NAMED.get(func)
        for argument in (*args[1:], *kwargs.values()):
            if isinstance(argument, torch.dtype):
                asked = argument
            elif isinstance(argument, torch.Tensor):
                asked = argument.dtype
                if argument.device == x.device:  # x.to(y) would be traced with y's dtype written out
                    func, args, kwargs = torch.Tensor.type_as, (x, argument), {}
        if not x.is_floating_point():
            asked = None
        if func is not torch.Tensor.type_as and self._is_by_example(asked):
            func, args, kwargs = torch.Tensor.type_as, (x, self._example), {}
        if asked == x.dtype:
            # The cast of this trace is x itself, and would replace x at every later use of it.
            args = (torch.ops.aten.alias.default(x), *args[1:])
        return func(*args, **kwargs)
