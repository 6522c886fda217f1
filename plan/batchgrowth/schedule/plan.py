"""Decisions of a measured rule of growth."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice

from batchgrowth.choices.growth_declared import MilestonesRule
from batchgrowth.errors import Fault, PlanError
from batchgrowth.extend import GrowthRule, ScheduleRule, Until
from batchgrowth.measuring import Looks, Windows
from batchgrowth.position import Epochs, Position
from batchgrowth.schedule.stages import Plan, Stage, Step, learning_rate, schedule_of
from batchgrowth.spec import JobSpec

# --- Decisions of a measured rule of growth ---

MOST_DECISIONS = 256
"""The most changes of the batch that a measured rule may decide; the batch then stays as it is."""


@dataclass(frozen=True, slots=True)
class BatchDecision:
    """The outcome of a look at update `update`: the batch size wanted from then on, and the measured value.

    `asked` is the batch size that the rule asked for, before the bounds of Looks; NaN in a decision that was stored.
    """

    update: int
    wanted: int
    value: float
    asked: float = field(default=math.nan, compare=False)


# --- The plan of a spec, in closed form over stages: a million epochs take no longer to plan than ten ---

__all__ = ["MOST_STAGES", "Plan", "Position", "Stage", "Step", "evaluation_due", "make_plan"]

MOST_STAGES = 1000
"""The most stages of a plan, which is stored in a Kubernetes object of bounded size."""


@dataclass(frozen=True, slots=True)
class _Segment:
    """The updates from `start` to `end`, with one batch size and one learning rate by the rate rule."""

    start: Position
    end: Position
    wanted: int
    batch_size: int
    learning_rate: Fraction


def make_plan(spec: JobSpec, decisions: Sequence[BatchDecision] = ()) -> Plan:
    """The plan that follows from the spec, and, if its growth is measured, from the decisions taken so far.

    Raises PlanError, naming the field and what would do, if the plan has more than 1,000 stages, the learning rate
    falls to 0, or the growth rule or the warm-up names an update past the end. What was decided while training never
    raises it.
    """
    schedule = schedule_of(spec.learning_rate, spec.epochs)
    segments = list(islice(_segments(spec, _growth_rule(spec, schedule, decisions)), MOST_STAGES + 1))
    if len(segments) > MOST_STAGES:
        raise PlanError(str(_too_many_stages(spec)))
    plan = Plan(
        stages=tuple(_stage(index, segment, spec, schedule) for index, segment in enumerate(segments)),
        examples_per_epoch=spec.workload.examples,
        epochs=spec.epochs,
        shard=spec.shard,
        replicas=spec.exchange.replicas,
        schedule=schedule,
        warmup=spec.learning_rate.warmup,
    )
    if not decisions:
        _check(plan, spec)
    return plan


def evaluation_due(spec: JobSpec, plan: Plan, position: Position, evaluated: int) -> bool:
    """True if an epoch ends at `position` and is due for evaluation; epochs up to `evaluated` are done.

    The last epoch is always evaluated.
    """
    if position.offset or position.epoch <= evaluated:
        return False
    return position.epoch % spec.evaluation.every_epochs == 0 or plan.is_done(position)


def _growth_rule(spec: JobSpec, schedule: ScheduleRule, decisions: Sequence[BatchDecision]) -> GrowthRule:
    growth = spec.batch.growth
    if growth.entry.quantity:
        at, sizes = tuple(one.update for one in decisions), tuple(one.wanted for one in decisions)
        return MilestonesRule(spec.batch.initial, at, sizes, by_update=True)
    rule: GrowthRule = growth.entry.load()(spec.batch.initial, growth.settings, schedule)
    return rule


def _segments(spec: JobSpec, rule: GrowthRule) -> Iterator[_Segment]:
    epochs, position = Epochs(spec.workload.examples, spec.epochs), Position()
    while position.epoch < spec.epochs:
        wanted = rule.wanted(position)
        used = min(wanted, spec.batch.maximum)
        rate = learning_rate(spec.learning_rate, spec.batch.initial, wanted, used)
        end = _end(epochs, position, used, _until(spec, rule, position, used))
        yield _Segment(position, end, wanted, used, rate)
        position = end


def _until(spec: JobSpec, rule: GrowthRule, position: Position, used: int) -> Until:
    """When something next changes: never if a batch that only grows is at its maximum, with a rate that stays."""
    growth = spec.batch.growth
    only_grows = not growth.entry.quantity and not growth.entry.shrinks(growth.settings)
    settled = only_grows and used == spec.batch.maximum and not spec.learning_rate.entry.falls_past_maximum
    return Until() if settled else rule.until(position)


def _end(epochs: Epochs, start: Position, batch: int, until: Until) -> Position:
    if until.update is not None:
        return epochs.after_updates(start, batch, until.update - start.update)
    return epochs.to_epoch(start, batch, epochs.epochs if until.epoch is None else until.epoch)


def _stage(index: int, segment: _Segment, spec: JobSpec, schedule: ScheduleRule) -> Stage:
    examples = spec.workload.examples
    last_epoch = segment.end.epoch - (segment.end.offset == 0)
    return Stage(
        index=index,
        first_update=segment.start.update,
        updates=segment.end.update - segment.start.update,
        epoch_from=segment.start.epoch + Fraction(segment.start.offset, examples),
        epoch_to=segment.end.epoch + Fraction(segment.end.offset, examples),
        wanted=segment.wanted,
        batch_size=segment.batch_size,
        rate=segment.learning_rate,
        learning_rate=float(segment.learning_rate * schedule.factor(segment.start.epoch)),
        learning_rate_to=float(segment.learning_rate * schedule.factor(last_epoch)),
        workers=spec.workers.wanted(segment.batch_size),
        updates_per_epoch=-(-examples // segment.batch_size),
    )


def _too_many_stages(spec: JobSpec) -> Fault:
    growth = spec.batch.growth
    most_updates = spec.epochs * -(-spec.workload.examples // spec.batch.initial)
    coarser = growth.entry.coarser(growth.settings, spec.epochs, most_updates, MOST_STAGES)
    field = f".{coarser.field}" if coarser else ""
    return Fault(
        f"spec.batch.growth{field}",
        f"{coarser.given if coarser else growth.type} makes a plan of more than {MOST_STAGES} stages",
        f"{coarser.enough} is surely enough" if coarser else "give settings with fewer changes",
    )


def _check(plan: Plan, spec: JobSpec) -> None:
    vanished = next((stage for stage in plan.stages if stage.learning_rate_to == 0), None)
    if vanished is not None:
        raise PlanError(str(_vanished(vanished, plan, spec)))
    last = spec.batch.growth.entry.last_update(spec.batch.growth.settings)
    if last is not None and last[1] >= plan.updates:
        raise PlanError(
            f"spec.batch.growth.{last[0]}: update {last[1]}; give updates below the {plan.updates} of the plan"
        )
    growth, rate = spec.batch.growth, spec.learning_rate
    if growth.entry.quantity:
        _check_looks("spec.batch.growth.looks", growth.looks or Looks(), plan)
    if rate.entry.gain:
        _check_looks(f"spec.learningRate.{rate.entry.block_name}", rate.settings, plan)
    warmup = rate.warmup
    if warmup is not None and warmup.updates > plan.updates:
        raise PlanError(
            f"spec.learningRate.warmup.updates: {warmup.updates}; give at most the {plan.updates} updates of the plan"
        )


def _check_looks(field: str, windows: Windows, plan: Plan) -> None:
    """Raises PlanError if no look comes before the end."""
    updates, epochs = windows.every_updates, windows.every_epochs
    if updates is not None and updates >= plan.updates:
        raise PlanError(f"{field}.everyUpdates: {updates}; give updates below the {plan.updates} of the plan")
    if updates is None and (epochs or 1) >= plan.epochs:
        given = f"{field}: a look {windows.when}" if epochs is None else f"{field}.everyEpochs: {epochs}"
        raise PlanError(f"{given}; give epochs below spec.epochs, or everyUpdates below {plan.updates}")


def _vanished(stage: Stage, plan: Plan, spec: JobSpec) -> Fault:
    """What makes the learning rate 0 in this stage: the rate rule, or else the schedule."""
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
