"""The plan as text for people."""

import math
from fractions import Fraction
from math import ceil

from rich.table import Table

from batchgrowth.measured.course import Course
from batchgrowth.measuring import Looks
from batchgrowth.schedule.plan import BatchDecision, make_plan
from batchgrowth.schedule.stages import Plan, Stage
from batchgrowth.spec import Growth, JobSpec

MOST_ROWS = 40


def plan_table(course: Course) -> Table:
    """One row per stage: epochs, batch, learning rate, workers, updates, share of the examples, and the measured value
    that decided it, in a column that is left out if nothing was decided.

    Of a long plan, the first and the last stages.
    """
    plan = course.plan
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("stage", "epochs", "batch", "learning rate", "workers", "updates", "examples"):
        table.add_column(name, justify="right")
    if course.values:
        table.add_column(course.quantity, justify="right")
    hidden = len(plan.stages) - MOST_ROWS
    for stage in plan.stages:
        if hidden > 0 and stage.index == MOST_ROWS // 2:
            table.add_row("…", f"{hidden} stages")
        if hidden <= 0 or not MOST_ROWS // 2 <= stage.index < MOST_ROWS // 2 + hidden:
            table.add_row(*_row(stage, plan.epochs), *_measured(course, stage))
    return table


def _measured(course: Course, stage: Stage) -> tuple[str, ...]:
    if stage.index not in course.values:
        return ()
    value = course.values[stage.index]
    return (f"{value:.4g}" if math.isfinite(value) else "too large to measure",)


def _row(stage: Stage, epochs: int) -> tuple[str, ...]:
    share = (stage.epoch_to - stage.epoch_from) / epochs
    return (
        str(stage.index),
        f"{_epoch(stage.epoch_from)} – {_epoch(stage.epoch_to)}",
        f"{stage.batch_size:,}",
        _rates(stage),
        str(stage.workers),
        f"{stage.updates:,}",
        f"{float(share):.1%}",
    )


def _rates(stage: Stage) -> str:
    """The learning rate of the first update, and that of the last if the schedule moves it."""
    first, last = f"{stage.learning_rate:g}", f"{stage.learning_rate_to:g}"
    return first if first == last else f"{first} → {last}"


def _epoch(epoch: Fraction) -> str:
    return f"{epoch.numerator:,}" if epoch.denominator == 1 else f"{float(epoch):,.2f}"


def plan_totals(course: Course, *, ran: bool = False) -> str:
    """Total updates and examples, and how many updates the same job takes with a constant batch.

    Of a measured job that has not `ran`, the bounds of these.
    """
    if not course.is_measured:
        return declared_totals(course.plan, course.spec)
    if not ran:
        return measured_totals(course.plan, course.spec)
    return f"{declared_totals(course.plan, course.spec)}\n{_decided(course)}"


def _decided(course: Course) -> str:
    if not course.decisions:
        return f"the {course.quantity} has not changed the batch"
    times = "once" if len(course.decisions) == 1 else f"{len(course.decisions)} times"
    return f"the {course.quantity} changed the batch {times}, last at update {course.decisions[-1].update:,}"


def declared_totals(plan: Plan, spec: JobSpec) -> str:
    """Updates, examples, and the updates of a constant batch, for a plan that is known to its end."""
    batch = spec.batch.model_copy(update={"maximum": spec.batch.initial, "growth": Growth()})
    learning_rate = spec.learning_rate.model_copy(update={"schedule": None, "warmup": None})
    constant = make_plan(spec.model_copy(update={"batch": batch, "learning_rate": learning_rate})).updates
    examples = f"{plan.epochs:,} epochs of {plan.examples_per_epoch:,} examples"
    total = f"\n{plan.updates:,} updates for {examples}"
    if constant == plan.updates:
        return f"{total}; the batch stays at {spec.batch.initial:,}"
    ratio = constant / plan.updates
    return f"{total}; a constant batch of {spec.batch.initial:,} takes {constant:,}, {ratio:.1f} times as many"


def measured_totals(plan: Plan, spec: JobSpec) -> str:
    """What is known of a job whose growth is measured before it trains: the most updates, and the bounds."""
    batch, looks = spec.batch, spec.batch.growth.looks or Looks()
    fewest = make_plan(spec, [BatchDecision(1, batch.maximum, 1.0)]).updates
    return (
        f"\nat most {plan.updates:,} and at least {fewest:,} updates for {plan.epochs:,} epochs of "
        f"{plan.examples_per_epoch:,} examples; the batch grows from {batch.initial:,} to {batch.maximum:,} at most, "
        f"as training measures its {batch.growth.entry.quantity} {looks.when}"
    )


def clock_note(spec: JobSpec) -> str:
    """What a growth rule that looks at a clock means for a second run; empty for the other rules."""
    if not spec.batch.growth.entry.looks_at_clock:
        return ""
    return (
        f"note: {spec.batch.growth.type} looks at a clock, so another run may decide otherwise and end with other "
        "weights. To repeat a run exactly, train what `batchgrowth manifest RUN` prints."
    )


def exchange_note(spec: JobSpec) -> str:
    """What weights that differ from run to run mean for a second run; empty for a job whose weights do not."""
    if spec.promise != "Nondeterministic":
        return ""
    by_exchange = spec.exchange.entry.promise == "Nondeterministic"
    whose = f"of exchange {spec.exchange.type}" if by_exchange else "that a GPU computes with deterministic: false"
    return (
        f"note: the weights {whose} differ from run to run, even on the same machine; the promise of equal weights "
        "does not cover them."
    )


def gain_note(spec: JobSpec) -> str:
    """By what a measured gain multiplies the learning rates of the plan; empty without one."""
    rate = spec.learning_rate
    if not rate.entry.gain:
        return ""
    return (
        f"note: {rate.rule} multiplies these learning rates by a gain between 1 and B / {spec.batch.initial:,}, for a "
        f"batch of B, which training measures {rate.settings.when}."
    )


def shard_note(plan: Plan, spec: JobSpec) -> str:
    """What a batch.shard below workers.examplesPerWorker costs; empty if it costs nothing.

    A worker computes its shards one after another, each with a pass forward and backward.
    """
    if spec.batch.growth.entry.needs_noise or spec.learning_rate.entry.gain:
        return ""  # the noise shows only between shards
    fine, coarse = _passes(plan, plan.shard), _passes(plan, spec.workers.examples_per_worker)
    if fine <= coarse:
        return ""
    return (
        f"note: batch.shard {plan.shard:,} is finer than the planned workers can use: each computes {fine:,} shards "
        f"one after another, {fine / coarse:.1f} times as many as with shards of workers.examplesPerWorker, "
        f"{spec.workers.examples_per_worker:,}. Small models train slower by almost that factor; leave batch.shard out."
    )


def _passes(plan: Plan, shard: int) -> int:
    """The shards that the busiest worker computes over the whole plan."""
    return sum(stage.updates * ceil(ceil(stage.batch_size / shard) / stage.workers) for stage in plan.stages)
