"""Milestones: a list of (epoch or update, batch size). Smith et al., 2017; Sievert and Shah, 2021, Fig. 2."""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from pydantic import Field

from batchgrowth.extend import LARGEST_BATCH, GrowthEntry, Model, Position, Rule, ScheduleRule, Until

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
        """The epoch or update."""
        return self.epoch or self.update or 0


def each_pair(holds: str) -> str:
    """CEL that asks `holds` of each of up to 1,000 steps, {a}, and its successor, {b}.

    CEL has no loop over indices, and a comparison of each step with all others would exceed an API server's limit on
    the cost of a rule from some 300 steps on. So the three digits of the index run through a list of ten.
    """
    digits, index = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]", "100 * i + 10 * j + k"
    asked = holds.format(a=f"self.steps[{index}]", b=f"self.steps[{index} + 1]")
    pair = f"{index} + 1 >= size(self.steps) || ({asked})"
    return f"{digits}.all(i, 100 * i + 1 >= size(self.steps) || {digits}.all(j, {digits}.all(k, {pair})))"


class Milestones(Model):
    """A list of epochs or updates, and batch sizes: Smith et al., 2017."""

    steps: tuple[Milestone, ...] = Field(
        strict=False,
        min_length=1,
        max_length=MOST_STEPS,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
        description="When the batch grows, and to what: epochs and batch sizes both rise from entry to entry. "
        f"Updates rise too, but their batch sizes may fall. From 1 to {MOST_STEPS} entries. Required. "
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


@dataclass(frozen=True, slots=True)
class MilestonesRule:
    """The batch size follows a list; `at` rises strictly, and `sizes` has one entry for each.

    `at` counts updates if `by_update`, else epochs.
    """

    initial: int
    at: tuple[int, ...]
    sizes: tuple[int, ...]
    by_update: bool = False

    def wanted(self, position: Position) -> int:
        """The size of the last milestone passed; the initial size before the first."""
        passed = self._passed(position)
        return self.sizes[passed - 1] if passed else self.initial

    def until(self, position: Position) -> Until:
        """The next milestone; never after the last."""
        passed = self._passed(position)
        if passed == len(self.at):
            return Until()
        return Until(update=self.at[passed]) if self.by_update else Until(epoch=self.at[passed])

    def _passed(self, position: Position) -> int:
        return bisect_right(self.at, position.update if self.by_update else position.epoch)


def _rule(initial: int, block: Milestones, _schedule: ScheduleRule) -> MilestonesRule:
    at, sizes = tuple(step.at for step in block.steps), tuple(step.batch_size for step in block.steps)
    return MilestonesRule(initial, at, sizes, by_update=block.steps[0].update is not None)


def _last_update(block: Milestones) -> tuple[str, int] | None:
    last = block.steps[-1].update
    return None if last is None else ("milestones.steps", last)


ENTRY = GrowthEntry(
    name="Milestones",
    summary="follows a list",
    source="Smith et al., 2017",
    block=Milestones,
    implementation=_rule,
    last_update=_last_update,
    shrinks=lambda block: any(a.batch_size > b.batch_size for a, b in pairwise(block.steps)),
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
