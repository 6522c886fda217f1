"""InsteadOfDecay: d = ceil(initial / factor of the schedule). Smith et al., 2017; for Adam Seesaw, arXiv 2510.14717.

With rule Linear the learning rate is lr0 · factor · B / initial, so that lr / B is the schedule's own curve whatever
the batch; with rule SquareRoot it is lr0 · factor · sqrt(B / initial), and lr / sqrt(B) is. A factor of 1/2 thus
doubles the batch, and the learning rate stays (SGD) or is multiplied by 1/sqrt(2) (Adam). At batch.maximum the learning
rate falls as it does without growth.
"""

from bisect import bisect_right
from dataclasses import dataclass
from math import ceil

from pydantic import Field

from batchgrowth.extend import LARGEST_BATCH, Coarser, GrowthEntry, Model, Position, Rule, ScheduleRule, Until

MOST_EPOCHS = 1_000_000
"""The most epochs of a job."""


class InsteadOfDecay(Model):
    """d = initial / factor of the schedule: Smith et al., 2017; Seesaw, arXiv 2510.14717."""

    every_epochs: int = Field(
        1,
        ge=1,
        le=MOST_EPOCHS,
        description="Epochs between two looks at the schedule; the batch size is constant in between, and the learning "
        "rate still follows the schedule in each epoch. Default: 1.",
    )


@dataclass(frozen=True, slots=True)
class InsteadOfDecayRule:
    """The batch grows by as much as the learning rate would have fallen."""

    initial: int
    every_epochs: int
    schedule: ScheduleRule

    def wanted(self, position: Position) -> int:
        """The initial batch size over the factor at the last look, rounded up; at most the largest batch there is."""
        return self._after(position.epoch // self.every_epochs)

    def until(self, position: Position) -> Until:
        """The first look at which the rounded answer is larger."""
        looks, wanted, ahead = position.epoch // self.every_epochs, self.wanted(position), 1
        end = -(-MOST_EPOCHS // self.every_epochs)
        while looks + ahead < end and self._after(looks + ahead) == wanted:
            ahead *= 2
        after = min(looks + ahead, end)
        changed = bisect_right(range(after), wanted, lo=looks + ahead // 2, key=self._after)
        return Until(epoch=changed * self.every_epochs) if changed < end else Until()

    def _after(self, looks: int) -> int:
        factor = self.schedule.factor(looks * self.every_epochs)
        return min(ceil(self.initial / factor), LARGEST_BATCH) if factor else LARGEST_BATCH


def _coarser(settings: InsteadOfDecay, epochs: int, _updates: int, stages: int) -> Coarser:
    return Coarser("insteadOfDecay.everyEpochs", settings.every_epochs, -(-epochs // stages))


RULES = {"SGD": ("Linear",), "Adam": ("SquareRoot",), "AdamW": ("SquareRoot",)}
"""Optimizer -> the learning-rate rule under which a larger batch does what a smaller learning rate does."""

ENTRY = GrowthEntry(
    name="InsteadOfDecay",
    summary="grows by as much as the schedule would have the learning rate fall",
    source="Smith et al., 2017; Seesaw, arXiv 2510.14717",
    block=InsteadOfDecay,
    implementation=lambda initial, block, schedule: InsteadOfDecayRule(initial, block.every_epochs, schedule),
    coarser=_coarser,
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
                    or s.learning_rate.rule in RULES.get(s.optimizer.type, ("Linear", "SquareRoot"))
                ),
                "self.batch.growth.type != 'InsteadOfDecay' || (self.optimizer.type == 'SGD' ? "
                "self.learningRate.rule == 'Linear' : self.optimizer.type in ['Adam', 'AdamW'] ? "
                "self.learningRate.rule == 'SquareRoot' : self.learningRate.rule in ['Linear', 'SquareRoot'])",
            ),
        ),
    },
)
