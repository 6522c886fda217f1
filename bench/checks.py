"""What spot checks cost: how much longer the update around a check takes than the others, shared by all up to the next.

Two runs, one with checks and one without, differ by more than a check costs; the updates of one run do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from batchgrowth.plan import make_plan
from batchgrowth.shards import shard_count
from batchgrowth_trainer.exchange.spot_check import updates_between
from batchgrowth_trainer.record.history import HistoryRow

from bench import ours
from bench.cases import Case


@dataclass(frozen=True, slots=True)
class Checks:
    """A job's checks, one after `every` so many updates: the seconds of an update, and what each check costs."""

    case: str
    every: int
    update: float
    costs: list[float]

    @property
    def shares(self) -> list[float]:
        """What each check costs, as a share of the time of the updates up to the next."""
        return [cost / (self.every * self.update) for cost in self.costs]


def measure(case: Case) -> Checks:
    """Return the checks of a run of the case in a cluster of its own, with a certificate, as `batchgrowth run` does it.

    Raises ValueError if the run is too short for a check.
    """
    job = case.job(case.systems[0])
    every = updates_between(shard_count(case.batch, job.spec.shard), case.workers)
    rows, _ = ours.measure(job, None)
    update, costs = costs_of(rows[case.warm :], every)
    if not costs:
        raise ValueError(f"{case.name}: {make_plan(job.spec).updates} updates; give more than {every}")
    return Checks(case.name, every, update, costs)


def costs_of(rows: Sequence[HistoryRow], every: int) -> tuple[float, list[float]]:
    """Return the median time between two commits, and what the one after each check takes more.

    A check comes after every so many updates, and before the next one begins.
    """
    gaps = {row.update: row.seconds - before.seconds for before, row in pairwise(rows)}
    typical = median(gap for update, gap in gaps.items() if (update - 1) % every)
    return typical, [gap - typical for update, gap in gaps.items() if not (update - 1) % every]
