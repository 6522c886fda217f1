"""What a plan is: stages with one batch size, learning rate and number of workers each, and the steps in them."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil
from typing import Any

from batchgrowth.choices.schedules import ConstantSchedule
from batchgrowth.exact_numbers import exact
from batchgrowth.extend import ScheduleRule
from batchgrowth.position import Epochs, Position
from batchgrowth.shards import shard_count
from batchgrowth.spec import Warmup


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Consecutive updates with the same settings; the short last batch of an epoch belongs to its stage.

    `wanted` is the batch size that the growth rule wants at the start of the stage (d), `batch_size` the one used.
    `rate` is the learning rate by the rate rule alone, before rounding. `learning_rate` is the rate of the first update
    and `learning_rate_to` the rate of the last; both include the schedule's factor, but not the warm-up.
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
        """The epochs of the stage's updates. The first and the last may be shared with the stages beside it."""
        return range(int(self.epoch_from), ceil(self.epoch_to))

    def to_json(self) -> dict[str, Any]:
        """Return the stage as `batchgrowth plan --output json` prints it."""
        made: dict[str, Any] = {
            "epochFrom": _number(self.epoch_from),
            "epochTo": _number(self.epoch_to),
            "batchSize": self.batch_size,
            "learningRate": self.learning_rate,
        }
        if self.learning_rate_to != self.learning_rate:
            made["learningRateTo"] = self.learning_rate_to
        made["workers"] = self.workers
        made["updatesPerEpoch"] = self.updates_per_epoch
        made["updates"] = self.updates
        return made


def _number(number: Fraction) -> int | float:
    return number.numerator if number.denominator == 1 else float(number)


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

    `replicas` is the number of logical replicas that share each batch. `ended_early` is True if an evaluation ended the
    plan before its last epoch.
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
    """The learning rate of the last (stage, epoch) that was asked for: arithmetic with fractions is slow."""

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

    def is_done(self, position: Position) -> bool:
        """Return True if no update is left."""
        return position.epoch >= self.epochs

    def step_at(self, position: Position) -> Step:
        """Return the next update at `position`. Raises IndexError if none is left."""
        if position.epoch >= self.epochs:
            raise IndexError(f"the plan ends after {self.epochs} epochs; there is no update at {position}")
        stage = self.stage_at(position.update)
        examples = min(stage.batch_size, self.examples_per_epoch - position.offset)
        offset = position.offset + examples
        if offset == self.examples_per_epoch:
            after = Position(position.update + 1, position.epoch + 1, 0)
        else:
            after = Position(position.update + 1, position.epoch, offset)
        return Step(
            position=position,
            after=after,
            stage=stage.index,
            examples=examples,
            shards=shard_count(examples, self.shard, self.replicas),
            batch_size=stage.batch_size,
            learning_rate=self.learning_rate_at(position),
            workers=stage.workers,
        )

    def stage_at(self, update: int) -> Stage:
        """Return the stage of update number `update`, counted from 0; past the end, the last stage."""
        return self.stages[bisect_right(self._starts, update) - 1]

    def learning_rate_at(self, position: Position) -> float:
        """Return the learning rate of the update at `position`; at the end of the plan, the rate of the last epoch."""
        stage = self.stage_at(position.update)
        epoch = min(position.epoch, self.epochs - 1)
        rate = self._rates.get((stage.index, epoch))
        if rate is None:
            rate = float(stage.rate * self.schedule.factor(epoch))
            self._rates.clear()
            self._rates[stage.index, epoch] = rate
        return warmed_up(self.warmup, position.update, rate)

    def position_at(self, update: int) -> Position:
        """Return the position after `update` updates."""
        return self._position_after(self.stage_at(update), update, self.epochs)

    def until(self, epoch: int) -> "Plan":
        """Return the plan that ends after `epoch` epochs, which is before its own end."""
        *before, last = (stage for stage in self.stages if stage.epoch_from < epoch)
        end = self._position_after(last, self.updates, epoch)
        cut = replace(
            last,
            updates=end.update - last.first_update,
            epoch_to=Fraction(epoch),
            learning_rate_to=float(last.rate * self.schedule.factor(epoch - 1)),
        )
        return replace(self, stages=(*before, cut), epochs=epoch, ended_early=True)

    def _position_after(self, stage: Stage, update: int, epochs: int) -> Position:
        """Return the position after `update` updates if `stage` went on for ever, at most after `epochs` epochs."""
        epoch, part = divmod(stage.epoch_from, 1)
        start = Position(stage.first_update, epoch, int(part * self.examples_per_epoch))
        walk = Epochs(self.examples_per_epoch, epochs)
        return walk.after_updates(start, stage.batch_size, update - stage.first_update)

    def parts(self, batch_size: int) -> int:
        """Return how many parts of a batch workers share: its shards, or the logical replicas if there are several."""
        if self.replicas > 1:
            return self.replicas
        return shard_count(batch_size, self.shard)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as `batchgrowth plan --output json` prints it."""
        return {
            "stages": [stage.to_json() for stage in self.stages],
            "updates": self.updates,
            "examples": self.examples,
        }


def warmed_up(warmup: Warmup | None, update: int, learning_rate: float) -> float:
    """Return the learning rate of update number `update`, counted from 0, during or after the warm-up."""
    if warmup is None or update >= warmup.updates - 1:
        return learning_rate
    start = float(exact(warmup.initial))
    return start + (learning_rate - start) * ((update + 1) / warmup.updates)


# A round is the updates between two exchanges. After each round all logical replicas have the same weights, so workers
# may join or leave there.


def round_at(plan: Plan, position: Position, updates: int) -> tuple[Step, ...]:
    """Return the next `updates` updates; fewer if the epoch ends before. Raises IndexError if none is left."""
    steps = [plan.step_at(position)]
    while len(steps) < updates and steps[-1].after.offset:
        steps.append(plan.step_at(steps[-1].after))
    return tuple(steps)


def rounds_from(plan: Plan, position: Position, updates: int) -> Iterator[tuple[Step, ...]]:
    """Yield the rounds from `position` to the end of the plan."""
    while not plan.is_done(position):
        steps = round_at(plan, position, updates)
        yield steps
        position = steps[-1].after
