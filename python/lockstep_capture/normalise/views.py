"""Views of a tensor: which values share elements, and what a write to one does to the others.

A write to a view makes new versions: of the value that it is a view of, up to the first one, and of other views of
the same elements that are read later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..ir.program import Call, Program
from ..ir.random_ops import base_name

# Ops whose result may show elements of their first operand.
_VIEWS = {
    "view",
    "reshape",
    "flatten",
    "unflatten",
    "unsqueeze",
    "squeeze",
    "transpose",
    "permute",
    "t",
    "view_as",
    "reshape_as",
    "_unsafe_view",
    "contiguous",
    "alias",
    "detach",
    "movedim",
    "moveaxis",
    "swapaxes",
    "to",
    "type_as",
    "numpy_T",
    "mT",
    "mH",
    "adjoint",
    "matrix_H",
    "select",
    "slice",
    "narrow",
    "split",
    "split_with_sizes",
    "chunk",
    "unbind",
    "expand",
    "expand_as",
    "broadcast_to",
    "diagonal",
    "unfold",
    "tensor_split",
    "as_strided",
}
# Ops that show a complex tensor's elements as others: a write on one side is not carried to the other.
_OTHER_NUMBERS = {
    "real",
    "imag",
    "view_as_real",
    "view_as_complex",
    "_conj",
    "conj",
    "_neg_view",
    "resolve_conj",
    "resolve_neg",
}


@dataclass(frozen=True)
class Written:
    """version: `old` with the elements that `path` shows replaced by those of `part`. path: one call, or split and getitem."""

    version: str
    old: str
    part: str
    path: tuple[Call, ...]


@dataclass(frozen=True)
class Refreshed:
    """version: what `call` shows of the new version of its operand."""

    version: str
    call: Call
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Views:
    """shares: name of a call -> whether its result has the memory of its first operand."""

    def __init__(self, program: Program, shares: Mapping[str, bool], in_place: Callable[[Call], bool]):
        self._calls = {call.name: call for call in program.calls}
        self._same: dict[str, str] = {}  # result of an in-place op -> the value that it overwrote
        self._source: dict[str, str] = {}  # view -> what it is a view of
        self._root: dict[str, str] = {}
        self._shown_as_others: dict[str, int] = {}  # value -> the first call that shows it so, or that is it
        for index, call in enumerate(program.calls):
            refs = call.refs()
            if not refs:
                continue
            source = self.tensor(refs[0])
            if in_place(call):
                self._same[call.name] = source
            elif call.is_getitem:
                if source in self._source:
                    self._note(call.name, source)
            elif base_name(call).split(".")[1] in _VIEWS and shares.get(call.name, True):
                self._note(call.name, source)
            elif base_name(call).split(".")[1] in _OTHER_NUMBERS and shares.get(call.name, False):
                for root in (self.root(source), call.name):
                    self._shown_as_others.setdefault(root, index)

    def _note(self, name: str, source: str) -> None:
        self._source[name], self._root[name] = source, self.root(source)

    def tensor(self, name: str) -> str:
        """The value whose tensor it is: `c` for the result of `c.mul_(2)`."""
        return self._same.get(name, name)

    def root(self, name: str) -> str:
        """The value that is a view of no other."""
        return self._root.get(name, name)

    def is_shown_as_others(self, root: str, index: int) -> bool:
        """Whether a call before this one shows the elements of the value as other numbers, or made it so."""
        return self._shown_as_others.get(root, index) < index

    def all_of(self, root: str) -> list[str]:
        """The views of a value, in the order in which they were made, lists of views among them."""
        return [name for name, base in self._root.items() if base == root]

    def call(self, view: str) -> Call:
        return self._calls[view]

    def source(self, view: str) -> str:
        return self._source[view]

    def above(self, view: str) -> tuple[str, tuple[Call, ...]]:
        """The tensor that this is a view of, and the calls that show it: one, or split and getitem."""
        call, source = self._calls[view], self._source[view]
        if call.is_getitem:
            return self._source[source], (self._calls[source], call)
        return source, (call,)
