"""The plan of a training: its stages, every update in them, and how the plan follows from the spec.

A plan is made in closed form over stages, so a million epochs take no longer to plan than ten. `_stages` makes them;
`Workers.desired` in spec/workers.py gives each batch its number of workers.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import islice
from math import ceil
from typing import Any

from batchgrowth.choices.growth_declared import MilestonesRule
from batchgrowth.choices.learning_rate_schedules import ConstantSchedule
from batchgrowth.errors import Fault, PlanError
from batchgrowth.extend import GrowthRule, ScheduleRule
from batchgrowth.learning_rate import rate_by_rule, schedule_of
from batchgrowth.looks import Looks, Windows
from batchgrowth.position import Epochs, Position
from batchgrowth.shards import shard_count
from batchgrowth.spec import Growth, JobSpec, Warmup

MOST_STAGES = 1000
"""The most stages of a plan, which is stored in a Kubernetes object of bounded size."""

MOST_DECISIONS = 256
"""The most changes of the batch that a measured rule may decide; the batch then stays as it is."""


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
        """Return the epochs in which the stage has updates; adjacent stages may have updates in the same epoch."""
        return range(int(self.epoch_from), ceil(self.epoch_to))

    def to_json(self) -> dict[str, Any]:
        """Return the stage as a part of the plan's JSON."""
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
    if number.denominator == 1:
        return number.numerator
    return float(number)


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

    `replicas` is the number of logical replicas that share each batch. `in_one_process` is True if no worker computes.
    `ended_early` is True if an evaluation ended the plan before its last epoch.
    """

    stages: tuple[Stage, ...]
    examples_per_epoch: int
    epochs: int
    shard: int
    replicas: int = 1
    in_one_process: bool = False
    schedule: ScheduleRule = field(default_factory=ConstantSchedule)
    warmup: Warmup | None = None
    ended_early: bool = False
    _starts: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The first update of each stage."""
    _rates: dict[tuple[int, int], float] = field(init=False, repr=False, compare=False, default_factory=dict)
    """The learning rate of the last (stage, epoch) that was asked for: arithmetic with fractions is slow."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_starts", tuple(stage.first_update for stage in self.stages))

    @property
    def updates(self) -> int:
        """Return the total number of updates."""
        return self.stages[-1].first_update + self.stages[-1].updates

    @property
    def examples(self) -> int:
        """Return the total number of examples used: each example once per epoch."""
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
            batch_size=stage.batch_size,
            learning_rate=self._learning_rate(stage, position),
            shards=shard_count(examples, self.shard, self.replicas),
            workers=stage.workers,
        )

    def stage_at(self, update: int) -> Stage:
        """Return the stage of update number `update`, counted from 0; past the end, the last stage."""
        return self.stages[bisect_right(self._starts, update) - 1]

    def learning_rate_at(self, position: Position) -> float:
        """Return the learning rate of the update at `position`; at the end of the plan, the last epoch's rate."""
        return self._learning_rate(self.stage_at(position.update), position)

    def _learning_rate(self, stage: Stage, position: Position) -> float:
        epoch = min(position.epoch, self.epochs - 1)
        rate = self._rates.get((stage.index, epoch))
        if rate is None:
            rate = float(stage.rate * self.schedule.factor(epoch))
            self._rates.clear()
            self._rates[stage.index, epoch] = rate
        if self.warmup is None or position.update >= self.warmup.updates - 1:
            return rate
        start = float(self.warmup.initial)
        return start + (rate - start) * ((position.update + 1) / self.warmup.updates)

    def learning_rates(self, stage: Stage) -> tuple[float, float, float]:
        """Return the stage's learning rates, warm-up included: of its first update, the highest, and of its last.

        While the warm-up rises, a schedule falls from epoch to epoch, so the highest may lie between the other two.
        """
        first = stage.first_update
        last = first + stage.updates - 1
        seen = {first, last}
        if self.warmup is not None:
            end = min(last, self.warmup.updates - 1)
            seen.add(max(first, end))
            # Within an epoch the ramp only rises, so the highest of an epoch is that of its last update.
            seen.update(islice(self._ends_of_epochs(stage, end), MOST_STAGES))
        rates = {update: self.learning_rate_at(self.position_at(update)) for update in sorted(seen)}
        return rates[first], max(rates.values()), rates[last]

    def _ends_of_epochs(self, stage: Stage, before: int) -> Iterator[int]:
        """Yield the last update of each epoch that ends in the stage, as long as it is below `before`."""
        walk = Epochs(self.examples_per_epoch, self.epochs)
        position = self.position_at(stage.first_update)
        position = walk.to_epoch(position, stage.batch_size, position.epoch + 1)
        while position.update - 1 < before:
            yield position.update - 1
            position = walk.to_epoch(position, stage.batch_size, position.epoch + 1)

    def position_at(self, update: int) -> Position:
        """Return the position after `update` updates."""
        return self._position_after(self.stage_at(update), update, self.epochs)

    def until(self, epoch: int) -> "Plan":
        """Return the plan, shortened to end after `epoch` epochs."""
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
        """Return the position after `update` updates if `stage` never ended, or after `epochs` epochs if that is
        earlier.
        """
        epoch, part = divmod(stage.epoch_from, 1)
        start = Position(stage.first_update, epoch, int(part * self.examples_per_epoch))
        walk = Epochs(self.examples_per_epoch, epochs)
        return walk.after_updates(start, stage.batch_size, update - stage.first_update)

    def parts(self, batch_size: int) -> int:
        """Return the number of parts of a batch: of its shards, or of the logical replicas if there are several."""
        if self.replicas > 1:
            return self.replicas
        return shard_count(batch_size, self.shard)

    def useful_workers(self, batch_size: int) -> int:
        """Return the most workers that a batch keeps busy: one for each part, or 1 if no worker computes."""
        return 1 if self.in_one_process else self.parts(batch_size)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON by which the trainer checks the operator's plan; `batchgrowth plan` prints the course's."""
        return {
            "stages": [stage.to_json() for stage in self.stages],
            "updates": self.updates,
            "examples": self.examples,
        }


# A round is the updates between two moments at which workers may join or leave. At such a moment each member holds the
# state of every logical replica.


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


@dataclass(frozen=True, slots=True)
class BatchDecision:
    """The outcome of a look at update `update`: the batch size that is wanted from then on, and the measured value.

    `asked` is the batch size that the rule asked for, before the bounds of Looks; NaN in a decision that was stored.
    """

    update: int
    wanted: int
    value: float
    asked: float = field(default=math.nan, compare=False)


def make_plan(spec: JobSpec, decisions: Sequence[BatchDecision] = ()) -> Plan:
    """Return the plan that follows from the spec and, if its growth is measured, from the decisions taken so far.

    Raises PlanError, naming the field and a remedy, if the plan has more than 1,000 stages or, without decisions, if
    the learning rate falls to 0, or the growth rule's last update, the warm-up or the first look is past the end.
    """
    schedule = schedule_of(spec.learning_rate, spec.epochs)
    growth = spec.batch.growth
    if growth.entry.quantity:
        # What was measured has become decisions, so from here on a measured growth is a list of milestones.
        updates = tuple(one.update for one in decisions)
        sizes = tuple(one.wanted for one in decisions)
        rule: GrowthRule = MilestonesRule(spec.batch.initial, updates, sizes, by_update=True)
    else:
        rule = growth.entry.load()(spec.batch.initial, growth.settings, schedule)
    # The stages come one by one: a rule that changes at each of a billion updates is refused after the 1,001st.
    stages = tuple(islice(_stages(spec, rule, schedule), MOST_STAGES + 1))
    if len(stages) > MOST_STAGES:
        raise PlanError(str(_too_many_stages(spec)))
    plan = Plan(
        stages=stages,
        examples_per_epoch=spec.workload.examples,
        epochs=spec.epochs,
        shard=spec.shard,
        replicas=spec.exchange.replicas,
        in_one_process=not spec.exchange.entry.uses_workers,
        schedule=schedule,
        warmup=spec.learning_rate.warmup,
    )
    if not decisions:
        # A plan with decisions was checked without them when its training began; an error now would end that training.
        _check(plan, spec)
    return plan


def constant_plan(spec: JobSpec) -> Plan:
    """Return the plan of the same job if its batch and its learning rate never changed."""
    batch = spec.batch.model_copy(update={"maximum": spec.batch.initial, "growth": Growth()})
    learning_rate = spec.learning_rate.model_copy(update={"schedule": None, "warmup": None})
    return make_plan(spec.model_copy(update={"batch": batch, "learning_rate": learning_rate}))


def _stages(spec: JobSpec, rule: GrowthRule, schedule: ScheduleRule) -> Iterator[Stage]:
    """Yield the stages: the rule says which batch size is wanted at a position, and how long that answer holds."""
    examples = spec.workload.examples
    epochs = Epochs(examples, spec.epochs)
    growth = spec.batch.growth
    only_grows = not growth.entry.quantity and not growth.entry.shrinks(growth.settings)
    index = 0
    start = Position()
    while start.epoch < spec.epochs:
        wanted = rule.wanted(start)
        used = min(wanted, spec.batch.maximum)
        rate = rate_by_rule(spec.learning_rate, spec.batch.initial, wanted, used)
        if only_grows and used == spec.batch.maximum and not spec.learning_rate.entry.falls_past_maximum:
            # The rule may want ever more, but neither batch nor learning rate follow it, so this stage is the last.
            end = epochs.to_epoch(start, used, spec.epochs)
        else:
            until = rule.until(start)
            if until.update is not None:
                end = epochs.after_updates(start, used, until.update - start.update)
            elif until.epoch is not None:
                end = epochs.to_epoch(start, used, until.epoch)
            else:
                end = epochs.to_epoch(start, used, spec.epochs)
        last_epoch = end.epoch
        if end.offset == 0:
            last_epoch -= 1  # the stage ends with an epoch, so its last update is in the epoch before
        yield Stage(
            index=index,
            first_update=start.update,
            updates=end.update - start.update,
            epoch_from=start.epoch + Fraction(start.offset, examples),
            epoch_to=end.epoch + Fraction(end.offset, examples),
            wanted=wanted,
            batch_size=used,
            rate=rate,
            learning_rate=float(rate * schedule.factor(start.epoch)),
            learning_rate_to=float(rate * schedule.factor(last_epoch)),
            workers=spec.workers.desired(used),
            updates_per_epoch=-(-examples // used),
        )
        index += 1
        start = end


def _check(plan: Plan, spec: JobSpec) -> None:
    """Raise PlanError if a setting makes no sense in a plan of this length, or the learning rate falls to 0."""
    vanished = next((stage for stage in plan.stages if stage.learning_rate_to == 0), None)
    if vanished is not None:
        raise PlanError(str(_vanished(vanished, plan, spec)))
    growth = spec.batch.growth
    last = growth.entry.last_update(growth.settings)
    most = plan.updates
    if last is not None:
        path, update = last
        if update >= plan.updates:
            raise PlanError(
                f"spec.batch.growth.{path}: update {update}; give updates below the {plan.updates} of the plan"
            )
        # Milestones by update may be a measured run's decisions; before them, its plan had the initial batch's updates.
        most = spec.epochs * -(-spec.workload.examples // spec.batch.initial)
    if growth.entry.quantity:
        _check_looks("spec.batch.growth.looks", growth.looks or Looks(), plan.epochs, most)
    rate = spec.learning_rate
    if rate.entry.gain:
        _check_looks(f"spec.learningRate.{rate.entry.block_name}", rate.settings, plan.epochs, most)
    if rate.warmup is not None and rate.warmup.updates > most:
        raise PlanError(
            f"spec.learningRate.warmup.updates: {rate.warmup.updates}; give at most the {most} updates of the plan"
        )


def _check_looks(path: str, windows: Windows, epochs: int, updates: int) -> None:
    """Raise PlanError if a training of `epochs` epochs and `updates` updates would end before its first look."""
    if windows.every_updates is not None:
        if windows.every_updates >= updates:
            raise PlanError(
                f"{path}.everyUpdates: {windows.every_updates}; give updates below the {updates} of the plan"
            )
    elif (windows.every_epochs or 1) >= epochs:
        given = f"{path}.everyEpochs: {windows.every_epochs}"
        if windows.every_epochs is None:
            given = f"{path}: a look {windows.when}"
        raise PlanError(f"{given}; give epochs below spec.epochs, or everyUpdates below {updates}")


def _vanished(stage: Stage, plan: Plan, spec: JobSpec) -> Fault:
    """Return the fault that the learning rate is 0 in this stage, by its rule or else by its schedule."""
    schedule = spec.learning_rate.schedule
    if schedule is None or float(stage.rate) == 0:
        return Fault(
            "spec.learningRate.rule",
            f"{spec.learning_rate.rule} makes the learning rate 0 from epoch {float(stage.epoch_from):g} on",
            "give a larger batch.maximum, a slower growth, or rule Constant",
        )
    first = bisect_left(stage.epochs, True, key=lambda epoch: float(stage.rate * plan.schedule.factor(epoch)) == 0)
    return Fault(
        "spec.learningRate.schedule",
        f"{schedule.type} makes the learning rate 0 from epoch {stage.epochs[first]} on",
        "give settings with which it falls more slowly or less far",
    )


def _too_many_stages(spec: JobSpec) -> Fault:
    """Return the fault of a plan with more than 1,000 stages, and the setting of the growth that makes fewer."""
    growth = spec.batch.growth
    most_updates = spec.epochs * -(-spec.workload.examples // spec.batch.initial)
    coarser = growth.entry.coarser(growth.settings, spec.epochs, most_updates, MOST_STAGES)
    if coarser is None:
        path = "spec.batch.growth"
        given = growth.type
        remedy = "give settings with fewer changes"
    else:
        path = f"spec.batch.growth.{coarser.field}"
        given = coarser.given
        remedy = f"{coarser.enough} is surely enough"
    return Fault(path, f"{given} makes a plan of more than {MOST_STAGES} stages", remedy)
