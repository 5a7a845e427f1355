"""Run files (docs/run-file.md of Lockstep) as pandas tables, for notebooks.

    run = read_run("run.h5")
    run.steps.loc["pure-fp16"].loss.plot()
    run.statistics("pure-fp16", ["count", "to_zero"])       # a row per step and site
    run.wide("to_zero", "pure-fp16")                        # a row per step, a column per site

What was not measured is NaN or <NA>, never 0. Rows after the last complete step, and those of a lane
that died, are not shown. Big tables are read on demand. Knows nothing of
PyTorch; needs h5py and pandas. Do not read the file of a replay that still runs: read the
RUN.progress.json next to it.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from lockstep_capture.layer_table import layer_table
from lockstep_capture.run_checksum import BLOCK, FIRST_VERSION, description_problem, first_damage
from lockstep_capture.run_file import (
    SITE_GROUPS,
    SITE_KEYS,
    RunFileError,
    add_columns,
    check_objects,
    check_root,
    column,
    import_pandas,
    is_per_site,
    json_dataset,
    json_text,
    known_or_raise,
    opened,
    plain,
    seeds_of,
    step_datasets,
    take,
    texts,
    unescape_name,
)
from lockstep_capture.to_tensorboard import write_events
from lockstep_capture.to_wandb import log_to_wandb, wandb_table

if TYPE_CHECKING:
    import pandas as pd

HISTOGRAM_BINS = 256  # FP32 exponent fields: 0 zero and subnormal, 255 infinity and NaN
# What a lane records of a step as a whole, in the order of the columns; whatever else the file has comes last.
_PRODUCT_COLUMNS = (
    "step", "site", "m", "n", "k", "batch", "algorithm", "tile", "stages", "split_k", "reduction", "most_parts",
)  # fmt: skip
_OWN_TABLES = ("gradient_norms", "watched")  # of a lane: not among the columns of steps
_STEP_COLUMNS = ("loss", "lr", "gradient_norm", "seconds", "attempts", "losses", "loss_scale")


def _usual_first(usual: Sequence[str]) -> Callable[[str], tuple[int, str]]:
    """A key to sort dataset names by: their place among the usual ones, by name or group, the others after them."""

    def key(name: str) -> tuple[int, str]:
        known = name.partition("/")[0]
        return (usual.index(known) if known in usual else len(usual), name)

    return key


def read_run(path: str | os.PathLike[str], seed: int | None = None, damaged: bool = False) -> Run:
    """Opens a run file of `lockstep replay` and reads its small tables.

    seed: of a run with several (`--seeds`): the one to read, by default the first; `.seeds` lists them.
    damaged: of a file with rows that are not as they were written, the steps before the first of them, with a warning.
    Throws: RunFileError, with all problems of the file, if it is no run file, is damaged or too new; KeyError for a
    seed that it lacks.
    """
    return Run(path, seed, damaged)


class Run:
    """A run file as tables.

    Attributes:
        path, attributes (dict of the run's), steps_complete (int), damage (str, "" for none), seed (int), seeds (list: all in the file),
        graph (dict), options (dict), environment (dict), policies (dict: lane -> TOML text),
        sites       a row per site, index `site`
        lanes       a row per lane, index `lane`, the reference first
        steps       a row per lane and step: loss, losses of parts, scale, found_inf, lr, seconds, ...
        evaluations a row per lane and evaluation
        products    a row per sum of products of the step
    """

    def __init__(self, path: str | os.PathLike[str], seed: int | None = None, damaged: bool = False):
        self.path = os.fspath(path)
        self.damage, self.steps_complete = "", 0
        with self._damage_named(), opened(self.path) as file:
            check_root(self.path, {name: plain(value) for name, value in file.attrs.items()})
            self.seeds = seeds_of(file)
        known_or_raise([] if seed is None else [seed], self.seeds, "seed")
        self.seed = self.seeds[0] if seed is None else seed
        self._pandas = import_pandas()
        with self._damage_named():
            self._read(damaged)

    @contextmanager
    def _damage_named(self) -> Iterator[None]:
        """Raises RunFileError for any error of the code that reads a damaged file."""
        try:
            yield
        except (RunFileError, ImportError, MemoryError, PermissionError):
            raise
        except Exception as error:
            raise RunFileError(
                f"{self.path}: its contents are not those of a run file ({type(error).__name__})"
            ) from error

    def _prove(self, run: h5py.Group, damaged: bool) -> None:
        """Compares everything with its checksum. Throws: RunFileError; with `damaged`, fewer steps are read."""
        if problem := description_problem(run):
            raise RunFileError(f"{self.path}: {problem}")
        if int(self.attributes["format_version"]) < FIRST_VERSION:
            warnings.warn(
                f"{self.path}: an earlier version wrote it, without checksums of rows: damage would go unnoticed",
                stacklevel=5,
            )
            return
        self.damage, whole = first_damage(run, self.steps_complete)
        if not self.damage:
            return
        rest = f"{whole} of {self.steps_complete} steps are before it"
        if not damaged:
            raise RunFileError(f"{self.path}: {self.damage}; {rest}: read_run(..., damaged=True) reads these")
        warnings.warn(f"{self.path}: {self.damage}; {rest}, which are read", stacklevel=5)
        self.steps_complete = whole

    def _read(self, damaged: bool) -> None:
        with self._opened() as file:
            self.attributes = {name: plain(value) for name, value in file.attrs.items()}
            check_root(self.path, self.attributes)
            check_objects(self.path, file, int(self.attributes["steps_complete"]))
            self.steps_complete = int(self.attributes["steps_complete"])
            self._prove(file, damaged)
            self.graph: dict[str, Any] = json_dataset(file, "graph")
            self.options = json_text(self.attributes.get("options"))
            self.environment = json_text(self.attributes.get("environment"))
            self.sites = self._read_sites(file)
            self._groups = {
                unescape_name(name): f"lanes/{name}"
                for name in sorted(file["lanes"], key=lambda name: int(file["lanes"][name].attrs.get("index", 0)))
            }
            self.lanes = self._read_lanes(file)
            self.policies = {
                lane: plain(file[group]["policy"][()])
                for lane, group in self._groups.items()
                if "policy" in file[group]
            }
            self.steps = self._read_steps(file)
            self.evaluations = self._read_evaluations(file)
            self.products = self._pandas.DataFrame(json_dataset(file, "products") or [])

    def __repr__(self) -> str:
        return (
            f"<run {self.path}: {self.steps_complete} steps, {len(self.sites)} sites, "
            f"lanes {', '.join(self.lanes.index)}>"
        )

    # ---- the big tables, read on demand

    def statistic_names(self, lane: str) -> list[str]:
        """The statistics per step and site that this lane recorded."""
        with self._opened() as file:
            return list(self._site_datasets(file[self._group(lane)]))

    def statistics(
        self, lane: str, names: str | Sequence[str] | None = None, steps: Iterable[int] | None = None
    ) -> pd.DataFrame:
        """Counts, moments, updates, scale and bits_hash in long form.

        names: some of `statistic_names(lane)`, all by default; steps: those alone.
        Returns: a row per (step, site) that this lane has, a column per name. Columns of updates are
            update_*: `update_count`, ...: of weights at sites of role `update`, elsewhere of buffers and of
            gradients that micro-batches add up. Counts are UInt64, <NA> where the site took no such count.
        Throws: KeyError for an unknown lane or name.
        """
        pandas = self._pandas
        with self._opened() as file:
            group = file[self._group(lane)]
            known = self._site_datasets(group)
            wanted = list(known) if names is None else [names] if isinstance(names, str) else list(names)
            known_or_raise(wanted, known, f"statistic of lane {lane}")
            rows = self._rows(lane, steps)
            present = self._present(group, rows)
            columns = {
                name: column(
                    name, take(group[known[name]], rows)[present], pandas, self._absent(group, name, rows, present)
                )
                for name in wanted
            }
        step_index, site_index = np.nonzero(present)
        index = pandas.MultiIndex.from_arrays([np.asarray(rows)[step_index], site_index], names=["step", "site"])
        return pandas.DataFrame(columns, index=index)

    def wide(self, name: str, lane: str, steps: Iterable[int] | None = None, site_names: bool = False) -> pd.DataFrame:
        """One statistic, a row per step and a column per site; missing where the lane lacks the site.

        site_names: columns are (site, layer, op, role, point) instead of the site's number alone.
        """
        pandas = self._pandas
        table = self.statistics(lane, name, steps)[name].unstack("site")
        table = table.reindex(columns=pandas.RangeIndex(len(self.sites), name="site"))
        if site_names:
            keys = self.sites[list(SITE_KEYS)].reset_index()
            table.columns = pandas.MultiIndex.from_frame(keys)
        return table

    def histograms(self, lane: str, sites: Iterable[int] | None = None, blocks: bool = False) -> pd.DataFrame:
        """Exponent histograms: a row per (step, site), 256 columns, the FP32 exponent field of the value
        before rounding (0: zero and subnormal, 255: infinity and NaN; else 2^(bin - 127)).

        blocks: the sums over 50 steps instead, index (first_step, site), with the column `steps` first:
            how many steps a row covers.
        Returns: no row for a site that the lane lacks.
        """
        with self._opened() as file:
            group = file[self._group(lane)]
            site_list = range(len(self.sites)) if sites is None else list(sites)
            known_or_raise(site_list, range(len(self.sites)), "site")
            if blocks:
                return self._block_histograms(group, lane, site_list)
            return self._full_histograms(group, lane, site_list)

    def sums(self, lane: str) -> pd.DataFrame:
        """The error of accumulators, where sums were sampled: a row per (step, site) with samples."""
        pandas = self._pandas
        with self._opened() as file:
            group = file[self._group(lane)]
            if "sums/step" not in group:
                return pandas.DataFrame()
            steps = group["sums/step"][()]
            rows = np.flatnonzero(steps < self._steps_of(lane))
            data = {name: data[()][rows] for name, data in group["sums"].items() if name != "step"}
        sampled = data["samples"] > 0
        record, site = np.nonzero(sampled)
        index = pandas.MultiIndex.from_arrays([steps[rows][record], site], names=["step", "site"])
        return pandas.DataFrame({name: value[sampled] for name, value in data.items()}, index=index)

    def gradient_norms(self, lane: str) -> pd.DataFrame:
        """Norms of the gradients that the optimizer took: a row per step, a column per parameter.

        Returns: nothing where no capture was replayed; NaN where there is no gradient, or it was not recorded.
        """
        pandas = self._pandas
        with self._opened() as file:
            group = file[self._group(lane)]
            if "gradient_norms" not in group:
                return pandas.DataFrame()
            norms = take(group["gradient_norms"], self._rows(lane, None))
        names = [parameter["name"] for parameter in self.graph["params"]]
        return pandas.DataFrame(norms, columns=names).rename_axis("step")

    def watched(self, lane: str) -> pd.DataFrame:
        """How far the values that the run watches are from the reference's: a row per (value, step) that computes it.

        Columns: count, compared, nonfinite: elements; mean_size, mean_error, largest_error, relative_error; and of
            log-probabilities, else NaN: kl, the mean of r - 1 - log r with r = exp(lane - reference), and largest_ratio.
        Returns: nothing where nothing is watched, and for the reference.
        """
        pandas = self._pandas
        with self._opened() as file:
            names = list(texts(file["watched"][()])) if "watched" in file else []
            group = file[self._group(lane)]
            stored = {name: take(data, self._rows(lane, None)) for name, data in group.get("watched", {}).items()}
        if not names or not stored:
            return pandas.DataFrame()
        if any(values.shape[1:] != (len(names),) for values in stored.values()):
            raise RunFileError(f"{self.path}: lane {lane}: watched has other columns than the {len(names)} of /watched")
        index = pandas.MultiIndex.from_product([names, range(len(stored["count"]))], names=["value", "step"])
        flat = pandas.DataFrame({name: values.T.reshape(-1) for name, values in stored.items()}, index=index)
        flat = flat[flat["count"] > 0]
        compared = flat["compared"].where(flat["compared"] > 0)
        table = flat[["count", "compared", "nonfinite"]].copy()
        table["mean_size"] = flat["reference_sum"] / compared
        table["mean_error"] = flat["error_sum"] / compared
        table["largest_error"] = flat["error_max"].where(flat["compared"] > 0)
        table["relative_error"] = flat["error_sum"] / flat["reference_sum"].where(flat["reference_sum"] > 0)
        table["kl"] = flat["kl_sum"] / compared
        table["largest_ratio"] = np.exp(table["largest_error"].where(flat["kl_sum"].notna()))
        return table

    def device_products(self, lane: str) -> pd.DataFrame:
        """How the lane's device formed its products: a row per site, size and algorithm, in the order of their first step.

        Returns: the columns of docs/run-file.md, and `sum`, the accumulator and factors that the policy asked for; nothing
            where the lane has no device. -1: the library has no such number.
        Throws: RunFileError if the table is damaged.
        """
        pandas = self._pandas
        with self._opened() as file:
            group = file[self._group(lane)]
            if "device_products/step" not in group:
                return pandas.DataFrame()
            stored = {name: data[()] for name, data in group["device_products"].items()}
            sums = texts(group["device_sums"][()]) if "device_sums" in group else []
        missing = [name for name in _PRODUCT_COLUMNS if name not in stored]
        if missing:
            raise RunFileError(f"{self.path}: lane {lane}: device_products lacks {', '.join(missing)}")
        if len(sums) != len(self.sites):
            raise RunFileError(
                f"{self.path}: lane {lane}: device_sums has {len(sums)} rows, must have one for each of {len(self.sites)} sites"
            )
        rows = min(len(values) for values in stored.values())  # a kill may leave some columns longer
        stored = {name: values[:rows] for name, values in stored.items()}
        later = np.flatnonzero(stored["step"] >= self.steps_complete)
        complete = slice(later[0] if len(later) else None)
        table = pandas.DataFrame({name: values[complete] for name, values in stored.items()})
        if not table["site"].between(-1, len(self.sites) - 1).all():
            raise RunFileError(f"{self.path}: lane {lane}: device_products names a site that the run lacks")
        table["sum"] = [sums[site] if site >= 0 else "" for site in table["site"]]
        first = ["step", "site", "sum", "m", "n", "k", "batch"]
        return table[first + [name for name in table if name not in first]]

    def layer_table(self, lane: str, by_step: bool = False, layers: str = "*") -> pd.DataFrame:
        """What rounding did to each layer: a row per (layer, role), or per (step, layer, role), in the network's order.

        layers: a pattern, as "blocks.*.attn". Columns: count, nonzero, to_zero, to_subnormal, to_infinity, saturated,
            nan: values over all sites of the role; and shares: to_zero_rate, to_subnormal_rate, saturated_rate of the
            nonzero values, to_infinity_rate, nan_rate of all. Without by_step also worst_step: where the largest share
            became zero, infinite or NaN, or was cut (<NA>: nothing did).
        """
        return layer_table(self, lane, by_step, layers)

    def to_tensorboard(
        self,
        folder: str | os.PathLike[str],
        *,
        lanes: Sequence[str] | None = None,
        layers: str = "*",
        program: str | os.PathLike[str] | None = None,
    ) -> None:
        """Writes TensorBoard's event files, a folder per lane: losses, loss scale, skips, learning rate, gradient and
        update norms, each layer's rates, histograms of exponents, and the report's sentences (docs/report-formats.md).

        lanes: all by default. layers: a pattern that limits rates and histograms. program: the lockstep program, which
            makes the sentences; by default $LOCKSTEP or the one on the PATH, and no sentences without it.
        Throws: ImportError without tensorboard; FileExistsError where the folder has event files of that lane.
        """
        write_events(self, folder, lanes, layers, program)

    def to_wandb_table(self, lanes: Sequence[str] | None = None) -> Any:
        """A wandb.Table with a row per lane, layer and role: `layer_table` of every lane.

        Throws: ImportError without wandb.
        """
        return wandb_table(self, lanes)

    def to_wandb(self, run: Any = None, lanes: Sequence[str] | None = None, **init: Any) -> None:
        """Logs loss, loss scale and skips of every step, and the table, with wandb.

        run: where to; by default the active run, else a new one with wandb.init(**init), which is finished.
        Throws: ImportError without wandb.
        """
        log_to_wandb(self, run, lanes, init)

    # ---- how it is read

    @contextmanager
    def _opened(self) -> Iterator[h5py.Group]:
        """The group of the seed's run: the file's root or a whole run of the same layout in it."""
        with opened(self.path) as file:
            yield file if self.seed == self.seeds[0] else file[f"seeds/{self.seed}"]

    def _group(self, lane: str) -> str:
        known_or_raise([lane], self._groups, "lane")
        return self._groups[lane]

    def _steps_of(self, lane: str) -> int:
        """Complete steps that the lane ran: it runs none from died_at on."""
        died_at = self.lanes.loc[lane, "died_at"] if "died_at" in self.lanes else self._pandas.NA
        return self.steps_complete if self._pandas.isna(died_at) else min(int(died_at), self.steps_complete)

    def _rows(self, lane: str, steps: Iterable[int] | None) -> list[int]:
        complete = self._steps_of(lane)
        if steps is None:
            return list(range(complete))
        wanted = sorted({int(step) for step in steps})
        known_or_raise(wanted, range(self.steps_complete), "complete step")
        return [step for step in wanted if step < complete]

    def _site_datasets(self, group: h5py.Group) -> dict[str, str]:
        found = {}
        for folder, prefix in SITE_GROUPS.items():
            for name in group.get(folder, {}):
                found[prefix + name.removeprefix("update_")] = f"{folder}/{name}"
        others = [name for name, data in step_datasets(group).items() if "/" not in name and is_per_site(name, data)]
        found.update({name: name for name in sorted(others, key=_usual_first(("scale", "bits_hash")))})
        return found

    def _present(self, group: h5py.Group, rows: list[int]) -> np.ndarray:
        """(rows, sites), true where the lane has the site: it counted elements or updates there."""
        shape, there = (len(rows), len(self.sites)), None
        for name in ("counts/count", "updates/count"):
            if name in group:
                counted = take(group[name], rows) > 0
                there = counted if there is None else there | counted
        return np.ones(shape, bool) if there is None else there

    def _absent(self, group: h5py.Group, name: str, rows: list[int], present: np.ndarray) -> np.ndarray:
        """Where a count of 0 means that nothing was counted."""
        if name == "compared" and "scale" in group:  # nothing is compared where roundings were only counted
            return np.isnan(take(group["scale"], rows))[present]
        base = "updates/count" if name.startswith("update_") else "counts/count"
        if base not in group or name in ("count", "update_count"):
            return np.zeros(int(present.sum()), bool)
        return (take(group[base], rows) == 0)[present]

    def _read_sites(self, file: h5py.File) -> pd.DataFrame:
        table = self._pandas.DataFrame({name: texts(data[()]) for name, data in file["sites"].items()})
        for name in ("shape", "feeds"):
            if name in table:
                table[name] = [json.loads(text) for text in table[name]]
        for name in ("scaled", "stat_exempt"):
            if name in table:
                table[name] = table[name].astype(bool)
        first = [name for name in ("id", *SITE_KEYS) if name in table]
        table = table[first + [name for name in table if name not in first]]
        return table.set_index("id").rename_axis("site")

    def _read_lanes(self, file: h5py.File) -> pd.DataFrame:
        rows = []
        for group in self._groups.values():
            row = {name: plain(value) for name, value in file[group].attrs.items()}
            memory = json_text(row.pop("memory", None))
            row.update({f"memory_{name}_bytes": value for name, value in memory.items()})
            row["is_reference"] = bool(row.get("is_reference", False))
            rows.append(row)
        table = self._pandas.DataFrame(rows, index=self._pandas.Index(list(self._groups), name="lane"))
        if "died_at" in table:  # -1: it ran all steps; one past the record was not completed
            died = table["died_at"].astype("Int64")
            table["died_at"] = died.mask((died < 0) | (died >= self.steps_complete))
        return table

    def _read_steps(self, file: h5py.File) -> pd.DataFrame:
        pandas, tables = self._pandas, {}
        for lane, path in self._groups.items():
            group, rows = file[path], list(range(self._steps_of(lane)))
            columns: dict[str, Any] = {}
            found = {name: data for name, data in step_datasets(group).items() if not is_per_site(name, data)}
            for name in [name for name in found if name.partition("/")[0] in _OWN_TABLES]:
                del found[name]
            for name in sorted(found, key=_usual_first(_STEP_COLUMNS)):
                folder, _, part = name.partition("/")
                label = f"loss/{unescape_name(part)}" if folder == "losses" else part or name
                add_columns(columns, label, take(found[name], rows), pandas)
            tables[lane] = pandas.DataFrame(columns, index=pandas.RangeIndex(len(rows), name="step"))
        return pandas.concat(tables, names=["lane"]) if tables else pandas.DataFrame()

    def _read_evaluations(self, file: h5py.File) -> pd.DataFrame:
        pandas, tables = self._pandas, {}
        for lane, path in self._groups.items():
            group = file[path].get("eval")
            if group is None or "steps_done" not in group:
                continue
            table = pandas.DataFrame({name: data[()] for name, data in group.items()})
            tables[lane] = table[table["steps_done"] <= self.steps_complete].set_index("steps_done")
        return pandas.concat(tables, names=["lane"]) if tables else pandas.DataFrame()

    def _full_histograms(self, group: h5py.Group, lane: str, sites: Sequence[int]) -> pd.DataFrame:
        steps = group["exponent_histogram_step"][()] if "exponent_histogram_step" in group else []
        records = [i for i, step in enumerate(steps) if step < self._steps_of(lane)]
        keys, values = [], []
        for record in records:
            one = group["exponent_histogram"][record]
            there = [site for site in sites if one[site].any()]
            keys += [(int(steps[record]), site) for site in there]
            values.append(one[there])
        return self._histogram_table(keys, values, "step", np.uint32)

    def _block_histograms(self, group: h5py.Group, lane: str, sites: Sequence[int]) -> pd.DataFrame:
        covered = group["exponent_histogram_50_steps"][()] if "exponent_histogram_50_steps" in group else []
        keys, values, lengths = [], [], []
        for block, length in enumerate(covered):
            if length <= 0 or BLOCK * block + length > self.steps_complete:
                continue
            one = group["exponent_histogram_50"][block]
            there = [site for site in sites if one[site].any()]
            keys += [(BLOCK * block, site) for site in there]
            values.append(one[there])
            lengths += [int(length)] * len(there)
        table = self._histogram_table(keys, values, "first_step", np.uint64)
        table.insert(0, "steps", lengths)
        return table

    def _histogram_table(
        self, keys: list[tuple[int, int]], values: list[np.ndarray], first: str, dtype: type
    ) -> pd.DataFrame:
        data = np.concatenate(values) if values else np.empty((0, HISTOGRAM_BINS), dtype)
        index = (
            self._pandas.MultiIndex.from_tuples(keys, names=[first, "site"])
            if keys
            else self._pandas.MultiIndex.from_arrays([[], []], names=[first, "site"])
        )
        return self._pandas.DataFrame(data, index=index, columns=range(HISTOGRAM_BINS))
