"""What `batchgrowth probe` prints for people, with the part of a manifest with which the run can go on."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from batchgrowth.plan import Plan
from batchgrowth.position import Position
from batchgrowth.probe.critical import Compared, Critical, Stretch
from batchgrowth.spec import JobSpec


def batch_block(spec: JobSpec, plan: Plan, position: Position, batch_size: int) -> dict[str, Any] | None:
    """Return `spec.batch` with the batch sizes of the plan until a position as milestones, and `batch_size` from then
    on, or batch.initial if that is larger: milestones do not go below it. What is done would have been the same with
    it, so a run can resume with it.

    None if batch.maximum holds a batch of the plan below what the growth wants: a larger maximum would change it. None
    also if the job measures its growth or its learning rate: a run goes on with the same measurements alone.
    """
    if spec.batch.growth.entry.quantity or spec.learning_rate.entry.gain:
        return None
    stages = [stage for stage in plan.stages if stage.first_update <= position.update]
    if any(stage.wanted != stage.batch_size for stage in stages):
        return None
    wanted = {stage.first_update: stage.wanted for stage in stages} | {
        position.update: max(batch_size, spec.batch.initial)
    }
    steps = []
    present = spec.batch.initial
    for update, size in wanted.items():
        if size != present:
            steps.append({"update": update, "batchSize": size})
            present = size
    growth: dict[str, Any] = {"type": "Constant"}
    if steps:
        growth = {"type": "Milestones", "milestones": {"steps": steps}}
    block = {"initial": spec.batch.initial, "maximum": max(spec.batch.maximum, batch_size)}
    if spec.batch.shard is not None:
        block["shard"] = spec.batch.shard
    return {**block, "growth": growth}


def heading(plan: Plan, stretch: Stretch, orders: int) -> str:
    """Return where the branches begin and how long they are."""
    position = stretch.begin
    epoch = position.epoch + position.offset / plan.examples_per_epoch
    batch = plan.stage_at(position.update).batch_size
    times = "in one order" if orders == 1 else f"in {orders} orders"
    return (
        f"from update {position.update:,}, epoch {epoch:.4g}, where the run has a batch of {batch:,}; "
        f"each branch takes {stretch.examples:,} examples, {times}"
    )


def branch_table(rows: Sequence[Compared]) -> Table:
    """Return a table with a row for each batch size."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("batch", "learning rate", "updates", "loss", "above the best smaller"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        branch = row.branch
        excess = ""
        if row is not rows[0]:
            excess = f"{row.excess:+.1%} ± {row.excess_error:.1%}"
        loss = f"{branch.loss:.4g} ± {row.error:.2g}"
        table.add_row(f"{branch.batch_size:,}", f"{branch.learning_rate:g}", f"{branch.updates:,}", loss, excess)
    return table


def critical_sentence(rows: Sequence[Compared], critical: Critical, tolerance: float) -> str:
    """Return the critical batch, with the interval that the errors of the losses leave."""
    share = f"{100 * tolerance:g} %"
    if critical.beyond is None:
        found = f"critical batch: {critical.within:,} or more"
        if critical.low < critical.within:
            found += f", or by the errors of the losses {critical.low:,} or more"
        return f"{found}; no batch that was tried has a loss more than {share} above that of the best smaller one"
    high = "more" if critical.high is None else f"{critical.high:,}"
    found = f"critical batch: {critical.value:,.0f}, from {critical.low:,} to {high} by the errors of the losses"
    if critical.within == rows[0].branch.batch_size:
        return f"{found}, or less, since no smaller batch was tried; {critical.beyond:,} is more than {share} above it"
    return f"{found}; {critical.within:,} is within {share} of the best smaller batch, and {critical.beyond:,} is not"


def remedy(critical: Critical, of_run: int, initial: int) -> str:
    """Return what the critical batch means for the run; `initial` is batch.initial, the smallest batch that it may
    have.
    """
    within = critical.within
    if within > of_run:
        return f"the run could go on with a batch of {within:,}, and lose nothing:"
    if within == of_run:
        return f"the run's batch of {of_run:,} is the largest tried that loses nothing; to keep it:"
    if within >= initial:
        return f"a batch of {within:,} would make more of the same examples:"
    return f"a batch of {within:,} would make more of the same examples, but milestones start at batch.initial:"


def no_block(spec: JobSpec) -> str:
    """Return what is said in place of a block of the manifest."""
    if spec.batch.growth.entry.quantity:
        return f"no milestones follow: the run's own growth, {spec.batch.growth.type}, decides its next batches"
    if spec.learning_rate.entry.gain:
        return (
            f"no milestones follow: {spec.learning_rate.rule} measures while the batch grows, so a run cannot go on "
            "with another growth; give milestones from the start"
        )
    return (
        "no milestones follow: batch.maximum holds the batch below what the growth wants, and the learning rate falls "
        "in its place; give a larger maximum from the start"
    )
