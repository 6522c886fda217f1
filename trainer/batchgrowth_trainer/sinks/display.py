"""The display of a run: live on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable

from batchgrowth.durations import duration
from batchgrowth.plan import Plan, Position
from rich.console import Console

from batchgrowth_trainer.record.history import EvaluationRow, HistoryRow
from batchgrowth_trainer.sinks.events import EndedEarly, Event, Looked, Sink, Started, Stopped
from batchgrowth_trainer.sinks.live import Live
from batchgrowth_trainer.sinks.wording import note_of, shown_metrics


def make_display(console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> Sink:
    """A live display if `console` (standard output by default) is a terminal, else plain lines."""
    shown = console or Console()
    return Live(shown, clock) if shown.is_terminal else Lines(shown)


class Lines:
    """Plain lines for logs: one per epoch, stage and note; no colours and no control characters."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._plan: Plan | None = None
        self._stage = -1
        self._epoch = 0
        self._last: HistoryRow | None = None
        self._ended: HistoryRow | None = None  # the last update of an epoch, until its evaluation or the next event
        self._look: str | None = None  # the outcome of a look at the end of an epoch, until that epoch has its line

    def handle(self, event: Event) -> None:
        """See Sink."""
        match event:
            case HistoryRow():
                self._row(event)
            case EvaluationRow():
                self._evaluation(event)
            case Started(name, plan, position):
                self._start(name, plan, position)
            case Stopped():
                self._stop()
            case Looked():
                self._looked(event)
            case EndedEarly(plan):
                self._plan = plan
                self._note(note_of(event))
            case _:
                self._note(note_of(event))

    def _start(self, name: str, plan: Plan, position: Position) -> None:
        self._stop()
        self._plan, self._stage, self._epoch = plan, -1, position.epoch
        begins = f"goes on after update {position.update:,}" if position.update else "starts"
        self._write(f"{name} {begins}: {plan.epochs} epochs, {plan.updates:,} updates, {len(plan.stages)} stages")

    def _row(self, row: HistoryRow) -> None:
        if self._ended is not None:
            self._end_epoch()
        self._last = row
        if row.stage != self._stage:
            self._stage = row.stage
            self._begin_stage(row)
        if row.epoch >= self._epoch + 1:
            self._epoch = int(row.epoch)
            self._ended = row

    def _evaluation(self, row: EvaluationRow) -> None:
        test = f"test loss {row.loss:.4f}{shown_metrics(row)}"
        if self._ended is not None and self._ended.update == row.update:
            self._end_epoch(f"{test}, ")
        else:
            self._write(f"update {row.update:,}: {test}")

    def _looked(self, event: Looked) -> None:
        self._plan = event.plan
        if self._ended is None:
            self._note(note_of(event))
        else:
            self._look = note_of(event)

    def _note(self, line: str | None) -> None:
        if line is not None:
            self._end_epoch()
            self._write(line)

    def _stop(self) -> None:
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
        look, self._look = self._look, None
        self._note(look)

    def _write(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, no_wrap=True, overflow="ignore", crop=False)
