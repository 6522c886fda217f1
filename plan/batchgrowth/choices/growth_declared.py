"""Rules by which the batch grows as declared, one entry each; the plan of such a job is known in advance."""

from bisect import bisect_right
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor
from typing import ClassVar, Self

from pydantic import Field

from batchgrowth.errors import Fault
from batchgrowth.extend import Coarser, GrowthEntry, ScheduleRule, Until, always_acts
from batchgrowth.looks import LARGEST_BATCH
from batchgrowth.position import Position
from batchgrowth.registry import Faults, FinishedPlan, growth_idle
from batchgrowth.schema import DecimalText, Model, Rule, decimal_rule

# --- Constant: d = initial ---


@dataclass(frozen=True, slots=True)
class ConstantRule:
    """The batch size never changes."""

    initial: int

    def wanted(self, position: Position) -> int:  # noqa: ARG002
        """Return the initial batch size."""
        return self.initial

    def until(self, position: Position) -> Until:  # noqa: ARG002
        """Return the default Until, which never comes: the batch size stays the same."""
        return Until()


CONSTANT = GrowthEntry(
    name="Constant",
    summary="stays at batch.initial",
    implementation=lambda initial, _settings, _schedule: ConstantRule(initial),
    idle=always_acts,
)


# --- Geometric: d = ceil(initial · factor^floor(epochs done / everyEpochs)). GeoDamp of Sievert and Shah, 2021 ---

ROUNDING_UP = Context(prec=60, rounding=ROUND_CEILING, Emax=10**9, Emin=-(10**9))
"""Arithmetic with 60 digits, exact for every batch that fits a machine.

A fraction would grow by four digits per epoch with a factor of 1.0001.
"""


class GeometricBlock(Model):
    """d = initial · factor^floor(epochs done / everyEpochs): GeoDamp of Sievert and Shah, 2021."""

    factor: DecimalText = Field(
        description="Factor by which the wanted batch size is multiplied at each milestone: a decimal in quotes, "
        'more than 1 and at most 1000. Required. Example: "2".'
    )
    every_epochs: int = Field(
        ge=1, le=1_000_000, description="Epochs from one milestone to the next. Required. Example: 5."
    )

    rules: ClassVar = (decimal_rule("factor", above=1, most=1000, example="2"),)

    def coarser(self, epochs: int, updates: int, stages: int) -> Coarser:  # noqa: ARG002
        """Return the everyEpochs with which a plan has at most `stages` stages."""
        return Coarser("geometric.everyEpochs", self.every_epochs, -(-epochs // stages))


@dataclass(frozen=True, slots=True)
class GeometricRule:
    """The batch size is multiplied every few epochs."""

    initial: int
    factor: Decimal
    every_epochs: int

    def wanted(self, position: Position) -> int:
        """Return the initial batch size, multiplied by the factor for each milestone passed, then rounded up."""
        return self._wanted_after(position.epoch // self.every_epochs)

    def until(self, position: Position) -> Until:
        """Return the first milestone at which the rounded answer is larger."""
        passed = position.epoch // self.every_epochs
        wanted = self._wanted_after(passed)
        ahead = 1  # a small factor changes the rounded answer rarely, so look ahead in doubling steps, then bisect
        while self._wanted_after(passed + ahead) == wanted:
            ahead *= 2
        changed = bisect_right(range(passed + ahead), wanted, lo=passed + ahead // 2, key=self._wanted_after)
        return Until(epoch=changed * self.every_epochs)

    def _wanted_after(self, milestones: int) -> int:
        return ceil(ROUNDING_UP.multiply(self.initial, ROUNDING_UP.power(self.factor, milestones)))


GEOMETRIC = GrowthEntry(
    name="Geometric",
    summary="multiplies the batch by a factor every few epochs",
    source="GeoDamp of Sievert and Shah, 2021",
    block=GeometricBlock,
    implementation=lambda initial, block, _schedule: GeometricRule(initial, Decimal(block.factor), block.every_epochs),
    example={"factor": "2", "everyEpochs": 5},
    coarser=GeometricBlock.coarser,
)


# --- Linear: d = ceil(initial + examplesPerUpdate · updates done). PadaDamp of Sievert and Shah, 2021 ---


class LinearGrowthBlock(Model):
    """d = initial + examplesPerUpdate · updates done: PadaDamp of Sievert and Shah, 2021."""

    examples_per_update: DecimalText = Field(
        description="Examples by which the wanted batch size grows with each update: a decimal in quotes, more "
        'than 0 and at most 1000000. Required. Example: "0.25".'
    )
    every_updates: int = Field(
        1,
        ge=1,
        le=1_000_000_000,
        description="Updates between two evaluations of the rule; the batch size is constant in between. A plan "
        "holds at most 1,000 stages, so a long job needs a larger number. Unit: updates. Default: 1.",
    )

    rules: ClassVar = (decimal_rule("examplesPerUpdate", above=0, most=1_000_000, example="0.25"),)

    def coarser(self, epochs: int, updates: int, stages: int) -> Coarser:  # noqa: ARG002
        """Return the smallest everyUpdates that cuts `updates` updates into at most `stages` stages."""
        return Coarser("linear.everyUpdates", self.every_updates, -(-updates // stages))


@dataclass(frozen=True, slots=True)
class LinearRule:
    """The batch size grows a little with each update; the rule is evaluated every few updates."""

    initial: int
    examples_per_update: Fraction
    every_updates: int

    def wanted(self, position: Position) -> int:
        """Return the rule's value at the last evaluation before or at this update."""
        evaluated = position.update // self.every_updates * self.every_updates
        return ceil(self.initial + self.examples_per_update * evaluated)

    def until(self, position: Position) -> Until:
        """Return the first evaluation at which the rounded answer is larger."""
        updates = (self.wanted(position) - self.initial) / self.examples_per_update
        return Until(update=(floor(updates / self.every_updates) + 1) * self.every_updates)


LINEAR = GrowthEntry(
    name="Linear",
    summary="adds some examples to the batch with each update",
    source="PadaDamp of Sievert and Shah, 2021",
    block=LinearGrowthBlock,
    implementation=lambda initial, block, _schedule: LinearRule(
        initial, Fraction(block.examples_per_update), block.every_updates
    ),
    example={"examplesPerUpdate": "0.25", "everyUpdates": 10},
    coarser=LinearGrowthBlock.coarser,
)


# --- Milestones: a list of (epoch or update, batch size). Smith et al., 2017; Sievert and Shah, 2021, Fig. 2 ---

MOST_STEPS = 999
"""The most entries: a plan has at most 1,000 stages."""


class Milestone(Model):
    """From this epoch or update on, this batch size is wanted."""

    epoch: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Epochs done when the batch grows. Must be below spec.epochs. Required unless update is given. "
        "Example: 10.",
    )
    update: int | None = Field(
        None,
        ge=1,
        le=1_000_000_000,
        description="Updates done when the batch grows. Must be below the updates of the plan. Required unless epoch "
        "is given. Example: 450.",
    )
    batch_size: int = Field(
        ge=1,
        le=LARGEST_BATCH,
        description="The batch size wanted from then on. Past batch.maximum the learning rate falls instead, as "
        "learningRate.rule says. Unit: examples. Required. Example: 256.",
    )

    rules: ClassVar = (
        Rule(
            "epoch",
            "give either epoch or update",
            lambda m: (m.epoch is None) != (m.update is None),
            "has(self.epoch) != has(self.update)",
        ),
    )

    @property
    def at(self) -> int:
        """Return the epoch or the update, whichever is given."""
        return self.epoch or self.update or 0


def each_pair(holds: str) -> str:
    """Return CEL that checks `holds` for each pair of successive steps, {a} and {b}, of up to 1,000 steps.

    CEL has no loop over indices, and a comparison of each step with all others would exceed an API server's limit on
    the cost of a rule from some 300 steps on. So the three digits of the index run through a list of ten.
    """
    digits = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"
    index = "100 * i + 10 * j + k"
    asked = holds.format(a=f"self.steps[{index}]", b=f"self.steps[{index} + 1]")
    pair = f"{index} + 1 >= size(self.steps) || ({asked})"
    return f"{digits}.all(i, 100 * i + 1 >= size(self.steps) || {digits}.all(j, {digits}.all(k, {pair})))"


class MilestonesBlock(Model):
    """A list of epochs or updates, and batch sizes: Smith et al., 2017."""

    steps: tuple[Milestone, ...] = Field(
        strict=False,
        min_length=1,
        max_length=MOST_STEPS,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
        description="The batch sizes, and the epoch or update from which each is wanted. Epochs and their batch "
        "sizes rise from entry to entry. Updates rise too, but their batch sizes may fall. "
        f"From 1 to {MOST_STEPS} entries. Required. "
        "Example: [{epoch: 10, batchSize: 256}].",
    )

    rules: ClassVar = (
        Rule(
            "steps",
            "give an epoch in each entry, or an update in each",
            lambda m: len({step.epoch is None for step in m.steps}) == 1,
            "self.steps.all(s, has(s.epoch)) || self.steps.all(s, has(s.update))",
        ),
        Rule(
            "steps",
            "give the entries in the order of their epochs or updates, each once",
            lambda m: all(a.at < b.at for a, b in pairwise(m.steps) if (a.epoch is None) == (b.epoch is None)),
            each_pair(
                "has({a}.epoch) ? !has({b}.epoch) || {a}.epoch < {b}.epoch : "
                "has({b}.epoch) || !has({a}.update) || !has({b}.update) || {a}.update < {b}.update"
            ),
        ),
        Rule(
            "steps",
            "give a larger batchSize in each entry than in the one before; by update, another one",
            lambda m: all(
                a.batch_size < b.batch_size or (b.update is not None and a.batch_size > b.batch_size)
                for a, b in pairwise(m.steps)
            ),
            each_pair("{a}.batchSize < {b}.batchSize || (has({b}.update) && {a}.batchSize > {b}.batchSize)"),
        ),
    )

    def last_update(self) -> tuple[str, int] | None:
        """Return the path of the steps and the last update that they name; None if they name epochs."""
        last = self.steps[-1].update
        if last is None:
            return None
        return "milestones.steps", last

    def shrinks(self) -> bool:
        """Return True if the batch becomes smaller at a step."""
        return any(a.batch_size > b.batch_size for a, b in pairwise(self.steps))


@dataclass(frozen=True, slots=True)
class MilestonesRule:
    """The batch size follows a list; `at` rises strictly, and `sizes` has one entry for each.

    `at` counts updates if `by_update`, else epochs.
    """

    initial: int
    at: tuple[int, ...]
    sizes: tuple[int, ...]
    by_update: bool = False

    @classmethod
    def of(cls, initial: int, block: MilestonesBlock, _schedule: ScheduleRule) -> Self:
        """Return the rule that the block describes."""
        at = tuple(step.at for step in block.steps)
        sizes = tuple(step.batch_size for step in block.steps)
        return cls(initial, at, sizes, by_update=block.steps[0].update is not None)

    def wanted(self, position: Position) -> int:
        """Return the size of the last milestone passed; the initial size before the first."""
        passed = self._passed(position)
        if passed == 0:
            return self.initial
        return self.sizes[passed - 1]

    def until(self, position: Position) -> Until:
        """Return the next milestone; after the last, an Until that never comes."""
        passed = self._passed(position)
        if passed == len(self.at):
            return Until()
        if self.by_update:
            return Until(update=self.at[passed])
        return Until(epoch=self.at[passed])

    def _passed(self, position: Position) -> int:
        if self.by_update:
            return bisect_right(self.at, position.update)
        return bisect_right(self.at, position.epoch)


def steps_idle(job: FinishedPlan) -> Faults:
    """Return growth_idle's fault, or else a fault for each step that changes neither batch nor learning rate."""
    idle = growth_idle(job)
    batch = job.spec.batch
    if idle or job.spec.learning_rate.entry.falls_past_maximum:
        return idle
    faults = []
    for index, (before, step) in enumerate(pairwise(batch.growth.milestones.steps), start=1):
        if min(before.batch_size, step.batch_size) >= batch.maximum:
            given = f"{step.batch_size:,} is more than batch.maximum, {batch.maximum:,}, which the batch has already"
            path = f"spec.batch.growth.milestones.steps[{index}].batchSize"
            enough = max(before.batch_size, step.batch_size)  # the sizes of a list by update may fall
            faults.append(Fault(path, given, f"give a batch.maximum of {enough:,}, or leave the step out"))
    return tuple(faults)


MILESTONES = GrowthEntry(
    name="Milestones",
    summary="follows a list of batch sizes",
    source="Smith et al., 2017",
    block=MilestonesBlock,
    implementation=MilestonesRule.of,
    last_update=MilestonesBlock.last_update,
    shrinks=MilestonesBlock.shrinks,
    idle=steps_idle,
    example={"steps": [{"epoch": 1, "batchSize": 64}, {"epoch": 2, "batchSize": 256}]},
    outer_rules={
        "Batch": (
            Rule(
                "growth.milestones.steps",
                "give a first batchSize larger than batch.initial",
                lambda b: b.growth.milestones is None or b.growth.milestones.steps[0].batch_size > b.initial,
                "!has(self.growth.milestones) || self.growth.milestones.steps[0].batchSize > self.initial",
            ),
        ),
        "JobSpec": (
            Rule(
                "batch.growth.milestones.steps",
                "give epochs below spec.epochs",
                lambda s: (
                    s.batch.growth.milestones is None or (s.batch.growth.milestones.steps[-1].epoch or 0) < s.epochs
                ),
                "!has(self.batch.growth.milestones) || "
                "self.batch.growth.milestones.steps.all(s, !has(s.epoch) || s.epoch < self.epochs)",
            ),
        ),
    },
)


# --- InsteadOfDecay: d = ceil(initial / factor of the schedule). Smith et al., 2017; Seesaw, arXiv 2510.14717 ---
# With rule Linear the learning rate is lr0 · factor · B / initial, so that lr / B follows the schedule whatever the
# batch; with rule SquareRoot it is lr0 · factor · sqrt(B / initial), so that lr / sqrt(B) follows it. A factor of 1/2
# thus doubles the batch, and the learning rate stays (SGD) or is multiplied by 1/sqrt(2) (Adam). At batch.maximum the
# learning rate falls as it does without growth.

MOST_EPOCHS = 1_000_000
"""The most epochs of a job."""


class InsteadOfDecayBlock(Model):
    """d = initial / factor of the schedule: Smith et al., 2017; Seesaw, arXiv 2510.14717."""

    every_epochs: int = Field(
        1,
        ge=1,
        le=MOST_EPOCHS,
        description="Epochs between two looks at the schedule; the batch size is constant in between, and the learning "
        "rate still follows the schedule in each epoch. Default: 1.",
    )

    def coarser(self, epochs: int, updates: int, stages: int) -> Coarser:  # noqa: ARG002
        """Return the everyEpochs with which a plan has at most `stages` stages."""
        return Coarser("insteadOfDecay.everyEpochs", self.every_epochs, -(-epochs // stages))


@dataclass(frozen=True, slots=True)
class InsteadOfDecayRule:
    """The batch grows by as much as the learning rate would have fallen."""

    initial: int
    every_epochs: int
    schedule: ScheduleRule

    def wanted(self, position: Position) -> int:
        """Return the initial batch size over the factor at the last look, rounded up; at most LARGEST_BATCH."""
        return self._wanted_after(position.epoch // self.every_epochs)

    def until(self, position: Position) -> Until:
        """Return the first look at which the rounded answer is larger; an Until that never comes if there is none."""
        looks = position.epoch // self.every_epochs
        wanted = self.wanted(position)
        ahead = 1  # as in GeometricRule: doubling steps, then a bisection
        end = -(-MOST_EPOCHS // self.every_epochs)
        while looks + ahead < end and self._wanted_after(looks + ahead) == wanted:
            ahead *= 2
        after = min(looks + ahead, end)
        changed = bisect_right(range(after), wanted, lo=looks + ahead // 2, key=self._wanted_after)
        if changed == end:
            return Until()
        return Until(epoch=changed * self.every_epochs)

    def _wanted_after(self, looks: int) -> int:
        factor = self.schedule.factor(looks * self.every_epochs)
        if factor == 0:
            return LARGEST_BATCH
        return min(ceil(self.initial / factor), LARGEST_BATCH)


RATE_RULES = {"SGD": ("Linear",), "Adam": ("SquareRoot",), "AdamW": ("SquareRoot",)}
"""Optimizer -> the learning-rate rules under which a larger batch acts like a smaller learning rate."""

INSTEAD_OF_DECAY = GrowthEntry(
    name="InsteadOfDecay",
    summary="grows the batch instead of letting the schedule lower the learning rate",
    source="Smith et al., 2017; Seesaw, arXiv 2510.14717",
    block=InsteadOfDecayBlock,
    implementation=lambda initial, block, schedule: InsteadOfDecayRule(initial, block.every_epochs, schedule),
    coarser=InsteadOfDecayBlock.coarser,
    outer_rules={
        "JobSpec": (
            Rule(
                "learningRate.schedule",
                "give a schedule other than Constant: growth InsteadOfDecay grows the batch as that falls",
                lambda s: (
                    s.batch.growth.type != "InsteadOfDecay"
                    or s.value_at("learningRate.schedule.type") not in (None, "Constant")
                ),
                "self.batch.growth.type != 'InsteadOfDecay' || "
                "(has(self.learningRate.schedule) && self.learningRate.schedule.type != 'Constant')",
            ),
            Rule(
                "learningRate.rule",
                "give Linear with optimizer SGD, or SquareRoot with Adam or AdamW, because of growth InsteadOfDecay",
                lambda s: (
                    s.batch.growth.type != "InsteadOfDecay"
                    or s.learning_rate.rule in RATE_RULES.get(s.optimizer.type, ("Linear", "SquareRoot"))
                ),
                "self.batch.growth.type != 'InsteadOfDecay' || (self.optimizer.type == 'SGD' ? "
                "self.learningRate.rule == 'Linear' : self.optimizer.type in ['Adam', 'AdamW'] ? "
                "self.learningRate.rule == 'SquareRoot' : self.learningRate.rule in ['Linear', 'SquareRoot'])",
            ),
        ),
    },
)
