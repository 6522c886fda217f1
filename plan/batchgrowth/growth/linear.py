"""Linear: d = ceil(initial + examplesPerUpdate · updates done). PadaDamp of Sievert and Shah, 2021."""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import ClassVar

from pydantic import Field

from batchgrowth.extend import Coarser, DecimalText, GrowthEntry, Model, Position, Rule, ScheduleRule, Until, exact


class Linear(Model):
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

    rules: ClassVar = (
        Rule(
            "examplesPerUpdate",
            'give a decimal more than 0 and at most 1000000, such as "0.25"',
            lambda g: 0 < exact(g.examples_per_update) <= 1_000_000,
            "double(self.examplesPerUpdate) > 0.0 && double(self.examplesPerUpdate) <= 1000000.0",
        ),
    )


@dataclass(frozen=True, slots=True)
class LinearRule:
    """The batch size grows a little with each update; the rule is evaluated every few updates."""

    initial: int
    examples_per_update: Fraction
    every_updates: int

    def wanted(self, position: Position) -> int:
        """The rule's value at the last evaluation before or at this update."""
        evaluated = position.update // self.every_updates * self.every_updates
        return ceil(self.initial + self.examples_per_update * evaluated)

    def until(self, position: Position) -> Until:
        """The first evaluation at which the rounded answer is larger."""
        updates = (self.wanted(position) - self.initial) / self.examples_per_update
        return Until(update=(floor(updates / self.every_updates) + 1) * self.every_updates)


def _rule(initial: int, block: Linear, _schedule: ScheduleRule) -> LinearRule:
    return LinearRule(initial, exact(block.examples_per_update), block.every_updates)


def _coarser(settings: Linear, _epochs: int, updates: int, stages: int) -> Coarser:
    return Coarser("linear.everyUpdates", settings.every_updates, -(-updates // stages))


ENTRY = GrowthEntry(
    name="Linear",
    summary="adds a little with each update",
    source="PadaDamp of Sievert and Shah, 2021",
    block=Linear,
    implementation=_rule,
    example={"examplesPerUpdate": "0.25", "everyUpdates": 10},
    coarser=_coarser,
)
