"""A probe: the critical batch of a training, from short branches of it with other batches, and what the command prints.

A branch goes on from a position of the run with a quarter to four times the run's batch; the trainer makes branches.
All branches end after the same examples: with an epoch, or after an example that ends an update in all of them. The
critical batch is the largest with which an example is worth as much as with smaller ones: the loss after the same
examples exceeds the loss of the best smaller batch by no more than a tolerance (Merrill et al., 2025). The learning
rate follows the batch by the job's rule, so the critical batch holds for this rule.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, lcm
from statistics import fmean, variance
from typing import Any

from rich.table import Table

from batchgrowth.errors import Fault, PlanError, SpecError, counted
from batchgrowth.learning_rate import rate_by_rule
from batchgrowth.plan import Plan, Stage
from batchgrowth.position import Epochs, Position
from batchgrowth.spec import JobSpec

FACTORS = (Fraction(1, 4), Fraction(1, 2), Fraction(1), Fraction(2), Fraction(4))
"""The batch sizes that are tried first, as multiples of the run's."""
DEFAULT_UPDATES = 36
"""The updates of a branch with the largest batch, unless a number of examples is given."""
FEWEST_UPDATES = 8
"""The fewest updates of a branch that says enough about its batch; with fewer, the trainer adds a note."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Where the branches begin and end; `examples` lie between."""

    begin: Position
    epoch: int
    offset: int
    examples: int

    def has_ended(self, position: Position) -> bool:
        """Return whether a branch that has come to `position` is at its end."""
        return (position.epoch, position.offset) >= (self.epoch, self.offset)


@dataclass(frozen=True, slots=True)
class Batches:
    """The batch sizes that a probe tries first, in order, and a line for each that it leaves out."""

    of_run: int
    tried: tuple[int, ...]
    left_out: tuple[str, ...]


def batches_at(plan: Plan, position: Position) -> Batches:
    """Return the batch sizes to try at a position of the run's plan.

    Raises SpecError if only the run's own is left.
    """
    batch = plan.stage_at(position.update).batch_size
    tried = []
    left_out = []
    for factor in FACTORS:
        size = batch * factor
        reason = _why_not(size, plan)
        if factor == 1 or not reason:
            tried.append(int(size))
        else:
            left_out.append(f"a batch of {float(size):g} is left out: {reason}")
    if len(tried) == 1:
        given = f"{batch:,}, and nothing from a quarter to four times as many can be tried: {left_out[-1]}"
        instead = f"train with a batch of several shards of {plan.shard:,}, and below {plan.examples_per_epoch:,}"
        raise SpecError([Fault("spec.batch", given, instead)])
    return Batches(batch, tuple(tried), tuple(left_out))


def _why_not(size: Fraction, plan: Plan) -> str:
    """Return why no branch can have this batch size; "" if one can."""
    if size.denominator != 1:
        return "it is no whole number"
    if size > plan.examples_per_epoch:
        return f"an epoch has {plan.examples_per_epoch:,} examples"
    if size > plan.shard and size % plan.shard:
        return f"it is no whole number of shards of {plan.shard:,}"
    return ""


def between(lower: int, upper: int, plan: Plan) -> int | None:
    """Return the size halfway between two batches; None if no branch can have it or `upper` is not twice `lower`."""
    size = Fraction(lower + upper, 2)
    if lower * 2 != upper or _why_not(size, plan):
        return None
    return int(size)


def stretch_from(plan: Plan, position: Position, batches: Batches, asked: int | None) -> Stretch:
    """Return where the branches begin and end: after about `asked` examples, but before the run's batch changes.

    If `asked` is None, the largest batch makes about DEFAULT_UPDATES updates. Raises PlanError if the examples asked
    for, or left until the batch changes, are too few for all branches to end an update together.
    """
    stage = plan.stage_at(position.update)
    limit = plan.position_at(stage.first_update + stage.updates)
    left = _passed(plan, limit) - _passed(plan, position)
    # All branches end an update together after this many examples, also those that are tried later between two others.
    later = (between(size, 2 * size, plan) for size in batches.tried)
    unit = lcm(*batches.tried, *(size for size in later if size is not None))
    wanted = asked or DEFAULT_UPDATES * batches.tried[-1]
    epoch, offset = _end(plan.examples_per_epoch, position, min(wanted, left), unit)
    examples = epoch * plan.examples_per_epoch + offset - _passed(plan, position)
    if not examples:
        needed = min(unit, plan.examples_per_epoch - position.offset)
        if asked is not None and asked < needed <= left:
            raise PlanError(f"--examples: {asked:,}; give {needed:,} or more, after which all branches end an update")
        raise PlanError(
            f"{counted(left, 'example')} are left until the run's own batch changes, after update {limit.update:,}, "
            f"and a probe needs {needed:,}; probe an earlier checkpoint, or one after the change"
        )
    return Stretch(position, epoch, offset, examples)


def _passed(plan: Plan, position: Position) -> int:
    return position.epoch * plan.examples_per_epoch + position.offset


def _end(per_epoch: int, position: Position, examples: int, unit: int) -> tuple[int, int]:
    """Return the last common end of all branches, as epoch and offset, at most `examples` after a position.

    All branches end an update with each epoch, so their common ends are counted from there, or from the position.
    """
    rest = per_epoch - position.offset
    if examples < rest:
        return position.epoch, position.offset + examples // unit * unit
    epochs, part = divmod(examples - rest, per_epoch)
    return position.epoch + 1 + epochs, part // unit * unit


def branch_plan(spec: JobSpec, plan: Plan, position: Position, batch_size: int) -> Plan:
    """Return the plan of a branch: one stage, from a position of the run's plan to its end.

    The learning rate is the one that the job's rule gives this batch. With the batch of the run, the updates are the
    run's own until its batch changes.
    """
    stage = plan.stage_at(position.update)
    wanted = ceil(stage.wanted * Fraction(batch_size, stage.batch_size))
    rate = rate_by_rule(spec.learning_rate, spec.batch.initial, wanted, batch_size)
    per_epoch = plan.examples_per_epoch
    end = Epochs(per_epoch, plan.epochs).to_epoch(position, batch_size, plan.epochs)
    branch = Stage(
        index=stage.index,
        first_update=position.update,
        updates=end.update - position.update,
        epoch_from=position.epoch + Fraction(position.offset, per_epoch),
        epoch_to=Fraction(plan.epochs),
        wanted=wanted,
        batch_size=batch_size,
        rate=rate,
        learning_rate=float(rate * plan.schedule.factor(position.epoch)),
        learning_rate_to=float(rate * plan.schedule.factor(plan.epochs - 1)),
        workers=stage.workers,
        updates_per_epoch=-(-per_epoch // batch_size),
    )
    return replace(plan, stages=(branch,))


# --- What the branches reached ---

CONFIDENCE = 2.0
"""The standard errors by which an interval extends to both sides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """What the branches with one batch size reached: a loss for each order of the examples.

    `learning_rate` is the first update's. A loss that is not finite counts as infinite.
    """

    batch_size: int
    learning_rate: float
    updates: int
    losses: tuple[float, ...]

    @property
    def loss(self) -> float:
        """Return the mean loss."""
        return fmean(self.losses)


@dataclass(frozen=True, slots=True)
class Compared:
    """A branch beside the best one with a smaller batch: `excess` is the share by which its loss is larger, and
    `excess_error` the standard error of that share; `error` is the standard error of its loss. Both errors are 0 if
    there is one order of the examples.
    """

    branch: Branch
    error: float
    excess: float
    excess_error: float

    def to_json(self) -> dict[str, Any]:
        """Return what `probe --json` prints; an infinite loss is null, and so is an excess over a loss of 0."""
        finite = math.isfinite(self.branch.loss)
        return {
            "batchSize": self.branch.batch_size,
            "learningRate": self.branch.learning_rate,
            "updates": self.branch.updates,
            "loss": self.branch.loss if finite else None,
            "error": self.error if finite else None,
            "excess": self.excess if finite and math.isfinite(self.excess) else None,
            "excessError": self.excess_error,
        }


@dataclass(frozen=True, slots=True)
class Critical:
    """The critical batch: `within` is the largest tried within the tolerance, and `beyond` the next one tried.

    By the errors of the losses, the critical batch lies from `low` to `high`. `beyond` is None if no batch that was
    tried exceeds the tolerance, and `high` if none exceeds it by more than the errors.
    """

    within: int
    beyond: int | None
    low: int
    high: int | None

    @property
    def value(self) -> float:
        """Return the geometric mean of `within` and `beyond`; `within` if `beyond` is None."""
        return math.sqrt(self.within * (self.beyond or self.within))

    def to_json(self) -> dict[str, Any]:
        """Return what `probe --json` prints."""
        value = None if self.beyond is None else self.value
        return {"value": value, "within": self.within, "beyond": self.beyond, "low": self.low, "high": self.high}


def compared(branches: Sequence[Branch]) -> list[Compared]:
    """Return the branches in the order of their batch sizes, each beside the best of those before it."""
    # The relative standard error of a mean loss, from the variance between orders of the examples. Each branch has few
    # losses, so all branches share one estimate.
    several = [one for one in branches if len(one.losses) > 1 and math.isfinite(one.loss) and one.loss]
    shares = [variance(one.losses) / len(one.losses) / one.loss**2 for one in several]
    relative = math.sqrt(fmean(shares)) if shares else 0.0
    rows: list[Compared] = []
    best = math.inf
    for branch in sorted(branches, key=lambda one: one.batch_size):
        excess = 0.0
        error = 0.0
        if rows:
            error = math.sqrt(2) * relative
        if rows and branch.loss != best:  # two infinite losses are equal, though their difference is no number
            excess = (branch.loss - best) / abs(best) if best else math.copysign(math.inf, branch.loss)
        rows.append(Compared(branch, relative * abs(branch.loss), excess, error))
        best = min(best, branch.loss)
    return rows


def critical_of(rows: Sequence[Compared], tolerance: float) -> Critical:
    """Return the critical batch of compared branches; `tolerance` is a share of the loss, such as 0.02."""
    within, beyond = _edge(rows, tolerance, 0.0)
    low, _ = _edge(rows, tolerance, CONFIDENCE)
    _, high = _edge(rows, tolerance, -CONFIDENCE)
    return Critical(within, beyond, low, high)


def _edge(rows: Sequence[Compared], tolerance: float, errors: float) -> tuple[int, int | None]:
    """Return the last batch size within the tolerance, and the first beyond it or None.

    `errors` standard errors are added to each excess before it is compared; a negative number subtracts them.
    """
    within = rows[0].branch.batch_size
    for row in rows[1:]:
        if not row.excess + errors * row.excess_error <= tolerance:  # NaN, beside an infinite loss, is beyond
            return within, row.branch.batch_size
        within = row.branch.batch_size
    return within, None


# --- The part of a manifest with which the run can go on ---


def batch_block(spec: JobSpec, plan: Plan, position: Position, batch_size: int) -> dict[str, Any] | None:
    """Return `spec.batch` with milestones: the batch sizes of the plan until a position, and `batch_size` from then on,
    or batch.initial if that is larger, since milestones do not go below it. A run can resume with this block, with
    which its updates so far would have been the same.

    Return None if batch.maximum holds a batch of the plan below what the growth wants, since a larger maximum would
    change that batch, or if the job measures its growth or its learning rate, since a run resumes only with the same
    measurements.
    """
    if spec.batch.growth.entry.quantity or spec.learning_rate.entry.gain:
        return None
    stages = [stage for stage in plan.stages if stage.first_update <= position.update]
    if any(stage.wanted != stage.batch_size for stage in stages):
        return None
    # A stage that begins at the position itself has done nothing yet, so the new size replaces its own.
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


# --- What the command prints ---


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
    """Return the sentence that is printed if `batch_block` returns None: why no milestones follow."""
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
