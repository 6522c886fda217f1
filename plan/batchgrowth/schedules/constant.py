"""Constant: factor 1."""

from dataclasses import dataclass
from fractions import Fraction

from batchgrowth.extend import ScheduleEntry


@dataclass(frozen=True, slots=True)
class ConstantSchedule:
    """The learning rate does not depend on the epoch."""

    def factor(self, epoch: int) -> Fraction:  # noqa: ARG002
        """1."""
        return Fraction(1)


ENTRY = ScheduleEntry(
    name="Constant",
    summary="does not depend on the epoch",
    implementation=lambda _settings, _epochs: ConstantSchedule(),
)
