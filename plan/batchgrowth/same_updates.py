"""Whether a training can go on with other settings: only if every update that is done would be the same with them.

`what_differs` compares the updates that follow from the settings, not the settings: over 30 epochs a Cosine schedule
differs from one over 40, unless both have `epochs: 30` written in them, or no epoch is over yet.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from batchgrowth.errors import PlanError
from batchgrowth.evaluations import evaluation_due
from batchgrowth.growth_decisions import Course
from batchgrowth.plan import BatchDecision, Plan, make_plan
from batchgrowth.position import Epochs, Position
from batchgrowth.spec import JobSpec, differences, mathematics

PLANNED = ("epochs", "batch", "learningRate")
"""The parts of the mathematics that act through the plan alone, unless something is measured."""


def what_differs(
    before: Mapping[str, Any], spec: JobSpec, position: Position, decisions: Sequence[BatchDecision] = ()
) -> str:
    """Return what would have been different until `position` with the settings of `spec`; "" if nothing.

    `before` is the mathematics with which the training came there, and `decisions` are those of its measured growth.
    """
    now = mathematics(spec)
    if not differences(before, now):
        return ""
    settled = differences(_without_plan(before), _without_plan(now))
    if settled:
        return settled
    try:
        # The mathematics lacks the path of initialWeights, which a JobSpec requires. They do not matter to the plan.
        earlier = JobSpec.model_validate({name: part for name, part in before.items() if name != "initialWeights"})
    except ValidationError:
        return differences(before, now)
    if _measures(earlier) or _measures(spec):
        measured = differences({**before, "epochs": 0}, {**now, "epochs": 0})
        if measured:
            return measured
    try:
        there = make_plan(earlier, decisions)
        here = make_plan(spec, decisions)
    except PlanError as error:
        return str(error)
    found = _at_the_end(earlier, spec, there, here, position) or _in_between(there, here, position)
    return found or _of_waiting(spec, there, here, position)


def _measures(spec: JobSpec) -> bool:
    return bool(spec.batch.growth.entry.quantity or spec.learning_rate.entry.gain)


def _without_plan(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mathematics without what acts through the plan; the shard stays, since it acts in every update."""
    rest = {name: value for name, value in part.items() if name not in PLANNED}
    return {**rest, "batch.shard": part.get("batch", {}).get("shard")}


def _at_the_end(earlier: JobSpec, spec: JobSpec, there: Plan, here: Plan, position: Position) -> str:
    """Return what would have been different because the two plans end at different epochs; "" if nothing."""
    if (position.epoch, position.offset) > (here.epochs, 0):
        return f"{position.epoch} epochs are done, and spec.epochs is {here.epochs}"
    if spec.evaluation.stop_early is not None:
        for epoch in {there.epochs, here.epochs}:
            at = Position(epoch=epoch)
            was_judged = evaluation_due(earlier, there, at, 0)
            if epoch <= position.epoch and was_judged != evaluation_due(spec, here, at, 0):
                return f"stopEarly judges the evaluation after epoch {epoch}, which is only due at the end"
    if there.is_done(position) and not here.is_done(position):
        course = Course(spec)
        if course.looks_at(position):
            return f"the growth looks at the training after update {position.update:,}, which was the end"
        if spec.exchange.entry.computes_ahead:
            return f"with exchange {spec.exchange.type} an end has no gradients for the updates after it"
    return ""


def _in_between(there: Plan, here: Plan, position: Position) -> str:
    """Return the first update until `position` that differs between the two plans; "" if none does."""
    if there.position_at(position.update) != position:
        return f"the plan of the checkpoint is not at epoch {position.epoch} after update {position.update:,}"
    for at in _stretches(there, here, position):
        mine = there.step_at(at)
        theirs = here.step_at(at)
        number = at.update + 1
        if mine.batch_size != theirs.batch_size:
            return f"update {number:,} has {mine.batch_size:,} examples there, {theirs.batch_size:,} here"
        if mine.learning_rate != theirs.learning_rate:
            return f"update {number:,} has learning rate {mine.learning_rate:g} there, {theirs.learning_rate:g} here"
    return ""


def _of_waiting(spec: JobSpec, there: Plan, here: Plan, position: Position) -> str:
    """Return the first update whose gradient is computed already and whose examples differ; "" if there is none."""
    at = position
    for _ in range(spec.exchange.entry.waiting(spec.exchange.settings)):
        if there.is_done(at) and here.is_done(at):
            break
        if there.is_done(at) or here.is_done(at) or there.step_at(at).examples != here.step_at(at).examples:
            return (
                f"with exchange {spec.exchange.type} the gradient of update {at.update + 1:,} is computed already, or "
                f"would be, and of other examples"
            )
        at = there.step_at(at).after
    return ""


def _stretches(there: Plan, here: Plan, position: Position) -> Iterator[Position]:
    """Yield enough positions until `position` to compare two plans, if the caller stops at the first difference."""
    epochs = Epochs(there.examples_per_epoch, there.epochs)
    warm_until = max((warmup.updates for warmup in (there.warmup, here.warmup) if warmup is not None), default=0)
    at = Position()
    while at < position:
        stage = there.stage_at(at.update)
        other = here.stage_at(at.update)
        end = min(position.update, stage.first_update + stage.updates, other.first_update + other.updates)
        yield at
        if (stage.rate, there.schedule, there.warmup) != (other.rate, here.schedule, here.warmup):
            # The learning rate may differ with the epoch, and in a warm-up with each update.
            end = min(end, epochs.to_epoch(at, stage.batch_size, at.epoch + 1).update)
            yield from map(there.position_at, range(at.update + 1, min(end, warm_until)))
        at = there.position_at(end)
