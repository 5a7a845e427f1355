"""Runs networks one by one, each in a process of its own with a time limit, and keeps a result file for each.

    python -m zoo.runner --program build/ci/lockstep --results FOLDER [--autocast] [--only NAME,...] [--failed] [--all]

--recipe bfloat16|float16 examines the module of `recommend --emit pytorch` (recipe.py) instead of a capture.

Results that exist are kept: only missing ones run, --failed repeats those that are not perfect, --all everything.
Processes are forked from one that has imported PyTorch and the package, which saves seconds for each network.
"""

import argparse
import contextlib
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any

from .registry import NETWORKS, Network, load

LIMIT_SECONDS = 300
_SLOW_IMPORTS = ("transformers.modeling_utils", "timm", "diffusers.models", "torch_geometric.nn", "monai.networks.nets")


def perfect(result: dict[str, Any]) -> bool:
    return bool(result["status"] == "captured" and result["same_bits"] and result["faithful"] and result["replayed"])


def run_apart(
    program: pathlib.Path,
    results: pathlib.Path,
    *options: str,
    module: str = "zoo.runner",
    python: str = sys.executable,
    **environment: str,
) -> None:
    """main() of the module with these options, in a process without threads, from which others can be forked."""
    folder = pathlib.Path(__file__).parent
    command = [python, "-m", module, "--program", str(program), "--results", str(results), *options]
    paths = [
        str(folder.parents[3] / "python"),
        str(folder.parent),
        str(folder.parents[1] / "support"),
        str(pathlib.Path(python).parents[1] / "apart"),
    ]
    subprocess.run(
        command,
        check=True,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(paths),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
        }
        | environment,
    )


def result_file(results: pathlib.Path, name: str, autocast: str) -> pathlib.Path:
    return results / f"{name}.{autocast or 'fp32'}.json"


def run(
    networks: Iterable[Network],
    autocast: str,
    program: pathlib.Path,
    results: pathlib.Path,
    limit: float = LIMIT_SECONDS,
    examiner: str = "specimen",
) -> None:
    """Writes a result file for each network. A crash or a time limit is a result too. examiner: a module of this folder."""
    results.mkdir(parents=True, exist_ok=True)
    networks = list(networks)
    _import_first(results, {network.package for network in networks})
    for network in networks:
        file = result_file(results, network.name, autocast)
        file.unlink(missing_ok=True)
        begin = time.perf_counter()
        ended = _in_child(network, autocast, program, file, limit, examiner)
        how = importlib.import_module(f"zoo.{examiner}")
        if not file.exists():
            file.write_text(
                json.dumps(_without_result(how.Result, network.name, autocast, ended, file.with_suffix(".log")))
            )
        text = line(json.loads(file.read_text())) if examiner == "specimen" else how.line(json.loads(file.read_text()))
        print(text, f"{time.perf_counter() - begin:.0f} s", flush=True)


def line(result: dict[str, Any]) -> str:
    word = "ok" if perfect(result) else result["status"]
    if word == "captured":
        gates = " ".join(name for name, status in result["gates"].items() if status == "FAIL")
        word = f"verify {gates}" if not result["faithful"] else "replay" if not result["replayed"] else "bits"
    marks = "" if result["same_bits"] in (None, True) else f" BITS: {result['different']}"
    return f"{result['name']:28s} {result['autocast'] or 'fp32':9s} {word}{marks}"


def _import_first(results: pathlib.Path, used: set[str]) -> None:
    """What takes seconds and most children need. Absent packages are found out about by the networks."""
    from . import packages

    try:
        packages.load_empty_cuda(results / "empty-cuda")
    except (OSError, subprocess.CalledProcessError) as error:  # then torchvision's networks count as absent
        print(f"torchvision and torchaudio cannot be loaded: {error}", flush=True)
    import lockstep_capture  # noqa: F401

    from . import specimen  # noqa: F401

    for module in _SLOW_IMPORTS:
        if module.partition(".")[0] in used:
            with contextlib.suppress(ImportError, RuntimeError):
                importlib.import_module(module)


def _in_child(
    network: Network, autocast: str, program: pathlib.Path, file: pathlib.Path, limit: float, examiner: str
) -> str:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        _be_child(network, autocast, program, file, examiner)
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "" if status == 0 else f"crashed: {_how(status)}"
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return f"time limit: {limit:.0f} s"


def _how(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _be_child(network: Network, autocast: str, program: pathlib.Path, file: pathlib.Path, examiner: str) -> None:
    """Never returns."""
    code = 1
    try:
        log = os.open(file.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        import faulthandler

        faulthandler.enable()
        import torch

        torch.set_num_threads(1)
        result = importlib.import_module(f"zoo.{examiner}").examine(network, autocast, program, file.parent)
        half = file.with_suffix(".part")
        half.write_text(json.dumps(result.as_dict(), indent=1))
        half.replace(file)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _without_result(made: Any, name: str, autocast: str, ended: str, log: pathlib.Path) -> dict[str, Any]:
    said = log.read_text(errors="replace")[-2000:] if log.exists() else ""
    kind = "timeout" if ended.startswith("time") else "crash"
    return made(name, autocast, status=kind, message=f"{ended}\n{said}").as_dict()


def wanted(arguments: argparse.Namespace, autocast: str) -> list[Network]:
    networks = [n for n in NETWORKS.values() if arguments.held_out or not n.held_out]
    if autocast:
        networks = [n for n in networks if not n.fp32_only]
    if arguments.only:
        names = arguments.only.split(",")
        networks = [n for n in networks if n.name in names or n.family in names or n.package in names]
        if arguments.all or {n.name for n in networks} <= set(names):  # named one by one: those, whatever is there
            return networks
    chosen = []
    for network in networks:
        file = result_file(arguments.results, network.name, autocast)
        if arguments.all or not file.exists() or (arguments.failed and not perfect(json.loads(file.read_text()))):
            chosen.append(network)
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--results", type=pathlib.Path, required=True)
    parser.add_argument("--autocast", action="store_true", help="train under CPU BF16 autocast")
    parser.add_argument("--recipe", default="", choices=("bfloat16", "float16"))
    parser.add_argument("--only", default="", help="names, families or packages")
    parser.add_argument("--failed", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--held-out", action="store_true")
    arguments = parser.parse_args()
    load()
    autocast = arguments.recipe or ("bfloat16" if arguments.autocast else "")
    examiner = "recipe" if arguments.recipe else "specimen"
    run(
        wanted(arguments, autocast),
        autocast,
        arguments.program.resolve(),
        arguments.results.resolve(),
        examiner=examiner,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
