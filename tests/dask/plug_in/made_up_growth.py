"""Stairs: d = initial · (1 + stairs climbed), one stair every few epochs."""

from dataclasses import dataclass
from typing import Annotated

from batchgrowth.extend import GrowthEntry, Until
from batchgrowth.position import Position
from batchgrowth.schema import Model
from pydantic import Field


class Stairs(Model):
    """d = initial · (1 + floor(epochs done / everyEpochs))."""

    every_epochs: Annotated[int, Field(ge=1, le=1000, description="Epochs per stair. Required. Example: 2.")]


@dataclass(frozen=True)
class StairsRule:
    initial: int
    every_epochs: int

    def wanted(self, position: Position) -> int:
        return self.initial * (1 + position.epoch // self.every_epochs)

    def until(self, position: Position) -> Until:
        return Until(epoch=(position.epoch // self.every_epochs + 1) * self.every_epochs)


ENTRY = GrowthEntry(
    name="Stairs",
    summary="climbs by batch.initial every few epochs",
    block=Stairs,
    implementation=lambda initial, settings, _schedule: StairsRule(initial, settings.every_epochs),
    example={"everyEpochs": 2},
)
