"""The plan as text for people."""

import math
from fractions import Fraction
from math import ceil

from rich.table import Table

from batchgrowth.growth import Course
from batchgrowth.looks import Looks
from batchgrowth.plan import BatchDecision, Plan, Stage, make_plan
from batchgrowth.spec import Growth, JobSpec

MOST_ROWS = 40
"""The most stages that a table shows."""


def plan_table(course: Course) -> Table:
    """Return a table with a row per stage: epochs, batch, learning rate, workers, updates and share of the examples.

    If stages were decided while training, a last column has the measured values that decided them. A long plan shows
    its first and its last stages only.
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
            table.add_row(*_row(stage, course))
    return table


def _row(stage: Stage, course: Course) -> list[str]:
    rate = f"{stage.learning_rate:g}"
    last_rate = f"{stage.learning_rate_to:g}"
    if last_rate != rate:
        rate = f"{rate} → {last_rate}"
    share = (stage.epoch_to - stage.epoch_from) / course.plan.epochs
    row = [
        str(stage.index),
        f"{_epoch(stage.epoch_from)} – {_epoch(stage.epoch_to)}",
        f"{stage.batch_size:,}",
        rate,
        str(stage.workers),
        f"{stage.updates:,}",
        f"{float(share):.1%}",
    ]
    if stage.index in course.values:
        value = course.values[stage.index]
        row.append(f"{value:.4g}" if math.isfinite(value) else "too large to measure")
    return row


def _epoch(epoch: Fraction) -> str:
    if epoch.denominator == 1:
        return f"{epoch.numerator:,}"
    return f"{float(epoch):,.2f}"


def plan_totals(course: Course, *, ran: bool = False) -> str:
    """Return the total updates and examples, and how many updates the same job takes with a constant batch.

    Returns bounds for a measured job that has not run.
    """
    if not course.is_measured:
        return declared_totals(course.plan, course.spec)
    if not ran:
        return measured_totals(course.plan, course.spec)
    if not course.decisions:
        changes = f"the {course.quantity} has not changed the batch"
    else:
        times = "once" if len(course.decisions) == 1 else f"{len(course.decisions)} times"
        changes = f"the {course.quantity} changed the batch {times}, last at update {course.decisions[-1].update:,}"
    return f"{declared_totals(course.plan, course.spec)}\n{changes}"


def declared_totals(plan: Plan, spec: JobSpec) -> str:
    """Return updates, examples, and the updates of a constant batch, for a plan that is known to its end."""
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
    """Return what is known of a measured job before it trains: the most and the fewest updates, and the batches."""
    batch = spec.batch
    looks = batch.growth.looks or Looks()
    fewest = make_plan(spec, [BatchDecision(1, batch.maximum, 1.0)]).updates
    return (
        f"\nat most {plan.updates:,} and at least {fewest:,} updates for {plan.epochs:,} epochs of "
        f"{plan.examples_per_epoch:,} examples; the batch grows from {batch.initial:,} to {batch.maximum:,} at most, "
        f"as training measures its {batch.growth.entry.quantity} {looks.when}"
    )


def clock_note(spec: JobSpec) -> str:
    """Return what a growth rule that looks at a clock means for a second run; empty for the other rules."""
    if not spec.batch.growth.entry.looks_at_clock:
        return ""
    return (
        f"note: {spec.batch.growth.type} looks at a clock, so another run may decide otherwise and end with other "
        "weights. To repeat a run exactly, train what `batchgrowth manifest RUN` prints."
    )


def exchange_note(spec: JobSpec) -> str:
    """Return what to expect of a second run if its weights will differ; empty if they will not."""
    if spec.promise != "Nondeterministic":
        return ""
    if spec.exchange.entry.promise == "Nondeterministic":
        whose = f"of exchange {spec.exchange.type}"
    else:
        whose = "that a GPU computes with deterministic: false"
    return (
        f"note: the weights {whose} differ from run to run, even on the same machine; the promise of equal weights "
        "does not cover them."
    )


def gain_note(spec: JobSpec) -> str:
    """Return how a measured gain changes the learning rates of the plan; empty without a gain."""
    rate = spec.learning_rate
    if not rate.entry.gain:
        return ""
    return (
        f"note: {rate.rule} multiplies these learning rates by a gain between 1 and B / {spec.batch.initial:,}, for a "
        f"batch of B, which training measures {rate.settings.when}."
    )


def shard_note(plan: Plan, spec: JobSpec) -> str:
    """Return what a batch.shard below workers.examplesPerWorker costs; empty if it costs nothing.

    A worker computes its shards one after another, each with a pass forward and backward.
    """
    if spec.batch.growth.entry.needs_noise or spec.learning_rate.entry.gain:
        return ""  # the noise shows only between shards
    fine = _passes(plan, plan.shard)
    coarse = _passes(plan, spec.workers.examples_per_worker)
    if fine <= coarse:
        return ""
    return (
        f"note: batch.shard {plan.shard:,} is finer than the planned workers can use: each computes {fine:,} shards "
        f"one after another, {fine / coarse:.1f} times as many as with shards of workers.examplesPerWorker, "
        f"{spec.workers.examples_per_worker:,}. Small models train slower by almost that factor; leave batch.shard out."
    )


def _passes(plan: Plan, shard: int) -> int:
    """Return how many shards the busiest worker computes over the whole plan."""
    return sum(stage.updates * ceil(ceil(stage.batch_size / shard) / stage.workers) for stage in plan.stages)
