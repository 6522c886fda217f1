"""Geometric: d = ceil(initial · factor^floor(epochs done / everyEpochs)). GeoDamp of Sievert and Shah, 2021."""

from bisect import bisect_right
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from math import ceil
from typing import ClassVar

from pydantic import Field

from batchgrowth.extend import Coarser, DecimalText, GrowthEntry, Model, Position, Rule, Until, exact

SIXTY_DIGITS = Context(prec=60, rounding=ROUND_CEILING, Emax=10**9, Emin=-(10**9))
"""Exact for every batch that fits a machine; a fraction would grow by four digits per epoch with a factor of 1.0001."""


class Geometric(Model):
    """d = initial · factor^floor(epochs done / everyEpochs): GeoDamp of Sievert and Shah, 2021."""

    factor: DecimalText = Field(
        description="Factor by which the wanted batch size is multiplied at each milestone: a decimal in quotes, "
        'more than 1 and at most 1000. Required. Example: "2".'
    )
    every_epochs: int = Field(
        ge=1, le=1_000_000, description="Epochs from one milestone to the next. Required. Example: 5."
    )

    rules: ClassVar = (
        Rule(
            "factor",
            'give a decimal more than 1 and at most 1000, such as "2"',
            lambda g: 1 < exact(g.factor) <= 1000,
            "double(self.factor) > 1.0 && double(self.factor) <= 1000.0",
        ),
    )


@dataclass(frozen=True, slots=True)
class GeometricRule:
    """The batch size is multiplied every few epochs."""

    initial: int
    factor: Decimal
    every_epochs: int

    def wanted(self, position: Position) -> int:
        """The initial batch size times the factor for each milestone passed, rounded up once at the end."""
        return self._after(position.epoch // self.every_epochs)

    def until(self, position: Position) -> Until:
        """The first milestone at which the rounded answer is larger."""
        passed = position.epoch // self.every_epochs
        wanted, ahead = self._after(passed), 1
        while self._after(passed + ahead) == wanted:
            ahead *= 2
        changed = bisect_right(range(passed + ahead), wanted, lo=passed + ahead // 2, key=self._after)
        return Until(epoch=changed * self.every_epochs)

    def _after(self, milestones: int) -> int:
        return ceil(SIXTY_DIGITS.multiply(self.initial, SIXTY_DIGITS.power(self.factor, milestones)))


def _coarser(settings: Geometric, epochs: int, _updates: int, stages: int) -> Coarser:
    return Coarser("geometric.everyEpochs", settings.every_epochs, -(-epochs // stages))


ENTRY = GrowthEntry(
    name="Geometric",
    summary="multiplies every few epochs",
    source="GeoDamp of Sievert and Shah, 2021",
    block=Geometric,
    implementation=lambda initial, block, _schedule: GeometricRule(initial, Decimal(block.factor), block.every_epochs),
    example={"factor": "2", "everyEpochs": 5},
    coarser=_coarser,
)
