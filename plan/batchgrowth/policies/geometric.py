"""Geometric: d = ceil(initial · factor^floor(epochs done / everyEpochs)). GeoDamp of Sievert and Shah, 2021."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from batchgrowth.policies.protocol import Measurements, Until
from batchgrowth.position import Position


@dataclass(frozen=True, slots=True)
class GeometricPolicy:
    """The batch is multiplied every few epochs."""

    initial: int
    factor: Fraction
    every_epochs: int

    def wanted(self, position: Position, measured: Measurements) -> int:  # noqa: ARG002
        """The initial batch size times the factor for each milestone passed, rounded up once at the end."""
        return ceil(self.initial * self.factor ** (position.epoch // self.every_epochs))

    def until(self, position: Position) -> Until:
        """To the next multiple of everyEpochs."""
        return Until(epoch=(position.epoch // self.every_epochs + 1) * self.every_epochs)
