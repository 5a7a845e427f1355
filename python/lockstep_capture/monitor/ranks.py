"""A measured step of all ranks in one table: histograms and sums are added, the largest magnitude keeps its rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..model_state import rank, world_size
from .tally import BINS, LARGEST, UPDATE_NUMBERS
from .taps import Found, Key, Place

_OF_RANK = ("largest", "largest_micro", "bad", "bad_micro")  # what every rank tells of a site

_OWN_ROLES = ("activation", "grad_activation")  # that a rank has alone


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
        self._first_rank = rank() if alone and world_size() > 1 else 0
        # On several ranks: reduced, or copies.
        self._equal = [self.world > 1 and key.role not in _OWN_ROLES for key in self.places]
        self._rows: tuple[tuple[Key, ...], torch.Tensor, torch.Tensor] | None = None

    def table(
        self, found: dict[Key, Found], device: torch.device, failed: bool, note: Callable[[Exception], None]
    ) -> Table:
        """Of all ranks. Sites that appeared after the first step are left out. note: of an error on this rank, which takes part
        all the same: the others wait for it."""
        try:
            table = self._own(found, device)
        except Exception as error:
            note(error)
            failed, table = True, self._own({}, device)
        table.has_failed.fill_(float(failed))
        of_ranks = [table.where]
        if self.world > 1:
            for tensor in (table.histogram, table.numbers, table.updates, table.has_failed):
                torch.distributed.all_reduce(tensor)
            of_ranks = [torch.empty_like(table.where) for _ in range(self.world)]
            torch.distributed.all_gather(of_ranks, table.where)
        table.where = self._where(torch.stack(of_ranks))
        return table

    def _own(self, found: dict[Key, Found], device: torch.device) -> Table:
        """Of this rank; where has the columns of _OF_RANK."""
        size = len(self.places)
        histogram = torch.zeros(size, BINS, dtype=torch.int64, device=device)
        numbers = torch.zeros(size, LARGEST, dtype=torch.float64, device=device)
        updates = torch.zeros(size, len(UPDATE_NUMBERS), dtype=torch.float64, device=device)
        own = torch.full((size, len(_OF_RANK)), -1.0, dtype=torch.float64, device=device)
        rows = {key: one for key, one in found.items() if key in self.index}
        if rows:
            at, counted = self._of_rows(tuple(rows), device)
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
        return Table(histogram, numbers, updates, own, torch.zeros((), dtype=torch.float64, device=device))

    def _of_rows(self, keys: tuple[Key, ...], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Their places, and whether this rank counts them; on the device since the last step that had the same ones."""
        if self._rows is None or self._rows[0] != keys:
            at = torch.tensor([self.index[key] for key in keys]).to(device)
            counted = torch.tensor([key not in self._left_out for key in keys]).to(device)
            self._rows = keys, at, counted
        return self._rows[1:]

    def _where(self, of_ranks: torch.Tensor) -> torch.Tensor:
        """of_ranks: [rank, site, _OF_RANK]. Returns: as Table.where; -1: unknown, or none. Of tensors that are equal on all
        ranks, the rank is known only where a gradient was bad there before it was reduced."""
        world, device = of_ranks.shape[0], of_ranks.device
        largest, rank_of_largest = of_ranks[:, :, 0].max(0)
        numbers = torch.arange(world, device=device)[:, None].to(torch.float64)
        is_bad = of_ranks[:, :, 2] > 0
        late = torch.full_like(of_ranks[:, :, 3], float("inf"))
        bad_micro = torch.where(is_bad, of_ranks[:, :, 3], late)  # -1: a weight, which has none
        first = bad_micro.min(0).values
        is_first = bad_micro == first
        rank_of_bad = torch.where(is_first & is_bad, numbers, late).min(0).values
        equal = torch.tensor(self._equal).to(device) if world > 1 else torch.zeros_like(largest, dtype=torch.bool)
        is_any, is_known = is_bad.any(0), largest >= 0
        rank_of_bad = torch.where(is_any & ~(equal & is_first.all(0)), rank_of_bad + self._first_rank, -1.0)
        sites = torch.arange(of_ranks.shape[1], device=device)
        rank_known = is_known & ~equal
        return torch.stack(
            [
                largest.clamp(min=0),
                torch.where(rank_known, rank_of_largest.to(torch.float64) + self._first_rank, -1.0),
                torch.where(is_known, of_ranks[rank_of_largest, sites, 1], -1.0),
                rank_of_bad,
                torch.where(is_any, first, -1.0),
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
