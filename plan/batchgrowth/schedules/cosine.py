"""Cosine: half a wave from 1 to finalFactor. Loshchilov and Hutter, 2017; torch's CosineAnnealingLR."""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

from batchgrowth.extend import SIXTY_DIGITS, Model, ScheduleEntry, exact
from batchgrowth.schedules.falling import FallEpochs, FinalFactor, below_one, within_the_job

PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899")
RATIONAL = {
    Fraction(0): Fraction(1),
    Fraction(1, 3): Fraction(3, 4),
    Fraction(1, 2): Fraction(1, 2),
    Fraction(2, 3): Fraction(1, 4),
}
"""Part of the way -> the only rational values of half a wave before its end: Niven's theorem."""
TERMS = 30
"""Terms of the series of the cosine: 60 digits up to π / 2."""


class Cosine(Model):
    """The factor of an epoch is finalFactor + (1 - finalFactor) · (1 + cos(π · epoch / epochs)) / 2."""

    final_factor: FinalFactor = "0"
    epochs: FallEpochs = None

    rules: ClassVar = (below_one(),)


@dataclass(frozen=True, slots=True)
class CosineSchedule:
    """The factor falls from 1 along half a wave to `final` after `epochs`, and stays there."""

    final: Fraction
    epochs: int

    def factor(self, epoch: int) -> Fraction:
        """Exact after 0, 1/3, 1/2, 2/3 and all of the epochs, else to 50 digits and more."""
        if epoch >= self.epochs:
            return self.final
        return self.final + (1 - self.final) * half_wave(Fraction(epoch, self.epochs))


@lru_cache(maxsize=4096)
def half_wave(part: Fraction) -> Fraction:
    """(1 + cos(π · part)) / 2 for a part of the way from 0 to below 1."""
    if part in RATIONAL:
        return RATIONAL[part]
    angle = SIXTY_DIGITS.divide(SIXTY_DIGITS.multiply(PI, part.numerator), 2 * part.denominator)
    square, cosine = SIXTY_DIGITS.multiply(angle, angle), Decimal(1)
    for k in range(2 * TERMS, 0, -2):
        cosine = SIXTY_DIGITS.subtract(1, SIXTY_DIGITS.divide(SIXTY_DIGITS.multiply(square, cosine), k * (k - 1)))
    return Fraction(SIXTY_DIGITS.multiply(cosine, cosine))


ENTRY = ScheduleEntry(
    name="Cosine",
    summary="falls along half a cosine wave",
    source="Loshchilov and Hutter, 2017",
    block=Cosine,
    implementation=lambda block, epochs: CosineSchedule(exact(block.final_factor), block.epochs or epochs),
    example={"finalFactor": "0.01"},
    outer_rules={"JobSpec": within_the_job("cosine")},
)
