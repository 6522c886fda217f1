"""A plan and its stages, each with one batch size, learning rate and number of workers."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil
from typing import Any

from batchgrowth.choices.schedules import ConstantSchedule
from batchgrowth.extend import ScheduleRule
from batchgrowth.position import Epochs, Position
from batchgrowth.schema import exact
from batchgrowth.shards import shard_count
from batchgrowth.spec import LearningRate, Schedule, Warmup

# --- Learning rates as fractions until the last step: exact if rational, else far more precise than a float ---


def learning_rate(rate: LearningRate, initial: int, wanted: int, used: int) -> Fraction:
    """The learning rate of a batch of `used` examples when `wanted` were wanted and `initial` at the start."""
    result: Fraction = rate.entry.load()(exact(rate.initial), initial, wanted, used)
    return result


def schedule_of(rate: LearningRate, epochs: int) -> ScheduleRule:
    """The schedule of a job of `epochs`."""
    chosen = rate.schedule or Schedule()
    result: ScheduleRule = chosen.entry.load()(chosen.settings, epochs)
    return result


def warmed(warmup: Warmup | None, update: int, learning_rate: float) -> float:
    """The learning rate of update number `update`, counted from 0, during or after the warm-up."""
    if warmup is None or update >= warmup.updates - 1:
        return learning_rate
    start = float(exact(warmup.initial))
    return start + (learning_rate - start) * ((update + 1) / warmup.updates)


# --- A plan and its stages, each with one batch size, learning rate and number of workers ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Consecutive updates with the same settings; the short last batch of an epoch belongs to its stage.

    `wanted` is the batch size that the growth rule wants at the start of the stage (d), `batch_size` the one used.
    `rate` is the learning rate by the rate rule alone, before rounding; `learning_rate` that of the first update and
    `learning_rate_to` that of the last, with the schedule's factor and without the warm-up.
    """

    index: int
    first_update: int
    updates: int
    epoch_from: Fraction
    epoch_to: Fraction
    wanted: int
    batch_size: int
    rate: Fraction
    learning_rate: float
    learning_rate_to: float
    workers: int
    updates_per_epoch: int

    @property
    def epochs(self) -> range:
        """The epochs of the stage's updates, the first and the last of which may be shared with its neighbours."""
        return range(int(self.epoch_from), ceil(self.epoch_to))

    def to_json(self) -> dict[str, Any]:
        """The stage as `batchgrowth plan --output json` prints it."""
        moves = self.learning_rate_to != self.learning_rate
        return {
            "epochFrom": whole_if_whole(self.epoch_from),
            "epochTo": whole_if_whole(self.epoch_to),
            "batchSize": self.batch_size,
            "learningRate": self.learning_rate,
            **({"learningRateTo": self.learning_rate_to} if moves else {}),
            "workers": self.workers,
            "updatesPerEpoch": self.updates_per_epoch,
            "updates": self.updates,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One update: where it starts and ends, how many examples and shards it has, and its learning rate."""

    position: Position
    after: Position
    stage: int
    examples: int
    shards: int
    batch_size: int
    learning_rate: float
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every update of a training, known before it begins.

    `replicas` are the logical ones that share each batch; `ended_early` says that evaluations ended the plan earlier.
    """

    stages: tuple[Stage, ...]
    examples_per_epoch: int
    epochs: int
    shard: int
    replicas: int = 1
    schedule: ScheduleRule = field(default_factory=ConstantSchedule)
    warmup: Warmup | None = None
    ended_early: bool = False
    _starts: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _rates: dict[tuple[int, int], float] = field(init=False, repr=False, compare=False, default_factory=dict)
    """That of the last epoch asked for, by stage and epoch, since fractions take long."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_starts", tuple(stage.first_update for stage in self.stages))

    @property
    def updates(self) -> int:
        """Total number of updates."""
        return self.stages[-1].first_update + self.stages[-1].updates

    @property
    def examples(self) -> int:
        """Total number of examples used: each example once per epoch."""
        return self.examples_per_epoch * self.epochs

    def stage_at(self, update: int) -> Stage:
        """The stage of update number `update`, counted from 0; past the end, the last stage."""
        return self.stages[bisect_right(self._starts, update) - 1]

    def position_at(self, update: int) -> Position:
        """The position after `update` updates."""
        return self._after(self.stage_at(update), update, self.epochs)

    def _after(self, stage: Stage, update: int, epochs: int) -> Position:
        """The position after `update` updates, in `stage` or past its end, but at most after `epochs` epochs."""
        epoch, part = divmod(stage.epoch_from, 1)
        start = Position(stage.first_update, epoch, int(part * self.examples_per_epoch))
        walk = Epochs(self.examples_per_epoch, epochs)
        return walk.after_updates(start, stage.batch_size, update - stage.first_update)

    def until(self, epoch: int) -> "Plan":
        """The plan that ends after `epoch` epochs, which is before its own end."""
        *before, last = (stage for stage in self.stages if stage.epoch_from < epoch)
        end = self._after(last, self.updates, epoch)
        rate = float(last.rate * self.schedule.factor(epoch - 1))
        cut = replace(last, updates=end.update - last.first_update, epoch_to=Fraction(epoch), learning_rate_to=rate)
        return replace(self, stages=(*before, cut), epochs=epoch, ended_early=True)

    def learning_rate_at(self, position: Position) -> float:
        """The learning rate of the update at `position`; at the end of the plan, that of the last epoch."""
        return self._rate_of(self.stage_at(position.update), position)

    def _rate_of(self, stage: Stage, position: Position) -> float:
        epoch = min(position.epoch, self.epochs - 1)
        rate = self._rates.get((stage.index, epoch))
        if rate is None:
            rate = float(stage.rate * self.schedule.factor(epoch))
            self._rates.clear()
            self._rates[stage.index, epoch] = rate
        return warmed(self.warmup, position.update, rate)

    def parts(self, batch_size: int) -> int:
        """The parts of a batch that workers share: its shards, or the logical replicas if there are several."""
        return self.replicas if self.replicas > 1 else shard_count(batch_size, self.shard)

    def is_done(self, position: Position) -> bool:
        """True if no update is left."""
        return position.epoch >= self.epochs

    def step_at(self, position: Position) -> Step:
        """The next update at `position`. Raises IndexError if none is left."""
        if position.epoch >= self.epochs:
            raise IndexError(f"the plan ends after {self.epochs} epochs; there is no update at {position}")
        stage = self.stages[bisect_right(self._starts, position.update) - 1]
        examples = min(stage.batch_size, self.examples_per_epoch - position.offset)
        offset = position.offset + examples
        ended = offset == self.examples_per_epoch
        return Step(
            position=position,
            after=Position(position.update + 1, position.epoch + ended, 0 if ended else offset),
            stage=stage.index,
            examples=examples,
            shards=shard_count(examples, self.shard, self.replicas),
            batch_size=stage.batch_size,
            learning_rate=self._rate_of(stage, position),
            workers=stage.workers,
        )

    def to_json(self) -> dict[str, Any]:
        """The plan as `batchgrowth plan --output json` prints it."""
        return {
            "stages": [stage.to_json() for stage in self.stages],
            "updates": self.updates,
            "examples": self.examples,
        }


def whole_if_whole(number: Fraction) -> int | float:
    """The number as an int if it is whole, else the nearest float."""
    return int(number) if number.denominator == 1 else float(number)


# --- Rounds of updates: after each, all logical replicas have the same weights, so a worker may join or leave there ---


def round_at(plan: Plan, position: Position, updates: int) -> tuple[Step, ...]:
    """The next `updates` updates; fewer if the epoch ends before. Raises IndexError if none is left."""
    steps = [plan.step_at(position)]
    while len(steps) < updates and steps[-1].after.offset:
        steps.append(plan.step_at(steps[-1].after))
    return tuple(steps)


def rounds_from(plan: Plan, position: Position, updates: int) -> Iterator[tuple[Step, ...]]:
    """The rounds from `position` to the end of the plan."""
    while not plan.is_done(position):
        steps = round_at(plan, position, updates)
        yield steps
        position = steps[-1].after
