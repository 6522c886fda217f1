"""What displays have in common: one that shows nothing, and what those for people make of it."""

from __future__ import annotations

from batchgrowth.plan import Plan, Position

from batchgrowth_trainer.record.history import EvaluationRow, HistoryRow, ResizeRow
from batchgrowth_trainer.telling.progress_text import resized


class Quiet:
    """Shows nothing."""

    def start(self, name: str, plan: Plan, position: Position) -> None:
        """Nothing."""

    def row(self, row: HistoryRow) -> None:
        """Nothing."""

    def evaluation(self, row: EvaluationRow) -> None:
        """Nothing."""

    def resize(self, row: ResizeRow) -> None:
        """Nothing."""

    def checkpoint(self, update: int) -> None:
        """Nothing."""

    def trained(self, sha256: str) -> None:
        """Nothing."""

    def ready(self, workers: int) -> None:
        """Nothing."""

    def wait_for(self, what: str) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def stop(self) -> None:
        """Nothing."""


class Announcing(Quiet):
    """Changes of the workers, and waits, are notes; the rest of what programs want to know is not worth a line."""

    def resize(self, row: ResizeRow) -> None:
        """One line."""
        self.note(resized(row))

    def wait_for(self, what: str) -> None:
        """One line."""
        self.note(f"waiting for {what}")
