"""Milestones: a list of (epoch, batch size). Smith et al., 2017; Sievert and Shah, 2021, Fig. 2."""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from pydantic import Field

from batchgrowth.extend import LARGEST_BATCH, GrowthEntry, Model, Position, Rule, ScheduleRule, Until


class Milestone(Model):
    """From this epoch on, this batch size is wanted."""

    epoch: int = Field(
        ge=1,
        le=1_000_000,
        description="Epochs done when the batch grows. Must be below spec.epochs. Required. Example: 10.",
    )
    batch_size: int = Field(
        ge=1,
        le=LARGEST_BATCH,
        description="The batch size wanted from then on. Past batch.maximum the learning rate falls instead, as "
        "learningRate.rule says. Unit: examples. Required. Example: 256.",
    )


class Milestones(Model):
    """A list of epochs and batch sizes: Smith et al., 2017."""

    steps: tuple[Milestone, ...] = Field(
        strict=False,
        min_length=1,
        max_length=256,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
        description="When the batch grows, and to what: epochs and batch sizes both rise from entry to entry. "
        "From 1 to 256 entries. Required. Example: [{epoch: 10, batchSize: 256}].",
    )

    rules: ClassVar = (
        Rule(
            "steps",
            "give the entries in the order of their epochs, each epoch once",
            lambda m: all(a.epoch < b.epoch for a, b in pairwise(m.steps)),
            "self.steps.map(s, s.epoch).isSorted() && self.steps.all(s, self.steps.exists_one(t, t.epoch == s.epoch))",
        ),
        Rule(
            "steps",
            "give a larger batchSize in each entry than in the one before",
            lambda m: all(a.batch_size < b.batch_size for a, b in pairwise(m.steps)),
            "self.steps.map(s, s.batchSize).isSorted() && "
            "self.steps.all(s, self.steps.exists_one(t, t.batchSize == s.batchSize))",
        ),
    )


@dataclass(frozen=True, slots=True)
class MilestonesRule:
    """The batch size follows a list; `epochs` rise strictly, and `sizes` has one entry for each."""

    initial: int
    epochs: tuple[int, ...]
    sizes: tuple[int, ...]

    def wanted(self, position: Position) -> int:
        """The size of the last milestone passed; the initial size before the first."""
        passed = bisect_right(self.epochs, position.epoch)
        return self.sizes[passed - 1] if passed else self.initial

    def until(self, position: Position) -> Until:
        """The next milestone; never after the last."""
        passed = bisect_right(self.epochs, position.epoch)
        return Until(epoch=self.epochs[passed]) if passed < len(self.epochs) else Until()


def _rule(initial: int, block: Milestones, _schedule: ScheduleRule) -> MilestonesRule:
    return MilestonesRule(initial, tuple(s.epoch for s in block.steps), tuple(s.batch_size for s in block.steps))


ENTRY = GrowthEntry(
    name="Milestones",
    summary="follows a list",
    source="Smith et al., 2017",
    block=Milestones,
    implementation=_rule,
    example={"steps": [{"epoch": 1, "batchSize": 64}, {"epoch": 2, "batchSize": 256}]},
    outer_rules={
        "Batch": (
            Rule(
                "growth.milestones.steps",
                "give a first batchSize larger than batch.initial",
                lambda b: b.growth.milestones is None or b.growth.milestones.steps[0].batch_size > b.initial,
                "!has(self.growth.milestones) || self.growth.milestones.steps.all(s, s.batchSize > self.initial)",
            ),
        ),
        "JobSpec": (
            Rule(
                "batch.growth.milestones.steps",
                "give epochs below spec.epochs",
                lambda s: s.batch.growth.milestones is None or s.batch.growth.milestones.steps[-1].epoch < s.epochs,
                "!has(self.batch.growth.milestones) || "
                "self.batch.growth.milestones.steps.all(s, s.epoch < self.epochs)",
            ),
        ),
    },
)
