"""The pytest plugin: `def test_numerics(lockstep): ...` checks a training loop against a committed baseline.

pytest imports this module at every start, so it does not import PyTorch; numerics.py does the work. docs/check-ci.md is
the guide.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

RECORDED = "lockstep_recorded"  # the user property of a test that recorded a baseline


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lockstep", "the numerics of training loops")
    group.addoption(
        "--lockstep-record",
        action="store_true",
        help="record the baselines of the selected tests instead of checking against them",
    )
    group.addoption(
        "--lockstep-reason",
        metavar="TEXT",
        default="",
        help="why a baseline that exists is recorded anew; kept in its history",
    )
    group.addoption(
        "--lockstep-inconclusive",
        choices=("fail", "skip"),
        default=None,
        help="what to do with a test whose check has nothing to compare with [fail]",
    )
    group.addoption(
        "--lockstep-program",
        metavar="PATH",
        default=None,
        help="the program lockstep [$LOCKSTEP, or the one on the PATH, or the wheel's]",
    )
    parser.addini(
        "lockstep_baselines", "folder of the baselines, from the root folder [baselines, next to the test]", default=""
    )
    parser.addini("lockstep_inconclusive", "fail or skip, as --lockstep-inconclusive", default="fail")


_PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.when == "call":
        item.stash[_PASSED] = report.passed
    return report


@pytest.fixture
def lockstep(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Any]:
    """check(model, optimizer, loader, loss_of) or capture(model, optimizer, loss_of): see numerics.Numerics."""
    from .numerics import Numerics

    numerics = Numerics(
        request.config, request.node, tmp_path, lambda line: request.node.user_properties.append((RECORDED, line))
    )
    yield numerics
    if request.node.stash.get(_PASSED, False):
        numerics.close()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    lines = [
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, value in report.user_properties
        if name == RECORDED
    ]
    if lines:
        terminalreporter.section("lockstep baselines")
        for line in lines:
            terminalreporter.line(line)
