"""The networks and facts of `./dev study torch-versions` for the PyTorch that runs this. Makes no table.

    python -m zoo.of_version --program build/release/lockstep --results FOLDER

Networks are captured and verified as in the zoo. They are not replayed: replays know no PyTorch.
"""

import argparse
import functools
import json
import pathlib
import sys
from typing import Any

import autocast_lists
import torch

from . import registry, runner, specimen

EACH = 3  # of each family, as many of those written here; and the quick one
PACKAGES = ("", "transformers", "diffusers")  # those that need no compiled code for a version of PyTorch
LIMIT_SECONDS = 900
examine = functools.partial(specimen.examine, replays=False)


def networks() -> list[registry.Network]:
    chosen: list[registry.Network] = []
    for network in registry.load().values():
        of_family = sum(other.family == network.family for other in chosen)
        written_here = not network.package and of_family < EACH
        if network.package in PACKAGES and not network.held_out and (network.quick or written_here):
            chosen.append(network)
    return chosen


def gets_in(result: dict[str, Any]) -> bool:
    return bool(result["status"] == "captured" and result["faithful"] and result["same_bits"])


def line(result: dict[str, Any]) -> str:
    return f"torch {torch.__version__:12s} {result['name']:28s} {'ok' if gets_in(result) else result['status']}"


def facts() -> dict[str, Any]:
    from lockstep_capture import torch_api
    from lockstep_capture.errors import CaptureError

    missing = []
    for row in torch_api.ROWS:
        try:
            row.get()
        except CaptureError:
            missing.append(row.name)
    return {
        "version": torch.__version__,
        "missing": missing,
        "autocast": {device: autocast_lists.installed(device) for device in autocast_lists.DEVICES},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--results", type=pathlib.Path, required=True)
    parser.add_argument("--no-networks", action="store_true", help="facts alone")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():  # Transformers asks; the stand-ins of CUDA's libraries crash in some versions
        torch.cuda.is_current_stream_capturing = lambda: False
    folder = arguments.results.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "facts.json").write_text(json.dumps(facts(), indent=1))
    if arguments.no_networks:
        return 0
    missing = [one for one in networks() if not runner.result_file(folder, one.name, "").exists()]
    runner.run(missing, "", arguments.program.resolve(), folder, LIMIT_SECONDS, "of_version")
    return 0


if __name__ == "__main__":
    sys.exit(main())
