"""Constant: d = initial."""

from __future__ import annotations

from dataclasses import dataclass

from batchgrowth.policies.protocol import Measurements, Until
from batchgrowth.position import Position


@dataclass(frozen=True, slots=True)
class ConstantPolicy:
    """The batch stays as it is."""

    initial: int

    def wanted(self, position: Position, measured: Measurements) -> int:  # noqa: ARG002
        """The initial batch size."""
        return self.initial

    def until(self, position: Position) -> Until:  # noqa: ARG002
        """For ever."""
        return Until()
