"""Which recorded choices of a program lanes can weigh by their own values, and what they need for that.

A choice counts if the loss depends on it, or if Python took a branch by it. What only such a choice reads is computed
in replay too, where the graph has all the ops; otherwise the choice is followed and not weighed.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..ir.decisions import can_be_weighed, is_comparison, picks
from ..ir.program import Call, Program, iterate_refs
from .chosen import JOINS, MOVES
from .ssa import DERIVED, GRAPH, Versions, needed_for, value_name

_TRUTHS = JOINS | MOVES | {"any", "all"}


def weigh(program: Program, versions: Versions) -> None:
    """Sets versions.weighed and versions.for_choices."""
    versions.weighed = _weighed(program, versions)
    read = {ref.name for name in versions.weighed for ref in iterate_refs(versions.reads[name])}
    versions.for_choices = needed_for(program, versions, read)[0] - versions.live


def _weighed(program: Program, versions: Versions) -> set[str]:
    branches = _branches(program, versions)
    places = {
        call.args[0].name
        for call in program.calls
        if call.is_getitem
        and call.args[1] == 1
        and call.name in versions.recorded
        and (call.name in versions.live or call.name in program.read)
    }
    return {
        call.name
        for call in program.calls
        if can_be_weighed(call)
        and not call.backward_of  # a backward pass takes what the forward pass chose
        and (
            call.name in places
            or call.name in branches
            or call.name in versions.live
            and (picks(call) or call.name in versions.recorded)
        )
        and any(versions.kind.get(name) == GRAPH for name in call.refs())
    }


def _branches(program: Program, versions: Versions) -> set[str]:
    """Comparisons whose truth Python read, on their own or joined."""
    truths = set(program.read)
    for call in reversed(program.calls):
        if call.name in truths and not call.is_getitem and call.op.split(".")[1] in _TRUTHS:
            truths |= set(call.refs())
    return {call.name for call in program.calls if call.name in truths & versions.recorded and is_comparison(call)}


def followed(versions: Versions, calls: Mapping[str, Call], used: set[str]) -> set[str]:
    """The outside values from which Python made `used`: a lane that chose otherwise could not follow there."""
    found: set[str] = set()
    waiting = sorted(used)
    while waiting:
        name = waiting.pop()
        if name in found or versions.kind.get(name) != DERIVED:
            continue
        found.add(name)
        call = calls.get(value_name(name))
        if call is not None and call.name not in versions.recorded:
            waiting += call.refs()
    return found
