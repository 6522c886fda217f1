"""Answers to what a user asks before a run: how many workers are worth it, which keep a deadline or a budget, what
growth saves, and what reclaimed machines cost.

All of them change `workers.maximum` alone, so the weights stay the same.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

from batchgrowth.forecast.course_time import (
    RunTime,
    plan_seconds,
    run_time,
    stage_seconds,
    used_workers,
    worker_hours_of,
)
from batchgrowth.forecast.step_time import Constants, Estimated, StepTime
from batchgrowth.plan import Plan
from batchgrowth.spec import JobSpec
from batchgrowth.spec.workers import MOST_WORKERS

EACH_UP_TO = 64
"""Up to this number, each number of workers is tried; above it, each that is a twentieth larger."""
KNEE_SHARE = 0.02
"""A worker more is worth it if it makes the run shorter by this share of its time."""
RATIO = 1.05
MOST_EVALUATIONS = 100_000
"""The most times of stages that are computed for one answer."""


@dataclass(frozen=True)
class Candidates:
    """A job with other numbers of workers: the central times of each, without an interval.

    `plan` is that of the job. Its stages have the workers that the batch asks for, within the job's bounds.
    """

    spec: JobSpec
    plan: Plan
    step: StepTime

    @cached_property
    def seconds(self) -> Mapping[int, float]:
        """Return the time of the run by `workers.maximum`, up to the largest that changes anything."""
        known: dict[tuple[int, int], float] = {}
        found = {}
        for maximum in self.maxima():
            total = 0.0
            for stage in self.plan.stages:
                workers = min(self.desired(stage.batch_size, maximum), self.plan.useful_workers(stage.batch_size))
                key = (stage.index, workers)
                if key not in known:
                    known[key] = stage_seconds(self.plan, stage, self.step, workers)
                total += known[key]
            found[maximum] = total
        return found

    def maxima(self) -> Iterator[int]:
        """Yield the numbers of workers that are tried."""
        largest = max(stage.batch_size for stage in self.plan.stages)
        most = min(max(largest // self.spec.workers.examples_per_worker, 1), MOST_WORKERS)
        maximum = self.spec.workers.minimum
        most = maximum + bisect_left(range(maximum + 1, most + 1), True, key=self._is_refused)
        while maximum < most:
            yield maximum
            maximum = maximum + 1 if maximum < EACH_UP_TO else min(ceil(maximum * RATIO), most)
        yield most

    def _is_refused(self, maximum: int) -> bool:
        """Return whether the manifest would be refused with so many workers, as each exchange has its own bound."""
        workers = self.spec.workers.model_copy(update={"maximum": maximum})
        spec = self.spec.model_copy(update={"workers": workers})
        return not all(rule.holds(spec) for rule in JobSpec.rules)

    def desired(self, batch_size: int, maximum: int) -> int:
        """Return the workers that a batch asks for if at most `maximum` are allowed."""
        return self.spec.workers.desired(batch_size, maximum)

    def plan_with(self, maximum: int) -> Plan:
        """Return the plan of the job with another `workers.maximum`."""
        stages = (replace(stage, workers=self.desired(stage.batch_size, maximum)) for stage in self.plan.stages)
        return replace(self.plan, stages=tuple(stages))

    def worker_hours(self, maximum: int) -> float:
        """Return the hours of workers that the run with another `workers.maximum` asks for."""
        plan = self.plan_with(maximum)
        return worker_hours_of(plan, plan_seconds(plan, self.step))

    def knee(self, share: float = KNEE_SHARE) -> int:
        """Return the number of workers after which no further one shortens the run by this share."""
        return knee_of(self.seconds, share)


def knee_of(seconds: Mapping[int, float], share: float) -> int:
    """Return the number of workers after which no further one shortens a run by this share, from its times by workers.

    Since an update takes whole shards, one worker more may bring nothing and two much. So a number is past the knee if
    no larger one brings that share per worker, on average.
    """

    def is_past(maximum: int) -> bool:
        later = ((more, time) for more, time in seconds.items() if more > maximum)
        return all(seconds[maximum] / time < (1 + share) ** (more - maximum) for more, time in later)

    return next(maximum for maximum in seconds if is_past(maximum))  # the largest is


@dataclass(frozen=True, slots=True, kw_only=True)
class AffordableWorkers:
    """A number of workers for a deadline or a budget, with its forecast; `kept` is False if none keeps them."""

    maximum: int
    made: RunTime
    kept: bool


def cheapest(candidates: Candidates, constants: Constants, price: float | None, deadline: float | None,
             budget: float | None) -> AffordableWorkers:  # fmt: skip
    """Return the fewest worker-hours that keep a deadline in seconds and a budget; with a budget alone, the quickest.

    Both are kept if the upper end of the interval does. If nothing keeps them, returns the nearest: the quickest for a
    deadline, the cheapest for a budget.
    """
    tried = [
        (run_time(candidates.plan_with(maximum), constants, price), maximum)
        for maximum in _worth_trying(candidates, constants)
    ]
    kept = [one for one in tried if _keeps(one[0], deadline, budget)]
    if kept:
        order = _by_hours if deadline is not None else _by_time
        made, maximum = min(kept, key=order)
        return AffordableWorkers(maximum=maximum, made=made, kept=True)
    in_time = [one for one in tried if _keeps(one[0], deadline, None)]
    order = _by_most_hours if budget is not None and (deadline is None or in_time) else _by_longest_time
    made, maximum = min(in_time if budget is not None and in_time else tried, key=order)
    return AffordableWorkers(maximum=maximum, made=made, kept=False)


def _worth_trying(candidates: Candidates, constants: Constants) -> Sequence[int]:
    """Return the numbers of workers whose interval is computed: all, unless the plan has very many stages."""
    every = list(candidates.seconds)
    work = len(every) * len(candidates.plan.stages) * (1 + len(constants.draws))
    step = max(1, work // MOST_EVALUATIONS)
    return sorted({*every[::step], every[-1], candidates.knee()})


def _keeps(made: RunTime, deadline: float | None, budget: float | None) -> bool:
    if deadline is not None and made.seconds.high > deadline:
        return False
    return budget is None or (made.money is not None and made.money.high <= budget)


def _by_hours(one: tuple[RunTime, int]) -> tuple[float, int]:
    return one[0].worker_hours.value, one[1]


def _by_time(one: tuple[RunTime, int]) -> tuple[float, int]:
    return one[0].seconds.value, one[1]


def _by_most_hours(one: tuple[RunTime, int]) -> tuple[float, int]:
    return one[0].worker_hours.high, one[1]


def _by_longest_time(one: tuple[RunTime, int]) -> tuple[float, int]:
    return one[0].seconds.high, one[1]


REPLACE_SECONDS = 120.0
"""The time until a reclaimed worker is replaced, if the user gives none."""
PAUSE_SECONDS = 0.5
"""The pause of a run when a worker leaves or joins."""


def reclaimed_seconds(spec: JobSpec, plan: Plan, step: StepTime, every: float, replaced_after: float) -> list[float]:
    """Return the seconds that each stage takes longer if every worker is reclaimed once in `every` seconds on average.

    The others go on with one worker fewer until its replacement has come, and pause when it goes and comes. A single
    worker leaves nobody behind, so the run waits for the replacement and repeats the updates since its last checkpoint,
    on average half of the time between two of them. Reclaims are rare enough not to overlap.
    """
    longer = []
    for stage in plan.stages:
        workers = used_workers(plan, stage)
        seconds = stage_seconds(plan, stage, step, workers)
        if workers == 1:
            lost = replaced_after + spec.checkpoint.every_seconds / 2
        else:
            fewer = stage_seconds(plan, stage, step, workers - 1)
            lost = max(0.0, replaced_after * (1 - seconds / fewer))
        reclaims = workers * seconds / every
        longer.append(reclaims * (lost + 2 * PAUSE_SECONDS))
    return longer


def with_reclaims(spec: JobSpec, plan: Plan, constants: Constants, every: float, replaced_after: float) -> Estimated:
    """Return the time of the run with reclaimed workers."""

    def total(step: StepTime) -> float:
        return sum(plan_seconds(plan, step)) + sum(reclaimed_seconds(spec, plan, step, every, replaced_after))

    return constants.estimated(total(constants.step), [total(draw) for draw in constants.draws])
