"""What the fixture `lockstep` does: captures a few steps of a loop, and records or checks them with the program."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import lockstep_capture
import pytest
from lockstep_capture.program import find_program

LANES = ("fp32", "torch-autocast-fp16", "torch-autocast-bf16")
MEMBERS = 12  # runs from weights moved by one ulp, of which a baseline takes its limits
FINE, REGRESSION, INCONCLUSIVE = 0, 1, 3  # exit codes of `lockstep check`


class Numerics:
    """The fixture of one test."""

    def __init__(self, config: pytest.Config, node: pytest.Item, folder: pathlib.Path, note: Callable[[str], None]):
        """note: takes the line about each baseline that is recorded."""
        self._config, self._node, self._folder, self._note = config, node, folder, note
        self._used: list[str] = []

    def check(
        self,
        model: Any,
        optimizer: Any,
        loader: Iterable[Any],
        loss_of: Callable[[Any, Any], Any],
        *,
        steps: int = 8,
        lanes: Sequence[str] = LANES,
        name: str | None = None,
        members: int = MEMBERS,
        other_seeds: Callable[[int], tuple[Any, Any, Iterable[Any]]] | None = None,
        seeds: int = MEMBERS,
        **options: Any,
    ) -> None:
        """Captures `steps` steps as capture() does, and checks them against the baseline.

        lanes: policies to replay the steps in; the first is the reference. name: of the baseline, default the test's
        own. options: as in lockstep_capture.capture (scaler, autocast, clip_grad_norm, accumulate). other_seeds(n)
        gives model, optimizer and loader of another seed; it is called for n = 1..seeds when a baseline is recorded, which
        then has limits for runs from other seeds, too. Fails the test where the program finds a regression.
        """
        options = {"verify": _verified(steps), **options}
        capture = self._new_capture(name)
        lockstep_capture.capture(capture, model, optimizer, loader, loss_of, steps=steps, **options)
        others = []
        if other_seeds is not None and self._records:
            for number in range(1, seeds + 1):
                others.append(capture.with_name(f"{capture.name.removesuffix('.lscap.h5')}.{number}.lscap.h5"))
                other, its_optimizer, its_loader = other_seeds(number)
                lockstep_capture.capture(others[-1], other, its_optimizer, its_loader, loss_of, steps=steps, **options)
        self._judge(capture, name, lanes, members, others)

    @contextlib.contextmanager
    def capture(
        self,
        model: Any,
        optimizer: Any,
        loss_of: Callable[[Any, Any], Any],
        *,
        steps: int = 8,
        lanes: Sequence[str] = LANES,
        name: str | None = None,
        members: int = MEMBERS,
        **options: Any,
    ) -> Iterator[lockstep_capture.Capture]:
        """For a loop of your own: `with lockstep.capture(...) as cap:` around it, `with cap.step(batch):` around its body.

        The check takes place at the end of the block. options: as in lockstep_capture.Capture.
        """
        capture = self._new_capture(name)
        options = {"verify": _verified(steps), **options}
        with lockstep_capture.Capture(capture, model, optimizer, loss_of, steps=steps, **options) as cap:
            yield cap
        if not capture.exists():
            pytest.fail("lockstep.capture: the block ended without an optimizer step", pytrace=False)
        self._judge(capture, name, lanes, members, [])

    def close(self) -> None:
        """A test that takes the fixture and never checks would pass without having looked at anything."""
        if not self._used:
            pytest.fail(
                "the test takes the fixture lockstep, but calls neither lockstep.check nor lockstep.capture",
                pytrace=False,
            )

    def baseline(self, name: str | None = None) -> pathlib.Path:
        """Where the baseline of this name is, or will be."""
        folder = self._config.getini("lockstep_baselines")
        where = self._config.rootpath / folder if folder else self._node.path.parent / "baselines"
        return where / f"{self._name(name)}.json"

    @property
    def _records(self) -> bool:
        return bool(self._config.getoption("--lockstep-record"))

    def _name(self, name: str | None) -> str:
        return _file_name(f"{self._node.path.stem}.{self._node.name}" if name is None else name)

    def _new_capture(self, name: str | None) -> pathlib.Path:
        used = self._name(name)
        if used in self._used:
            pytest.fail(
                f"the test checks {used!r} twice: give the second check a name of its own, name=...", pytrace=False
            )
        self._used.append(used)
        return self._folder / f"{used}.lscap.h5"

    def _program(self) -> str:
        return find_program(self._config.getoption("--lockstep-program"))

    def _judge(
        self, capture: pathlib.Path, name: str | None, lanes: Sequence[str], members: int, others: list[pathlib.Path]
    ) -> None:
        baseline = self.baseline(name)
        if self._records:
            self._record(capture, baseline, lanes, members, others)
        elif baseline.exists():
            self._check(capture, baseline)
        else:
            pytest.fail(
                f"no baseline {_shown(baseline)}: record it, look at it, and commit it:\n"
                f"  pytest --lockstep-record {_quoted(self._node.nodeid)}",
                pytrace=False,
            )

    def _record(
        self,
        capture: pathlib.Path,
        baseline: pathlib.Path,
        lanes: Sequence[str],
        members: int,
        others: list[pathlib.Path],
    ) -> None:
        reason = self._config.getoption("--lockstep-reason")
        command = [
            "baseline",
            "record",
            capture.name,
            "--lanes",
            ",".join(lanes),
            "--members",
            str(members),
            "-o",
            str(baseline),
            "--overwrite",
            "--quiet",
        ]
        if baseline.exists():
            if not reason:
                pytest.fail(f'{_shown(baseline)} exists: say why it changes, --lockstep-reason "..."', pytrace=False)
            self._refuse_a_broken_run(capture, baseline)
        baseline.parent.mkdir(parents=True, exist_ok=True)
        if others:
            command += ["--other-captures", ",".join(other.name for other in others)]
        self._run(command + (["--reason", reason] if reason else []), codes=(FINE,))
        self._note(f"recorded {_shown(baseline)}" + (f": {reason}" if reason else ""))

    def _refuse_a_broken_run(self, capture: pathlib.Path, baseline: pathlib.Path) -> None:
        """The program proposes no run in which a lane stops early or has a kind of finding that the baseline lacks."""
        copy = self._folder / baseline.name  # the proposal is written next to it
        copy.write_bytes(baseline.read_bytes())
        done = self._run(["baseline", "propose", copy.name, capture.name, "--quiet"], codes=(FINE, REGRESSION))
        if done.returncode == REGRESSION:
            pytest.fail(f"{_shown(baseline)} stays as it is. {done.stderr.strip()}", pytrace=False)

    def _check(self, capture: pathlib.Path, baseline: pathlib.Path) -> None:
        done = self._run(["check", capture.name, "--baseline", str(baseline)], codes=(FINE, REGRESSION, INCONCLUSIVE))
        if done.returncode == FINE:
            return
        text = f"{done.stdout.strip()}\n\nThe capture is {capture}."
        if done.returncode == INCONCLUSIVE and self._skips_inconclusive():
            pytest.skip(_first_line(done.stdout))
        if done.returncode == REGRESSION:
            text += (
                " If the change is wanted:\n"
                f'  pytest --lockstep-record --lockstep-reason "..." {_quoted(self._node.nodeid)}'
            )
        pytest.fail(text, pytrace=False)

    def _skips_inconclusive(self) -> bool:
        wanted = self._config.getoption("--lockstep-inconclusive") or self._config.getini("lockstep_inconclusive")
        if wanted not in ("fail", "skip"):
            pytest.fail(f"lockstep_inconclusive: is {wanted!r}, must be fail or skip", pytrace=False)
        return bool(wanted == "skip")

    def _run(self, command: list[str], codes: Sequence[int]) -> subprocess.CompletedProcess[str]:
        """In the test's folder, so that no path of this machine gets into a baseline."""
        done = subprocess.run([self._program(), *command], cwd=self._folder, capture_output=True, text=True)
        if done.returncode not in codes:
            pytest.fail(
                f"lockstep {' '.join(command[:2])}: exit code {done.returncode}\n{done.stderr.strip()}", pytrace=False
            )
        return done


def _verified(steps: int) -> list[int]:
    """The first step and the last: state that grows, such as an optimizer's step count, shows in the second alone."""
    return sorted({0, steps - 1})


def _file_name(name: str) -> str:
    """test_train.test_loop[fp16-3] -> test_train.test_loop-fp16-3"""
    return re.sub(r"[^\w.=+-]+", "-", name).strip("-")


def _shown(path: pathlib.Path) -> str:
    """From the working folder, if it is in it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"[\w./:=+-]+", text) else f"'{text}'"


def _first_line(text: str) -> str:
    """Of the verdict, under the heading."""
    body = text.split("\n\n")[0].splitlines()
    return " ".join(line.strip() for line in body if set(line) != {"="} and " against " not in line)
