"""What the end of an epoch costs: how much longer the update after it takes, without an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from batchgrowth_trainer.record.history import HistoryRow

from bench import ours
from bench.cases import Case


@dataclass(frozen=True, slots=True)
class EpochEnds:
    """A job's epoch ends: their costs in seconds, and the median time of an update within an epoch."""

    case: str
    examples: int
    update: float
    costs: list[float]


def measure(case: Case, scheduler: str) -> EpochEnds:
    """Return the epoch ends of the case after its warm-up."""
    rows, _ = ours.measure(case.job(case.systems[0]), scheduler)
    update, costs = costs_of(rows[case.warm :])
    return EpochEnds(case.name, case.examples, update, costs)


def costs_of(rows: Sequence[HistoryRow]) -> tuple[float, list[float]]:
    """Return the median time between commits within an epoch, and what each one across an epoch's end takes more."""
    within: list[float] = []
    across: list[float] = []
    for before, row in pairwise(rows):
        gap = row.seconds - before.seconds
        if before.epoch.is_integer():
            across.append(gap)
        else:
            within.append(gap)
    typical = median(within)
    return typical, [gap - typical for gap in across]
