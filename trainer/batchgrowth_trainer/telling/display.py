"""What a person sees while a run trains: a live display on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from batchgrowth.durations import duration
from batchgrowth.plan import Plan, Position
from rich.console import Console

from batchgrowth_trainer.record.history import EvaluationRow, HistoryRow, ResizeRow
from batchgrowth_trainer.telling.announcing import Announcing, Quiet
from batchgrowth_trainer.telling.live import Live
from batchgrowth_trainer.telling.progress_text import shown_metrics

__all__ = ["Display", "Lines", "Live", "Quiet", "make_display"]


class Display(Protocol):
    """Told of everything in the order in which it happens; `row` may be called a thousand times a second."""

    def start(self, name: str, plan: Plan, position: Position) -> None:
        """A job begins, or goes on from `position`."""

    def row(self, row: HistoryRow) -> None:
        """An update is done."""

    def evaluation(self, row: EvaluationRow) -> None:
        """The model was measured on the test set."""

    def resize(self, row: ResizeRow) -> None:
        """Workers joined or left."""

    def checkpoint(self, update: int) -> None:
        """The state after so many updates is on the disk."""

    def trained(self, sha256: str) -> None:
        """Every update is done; these are the weights."""

    def ready(self, workers: int) -> None:
        """So many workers could train now."""

    def wait_for(self, what: str) -> None:
        """Training stands still until this is there; the next row ends it."""

    def note(self, text: str) -> None:
        """Something happened that is worth a line: a recovery, a warning."""

    def stop(self) -> None:
        """The run is over, whatever its end; stopping twice is stopping once."""


def make_display(console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> Display:
    """A live display where `console` (standard output by default) is a terminal, else plain lines."""
    shown = console or Console()
    return Live(shown, clock) if shown.is_terminal else Lines(shown)


class Lines(Announcing):
    """Plain lines for logs: one per epoch, one per stage, one per note; no colours and no control characters."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._plan: Plan | None = None
        self._stage = -1
        self._epoch = 0
        self._last: HistoryRow | None = None
        self._ended: HistoryRow | None = None  # the last update of an epoch, kept until it is known if a test follows

    def start(self, name: str, plan: Plan, position: Position) -> None:
        """One line that says what is about to run, or to go on."""
        self.stop()
        self._plan, self._stage, self._epoch = plan, -1, position.epoch
        begins = f"goes on after update {position.update:,}" if position.update else "starts"
        self._write(f"{name} {begins}: {plan.epochs} epochs, {plan.updates:,} updates, {len(plan.stages)} stages")

    def row(self, row: HistoryRow) -> None:
        """A line at the first update of a stage and at the last of an epoch."""
        if self._ended is not None:
            self._end_epoch()
        self._last = row
        if row.stage != self._stage:
            self._stage = row.stage
            self._begin_stage(row)
        if row.epoch >= self._epoch + 1:
            self._epoch = int(row.epoch)
            self._ended = row

    def evaluation(self, row: EvaluationRow) -> None:
        """Part of the epoch's line where it follows one, else a line of its own."""
        test = f"test loss {row.loss:.4f}{shown_metrics(row)}"
        if self._ended is not None and self._ended.update == row.update:
            self._end_epoch(f"{test}, ")
        else:
            self._write(f"update {row.update:,}: {test}")

    def note(self, text: str) -> None:
        """One line."""
        self._end_epoch()
        self._write(" ".join(text.split()))

    def stop(self) -> None:
        """One line that says where the run stood."""
        self._end_epoch()
        if self._last is not None and self._plan is not None:
            word = "done" if self._last.update == self._plan.updates else "stopped"
            self._write(f"{word} after update {self._last.update:,}, {duration(self._last.seconds)}")
        self._last = None

    def _begin_stage(self, row: HistoryRow) -> None:
        of = "" if self._plan is None else f" of {len(self._plan.stages)}"
        numbers = f"batch {row.batch_size}, learning rate {row.learning_rate:g}, workers {row.workers}"
        self._write(f"stage {row.stage + 1}{of}: {numbers}")

    def _end_epoch(self, test: str = "") -> None:
        if self._ended is None:
            return
        row, self._ended = self._ended, None
        of = "" if self._plan is None else f" of {self._plan.epochs}"
        self._write(
            f"epoch {int(row.epoch)}{of}: update {row.update:,}, loss {row.loss:.4f}, {test}"
            f"batch {row.batch_size}, workers {row.workers}, {duration(row.seconds)}"
        )

    def _write(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, no_wrap=True, overflow="ignore", crop=False)
