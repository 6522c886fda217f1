"""The time of a whole plan and what it costs, and the time that is left after each update of a run.

Updates with equally many examples are grouped, and their times are added up by stage.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from batchgrowth.forecast.step_time import Constants, Estimated, StepTime
from batchgrowth.plan import Plan, Stage
from batchgrowth.shards import shard_count
from batchgrowth.spec import JobSpec

HOUR = 3600.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class AlikeUpdates:
    """Updates of a stage that have the same number of examples."""

    count: int
    examples: int


@lru_cache(maxsize=4096)
def alike_updates(start: int, examples_per_epoch: int, updates: int, batch: int) -> tuple[AlikeUpdates, ...]:
    """Return the updates of a stage that begins `start` examples into an epoch, grouped by their number of examples.

    Only the last update of an epoch may be short, so there are at most three groups.
    """
    first = -(-(examples_per_epoch - start) // batch)  # updates that finish the present epoch
    short: dict[int, int] = {}
    if updates >= first:
        left = (examples_per_epoch - start) % batch
        if left:
            short[left] = 1
        whole = (updates - first) // -(-examples_per_epoch // batch)
        rest = examples_per_epoch % batch
        if rest and whole:
            short[rest] = short.get(rest, 0) + whole
    full = updates - sum(short.values())
    groups = [AlikeUpdates(full, batch)] if full else []
    return (*groups, *(AlikeUpdates(count, examples) for examples, count in short.items()))


def used_workers(plan: Plan, stage: Stage) -> int:
    """Return the workers of a stage that have something to compute."""
    return min(stage.workers, plan.useful_workers(stage.batch_size))


def exchanges_per_update(spec: JobSpec, plan: Plan) -> float:
    """Return the exchanges of an update, on average: 1, or fewer if replicas step by themselves between two of them."""
    if plan.replicas == 1:
        return 1.0
    entry = spec.exchange.entry
    every = entry.longest_round(spec.exchange.settings)
    before = entry.before_rounds(spec.exchange.settings)
    exchanges = Fraction(0)
    for stage in plan.stages:
        each = min(max(before - stage.first_update, 0), stage.updates)
        rounds = -(-stage.updates_per_epoch // every)  # the end of an epoch ends a round
        exchanges += each + (stage.updates - each) * Fraction(rounds, stage.updates_per_epoch)
    return float(exchanges / plan.updates)


def stage_seconds(plan: Plan, stage: Stage, step: StepTime, workers: int) -> float:
    """Return the seconds that a stage takes this many workers, evaluations included."""
    offset = int((stage.epoch_from % 1) * plan.examples_per_epoch)
    total = step.per_epoch * float(stage.epoch_to - stage.epoch_from)
    for group in alike_updates(offset, plan.examples_per_epoch, stage.updates, stage.batch_size):
        examples = stage.batch_size if step.whole_batches else group.examples
        shards = shard_count(examples, plan.shard, plan.replicas)
        # The members of a group stay in it for a short batch, though some of them have nothing to compute then.
        total += group.count * step.seconds(examples, shards, workers)
    return total


def plan_seconds(plan: Plan, step: StepTime) -> list[float]:
    """Return the seconds of each stage of a plan, with the workers that the plan wants."""
    return [stage_seconds(plan, stage, step, used_workers(plan, stage)) for stage in plan.stages]


def remaining_plan(plan: Plan, update: int) -> Plan:
    """Return what is left of a plan after `update` updates, with the rest of the present stage as its first.

    Raises ValueError if nothing is left.
    """
    if update >= plan.updates:
        raise ValueError(f"the plan has {plan.updates} updates, so nothing is left after {update}")
    first = plan.stage_at(update)
    position = plan.position_at(update)
    rest = replace(
        first,
        first_update=update,
        updates=first.first_update + first.updates - update,
        epoch_from=position.epoch + Fraction(position.offset, plan.examples_per_epoch),
    )
    return replace(plan, stages=(rest, *plan.stages[first.index + 1 :]))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """What a stage takes; `money` is None if no price is known."""

    stage: Stage
    workers: int
    update_seconds: float
    seconds: Estimated
    worker_hours: Estimated
    money: Estimated | None

    def to_json(self) -> dict[str, Any]:
        """Return the stage as `batchgrowth forecast --json` prints it."""
        return {
            **self.stage.to_json(),
            "workersUsed": self.workers,
            "secondsPerUpdate": self.update_seconds,
            **_totals(self.seconds, self.worker_hours, self.money),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime:
    """What a plan takes, by stage and in all; `money` is None if no price is known."""

    constants: Constants
    stages: tuple[StageTime, ...]
    updates: int
    seconds: Estimated
    worker_hours: Estimated
    money: Estimated | None

    def to_json(self) -> dict[str, Any]:
        """Return the forecast as `batchgrowth forecast --json` prints it."""
        return {
            "label": self.constants.label,
            "source": self.constants.source,
            "stages": [stage.to_json() for stage in self.stages],
            "updates": self.updates,
            **_totals(self.seconds, self.worker_hours, self.money),
        }


def _totals(seconds: Estimated, worker_hours: Estimated, money: Estimated | None) -> dict[str, Any]:
    made: dict[str, Any] = {"seconds": seconds.to_json(), "workerHours": worker_hours.to_json()}
    if money is not None:
        made["money"] = money.to_json()
    return made


def run_time(plan: Plan, constants: Constants, price: float | None = None) -> RunTime:
    """Return what the plan takes; `price` is what a worker costs for an hour, in dollars.

    A requested worker is paid for even if the batch has too few shards for it.
    """
    central = plan_seconds(plan, constants.step)
    drawn = [plan_seconds(plan, draw) for draw in constants.draws]
    stages = []
    for number, stage in enumerate(plan.stages):
        known = constants.extrapolated([used_workers(plan, stage)])
        seconds = known.estimated(central[number], [one[number] for one in drawn])
        hours = seconds.times(stage.workers / HOUR)
        stages.append(
            StageTime(
                stage=stage,
                workers=used_workers(plan, stage),
                update_seconds=central[number] / stage.updates,
                seconds=seconds,
                worker_hours=hours,
                money=_priced(hours, price),
            )
        )
    known = constants.extrapolated(used_workers(plan, stage) for stage in plan.stages)
    worker_hours = known.estimated(worker_hours_of(plan, central), [worker_hours_of(plan, one) for one in drawn])
    return RunTime(
        constants=constants,
        stages=tuple(stages),
        updates=plan.updates,
        seconds=known.estimated(sum(central), [sum(one) for one in drawn]),
        worker_hours=worker_hours,
        money=_priced(worker_hours, price),
    )


def worker_hours_of(plan: Plan, seconds: Sequence[float]) -> float:
    """Return the worker-hours that a plan requests if its stages take these seconds, one number for each stage."""
    return sum(stage.workers * one for stage, one in zip(plan.stages, seconds, strict=True)) / HOUR


def _priced(hours: Estimated, price: float | None) -> Estimated | None:
    if price is None:
        return None
    return hours.times(price)


def elapsed(plan: Plan, step: StepTime) -> Iterator[tuple[float, float]]:
    """Yield (epochs done, seconds passed) at the start of the plan and at the end of each stage."""
    passed = 0.0
    yield 0.0, passed
    for stage, seconds in zip(plan.stages, plan_seconds(plan, step), strict=True):
        passed += seconds
        yield float(stage.epoch_to), passed


# --- The time that is left ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The model's forecast after an update: the seconds to the end, and the seconds per update of the present stage."""

    remaining: Estimated
    update_seconds: float


NOTHING_LEFT = Estimated(value=0.0, low=0.0, high=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingTime:
    """The time left after any update of the rest of a plan, which is looked up and not added up again.

    By stage: `ends` has the update at which it ends, `later` the seconds of all stages after it, and `paces` the
    seconds of one of its updates, evaluations included. `low` and `high` are the ends of the interval, as multiples of
    the time.
    """

    ends: tuple[int, ...]
    later: tuple[float, ...]
    paces: tuple[float, ...]
    low: float
    high: float

    def after(self, update: int) -> Outlook:
        """Return what is left after `update` updates."""
        place = bisect_right(self.ends, update)
        if place == len(self.ends):
            return Outlook(remaining=NOTHING_LEFT, update_seconds=self.paces[-1])
        pace = self.paces[place]
        seconds = self.later[place] + pace * (self.ends[place] - update)
        remaining = Estimated(value=seconds, low=seconds * self.low, high=seconds * self.high)
        return Outlook(remaining=remaining, update_seconds=pace)


def remaining_time(plan: Plan, update: int, constants: Constants, workers_of: Callable[[Stage], int]) -> RemainingTime:
    """Return the time left after each update from `update` on; `workers_of` says how many workers a stage will have.

    Raises ValueError if nothing is left.
    """
    rest = remaining_plan(plan, update)
    rest = replace(rest, stages=tuple(replace(stage, workers=workers_of(stage)) for stage in rest.stages))
    constants = constants.extrapolated(used_workers(rest, stage) for stage in rest.stages)
    central = plan_seconds(rest, constants.step)
    total = sum(central)
    whole = constants.estimated(total, [sum(plan_seconds(rest, draw)) for draw in constants.draws])
    later = []
    left = total
    for seconds in central:
        left -= seconds
        later.append(max(0.0, left))  # the differences of floats may end just below 0
    return RemainingTime(
        ends=tuple(stage.first_update + stage.updates for stage in rest.stages),
        later=tuple(later),
        paces=tuple(seconds / stage.updates for seconds, stage in zip(central, rest.stages, strict=True)),
        low=whole.low / total if total else 1.0,
        high=whole.high / total if total else 1.0,
    )
