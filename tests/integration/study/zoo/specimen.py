"""One network: three steps without and with a capture, bit for bit; then verify and replay. Knows no table.

The result is a plain dict (Result.as_dict): what happened, and what it cost.
"""

import contextlib
import copy
import dataclasses
import json
import os
import pathlib
import random
import subprocess
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import torch
import torch.utils._pytree as pytree

from .registry import Network

LANES = "fp32,torch-autocast-bf16,torch-autocast-fp16"
_NO_OPERATORS = "operator torchvision::nms does not exist"  # its library did not load (packages.py)
_LONGEST = 3000  # characters of a message in the result


@dataclasses.dataclass
class Result:
    """status: absent | broken | refused | captured. Times in seconds, sizes in bytes; None: not measured.

    broken: the network itself cannot be built or trained here, with `message`. same_bits: losses, weights, buffers,
    gradients and random generators after training with a capture equal those without; `different` says which do not.
    """

    name: str
    autocast: str
    status: str = ""
    message: str = ""
    same_bits: bool | None = None
    different: str = ""
    repeatable: bool | None = None
    gates: dict[str, str] = dataclasses.field(default_factory=dict)
    figures: dict[str, str] = dataclasses.field(default_factory=dict)
    faithful: bool | None = None
    verify_message: str = ""
    replayed: bool | None = None
    replay_message: str = ""
    steps: int = 0
    parameters: int = 0
    file_bytes: int | None = None
    batch_bytes: int | None = None
    plain_seconds: float | None = None
    capture_seconds: float | None = None
    verify_seconds: float | None = None
    replay_seconds: float | None = None
    plain_peak: int | None = None
    capture_peak: int | None = None
    verify_peak: int | None = None
    replay_peak: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def examine(
    network: Network, autocast: str, program: pathlib.Path, folder: pathlib.Path, replays: bool = True
) -> Result:
    """autocast: "" or "bfloat16". folder: for files, which are removed."""
    result = Result(network.name, autocast, steps=network.steps)
    path = folder / f"{network.name}{autocast}.lscap.h5"
    try:
        first = _train(network, autocast, None)
    except Exception as error:
        result.status, result.message = _failure(error)
        return result
    _forget_peak()
    plain = _train(network, autocast, None)
    result.plain_seconds, result.plain_peak = plain.seconds, _peak()
    result.repeatable = not plain.differences(first)
    result.parameters = plain.parameters
    _forget_peak()
    try:
        captured = _train(network, autocast, path)
    except Exception:
        result.status, result.message = "broken", "with a capture: " + traceback.format_exc()[-_LONGEST:]
        result.same_bits, result.different = False, "the loop failed"
        return result
    result.capture_seconds, result.capture_peak = captured.seconds, _peak()
    result.different = captured.differences(plain)
    result.same_bits = not result.different
    result.message = captured.said
    result.status = "captured" if path.exists() else "refused"
    if path.exists():
        result.file_bytes, result.batch_bytes = path.stat().st_size, _batch_bytes(path)
        _verify(result, program, path)
        if replays:
            _replay(result, program, path)
    for file in folder.glob(f"{path.name}*"):
        file.unlink()
    return result


@dataclasses.dataclass
class _Training:
    """What is left after a loop, by name."""

    left: dict[str, Any]
    seconds: float
    parameters: int
    said: str = ""

    def differences(self, other: "_Training") -> str:
        names = [name for name, value in self.left.items() if not _same(value, other.left.get(name))]
        return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _train(
    network: Network, autocast: str, path: pathlib.Path | None, change: Callable[[Any], Any] | None = None
) -> _Training:
    """change: what is done to the model before it is trained."""
    _seed(1)
    model, step, batch = network.build()
    model.train()
    if change is not None:
        change(model)
    _seed(2)
    batches = [batch() for _ in range(network.steps)]
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, 1e-3)
    left: dict[str, Any] = {}
    _seed(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always" if path else "ignore")
        begin = time.perf_counter()
        block = _blocks(network, path, model, optimizer, step, autocast)
        for number, data in enumerate(batches):
            with block(data):
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16, enabled=bool(autocast)):
                    loss = step(model, data)
                loss.backward()
                optimizer.step()
            left[f"loss {number}"] = loss.detach().clone()
        seconds = time.perf_counter() - begin
    said = "\n".join(str(w.message) for w in caught if "lockstep_capture" in str(w.message))
    left |= {f"state {name}": value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    left |= {f"parameter {name}": value.detach() for name, value in model.named_parameters()}
    left |= {f"gradient {name}": value.grad for name, value in model.named_parameters()}
    left |= {f"batch {i}": leaf for i, leaf in enumerate(pytree.tree_leaves(batches)) if isinstance(leaf, torch.Tensor)}
    left |= {
        "generator of torch": torch.get_rng_state(),
        "generator of Python": random.getstate(),
        "generator of NumPy": repr(np.random.get_state()),
    }
    return _Training(copy.copy(left), seconds, sum(p.numel() for p in model.parameters()), said[:_LONGEST])


def _blocks(network: Network, path: pathlib.Path | None, model: Any, optimizer: Any, step: Any, autocast: str) -> Any:
    if path is None:
        return lambda data: contextlib.nullcontext()
    import lockstep_capture

    return lockstep_capture.Capture(
        path, model, optimizer, step, steps=network.steps, autocast=autocast or None, on_unsupported="report"
    ).step


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def _same(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return type(a) is type(b) and a == b
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.layout != torch.strided or b.layout != torch.strided:
        return torch.equal(a.to_dense(), b.to_dense())
    as_bytes = [x.detach().contiguous().reshape(-1).view(torch.uint8) for x in (a, b)]
    return torch.equal(*as_bytes)


def _failure(error: Exception) -> tuple[str, str]:
    """Of a network that does not train: absent (a package or its operators) or broken, and the message."""
    if isinstance(error, ImportError) or _NO_OPERATORS in str(error):
        return "absent", _text(error)
    return "broken", traceback.format_exc()[-_LONGEST:]


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_LONGEST]


def _batch_bytes(path: pathlib.Path) -> int:
    """What the batches and what was drawn or decided in the steps take in the file."""
    total = 0

    def add(name: str, item: Any) -> None:
        nonlocal total
        if isinstance(item, h5py.Dataset) and name.startswith("steps/") and "/micro/" in name:
            total += item.id.get_storage_size()

    with h5py.File(path) as file:
        file.visititems(add)
    return total


def _verify(result: Result, program: pathlib.Path, path: pathlib.Path) -> None:
    code, text, result.verify_seconds, result.verify_peak = _run(program, "verify", path)
    result.faithful = code == 0
    found = pathlib.Path(f"{path}.verify.json")
    if found.exists():
        gates = json.loads(found.read_text())["gates"]
        result.gates = {gate["name"]: gate["status"] for gate in gates}
        result.figures = {gate["name"]: gate["figure"] for gate in gates}
    if code:
        failed = [line for line in text.splitlines() if "FAIL" in line]
        result.verify_message = ("\n".join(failed) or text[-_LONGEST:] or f"exit code {code}")[:_LONGEST]


def _replay(result: Result, program: pathlib.Path, path: pathlib.Path) -> None:
    code, text, result.replay_seconds, result.replay_peak = _run(
        program, "replay", path, "--lanes", LANES, "-o", f"{path}.run.h5"
    )
    result.replayed = code == 0
    result.replay_message = "" if result.replayed else f"exit code {code}: {text[-_LONGEST:]}"


def _run(*command: object) -> tuple[int, str, float, int]:
    """(exit code, what it printed, seconds, peak memory in bytes).

    The peak is polled: that of wait4 includes the memory of this process, from which the program was started.
    """
    peak, begin = 0, time.perf_counter()
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen([str(word) for word in command], stdout=printed, stderr=subprocess.STDOUT)
        while process.poll() is None:
            peak = max(peak, _peak_of(process.pid))
            time.sleep(0.003)
        seconds = time.perf_counter() - begin
        printed.seek(0)
        return process.returncode, printed.read().decode(errors="replace"), seconds, peak


def _forget_peak() -> None:
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    """Of this process since _forget_peak, in bytes."""
    return _peak_of(os.getpid())


def _peak_of(process: int) -> int:
    """0: it has ended."""
    try:
        status = pathlib.Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0)
