"""InverseSquareRoot: sqrt(offsetEpochs / (offsetEpochs + epoch)). Vaswani et al., 2017, section 5.3, by epoch."""

from dataclasses import dataclass
from fractions import Fraction

from pydantic import Field

from batchgrowth.extend import Model, ScheduleEntry, square_root


class InverseSquareRoot(Model):
    """The factor of an epoch is sqrt(offsetEpochs / (offsetEpochs + epoch)): Vaswani et al., 2017, by epoch."""

    offset_epochs: int = Field(
        1,
        ge=1,
        le=1_000_000,
        description="Epochs counted as done before the first; the more, the slower the fall. Default: 1.",
    )


@dataclass(frozen=True, slots=True)
class InverseSquareRootSchedule:
    """The factor falls with the inverse square root of the epochs."""

    offset_epochs: int

    def factor(self, epoch: int) -> Fraction:
        """1 at first; exact if the root is rational, else to 50 digits."""
        return square_root(Fraction(self.offset_epochs, self.offset_epochs + epoch))


ENTRY = ScheduleEntry(
    name="InverseSquareRoot",
    summary="falls with the inverse square root of the epochs",
    source="Vaswani et al., 2017",
    block=InverseSquareRoot,
    implementation=lambda block, _epochs: InverseSquareRootSchedule(block.offset_epochs),
    example={"offsetEpochs": 4},
)
