"""Which dtypes the model asks for by name, and which by example: `x.float()` or `x.to(y.dtype)`.

An FP32 loop shows neither: `x.float()` is x itself there, and y.dtype is float32 like everything else. So a forward pass
is run once more under an autocast that is not the loop's, and once with weights of another dtype (frontend_run.py): what
then asks for that dtype, after reading it off a tensor, follows that tensor. Casts and new tensors that follow one are
recorded as `type_as`. So are numbers such as torch.finfo(y.dtype).min, which are another dtype's limits in these runs.
A cast that the loop does not reach, as in `if y.dtype == torch.float16: x = x.to(y.dtype)`, is reached by a run in which
y.dtype is that dtype.

Events (a cast, a new tensor, a read of a dtype) are known by the line that runs and by how often it ran before, so that
the two runs need not agree in all that they do.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..ir.program import Limit
from .number_arguments import PARAMETERS, SHOWN

LOW = (torch.bfloat16, torch.float16)
Event = tuple[Any, ...]

_NAMED = {torch.Tensor.float: torch.float32, torch.Tensor.half: torch.float16, torch.Tensor.bfloat16: torch.bfloat16}
# What torch takes in the place of a dtype: torch.ones(3, dtype=bool).
_PYTHONS = {bool: torch.bool, int: torch.int64, float: torch.float64}
_CASTS = {torch.Tensor.to, torch.Tensor.type, torch.Tensor.type_as, *_NAMED}
_FACTORIES = {
    torch.arange,
    torch.empty,
    torch.eye,
    torch.full,
    torch.linspace,
    torch.ones,
    torch.tensor,
    torch.zeros,
    torch.scalar_tensor,
    torch.as_tensor,
    torch.rand,
    torch.randn,
    torch.zeros_like,
    torch.ones_like,
    torch.full_like,
    torch.empty_like,
    torch.rand_like,
    torch.randn_like,
    torch.Tensor.new_zeros,
    torch.Tensor.new_ones,
    torch.Tensor.new_full,
    torch.Tensor.new_empty,
    torch.Tensor.new_tensor,
}
# Random numbers are drawn as the loop draws them.
_DRAWN = {
    torch.rand,
    torch.randn,
    torch.rand_like,
    torch.randn_like,
    torch.empty,
    torch.empty_like,
    torch.Tensor.new_empty,
}
# Their numbers need not be numbers of a low dtype.
_FILLED = {torch.full_like, torch.Tensor.new_full, torch.Tensor.new_tensor}
# softmax(x, dtype=y.dtype) casts x first, and its result has that dtype.
_COMPUTED_IN = {
    torch.nn.functional.softmax,
    torch.nn.functional.log_softmax,
    *(
        getattr(owner, name)
        for owner in (torch, torch.Tensor)
        for name in ("softmax", "log_softmax", "sum", "mean", "cumsum", "cumprod", "prod")
    ),
}
_NAMES = {func.__name__ for func in _NAMED}
_SELF: Event = ("self",)  # the example is the operand itself
# Types of tensors as text: x.type("torch.FloatTensor").
_TYPE_NAMES = {
    "torch.FloatTensor": torch.float32,
    "torch.cuda.FloatTensor": torch.float32,
    "torch.HalfTensor": torch.float16,
    "torch.cuda.HalfTensor": torch.float16,
    "torch.BFloat16Tensor": torch.bfloat16,
    "torch.cuda.BFloat16Tensor": torch.bfloat16,
}


# Ops that take a tensor of one element in the place of a number.
_TAKES_TENSOR = {
    *(f"{way}{op}__" for way in ("__", "__r", "__i") for op in ("add", "sub", "mul", "truediv")),
    *(f"{op}{end}" for op in ("add", "sub", "mul", "div", "clamp", "clip", "masked_fill", "fill") for end in ("", "_")),
    *("where", "clamp_min", "clamp_max", "maximum", "minimum", "rsub", "__setitem__"),
}
_FILLS = {torch.full, torch.tensor, torch.scalar_tensor, torch.as_tensor, *_FILLED}
_LIMITS = ("max", "eps", "tiny")
_BOTH_TENSORS = ("clamp", "clip")  # with one number PyTorch makes numbers of both bounds


@dataclass
class Asked:
    """What one run asked for: per cast or new tensor its dtype, per op its numbers by their places, and the read of a
    dtype that it would follow. reads: of any dtype; lows: of the run's low dtype, and before each cast and number how many."""

    dtype: dict[Event, torch.dtype] = field(default_factory=dict)
    numbers: dict[Event, dict[Any, float]] = field(default_factory=dict)
    example: dict[Event, Event] = field(default_factory=dict)
    reads: set[Event] = field(default_factory=set)
    lows: list[Event] = field(default_factory=list)
    lows_before: dict[Event, int] = field(default_factory=dict)

    def by_example(self) -> list[Event]:
        """Casts and new tensors whose own call does not name the dtype."""
        return [event for event in self.dtype if event[0] not in _NAMES]


@dataclass(frozen=True)
class Share:
    """A number that is offset + a multiple of a limit."""

    limit: Limit
    offset: float


@dataclass
class Follows:
    """reads: of casts, new tensors and ops with limits, the reads that they follow. limits: of ops, by their places.

    branches: reads after which the model casts in another dtype only, and that dtype; unlike: after which it computes
    something else.
    """

    reads: dict[Event, Event] = field(default_factory=dict)
    limits: dict[Event, dict[Any, Share]] = field(default_factory=dict)
    branches: dict[Event, torch.dtype] = field(default_factory=dict)
    unlike: dict[Event, torch.dtype] = field(default_factory=dict)

    def add(self, loops: Asked, other: Asked, low: torch.dtype) -> None:
        """other: a run whose low dtype is not the loop's. What names its dtype asks for the same one in both runs."""
        for event in loops.dtype:
            if event in other.example and other.dtype[event] != loops.dtype[event]:
                self.reads.setdefault(event, other.example[event])
        for event, numbers in loops.numbers.items():
            found = {place: _limit(x, other.numbers.get(event, {}).get(place), low) for place, x in numbers.items()}
            limits = {place: limit for place, limit in found.items() if limit is not None}
            if limits and event in other.example:
                self.reads.setdefault(event, other.example[event])
                self.limits.setdefault(event, limits)
        for event, count in other.lows_before.items():
            example = other.example.get(event)
            if event in loops.lows_before or (example is None and event in other.dtype):
                continue
            asked = next((read for read in reversed(other.lows[:count]) if read in loops.reads), None)
            if asked is not None and event in other.numbers and event not in other.dtype:
                self.unlike.setdefault(asked, low)
            elif asked is not None:
                self.branches.setdefault(asked, low)
                if example is not None:
                    self.reads.setdefault(event, example)

    def without_branches(self) -> Follows:
        return Follows(self.reads, self.limits)


def _limit(x: float, other: float | None, low: torch.dtype) -> Share | None:
    """Is x, or x - 1, a multiple of a limit of a dtype, as `other` is of that limit of `low`?"""
    if other is None or other == x:
        return None
    for dtype, offset, name in itertools.product((torch.float32, *LOW), (0.0, 1.0), _LIMITS):
        limits = getattr(torch.finfo(dtype), name), getattr(torch.finfo(low), name)
        share, others = (x - offset) / limits[0], (other - offset) / limits[1]
        if abs(share - others) <= abs(share) * 1e-6 and 1e-3 <= abs(share) <= 1e3:
            return Share(Limit(name, dtype), offset)
    return None


class AskedDtypes(TorchFunctionMode):
    """low: what the run's autocast computes in, None: it has none. follows: what follows a read of a dtype.
    stays_fp32: the loop itself has no autocast, so that what the model makes in a tensor's dtype is FP32 in the loop.

    asked: of this run; examples are only looked for where `low` is a dtype. renames: the op that runs is no op of the
    model, but gives a tensor another name. limit: the cast that runs is of that limit of a dtype.
    """

    def __init__(self, low: torch.dtype | None, follows: Follows, stays_fp32: bool):
        super().__init__()
        self._low, self._follows, self._limits, self._stays_fp32 = low, follows.reads, follows.limits, stays_fp32
        self._branches = follows.branches
        self._wanted = set(self._follows.values())
        self._read: dict[Event, torch.Tensor] = {}
        self._newest: dict[Any, Event] = {}  # by frame of the code that read it; None: of any
        self._count: Counter[Event] = Counter()
        self.asked, self.renames = Asked(), False
        self.limit: Limit | None = None

    def _event(self, func: Any) -> Event:
        frame: Any = sys._getframe(2)
        line = (getattr(func, "__name__", ""), frame.f_code, frame.f_lasti)
        self._count[line] += 1
        return (*line, self._count[line])

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__self__", None) is torch.Tensor.dtype:
            found = func(*args, **kwargs)
            event = self._event(func)
            self.asked.reads.add(event)
            if found == self._low:
                self._newest[None] = self._newest[_frame(sys._getframe(1))] = event
                self.asked.lows.append(event)
            if event in self._wanted:
                self._read[event] = args[0]
            return self._branches.get(event, found)
        if func in _CASTS:
            return self._cast(self._event(func), self._read_for(sys._getframe(1)), func, args, kwargs)
        if func in _FACTORIES and kwargs.get("dtype") is not None:
            return self._make(self._event(func), self._read_for(sys._getframe(1)), func, args, kwargs)
        if func in _COMPUTED_IN and kwargs.get("dtype") is not None:
            return self._compute(self._event(func), self._read_for(sys._getframe(1)), func, args, kwargs)
        if func in _FILLED and kwargs.get("dtype") is None:
            event = self._event(func)
            self._note(event, args[0].dtype, _SELF if args[0].dtype == self._low else None)
            self._note_numbers(event, args, kwargs)
            if event in self._follows:
                made = self._other(func(*args, **{**kwargs, "dtype": torch.float32}))
                return self._type_as(made, args[0], next(iter(self._limits.get(event, {}).values()), None))
        elif self._takes_limits(name := getattr(func, "__name__", "")) and (numbers := _numbers(args, kwargs)):
            event = self._event(func)
            self._note_numbers(event, args, kwargs, self._read_for(sys._getframe(1)))
            if (limits := self._limits.get(event)) is not None and (example := self._example(event)) is not None:
                if name in SHOWN:
                    kwargs = dict(zip(PARAMETERS[name], args, strict=False)) | kwargs
                    limits = {PARAMETERS[name][p] if isinstance(p, int) else p: limits[p] for p in limits}
                    args, func, numbers = (), SHOWN[name], _numbers((), kwargs)
                followed: dict[Any, Share | None] = {p: limits[p] for p in limits if p in numbers}
                if name.rstrip("_") in _BOTH_TENSORS:
                    followed = {**{p: None for p, x in _places(args, kwargs) if type(x) in (int, float)}, **followed}
                args, kwargs = self._with_limits(args, kwargs, followed, example)
        return func(*args, **kwargs)

    def _takes_limits(self, name: str) -> bool:
        return bool(self.asked.reads) and (name in _TAKES_TENSOR or name in SHOWN)

    def _note_numbers(self, event: Event, args: Any, kwargs: Any, read: Event | None = None) -> None:
        if numbers := _numbers(args, kwargs):
            self.asked.numbers[event] = numbers
            self.asked.lows_before[event] = len(self.asked.lows)
            if read is not None:
                self.asked.example[event] = read

    def _with_limits(
        self, args: Any, kwargs: Any, limits: Mapping[Any, Share | None], example: torch.Tensor
    ) -> tuple[Any, dict[str, Any]]:
        """Tensors of one element in the place of the numbers that are limits of the example's dtype; None: in its dtype."""
        floats = any(isinstance(x, torch.Tensor) and x.is_floating_point() for x in (*args, *kwargs.values()))
        args, kwargs = list(args), dict(kwargs)
        for place, share in limits.items():
            table: Any = args if isinstance(place, int) else kwargs
            number = self._other(torch.tensor(table[place], dtype=torch.float32, device=example.device))
            found = self._type_as(number, example, share)
            table[place] = found if floats else found.float()  # of integers and a number PyTorch makes FP32
        return tuple(args), kwargs

    def _type_as(self, x: torch.Tensor, example: torch.Tensor, share: Share | None) -> torch.Tensor:
        if share is None:
            return torch.Tensor.type_as(x, example)
        self.limit, offset = share.limit, share.offset
        try:
            found = torch.Tensor.type_as(self._other(x - offset) if offset else x, example)
        finally:
            self.limit = None
        return found + offset if offset else found

    def _other(self, x: torch.Tensor) -> torch.Tensor:
        """The same values under another name."""
        self.renames = True
        try:
            return torch.ops.aten.alias.default(x)
        finally:
            self.renames = False

    def _read_for(self, frame: Any) -> Event | None:
        """The read of a dtype that a cast in this frame follows: the newest of this function, else of one that called it,
        else of any (a dtype kept in an attribute)."""
        while frame is not None:
            if (found := self._newest.get(_frame(frame))) is not None:
                return found
            frame = frame.f_back
        return self._newest.get(None)

    def _note(self, event: Event, asked: Any, example: Event | None) -> None:
        asked = _PYTHONS.get(asked, asked)
        if asked is None or not asked.is_floating_point:
            return
        self.asked.dtype[event] = asked
        self.asked.lows_before[event] = len(self.asked.lows)
        if asked == self._low and example is not None:
            self.asked.example[event] = example

    def _example(self, event: Event) -> torch.Tensor | None:
        """The tensor that a cast or a new tensor follows."""
        read = self._follows.get(event)
        return self._read.get(read) if read is not None else None

    def _make(self, event: Event, read: Event | None, func: Any, args: Any, kwargs: Any) -> Any:
        self._note(event, kwargs["dtype"], read)
        if func in _FILLS:
            self._note_numbers(event, args, kwargs)
        example = self._example(event)
        if example is None:
            return func(*args, **kwargs)
        if self._stays_fp32 or func not in _DRAWN:
            kwargs = {**kwargs, "dtype": torch.float32}
        share = next(iter(self._limits.get(event, {}).values()), None)
        return self._type_as(self._other(func(*args, **kwargs)), example, share)

    def _compute(self, event: Event, read: Event | None, func: Any, args: Any, kwargs: Any) -> Any:
        self._note(event, kwargs["dtype"], read)
        example = self._example(event)
        if example is None or not args or not args[0].is_floating_point():
            return func(*args, **kwargs)
        x = torch.Tensor.type_as(self._other(args[0]), example)
        return torch.Tensor.type_as(self._other(func(x, *args[1:], **{**kwargs, "dtype": None})), example)

    def _cast(self, event: Event, read: Event | None, func: Any, args: Any, kwargs: Any) -> Any:
        x, asked = args[0], _NAMED.get(func)
        for argument in (*args[1:], *kwargs.values()):
            if isinstance(argument, torch.dtype):
                asked = argument
            elif isinstance(argument, str) and func is torch.Tensor.type:
                asked = _TYPE_NAMES.get(argument)
            elif isinstance(argument, torch.Tensor):
                asked = argument.dtype
                if argument.device == x.device:  # x.to(y) would be recorded with y's dtype written out
                    func, args, kwargs = torch.Tensor.type_as, (x, argument), {}
        if asked is not None and not asked.is_floating_point:
            asked = None
        if func is torch.Tensor.type_as:
            self.asked.lows_before[event] = len(self.asked.lows)
        else:
            self._note(event, asked, read)
            example = self._example(event)
            if example is not None:
                func, args, kwargs, asked = torch.Tensor.type_as, (x, example), {}, example.dtype
        if asked == x.dtype:
            # The cast of this run is x itself, which would hide it.
            args = (self._other(x), *args[1:])
        return func(*args, **kwargs)


def _numbers(args: Any, kwargs: Any) -> dict[Any, float]:
    """The floating numbers among the arguments, by place or name."""
    return {place: x for place, x in _places(args, kwargs) if isinstance(x, float)}


def _places(args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    yield from (*enumerate(args), *kwargs.items())


def _frame(frame: Any) -> Any:
    return id(frame), frame.f_code
