"""What to write where a library does something that a capture refuses: a switch of that library's own.

Each row was tried on the package: tests/integration/capture/test_capture_ways_out.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WayOut:
    package: str
    what: tuple[str, ...]  # parts of the names of what is refused
    hint: str


WAYS_OUT = (
    WayOut("transformers", ("_grouped_mm",), 'model.set_experts_implementation("eager")'),
)


def way_out(what: str, package: str) -> str:
    """"" where none is known."""
    return next((row.hint for row in WAYS_OUT if row.package == package and any(part in what for part in row.what)), "")
