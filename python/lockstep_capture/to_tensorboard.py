"""A run as TensorBoard's event files: a folder per lane, so that one chart shows all lanes."""

from __future__ import annotations

import glob
import json
import math
import os
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from lockstep_capture.errors import CaptureError
from lockstep_capture.program import find_program, run_program
from lockstep_capture.run_file import known_or_raise

_BIAS = 127  # a histogram's bin is an FP32 exponent field: 1 ... 254 are exponents -126 ... 127


def write_events(
    run: Any,
    folder: str | os.PathLike[str],
    lanes: Sequence[str] | None,
    layers: str,
    program: str | os.PathLike[str] | None,
) -> None:
    """See read_run.Run.to_tensorboard, whose `run` this is."""
    make_writer = _summary_writer()
    chosen = list(run.lanes.index) if lanes is None else list(lanes)
    known_or_raise(chosen, run.lanes.index, "lane")
    folders = _folders(os.fspath(folder), chosen)
    sentences = _sentences(run, program)
    for lane, path in folders.items():
        with make_writer(path) as writer:
            _write_steps(writer, run.steps.loc[lane])
            _write_norms(writer, run, lane)
            _write_rates(writer, run.layer_table(lane, by_step=True, layers=layers))
            _write_exponents(writer, run, lane, layers)
            if lane in sentences:
                writer.add_text("report", sentences[lane], 0)


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("to_tensorboard writes with tensorboard: pip install tensorboard") from error
    return SummaryWriter


def _folders(folder: str, lanes: list[str]) -> dict[str, str]:
    """lane -> its folder. TensorBoard merges all event files of a folder, so there must be none yet."""
    found: dict[str, str] = {}
    for lane in lanes:
        name = re.sub(r"[^\w.@-]", "_", lane)
        while os.path.join(folder, name) in found.values():
            name += "_"
        found[lane] = os.path.join(folder, name)
    old = [path for path in found.values() if glob.glob(os.path.join(glob.escape(path), "events.out.tfevents.*"))]
    if old:
        raise FileExistsError(
            f"to_tensorboard: event files are in {', '.join(old)}, and TensorBoard would show both runs "
            "as one: name another folder, or delete these"
        )
    return found


def _sentences(run: Any, program: str | os.PathLike[str] | None) -> dict[str, str]:
    """Of the report, by lane: only the program makes them."""
    try:
        found = find_program(program)
    except CaptureError:
        if program is not None:
            raise
        return {}
    arguments = ["--seed", str(run.seed)] if len(run.seeds) > 1 else []
    report = json.loads(run_program(found, "report", run.path, "--format", "json", *arguments))
    if "alarms" in report:  # of a monitored run
        told = (
            f"step {alarm['step']}, {alarm['place'] or alarm['rule']}: {alarm['sentence']}"
            for alarm in report["alarms"]
        )
        return dict.fromkeys(run.lanes.index, "\n\n".join(told) or "no alarm")
    return {lane["name"]: lane["sentence"] for lane in report["lanes"] if "sentence" in lane}


def _add(writer: Any, tag: str, steps: Any, values: Any) -> None:
    for step, value in zip(steps, values, strict=True):
        writer.add_scalar(tag, float(value), int(step))


def _write_steps(writer: Any, steps: Any) -> None:
    names = {
        "scale": "loss_scale/scale",
        "skipped": "loss_scale/skipped",
        "lr": "learning_rate",
        "gradient_norm": "gradient_norm",
    }
    for column in steps.columns:
        is_loss = column.partition("/")[0] == "loss"  # NaN: not finite; elsewhere: not measured
        values = steps[column] if is_loss else steps[column].dropna()
        if is_loss or column in names:
            _add(writer, names.get(column, column), values.index, values)


def _write_norms(writer: Any, run: Any, lane: str) -> None:
    gradients = run.gradient_norms(lane)
    if not gradients.empty and run.steps.loc[lane]["gradient_norm"].isna().all():
        norms = (gradients**2).sum(axis=1, min_count=1) ** 0.5
        _add(writer, "gradient_norm", norms.dropna().index, norms.dropna())
    if not {"update_sq", "update_weight_sq"} <= set(run.statistic_names(lane)):
        return
    table = run.statistics(lane, ["update_sq", "update_weight_sq"])
    updates = run.sites["role"].loc[table.index.get_level_values("site")].to_numpy() == "update"
    squares = table[updates].groupby(level="step").sum()
    if squares.empty:
        return
    _add(writer, "update_norm", squares.index, squares["update_sq"] ** 0.5)
    _add(writer, "weight_norm", squares.index, squares["update_weight_sq"] ** 0.5)


def _write_rates(writer: Any, table: Any) -> None:
    """Only of layers that lost something: a network has thousands of curves that are zero."""
    for (layer, role), rows in table.groupby(level=["layer", "role"], sort=False):
        steps = rows.index.get_level_values("step")
        for column in (name for name in table.columns if name.endswith("_rate")):
            values = rows[column].fillna(0)
            if (values > 0).any():
                _add(writer, f"{column}/{layer or '(no layer)'}/{role}", steps, values)


def _write_exponents(writer: Any, run: Any, lane: str, layers: str) -> None:
    """A histogram for each layer and role, over the 50 steps that end with the one it is stored at."""
    sites = [site for site, layer in run.sites["layer"].items() if fnmatchcase(layer, layers)]
    blocks = run.histograms(lane, sites, blocks=True)
    if blocks.empty:
        return
    last = blocks.index.get_level_values("first_step") + blocks["steps"].to_numpy() - 1
    where = run.sites.loc[blocks.index.get_level_values("site")]
    sums = (
        blocks.drop(columns="steps")
        .groupby([np.asarray(last), where["layer"].to_numpy(), where["role"].to_numpy()], sort=False)
        .sum()
    )
    for (step, layer, role), counts in zip(sums.index, sums.to_numpy(np.float64), strict=True):
        present = np.flatnonzero(counts[1:255]) + 1  # zeros and what is not finite have no exponent
        if present.size == 0:
            continue
        bins = np.arange(present[0], present[-1] + 1)
        exponents, of_bin = (bins - _BIAS).astype(float), counts[bins]
        total = math.fsum(of_bin)
        writer.add_histogram_raw(
            f"exponents/{layer or '(no layer)'}/{role}",
            min=exponents[0] - 0.5,
            max=exponents[-1] + 0.5,
            num=total,
            sum=float(exponents @ of_bin),
            sum_squares=float(exponents**2 @ of_bin),
            bucket_limits=(exponents + 0.5).tolist(),
            bucket_counts=of_bin.tolist(),
            global_step=int(step),
        )
