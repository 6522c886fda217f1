"""Linear: d = ceil(initial + examplesPerUpdate · updates done). PadaDamp of Sievert and Shah, 2021."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from batchgrowth.policies.protocol import Measurements, Until
from batchgrowth.position import Position


@dataclass(frozen=True, slots=True)
class LinearPolicy:
    """The batch grows a little with each update; the rule is looked at every few updates."""

    initial: int
    examples_per_update: Fraction
    every_updates: int

    def wanted(self, position: Position, measured: Measurements) -> int:  # noqa: ARG002
        """The rule at the last look before or at this update."""
        looked = position.update // self.every_updates * self.every_updates
        return ceil(self.initial + self.examples_per_update * looked)

    def until(self, position: Position) -> Until:
        """To the first look at which the rounded answer is a larger one."""
        wanted = self.wanted(position, Measurements())
        updates = (wanted - self.initial) / self.examples_per_update
        return Until(update=(floor(updates / self.every_updates) + 1) * self.every_updates)
