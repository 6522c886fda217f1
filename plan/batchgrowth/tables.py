"""The plan as text for people."""

from fractions import Fraction
from math import ceil

from rich.table import Table

from batchgrowth.decisions import Decision
from batchgrowth.measuring import Looks
from batchgrowth.plan import Plan, Stage, make_plan
from batchgrowth.spec import Growth, JobSpec

MOST_ROWS = 40


def plan_table(plan: Plan) -> Table:
    """One row per stage: epochs, batch, learning rate, workers, updates, share of the examples.

    Of a long plan, the first and the last stages.
    """
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("stage", "epochs", "batch", "learning rate", "workers", "updates", "examples"):
        table.add_column(name, justify="right")
    hidden = len(plan.stages) - MOST_ROWS
    for stage in plan.stages:
        if hidden > 0 and stage.index == MOST_ROWS // 2:
            table.add_row("…", f"{hidden} stages", *[""] * 5)
        if hidden <= 0 or not MOST_ROWS // 2 <= stage.index < MOST_ROWS // 2 + hidden:
            table.add_row(*_row(stage, plan.epochs))
    return table


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


def plan_totals(plan: Plan, spec: JobSpec) -> str:
    """Total updates and examples, and how many updates the same job takes with a constant batch."""
    if spec.batch.growth.entry.quantity:
        return measured_totals(plan, spec)
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
    when = f"every {looks.every_updates:,} updates" if looks.every_updates else "at the end of each epoch"
    fewest = make_plan(spec, [Decision(1, batch.maximum, 1.0)]).updates
    return (
        f"\nat most {plan.updates:,} and at least {fewest:,} updates for {plan.epochs:,} epochs of "
        f"{plan.examples_per_epoch:,} examples; the batch grows from {batch.initial:,} to {batch.maximum:,} at most, "
        f"as training measures its {batch.growth.entry.quantity} {when}"
    )


def shard_note(plan: Plan, spec: JobSpec) -> str:
    """What a batch.shard below workers.examplesPerWorker costs; empty if it costs nothing.

    A worker computes its shards one after another, each with a pass forward and backward.
    """
    if spec.batch.growth.entry.needs_noise:
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
