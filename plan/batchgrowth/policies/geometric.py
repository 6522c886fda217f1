"""Geometric: d = ceil(initial · factor^floor(epochs done / everyEpochs)). GeoDamp of Sievert and Shah, 2021."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from math import ceil

from batchgrowth.policies.protocol import Measurements, Until
from batchgrowth.position import Position

SIXTY_DIGITS = Context(prec=60, rounding=ROUND_CEILING, Emax=10**9, Emin=-(10**9))
"""Exact for every batch that fits a machine; a fraction would grow by four digits an epoch with a factor of 1.0001."""


@dataclass(frozen=True, slots=True)
class GeometricPolicy:
    """The batch is multiplied every few epochs."""

    initial: int
    factor: Decimal
    every_epochs: int

    def wanted(self, position: Position, measured: Measurements) -> int:  # noqa: ARG002
        """The initial batch size times the factor for each milestone passed, rounded up once at the end."""
        return self._after(position.epoch // self.every_epochs)

    def until(self, position: Position) -> Until:
        """To the first milestone at which the rounded answer is a larger one."""
        passed = position.epoch // self.every_epochs
        wanted, ahead = self._after(passed), 1
        while self._after(passed + ahead) == wanted:
            ahead *= 2
        changed = bisect_right(range(passed + ahead), wanted, lo=passed + ahead // 2, key=self._after)
        return Until(epoch=changed * self.every_epochs)

    def _after(self, milestones: int) -> int:
        return ceil(SIXTY_DIGITS.multiply(self.initial, SIXTY_DIGITS.power(self.factor, milestones)))
