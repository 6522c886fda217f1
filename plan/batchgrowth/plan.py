"""From a spec to its plan, in closed form over stages: a plan of a million epochs takes no longer than one of ten."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from batchgrowth.errors import Fault, PlanError
from batchgrowth.learning import falls_past_maximum, learning_rate
from batchgrowth.policies import Measurements, Policy, Until, policy_for
from batchgrowth.position import Position
from batchgrowth.spec import JobSpec
from batchgrowth.stages import Plan, Stage, Step
from batchgrowth.walk import Epochs
from batchgrowth.workers import wanted_workers

__all__ = ["MOST_STAGES", "Plan", "Position", "Stage", "Step", "make_plan"]

MOST_STAGES = 1000
"""A plan goes into the status of a Kubernetes object, whose size is bounded; and nobody reads a longer one."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Updates from `start` to `end` with the same batch size and learning rate."""

    start: Position
    end: Position
    wanted: int
    batch_size: int
    learning_rate: Fraction


def make_plan(spec: JobSpec) -> Plan:
    """The plan that follows from the spec: the same spec, the same plan.

    Raises PlanError, naming the field and what would do, where the plan has more than 1,000 stages, the learning rate
    falls to nothing, or the warm-up is longer than the training.
    """
    runs: list[_Run] = []
    for run in _runs(spec):
        runs.append(run)
        if len(runs) > MOST_STAGES:
            raise PlanError(str(_too_many_stages(spec)))
    plan = Plan(
        stages=tuple(_stage(index, run, spec) for index, run in enumerate(runs)),
        examples_per_epoch=spec.workload.examples,
        epochs=spec.epochs,
        shard=spec.batch.shard,
        warmup=spec.learning_rate.warmup,
    )
    _check(plan, spec)
    return plan


def _runs(spec: JobSpec) -> Iterator[_Run]:
    epochs, policy = Epochs(spec.workload.examples, spec.epochs), policy_for(spec.batch)
    position = Position()
    while position.epoch < spec.epochs:
        wanted = policy.wanted(position, Measurements())
        used = min(wanted, spec.batch.maximum)
        rate = learning_rate(spec.learning_rate, spec.batch.initial, wanted, used)
        end = _end(epochs, position, used, _until(spec, policy, position, used))
        yield _Run(position, end, wanted, used, rate)
        position = end


def _until(spec: JobSpec, policy: Policy, position: Position, used: int) -> Until:
    """When something next changes: never again, where the batch is at its maximum and the rate does not follow."""
    settled = used == spec.batch.maximum and not falls_past_maximum(spec.learning_rate)
    return Until() if settled else policy.until(position)


def _end(epochs: Epochs, start: Position, batch: int, until: Until) -> Position:
    if until.update is not None:
        return epochs.after_updates(start, batch, until.update - start.update)
    return epochs.to_epoch(start, batch, epochs.epochs if until.epoch is None else until.epoch)


def _stage(index: int, run: _Run, spec: JobSpec) -> Stage:
    examples = spec.workload.examples
    return Stage(
        index=index,
        first_update=run.start.update,
        updates=run.end.update - run.start.update,
        epoch_from=run.start.epoch + Fraction(run.start.offset, examples),
        epoch_to=run.end.epoch + Fraction(run.end.offset, examples),
        wanted=run.wanted,
        batch_size=run.batch_size,
        learning_rate=float(run.learning_rate),
        workers=wanted_workers(run.batch_size, spec.workers),
        updates_per_epoch=-(-examples // run.batch_size),
    )


def _too_many_stages(spec: JobSpec) -> Fault:
    growth = spec.batch.growth
    if growth.linear is not None:
        most_updates = spec.epochs * -(-spec.workload.examples // spec.batch.initial)
        field, given, enough = "linear.everyUpdates", growth.linear.every_updates, -(-most_updates // MOST_STAGES)
    else:
        assert growth.geometric is not None, "milestones are bounded by their list, and a constant batch has one stage"
        field, given, enough = "geometric.everyEpochs", growth.geometric.every_epochs, -(-spec.epochs // MOST_STAGES)
    return Fault(
        f"spec.batch.growth.{field}",
        f"{given} makes a plan of more than {MOST_STAGES} stages",
        f"{enough} is surely enough",
    )


def _check(plan: Plan, spec: JobSpec) -> None:
    vanished = next((stage for stage in plan.stages if stage.learning_rate == 0), None)
    if vanished is not None:
        raise PlanError(
            f"spec.learningRate.rule: DecayPastMaximum makes the learning rate 0 from epoch "
            f"{float(vanished.epoch_from):g} on; give a larger batch.maximum, a slower growth, or rule Constant"
        )
    warmup = spec.learning_rate.warmup
    if warmup is not None and warmup.updates > plan.updates:
        raise PlanError(
            f"spec.learningRate.warmup.updates: {warmup.updates}; give at most the {plan.updates} updates of the plan"
        )
