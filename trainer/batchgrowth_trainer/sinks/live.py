"""The live display: a progress bar of the examples with the current numbers below it."""

import math
from collections.abc import Callable
from typing import Protocol

from batchgrowth.durations import duration
from batchgrowth.plan import Plan, Position
from rich.console import Console, Group, RenderableType
from rich.live import Live as Screen
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from batchgrowth_trainer.record.history import EvaluationRow, HistoryRow
from batchgrowth_trainer.sinks.events import EndedEarly, Event, Looked, Started, Stopped
from batchgrowth_trainer.sinks.wording import note_of, shown_metrics

PACE_HALF_LIFE_SECONDS = 3.0  # of the smoothed pace; short, so that the time left soon follows a resize


class Shown(Protocol):
    """Where pictures are shown, each in the place of the one before; rich's Live for a terminal."""

    def update(self, renderable: RenderableType, *, refresh: bool) -> None: ...

    def stop(self) -> None: ...


class Live:
    """Redraws at most eight times a second; an update in between only replaces the newest row."""

    refresh_seconds = 1 / 8

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._console = console
        self._clock = clock
        self._screen: Shown | None = None
        self._name = ""
        self._plan: Plan | None = None
        self._row: HistoryRow | None = None
        self._evaluation: EvaluationRow | None = None
        self._due = 0.0
        self._pace = _Pace()

    def handle(self, event: Event) -> None:
        """See Sink."""
        match event:
            case HistoryRow():
                self._show(event)
            case EvaluationRow():
                self._evaluation = event
            case Started(name, plan, position):
                self._start(name, plan, position)
            case Stopped():
                self._stop()
            case Looked(plan=plan) | EndedEarly(plan=plan):
                self._plan = plan
                self._note(event)
            case _:
                self._note(event)

    def _note(self, event: Event) -> None:
        if line := note_of(event):
            self._console.print(Text(line, style="yellow"))

    def _start(self, name: str, plan: Plan, position: Position) -> None:
        self._stop()
        self._name, self._plan, self._row, self._evaluation = name, plan, None, None
        done = position.epoch * plan.examples_per_epoch + position.offset
        self._pace = _Pace(done, self._clock())
        self._screen = self._open(self._picture(done))

    def _open(self, picture: RenderableType) -> Shown:
        # rich's own refresh thread would contend with the trainer for the interpreter, so updates drive the redraw.
        screen = Screen(picture, console=self._console, auto_refresh=False)
        screen.start(refresh=True)
        return screen

    def _show(self, row: HistoryRow) -> None:
        self._row = row
        now = self._clock()
        if now >= self._due:
            self._due = now + self.refresh_seconds
            self._redraw(now)

    def _stop(self) -> None:
        if self._screen is not None:
            self._redraw(self._clock())
            self._screen.stop()
            self._screen = None

    def _redraw(self, now: float) -> None:
        if self._screen is None or self._plan is None or self._row is None:
            return
        done = round(self._row.epoch * self._plan.examples_per_epoch)
        self._pace.seen(done, now)
        self._screen.update(self._picture(done), refresh=True)

    def _picture(self, done: int) -> RenderableType:
        assert self._plan is not None
        bar = Table.grid(padding=(0, 2), expand=True)
        bar.add_column(no_wrap=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True, justify="right")
        bar.add_row(
            Text(self._name, style="bold"),
            ProgressBar(total=self._plan.examples, completed=done, complete_style="cyan", finished_style="green"),
            Text(f"{done / self._plan.examples:.0%}  {self._left(done)}"),
        )
        return bar if self._row is None else Group(bar, *self._numbers(self._plan, self._row))

    def _left(self, done: int) -> str:
        assert self._plan is not None
        left = self._plan.examples - done
        if left == 0 or self._pace.per_second <= 0:
            return "" if self._row is None else duration(self._row.seconds)
        return f"{duration(left / self._pace.per_second)} left"

    def _numbers(self, plan: Plan, row: HistoryRow) -> tuple[Text, Text]:
        speed = f"  {self._pace.per_second:,.0f} examples/s" if self._pace.per_second > 0 else ""
        test = "" if self._evaluation is None else f"  test loss {self._evaluation.loss:.4f}"
        metrics = "" if self._evaluation is None else shown_metrics(self._evaluation)
        where = f"epoch {row.epoch:.1f}/{plan.epochs}  update {row.update:,}/{plan.updates:,}"
        return (
            Text(f"{where}  stage {row.stage + 1}/{len(plan.stages)}{speed}", style="dim"),
            Text.assemble(
                ("batch ", "dim"),
                (str(row.batch_size), "bold cyan"),
                ("  workers ", "dim"),
                (str(row.workers), "bold green"),
                f"  learning rate {row.learning_rate:g}  loss {row.loss:.4f}{test}{metrics}",
            ),
        )


class _Pace:
    """Examples per second, smoothed over the last few seconds."""

    __slots__ = ("_at", "_done", "per_second")

    def __init__(self, done: int = 0, at: float = 0.0) -> None:
        self._done, self._at = done, at
        self.per_second = 0.0

    def seen(self, done: int, at: float) -> None:
        passed = at - self._at
        if passed <= 0 or done <= self._done:
            return
        now = (done - self._done) / passed
        kept = math.exp2(-passed / PACE_HALF_LIFE_SECONDS) if self.per_second > 0 else 0.0
        self.per_second = kept * self.per_second + (1 - kept) * now
        self._done, self._at = done, at
