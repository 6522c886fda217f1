"""The live display: a bar by examples with the present numbers beneath it, redrawn a few times a second."""

from __future__ import annotations

import math
from collections.abc import Callable

from batchgrowth.durations import duration
from batchgrowth.plan import Plan, Position
from rich.console import Console, Group, RenderableType
from rich.live import Live as Screen
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from batchgrowth_trainer.record.history import EvaluationRow, HistoryRow
from batchgrowth_trainer.telling.announcing import Announcing
from batchgrowth_trainer.telling.progress_text import shown_metrics

REFRESH_SECONDS = 1 / 8
# The pace forgets with this half-life, so that the time left follows the workers soon after they change.
PACE_HALF_LIFE_SECONDS = 3.0


class Live(Announcing):
    """Redraws at most eight times a second; between those, `row` only keeps the row."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._console = console
        self._clock = clock
        self._screen: Screen | None = None
        self._name = ""
        self._plan: Plan | None = None
        self._row: HistoryRow | None = None
        self._evaluation: EvaluationRow | None = None
        self._due = 0.0
        self._pace = _Pace()

    def start(self, name: str, plan: Plan, position: Position) -> None:
        """Takes the lower lines of the terminal."""
        self.stop()
        self._name, self._plan, self._row, self._evaluation = name, plan, None, None
        done = position.epoch * plan.examples_per_epoch + position.offset
        self._pace = _Pace(done, self._clock())
        # rich's own refreshing thread would contend with the trainer for the interpreter, so rows drive the redraw.
        self._screen = Screen(self._picture(done), console=self._console, auto_refresh=False)
        self._screen.start(refresh=True)

    def row(self, row: HistoryRow) -> None:
        """Keeps the row, and redraws when it is time."""
        self._row = row
        now = self._clock()
        if now >= self._due:
            self._due = now + REFRESH_SECONDS
            self._redraw(now)

    def evaluation(self, row: EvaluationRow) -> None:
        """Keeps the newest measurement for the next redraw."""
        self._evaluation = row

    def note(self, text: str) -> None:
        """One line above the bar, which stays."""
        self._console.print(Text(" ".join(text.split()), style="yellow"))

    def stop(self) -> None:
        """Draws the last state and leaves it on the terminal."""
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
