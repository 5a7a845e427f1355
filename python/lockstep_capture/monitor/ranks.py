"""A measured step of all ranks in one table: histograms and sums are added, the largest magnitude keeps its rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..model_state import rank, world_size
from .tally import BINS, LARGEST, UPDATE_NUMBERS
from .taps import Found, Key, Place

_OF_RANK = ("largest", "largest_micro", "bad", "bad_micro")  # what every rank tells of a site


@dataclass
class Table:
    """Of all sites, in their order; on the device of the model until fetched. where: float64, see rows of _where()."""

    histogram: torch.Tensor  # int64 [site, bin]
    numbers: torch.Tensor  # float64 [site, tally.NUMBERS]
    updates: torch.Tensor  # float64 [site, tally.UPDATE_NUMBERS]
    where: (
        torch.Tensor
    )  # float64 [site, 5]: largest, its rank and micro-batch, first rank with a bad value, its micro-batch
    has_failed: torch.Tensor  # float64 []: how many ranks measured no more

    def tensors(self) -> list[torch.Tensor]:
        return [self.histogram, self.numbers, self.updates, self.where, self.has_failed]


class Sites:
    """The sites of a run, the same in the same order on every rank, and which of them this rank counts."""

    def __init__(self, places: dict[Key, Place], shared: set[Key], alone: bool):
        """shared: weights that other ranks hold as well, unless a distributed tensor says otherwise: one of them counts.
        alone: without the other ranks."""
        self.world = 1 if alone else world_size()
        self._rank = 0 if alone else rank()
        everyone: list[Any] = [(places, shared)]
        if self.world > 1:
            everyone = [None] * self.world
            torch.distributed.all_gather_object(everyone, (places, shared))
        self.places: dict[Key, Place] = {}
        owner: dict[Key, int] = {}
        for number, (theirs, _) in enumerate(everyone):
            for key, place in theirs.items():
                self.places.setdefault(key, place)
                owner.setdefault(key, number)
        self.index = {key: i for i, key in enumerate(self.places)}
        self._left_out = {key for key in shared if owner[key] != self._rank}

    def table(self, found: dict[Key, Found], device: torch.device, failed: bool) -> Table:
        """Of this rank. Sites that appeared after the first step are left out."""
        size = len(self.places)
        histogram = torch.zeros(size, BINS, dtype=torch.int64, device=device)
        numbers = torch.zeros(size, LARGEST, dtype=torch.float64, device=device)
        updates = torch.zeros(size, len(UPDATE_NUMBERS), dtype=torch.float64, device=device)
        own = torch.full((size, len(_OF_RANK)), -1.0, dtype=torch.float64, device=device)
        rows = {key: one for key, one in found.items() if key in self.index}
        if rows:
            at = torch.tensor([self.index[key] for key in rows], device=device)
            counted = torch.tensor([key not in self._left_out for key in rows], device=device)
            of_all = [one.counts for one in rows.values()]
            stacked = torch.stack([counts.numbers.to(device) for counts in of_all])
            bins = torch.stack([counts.histogram.to(device) for counts in of_all])
            histogram[at] = bins * counted[:, None]
            numbers[at] = stacked[:, :LARGEST] * counted[:, None]
            own[at, 0] = stacked[:, LARGEST]
            own[at, 1] = torch.stack([one.largest_micro.to(device) for one in rows.values()])
            own[at, 2] = bins[:, -1].to(torch.float64)
            own[at, 3] = torch.stack([one.bad_micro.to(device) for one in rows.values()])
            for key, one in rows.items():
                if one.updates is not None and key not in self._left_out:
                    updates[self.index[key]] = one.updates.to(device)
        has_failed = torch.tensor(float(failed), dtype=torch.float64, device=device)
        of_ranks = [own]
        if self.world > 1:
            sums = [histogram, numbers, updates, has_failed]
            for tensor in sums:
                torch.distributed.all_reduce(tensor)
            of_ranks = [torch.empty_like(own) for _ in range(self.world)]
            torch.distributed.all_gather(of_ranks, own)
        return Table(histogram, numbers, updates, _where(torch.stack(of_ranks)), has_failed)


def _where(of_ranks: torch.Tensor) -> torch.Tensor:
    """of_ranks: [rank, site, _OF_RANK]. Returns: as Table.where; -1: unknown, or none."""
    largest, rank_of_largest = of_ranks[:, :, 0].max(0)
    is_bad, world = of_ranks[:, :, 2] > 0, of_ranks.shape[0]
    numbers = torch.arange(world, device=of_ranks.device)[:, None]
    rank_of_bad = torch.where(is_bad, numbers, world).min(0).values
    rank_of_bad = torch.where(rank_of_bad < world, rank_of_bad, -1)
    sites = torch.arange(of_ranks.shape[1], device=of_ranks.device)
    micro = of_ranks[rank_of_largest, sites, 1]
    bad_micro = torch.where(rank_of_bad >= 0, of_ranks[rank_of_bad.clamp(min=0), sites, 3], -1.0)
    known = largest >= 0
    return torch.stack(
        [
            largest.clamp(min=0),
            torch.where(known, rank_of_largest, -1).to(torch.float64),
            torch.where(known, micro, -1.0),
            rank_of_bad.to(torch.float64),
            bad_micro,
        ],
        1,
    )


def is_shared(parameter: torch.Tensor) -> bool:
    """Whether other ranks hold the same numbers: not a shard, and not the first of its copies. Plain tensors are taken for
    equal on all ranks, as DistributedDataParallel keeps them."""
    placements, mesh = getattr(parameter, "placements", None), getattr(parameter, "device_mesh", None)
    if placements is None or mesh is None:
        return True
    coordinates: Sequence[int] = mesh.get_coordinate() or [0] * len(placements)
    copies = [at for at, placement in zip(coordinates, placements, strict=True) if placement.is_replicate()]
    return any(at > 0 for at in copies)
