"""Decisions of a measured rule of growth, and the plan's rule that follows them."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from batchgrowth.extend import Until
from batchgrowth.position import Position

MOST_DECISIONS = 256
"""The most changes of the batch that a measured rule may decide; the batch then stays as it is."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of a look at update `update`: the batch size wanted from then on, and the measured value."""

    update: int
    wanted: int
    value: float


@dataclass(frozen=True, slots=True)
class DecidedRule:
    """The batch size follows decisions, whose updates rise strictly; it is `initial` before the first."""

    initial: int
    decisions: Sequence[Decision]

    def wanted(self, position: Position) -> int:
        """The size of the last decision taken."""
        taken = self._taken(position)
        return self.decisions[taken - 1].wanted if taken else self.initial

    def until(self, position: Position) -> Until:
        """The next decision; never after the last."""
        taken = self._taken(position)
        return Until(update=self.decisions[taken].update) if taken < len(self.decisions) else Until()

    def _taken(self, position: Position) -> int:
        return bisect_right(self.decisions, position.update, key=lambda decision: decision.update)
