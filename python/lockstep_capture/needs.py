"""Memory and disk that a capture needs, compared with what is free before the first captured step.

What depends on the number of weights is known then: copies of the weights, gradients and optimizer state, and PyTorch's
references in FP32 and FP64. Batches, masks and activations come in addition.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from .errors import CaptureError
from .model_state import Subject, as_real

# Bytes of memory per parameter, at the peak, in addition to the loop's own: measured (docs/performance.md), rounded up.
_WATCHED = 9  # the first state, until it is written
# Weights before the step, the loop's gradients, the FP32 reference and its step; states of optimizers apart.
_STEPPED = 24
_IN_FP64 = 32  # weights and gradients of the FP64 reference, FP32's; the optimizer's state has left memory by then
_FP32 = 4  # bytes of a number


@dataclass(frozen=True)
class Needs:
    """Bytes. memory: with what the loop itself will allocate in its first step. parameters: how many."""

    memory: int
    disk: int
    parameters: int


def needs_of(subject: Subject, verify: Collection[int], steps: int) -> Needs:
    count = sum(as_real(tensor).numel() for tensor in subject.params.values())
    trained = sum(as_real(tensor).numel() for tensor in subject.held().values() if tensor.requires_grad)
    replayed = subject.replays_optimizer
    state = _state_bytes(subject) if replayed else 0
    there = bool(subject.optimizer is not None and subject.optimizer.state)
    memory = _WATCHED * count + state * there
    if verify:
        memory = max(_STEPPED * count + state * (there or max(verify) > 0), _IN_FP64 * count)
    if subject.device.type == "cpu":
        memory += state * (not there)
        memory += _FP32 * sum(as_real(tensor).numel() for tensor in subject.held().values() if tensor.grad is None)
    disk = 2 * _FP32 * count + state * there  # first and last weights
    if not replayed:  # weights after each step, which wait for the disk
        after = _FP32 * sum(as_real(tensor).numel() for tensor in subject.held().values())
        memory, disk = memory + after, disk + steps * after
    for step in verify:
        disk += 2 * _FP32 * trained + trained // 8  # gradients, what they lack of FP64, a mask
        disk += (_FP32 * count + state) * replayed  # after the reference's step
        disk += (_FP32 * count + state) * (step > 0)  # before it
    return Needs(memory, disk, count)


def check_room(subject: Subject, verify: Collection[int], steps: int, path: str) -> None:
    """Throws: CaptureError where memory or disk would not hold the capture."""
    needs, least = needs_of(subject, verify, steps), needs_of(subject, (), steps)
    folder = os.path.dirname(os.path.abspath(path))
    free = {"memory": free_memory(), f"disk space in {folder}": shutil.disk_usage(folder).free}
    problems = []
    for (what, room), need, smaller in zip(
        free.items(), (needs.memory, needs.disk), (least.memory, least.disk), strict=True
    ):
        if room is None or need <= room:
            continue
        hint = "free some, or capture a smaller model of the same kind"
        if verify and smaller <= room:
            hint = f"verify=[], without reference gradients, needs {_text(smaller)}; or {hint}"
        problems.append(
            f"{what}: the capture of {needs.parameters:,} parameters needs at least {_text(need)} "
            f"({need / max(needs.parameters, 1):.0f} bytes per parameter), {_text(room)} is free: {hint}"
        )
    if problems:
        raise CaptureError("; ".join(problems))


def free_memory() -> int | None:
    """Bytes that this process can still get: of the machine with its swap, of its control group, and below `ulimit -v`.
    None: unknown. The program counts the same (src/core/free_memory.h)."""
    found = []
    with contextlib.suppress(OSError, ValueError, KeyError):
        lines = (line.split() for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        kibi = {line[0]: int(line[1]) for line in lines}
        found.append(1024 * (kibi["MemAvailable:"] + kibi.get("SwapFree:", 0)))
    with contextlib.suppress(OSError, ValueError):  # "max" is no number
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / name).read_text(encoding="ascii")) for name in ("memory.max", "memory.current"))
        stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
        found.append(limit - used + int(stat.get("inactive_file", 0)))
    with contextlib.suppress(OSError, ValueError):
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            found.append(limit - pages * resource.getpagesize())
    return min(found) if found else None


def give_back_memory() -> None:
    """What was freed, to the system: glibc keeps it in pieces, which the next tensors may not fit."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _state_bytes(subject: Subject) -> int:
    """Of the optimizer's state after its first step."""
    tensors = 0
    for group in subject.groups():
        each = 2 + bool(group.get("amsgrad")) if "betas" in group else int(bool(group.get("momentum")))
        tensors += each * sum(as_real(tensor).numel() for tensor in group["params"])
    return _FP32 * tensors


def _text(size: int) -> str:
    unit, name = (2**30, "GiB") if size >= 2**30 else (2**20, "MiB")
    return f"{size / unit:.1f} {name}"
