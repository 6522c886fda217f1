"""Linear: 1 - (1 - finalFactor) · epoch / epochs. Li, Yumer and Ramanan, 2020; torch's LinearLR."""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from batchgrowth.extend import Model, ScheduleEntry, exact
from batchgrowth.schedules.falling import FallEpochs, FinalFactor, below_one, within_the_job


class Linear(Model):
    """The factor of an epoch is 1 - (1 - finalFactor) · epoch / epochs: Li, Yumer and Ramanan, 2020."""

    final_factor: FinalFactor = "0"
    epochs: FallEpochs = None

    rules: ClassVar = (below_one(),)


@dataclass(frozen=True, slots=True)
class LinearSchedule:
    """The factor falls by the same amount each epoch, from 1 to `final` after `epochs`, and stays there."""

    final: Fraction
    epochs: int

    def factor(self, epoch: int) -> Fraction:
        """The factor during that epoch, exact."""
        return 1 - (1 - self.final) * Fraction(min(epoch, self.epochs), self.epochs)


ENTRY = ScheduleEntry(
    name="Linear",
    summary="falls by the same amount each epoch",
    source="Li, Yumer and Ramanan, 2020",
    block=Linear,
    implementation=lambda block, epochs: LinearSchedule(exact(block.final_factor), block.epochs or epochs),
    example={"finalFactor": "0.1"},
    outer_rules={"JobSpec": within_the_job("linear")},
)
