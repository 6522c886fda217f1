"""Making the plan of a spec, in closed form over stages: a million epochs take no longer to plan than ten."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice

from batchgrowth.choices.growth_declared import MilestonesRule
from batchgrowth.errors import Fault, PlanError
from batchgrowth.exact_numbers import exact
from batchgrowth.extend import GrowthRule, ScheduleRule
from batchgrowth.measuring import Looks, Windows
from batchgrowth.position import Epochs, Position
from batchgrowth.schedule.stages import Plan, Stage, Step
from batchgrowth.spec import JobSpec, LearningRate, Schedule

__all__ = [
    "MOST_DECISIONS", "MOST_STAGES", "BatchDecision", "Plan", "Position", "Stage", "Step", "evaluation_due",
    "learning_rate", "make_plan", "schedule_of",
]  # fmt: skip

MOST_STAGES = 1000
"""The most stages of a plan, which is stored in a Kubernetes object of bounded size."""

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


def make_plan(spec: JobSpec, decisions: Sequence[BatchDecision] = ()) -> Plan:
    """Return the plan that follows from the spec and, if its growth is measured, from the decisions taken so far.

    Raises PlanError, naming the field and a remedy, if the plan has more than 1,000 stages, the learning rate falls
    to 0, or the growth rule or the warm-up names an update past the end. A plan with decisions was checked when its
    training began, so these errors are not raised for it.
    """
    schedule = schedule_of(spec.learning_rate, spec.epochs)
    stages = tuple(islice(_stages(spec, _growth_rule(spec, schedule, decisions), schedule), MOST_STAGES + 1))
    if len(stages) > MOST_STAGES:
        raise PlanError(str(_too_many_stages(spec)))
    plan = Plan(
        stages=stages,
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


def schedule_of(rate: LearningRate, epochs: int) -> ScheduleRule:
    """Return the schedule of a job of `epochs`."""
    chosen = rate.schedule or Schedule()
    schedule: ScheduleRule = chosen.entry.load()(chosen.settings, epochs)
    return schedule


def _growth_rule(spec: JobSpec, schedule: ScheduleRule, decisions: Sequence[BatchDecision]) -> GrowthRule:
    """Return the spec's declared rule; for a measured one, milestones at the decisions taken so far."""
    growth = spec.batch.growth
    if growth.entry.quantity:
        updates = tuple(one.update for one in decisions)
        sizes = tuple(one.wanted for one in decisions)
        return MilestonesRule(spec.batch.initial, updates, sizes, by_update=True)
    rule: GrowthRule = growth.entry.load()(spec.batch.initial, growth.settings, schedule)
    return rule


def _stages(spec: JobSpec, rule: GrowthRule, schedule: ScheduleRule) -> Iterator[Stage]:
    examples = spec.workload.examples
    epochs = Epochs(examples, spec.epochs)
    growth = spec.batch.growth
    only_grows = not growth.entry.quantity and not growth.entry.shrinks(growth.settings)
    index = 0
    start = Position()
    while start.epoch < spec.epochs:
        wanted = rule.wanted(start)
        used = min(wanted, spec.batch.maximum)
        rate = learning_rate(spec.learning_rate, spec.batch.initial, wanted, used)
        if only_grows and used == spec.batch.maximum and not spec.learning_rate.entry.falls_past_maximum:
            end = epochs.to_epoch(start, used, spec.epochs)  # the rule may want more, but nothing follows from that
        else:
            until = rule.until(start)
            if until.update is not None:
                end = epochs.after_updates(start, used, until.update - start.update)
            else:
                end = epochs.to_epoch(start, used, spec.epochs if until.epoch is None else until.epoch)
        last_epoch = end.epoch if end.offset else end.epoch - 1
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
            workers=spec.workers.wanted(used),
            updates_per_epoch=-(-examples // used),
        )
        index += 1
        start = end


def learning_rate(rate: LearningRate, initial: int, wanted: int, used: int) -> Fraction:
    """Return the learning rate of a batch of `used` examples when `wanted` were wanted and `initial` at the start.

    It stays a fraction until the last step: exact if it is rational, else far more precise than a float.
    """
    result: Fraction = rate.entry.load()(exact(rate.initial), initial, wanted, used)
    return result


def evaluation_due(spec: JobSpec, plan: Plan, position: Position, evaluated: int) -> bool:
    """Return True if an epoch ends at `position` and is due for evaluation; epochs up to `evaluated` are done.

    The last epoch is always evaluated.
    """
    if position.offset or position.epoch <= evaluated:
        return False
    return position.epoch % spec.evaluation.every_epochs == 0 or plan.is_done(position)


def _check(plan: Plan, spec: JobSpec) -> None:
    """Raise PlanError if a setting makes no sense in a plan of this length, or the learning rate falls to 0."""
    vanished = next((stage for stage in plan.stages if stage.learning_rate_to == 0), None)
    if vanished is not None:
        raise PlanError(str(_vanished(vanished, plan, spec)))
    growth = spec.batch.growth
    last = growth.entry.last_update(growth.settings)
    if last is not None:
        path, update = last
        if update >= plan.updates:
            raise PlanError(
                f"spec.batch.growth.{path}: update {update}; give updates below the {plan.updates} of the plan"
            )
    if growth.entry.quantity:
        _check_looks("spec.batch.growth.looks", growth.looks or Looks(), plan)
    rate = spec.learning_rate
    if rate.entry.gain:
        _check_looks(f"spec.learningRate.{rate.entry.block_name}", rate.settings, plan)
    if rate.warmup is not None and rate.warmup.updates > plan.updates:
        raise PlanError(
            f"spec.learningRate.warmup.updates: {rate.warmup.updates}; "
            f"give at most the {plan.updates} updates of the plan"
        )


def _check_looks(path: str, windows: Windows, plan: Plan) -> None:
    """Raise PlanError if no look comes before the end."""
    updates = windows.every_updates
    epochs = windows.every_epochs
    if updates is not None:
        if updates >= plan.updates:
            raise PlanError(f"{path}.everyUpdates: {updates}; give updates below the {plan.updates} of the plan")
    elif (epochs or 1) >= plan.epochs:
        given = f"{path}: a look {windows.when}" if epochs is None else f"{path}.everyEpochs: {epochs}"
        raise PlanError(f"{given}; give epochs below spec.epochs, or everyUpdates below {plan.updates}")


def _vanished(stage: Stage, plan: Plan, spec: JobSpec) -> Fault:
    """Return which field makes the learning rate 0 in this stage: the rate rule, or else the schedule."""
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
