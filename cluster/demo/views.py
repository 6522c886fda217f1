"""Showing a job while it goes on: redrawn on a terminal, line by line elsewhere."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import datetime
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from cluster.demo import words
from cluster.demo.picture import picture
from cluster.demo.seen import Seen, now

REDRAWS_PER_SECOND = 4


class View(Protocol):
    """What is told of every look at the job."""

    def __enter__(self) -> Self:
        """Begins."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaves the last state where it can be read."""

    def show(self, seen: Seen, trouble: str = "") -> None:
        """The job as it is now; `trouble` says why it may be older than that."""


def view(console: Console) -> View:
    """The one that suits the console."""
    return LiveView(console) if console.is_terminal else Lines(console)


class LiveView:
    """The whole picture, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=REDRAWS_PER_SECOND, transient=True)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._live)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def show(self, seen: Seen, trouble: str = "") -> None:
        """Draws at the next refresh."""
        self._live.update(picture(seen, now(), trouble))


class Lines:
    """A line for every event, and one when a stage, the workers or a tenth of the way has changed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: set[tuple[str, str, str]] = set()
        self._last: tuple[object, ...] = ()
        self._trouble = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Every line stays as it is."""

    def show(self, seen: Seen, trouble: str = "") -> None:
        """Prints what is new."""
        if trouble and trouble != self._trouble:
            self._line(trouble)
        self._trouble = trouble
        for event in seen.events:
            key = (str(event.at), event.reason, event.message)
            if key not in self._told:
                self._told.add(key)
                self._line(f"{_after(seen, event.at)}  {event.reason}: {event.message}")
        status = seen.status
        done = (status.trainer_status.progress_percentage if status.trainer_status else None) or 0
        told = (status.phase, status.stage, words.workers(status), done // 10)
        if told != self._last:
            self._last = told
            batch = status.batch.current if status.batch else seen.plan.stages[0].batch_size
            parts = (status.phase, f"batch {batch:,}", words.workers(status), words.numbers(status), words.left(status))
            self._line(f"{_after(seen, seen.ended or now())}  {'  '.join(part for part in parts if part)}")

    def _line(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


def _after(seen: Seen, at: datetime) -> str:
    """Seconds since the apply."""
    return f"{(at - seen.applied).total_seconds():7.1f} s"
