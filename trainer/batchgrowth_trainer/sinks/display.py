"""The display of a run: live on a terminal or in a notebook, plain lines elsewhere."""

import io
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from batchgrowth.errors import counted, duration
from batchgrowth.plan import Plan
from batchgrowth.position import Position
from rich.console import Console, Group, RenderableType
from rich.live import Live as Screen
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from batchgrowth_trainer.record.history import EvaluationRow, HistoryRow
from batchgrowth_trainer.sinks.events import (
    EndedEarly,
    Event,
    Looked,
    Sink,
    Started,
    Stopped,
    Undone,
    Waiting,
    note_of,
    shown_metrics,
)

PACE_HALF_LIFE_SECONDS = 3.0  # of the smoothed pace; short, so that it soon follows a resize


# --- On a terminal ---


class Shown(Protocol):
    """Shows pictures in one place, each replacing the previous picture; on a terminal, this is rich's Live."""

    def update(self, renderable: RenderableType, *, refresh: bool) -> None: ...

    def stop(self) -> None: ...


class Live:
    """A progress bar of the examples with the current numbers below it.

    Redraws at most eight times a second; an update in between only replaces the newest row.
    """

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
            case Undone(plan=plan, position=position):
                self._note(event)
                done = self._begin(plan, position)
                if self._screen is not None:
                    self._screen.update(self._picture(done), refresh=True)
            case _:
                self._note(event)

    def _note(self, event: Event) -> None:
        if line := note_of(event):
            self._console.print(Text(line, style="yellow"))

    def _start(self, name: str, plan: Plan, position: Position) -> None:
        self._stop()
        self._name = name
        done = self._begin(plan, position)
        self._screen = self._open(self._picture(done))

    def _begin(self, plan: Plan, position: Position) -> int:
        """Forget the numbers of what was trained so far, and return the examples before the position."""
        self._plan = plan
        self._row = None
        self._evaluation = None
        done = position.epoch * plan.examples_per_epoch + position.offset
        self._pace = _Pace(done, self._clock())
        return done

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
        """Return the time left, which comes with the row (forecasting/online.py); at the end, the time passed."""
        assert self._plan is not None
        if self._row is None:
            return ""
        if done == self._plan.examples or self._row.remaining_seconds is None:
            return duration(self._row.seconds)
        return f"{duration(self._row.remaining_seconds)} left"

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
        self._done = done
        self._at = at
        self.per_second = 0.0

    def seen(self, done: int, at: float) -> None:
        passed = at - self._at
        if passed <= 0 or done <= self._done:
            return
        now = (done - self._done) / passed
        kept = math.exp2(-passed / PACE_HALF_LIFE_SECONDS) if self.per_second > 0 else 0.0
        self.per_second = kept * self.per_second + (1 - kept) * now
        self._done = done
        self._at = at


def make_display(console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> Sink:
    """Make a live display if `console`, by default standard output, is a terminal; otherwise print plain lines."""
    shown = console or Console()
    return Live(shown, clock) if shown.is_terminal else Lines(shown)


# --- In a log ---


class Lines:
    """Prints plain lines for logs, without colours or control characters: one per epoch, stage and note."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._plan: Plan | None = None
        self._stage = -1
        self._epoch = 0
        self._last: HistoryRow | None = None
        self._ended: HistoryRow | None = None  # the last update of an epoch, until its evaluation or the next event
        self._look: str | None = None  # the outcome of a look at the end of an epoch, until that epoch has its line

    def handle(self, event: Event) -> None:
        match event:
            case HistoryRow():
                self._row(event)
            case EvaluationRow():
                self._evaluation(event)
            case Started(name, plan, position):
                self._start(name, plan, position)
            case Stopped():
                self._stop()
            case Looked(plan=plan):
                self._plan = plan
                if self._ended is None:
                    self._note(note_of(event))
                else:
                    self._look = note_of(event)
            case EndedEarly(plan=plan):
                self._plan = plan
                self._note(note_of(event))
            case Undone(plan=plan, position=position):
                self._note(note_of(event))
                self._begin(plan, position)
            case _:
                self._note(note_of(event))

    def _start(self, name: str, plan: Plan, position: Position) -> None:
        self._stop()
        self._begin(plan, position)
        begins = f"goes on after update {position.update:,}" if position.update else "starts"
        self._write(
            f"{name} {begins}: "
            f"{counted(plan.epochs, 'epoch')}, {counted(plan.updates, 'update')}, {counted(len(plan.stages), 'stage')}"
        )

    def _begin(self, plan: Plan, position: Position) -> None:
        self._plan = plan
        self._stage = -1
        self._epoch = position.epoch
        self._last = None

    def _row(self, row: HistoryRow) -> None:
        if self._ended is not None:
            self._end_epoch()
        self._last = row
        if row.stage != self._stage:
            self._stage = row.stage
            of = "" if self._plan is None else f" of {len(self._plan.stages)}"
            numbers = f"batch {row.batch_size}, learning rate {row.learning_rate:g}, workers {row.workers}"
            self._write(f"stage {row.stage + 1}{of}: {numbers}")
        if row.epoch >= self._epoch + 1:
            self._epoch = int(row.epoch)
            self._ended = row

    def _evaluation(self, row: EvaluationRow) -> None:
        test = f"test loss {row.loss:.4f}{shown_metrics(row)}"
        if self._ended is not None and self._ended.update == row.update:
            self._end_epoch(f"{test}, ")
        else:
            self._write(f"update {row.update:,}: {test}")

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

    def _end_epoch(self, test: str = "") -> None:
        if self._ended is None:
            return
        row = self._ended
        self._ended = None
        of = "" if self._plan is None else f" of {self._plan.epochs}"
        self._write(
            f"epoch {int(row.epoch)}{of}: update {row.update:,}, loss {row.loss:.4f}, {test}"
            f"batch {row.batch_size}, workers {row.workers}, {duration(row.seconds)}"
        )
        look = self._look
        self._look = None
        self._note(look)

    def _write(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, no_wrap=True, overflow="ignore", crop=False)


# --- In a notebook ---

MOST_NOTES = 8
WIDTH = 100  # characters
_PAGE = (
    "<pre style=\"font-family: Menlo, 'DejaVu Sans Mono', Consolas, monospace; line-height: 1.3; margin: 0; "
    'white-space: pre; overflow-x: auto">{code}</pre>'
)


class NotebookDisplay(Live):
    """The live display in a notebook, with the newest notes below it, in one output of the cell.

    `show` puts a picture in the place of the one before.
    """

    refresh_seconds = 1 / 4

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, show: Callable[["Picture"], None] | None = None
    ) -> None:
        super().__init__(Console(), clock)
        self._show_picture = show or _shown_by_ipython()
        self._notes: deque[str] = deque(maxlen=MOST_NOTES)
        self._waiting = ""
        self._drawn: RenderableType = ""

    def handle(self, event: Event) -> None:
        if isinstance(event, HistoryRow):
            self._waiting = ""
        super().handle(event)

    def update(self, renderable: RenderableType, *, refresh: bool) -> None:
        self._drawn = renderable
        if refresh:
            self._draw()

    def stop(self) -> None:
        """Do nothing: the output stays below the cell."""

    def _open(self, picture: RenderableType) -> "NotebookDisplay":
        self.update(picture, refresh=True)
        return self

    def _note(self, event: Event) -> None:
        line = note_of(event)
        if line is None:
            return
        if isinstance(event, Waiting):
            self._waiting = line
        else:
            self._notes.append(line)
        self._draw()

    def _draw(self) -> None:
        notes = [Text(line, style="dim") for line in (*self._notes, self._waiting) if line]
        self._show_picture(Picture(Group(*([self._drawn] if self._drawn else []), *notes)))


class Picture:
    """A picture drawn by rich, as HTML and as plain text."""

    def __init__(self, drawn: RenderableType) -> None:
        console = Console(record=True, file=io.StringIO(), width=WIDTH, force_jupyter=False, color_system="truecolor")
        console.print(drawn, soft_wrap=False)
        self._text = console.export_text(clear=False).rstrip("\n")
        self._html = console.export_html(inline_styles=True, code_format=_PAGE)

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return self._html


def _shown_by_ipython() -> Callable[[Picture], None]:
    from IPython.display import display

    handles: list[Any] = []

    def show(picture: Picture) -> None:
        if handles:
            handles[0].update(picture)
        else:
            handles.append(display(picture, display_id=True))

    return show
