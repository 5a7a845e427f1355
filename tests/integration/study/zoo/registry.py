"""The list of networks. A file per family registers its own; nothing here knows what they are."""

import dataclasses
import importlib
import pathlib
from collections.abc import Callable
from typing import Any

import torch

Step = Callable[[torch.nn.Module, Any], torch.Tensor]
Made = tuple[torch.nn.Module, Step, Callable[[], Any]]  # the model, its loss, a source of batches


@dataclasses.dataclass
class Network:
    """build() makes the network anew, from the global generators alone: the same seed gives the same weights.

    way_out: of a network that is refused, what its message tells the user to do. tried_by: the network that does so.
    fp32_only: why the network
    cannot train under CPU BF16 autocast in PyTorch itself.
    """

    name: str
    family: str
    package: str  # "" where it is written here, as published examples are
    build: Callable[[], Made]
    held_out: bool = False
    quick: bool = False  # the one of its family that the slow tests run
    way_out: str = ""
    tried_by: str = ""
    fp32_only: str = ""
    steps: int = 3


NETWORKS: dict[str, Network] = {}


def network(family: str, package: str = "", **options: Any) -> Callable[[Callable[..., Made]], Callable[..., Made]]:
    """Decorates a function without arguments that returns (model, step, batch)."""

    def register(build: Callable[..., Made]) -> Callable[..., Made]:
        add(build.__name__, family, package, build, **options)
        return build

    return register


def add(name: str, family: str, package: str, build: Callable[[], Made], **options: Any) -> None:
    if name in NETWORKS:
        raise ValueError(f"two networks are called {name}")
    NETWORKS[name] = Network(name, family, package, build, **options)


def load() -> dict[str, Network]:
    """Imports every family. Packages are imported by the functions, so that an absent one costs its networks only."""
    folder = pathlib.Path(__file__).parent / "families"
    for file in sorted(folder.glob("*.py")):
        importlib.import_module(f"zoo.families.{file.stem}")
    return NETWORKS
