"""What a monitor warns of. The rules are in analysis/monitor/alarms.cc; here is what becomes of an alarm in the loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..model_state import world_size
from ..trigger.rules import Rule, StepFacts


@dataclass(frozen=True)
class Alarm:
    """A rule of `lockstep list alarms` that a step broke. layer: "" where it is the step as a whole; rank, micro_batch: where
    the values are from, -1: not known, or there is one; more: other places with the same alarm in the step."""

    rule: str
    step: int
    sentence: str
    layer: str = ""
    role: str = ""
    op: str = ""
    rank: int = -1
    micro_batch: int = -1
    more: int = 0

    def __str__(self) -> str:
        where = [f"{self.layer or 'the model'} {self.role}"] if self.role else []
        where += [f"rank {self.rank}"] if self.rank >= 0 and world_size() > 1 else []
        where += [f"micro-batch {self.micro_batch}"] if self.micro_batch >= 0 else []
        place = ", ".join(where) + ": " if where else ""
        others = f"; also at {self.more} other places" if self.more else ""
        return f"step {self.step}: {self.rule}: {place}{self.sentence}{others}"


class AlarmRule(Rule):
    """Monitor.rule()."""

    name, help = "a monitor's alarm", "a rule of the monitor fired in an earlier step"
    is_of_faults = True

    def __init__(self, names: Sequence[str]):
        self._names, self._came = frozenset(names), ""

    def note(self, alarm: Alarm) -> None:
        if not self._names or alarm.rule in self._names:
            self._came = str(alarm)

    def check(self, facts: StepFacts) -> str:
        came, self._came = self._came, ""
        return came


def wandb_alert(alarm: Alarm) -> None:
    """An on_alarm that tells Weights & Biases. Throws: ImportError without wandb."""
    import wandb

    wandb.alert(title=f"lockstep: {alarm.rule}", text=str(alarm))
