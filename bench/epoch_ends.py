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
    """The epoch ends of the case after its warm-up."""
    job = case.job(case.systems()[-1])
    rows = ours.measure(job, scheduler).rows.rows[case.warm :]
    update, costs = costs_of(rows)
    return EpochEnds(f"{case.model}-{case.batch}", case.examples, update, costs)


def costs_of(rows: Sequence[HistoryRow]) -> tuple[float, list[float]]:
    """The median time between commits within an epoch, and by how much that across each epoch's end exceeds it."""
    within: list[float] = []
    across: list[float] = []
    for before, row in pairwise(rows):
        (across if before.epoch.is_integer() else within).append(row.seconds - before.seconds)
    typical = median(within)
    return typical, [gap - typical for gap in across]
