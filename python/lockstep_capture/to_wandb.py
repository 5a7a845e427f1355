"""A run for Weights & Biases: curves of every lane, and a table per lane, layer and role."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep_capture.run_file import known_or_raise

_COLUMNS = {"loss": "loss", "scale": "loss_scale", "skipped": "skipped"}  # of run.steps; the names of the curves


def wandb_table(run: Any, lanes: Sequence[str] | None) -> Any:
    """See read_run.Run.to_wandb_table, whose `run` this is."""
    table = _table(run, _chosen(run, lanes))
    return _wandb().Table(columns=list(table.columns), data=table.to_numpy(object).tolist())


def log_to_wandb(run: Any, target: Any, lanes: Sequence[str] | None, init: dict[str, Any]) -> None:
    """See read_run.Run.to_wandb, whose `run` this is."""
    wandb, chosen = _wandb(), _chosen(run, lanes)
    made = None
    if target is None:
        target = wandb.run
    if target is None:
        target = made = wandb.init(**{"project": "lockstep", "config": run.options, **init})
    for step in range(run.steps_complete):
        values = {}
        for lane in chosen:
            steps = run.steps.loc[lane]
            if step >= len(steps):  # the lane has died
                continue
            row = steps.iloc[step]
            values.update(
                {
                    f"{name}/{lane}": float(row[column])
                    for column, name in _COLUMNS.items()
                    if column in steps and (column == "loss" or not run._pandas.isna(row[column]))
                }
            )
        target.log(values, step=step)
    target.log({"layers": wandb_table(run, chosen)}, step=max(0, run.steps_complete - 1))
    if made is not None:
        made.finish()


def _wandb() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ImportError("to_wandb and to_wandb_table need wandb: pip install wandb") from error
    return wandb


def _chosen(run: Any, lanes: Sequence[str] | None) -> list[str]:
    chosen = list(run.lanes.index) if lanes is None else list(lanes)
    known_or_raise(chosen, run.lanes.index, "lane")
    return chosen


def _table(run: Any, lanes: list[str]) -> Any:
    tables = [run.layer_table(lane).reset_index().assign(lane=lane) for lane in lanes]
    table = run._pandas.concat(tables, ignore_index=True)
    table = table[["lane", *(name for name in table if name != "lane")]]
    return table.astype(object).where(table.notna(), None)
