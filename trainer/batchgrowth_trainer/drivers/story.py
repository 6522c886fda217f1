"""What a run has been through, which its checkpoints and its summary hold beside the position."""

from dataclasses import dataclass, field
from typing import Any

from batchgrowth_trainer.record.history import ResizeRow
from batchgrowth_trainer.record.sealed import Saved


@dataclass(slots=True)
class Story:
    """`evaluated` is the last evaluated epoch."""

    resizes: list[ResizeRow] = field(default_factory=list)
    recoveries: int = 0
    evaluated: int = 0
    accuracy: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The story as checkpoints store it."""
        return {
            "resizes": [row.to_json() for row in self.resizes],
            "recoveries": self.recoveries,
            "evaluated": self.evaluated,
            "accuracy": self.accuracy,
        }


def story_of(saved: Saved | None) -> Story:
    """The story so far of a run that goes on from a checkpoint; a new one without.

    A member trains on before its state is saved, so the story may be ahead of the checkpoint: the run then evaluates
    the later epochs again, since their rows are cut off.
    """
    if saved is None:
        return Story()
    resizes = [ResizeRow.from_json(record) for record in saved.story["resizes"]]
    evaluated = min(int(saved.story["evaluated"]), saved.snapshot.position.epoch)
    return Story(resizes, int(saved.story["recoveries"]), evaluated, saved.story["accuracy"])
