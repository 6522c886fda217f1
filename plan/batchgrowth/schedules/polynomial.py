"""Polynomial: finalFactor + (1 - finalFactor) · (1 - epoch / epochs)^power. Chen et al., 2018; torch's PolynomialLR."""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from pydantic import Field

from batchgrowth.extend import DecimalText, Model, Rule, ScheduleEntry, exact, power
from batchgrowth.schedules.falling import FallEpochs, FinalFactor, below_one, within_the_job


class Polynomial(Model):
    """The factor of an epoch is finalFactor + (1 - finalFactor) · (1 - epoch / epochs)^power: Chen et al., 2018."""

    power: DecimalText = Field(
        "2", description='Power of the fall: a decimal in quotes, more than 0 and at most 10. Default: "2".'
    )
    final_factor: FinalFactor = "0"
    epochs: FallEpochs = None

    rules: ClassVar = (
        Rule(
            "power",
            'give a decimal more than 0 and at most 10, such as "2"',
            lambda p: 0 < exact(p.power) <= 10,
            "double(self.power) > 0.0 && double(self.power) <= 10.0",
        ),
        below_one(),
    )


@dataclass(frozen=True, slots=True)
class PolynomialSchedule:
    """The factor falls from 1 along a power of the epochs left to `final` after `epochs`, and stays there."""

    power: Fraction
    final: Fraction
    epochs: int

    def factor(self, epoch: int) -> Fraction:
        """Exact for a whole power, else to 60 digits."""
        left = Fraction(max(self.epochs - epoch, 0), self.epochs)
        return self.final + (1 - self.final) * power(left, self.power)


ENTRY = ScheduleEntry(
    name="Polynomial",
    summary="falls along a power of the epochs left",
    source="Chen et al., 2018",
    block=Polynomial,
    implementation=lambda block, epochs: PolynomialSchedule(
        exact(block.power), exact(block.final_factor), block.epochs or epochs
    ),
    example={"power": "2"},
    outer_rules={"JobSpec": within_the_job("polynomial")},
)
