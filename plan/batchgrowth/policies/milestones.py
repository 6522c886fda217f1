"""Milestones: a list of (epoch, batch size). Smith et al., 2017; Sievert and Shah, 2021, Fig. 2."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from batchgrowth.policies.protocol import Measurements, Until
from batchgrowth.position import Position


@dataclass(frozen=True, slots=True)
class MilestonesPolicy:
    """The batch follows a list; `epochs` rise strictly, and `sizes` has one entry for each."""

    initial: int
    epochs: tuple[int, ...]
    sizes: tuple[int, ...]

    def wanted(self, position: Position, measured: Measurements) -> int:  # noqa: ARG002
        """The size of the last milestone passed; the initial one before the first."""
        passed = bisect_right(self.epochs, position.epoch)
        return self.sizes[passed - 1] if passed else self.initial

    def until(self, position: Position) -> Until:
        """To the next milestone; for ever after the last."""
        passed = bisect_right(self.epochs, position.epoch)
        return Until(epoch=self.epochs[passed]) if passed < len(self.epochs) else Until()
