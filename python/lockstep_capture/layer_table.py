"""What rounding did to each layer of a lane, from a run's statistics. Knows nothing of HDF5."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

# A share and what it is a share of. A statistic that the lane did not record gives no columns.
RATES = {
    "to_zero": "nonzero",
    "to_subnormal": "nonzero",
    "to_infinity": "count",
    "saturated": "nonzero",
    "nan": "count",
}
_LOST = ("to_zero", "to_infinity", "saturated", "nan")


def layer_table(run: Any, lane: str, by_step: bool, layers: str) -> pd.DataFrame:
    """See read_run.Run.layer_table, whose `run` this is."""
    known = set(run.statistic_names(lane))
    counts = [name for name in RATES if name in known]
    table = run.statistics(lane, ["count", *(name for name in ("source_zero",) if name in known), *counts])
    table = table[table["count"] > 0].astype("float64")  # exact up to 2^53 elements
    table["nonzero"] = table["count"] - table.pop("source_zero") if "source_zero" in table else table["count"]
    sites = run.sites.loc[table.index.get_level_values("site")]
    keep = np.array([fnmatchcase(layer, layers) for layer in sites["layer"]], bool)  # of no sites, too
    keys = [table.index.get_level_values("step"), sites["layer"].to_numpy(), sites["role"].to_numpy()]
    table = table.set_axis(run._pandas.MultiIndex.from_arrays(keys, names=["step", "layer", "role"])).loc[keep]
    steps = table.groupby(level=["step", "layer", "role"], sort=False).sum()
    if by_step:
        return _with_rates(steps, counts)
    total = steps.groupby(level=["layer", "role"], sort=False).sum()
    lost = steps[[name for name in _LOST if name in counts]].sum(axis=1) / steps["count"]
    worst = lost[lost > 0].groupby(level=["layer", "role"], sort=False).idxmax()
    total = _with_rates(total, counts)
    total["worst_step"] = worst.map(lambda place: place[0]).astype("Int64").reindex(total.index)
    return total


def _with_rates(table: pd.DataFrame, counts: list[str]) -> pd.DataFrame:
    """The counts as integers, and a share of each; NaN: of nothing."""
    shares = {f"{name}_rate": table[name] / table[RATES[name]] for name in counts}
    return table[["count", "nonzero", *counts]].astype("int64").assign(**shares)
