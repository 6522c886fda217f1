"""Progress reports while a job trains: one small document, to a file or to a ConfigMap, for whoever watches.

A reporter is a display: it hears what a person would see.  Sending is done beside the training, newest first; a
report that cannot be sent is tried again with the next, and training never waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from batchgrowth.plan import Plan, Position
from batchgrowth.progress import Progress

from batchgrowth_trainer.record.history import EvaluationRow, HistoryRow, ResizeRow
from batchgrowth_trainer.telling.display import Display

PERIOD_SECONDS = 1.0
_SMOOTHING = 0.1

Sink = Callable[[str], None]
"""Takes a report as JSON; raises OSError where it cannot be delivered now."""


class Together:
    """Several displays that are told the same."""

    def __init__(self, displays: Sequence[Display]) -> None:
        self._displays = tuple(displays)

    def start(self, name: str, plan: Plan, position: Position) -> None:
        """A job begins, or goes on."""
        for display in self._displays:
            display.start(name, plan, position)

    def row(self, row: HistoryRow) -> None:
        """An update is done."""
        for display in self._displays:
            display.row(row)

    def evaluation(self, row: EvaluationRow) -> None:
        """The model was measured."""
        for display in self._displays:
            display.evaluation(row)

    def resize(self, row: ResizeRow) -> None:
        """Workers joined or left."""
        for display in self._displays:
            display.resize(row)

    def checkpoint(self, update: int) -> None:
        """A checkpoint is on the disk."""
        for display in self._displays:
            display.checkpoint(update)

    def trained(self, sha256: str) -> None:
        """Every update is done."""
        for display in self._displays:
            display.trained(sha256)

    def ready(self, workers: int) -> None:
        """So many workers could train now."""
        for display in self._displays:
            display.ready(workers)

    def wait_for(self, what: str) -> None:
        """Training stands still."""
        for display in self._displays:
            display.wait_for(what)

    def note(self, text: str) -> None:
        """Something happened that is worth a line."""
        for display in self._displays:
            display.note(text)

    def stop(self) -> None:
        """The run is over."""
        for display in self._displays:
            display.stop()


class Reporter:
    """Keeps the newest report and has it sent once a second, when a stage begins, and at the end."""

    def __init__(self, sink: Sink, start: int = 0) -> None:
        """`start` counts the starts of this job's trainer from 0: a later start's reports are newer than any before."""
        self._sink, self._start = sink, start
        self._plan: Plan | None = None
        self._newest: Progress | None = None
        self._pace = 0.0
        self._wanted, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._send_until_over, name="progress reports", daemon=True)

    def start(self, name: str, plan: Plan, position: Position) -> None:  # noqa: ARG002
        """The first report: where training stands before it goes on."""
        stage = plan.stage_at(position.update)
        self._plan = plan
        self._newest = Progress(
            update=position.update,
            updates=plan.updates,
            epoch=position.epoch + position.offset / plan.examples_per_epoch,
            epochs=plan.epochs,
            stage=stage.index,
            batch_size=stage.batch_size,
            learning_rate=stage.learning_rate,
            workers=0,
            start=self._start,
            checkpoint_update=position.update or None,
        )
        self._wanted.set()
        self._thread.start()

    def row(self, row: HistoryRow) -> None:
        """An update is done."""
        last, plan = self._newest, self._plan
        assert last is not None
        assert plan is not None
        took = row.compute_seconds + row.exchange_seconds + row.wait_seconds
        self._pace = took if not self._pace else self._pace + _SMOOTHING * (took - self._pace)
        stage, crews = str(row.stage), last.crews
        if row.workers > crews.get(stage, 0):
            crews = {**crews, stage: row.workers}
        self._newest = replace(
            last,
            crews=crews,
            update=row.update,
            epoch=row.epoch,
            stage=row.stage,
            batch_size=row.batch_size,
            learning_rate=row.learning_rate,
            workers=row.workers,
            loss=row.loss,
            waiting_for=None,
            seconds_per_update=self._pace,
            eta_seconds=self._pace / row.batch_size * plan.examples_per_epoch * (plan.epochs - row.epoch),
        )
        if row.stage != last.stage or row.workers != last.workers:
            self._wanted.set()

    def evaluation(self, row: EvaluationRow) -> None:
        """The model was measured."""
        assert self._newest is not None
        self._newest = replace(self._newest, metrics=dict(row.metrics))

    def resize(self, row: ResizeRow) -> None:
        """The longest pause of a stage counts; it belongs to the stage of the update that comes after it."""
        assert self._newest is not None
        assert self._plan is not None
        stage = str(self._plan.stage_at(row.update).index)
        longest = max(row.pause_seconds, self._newest.pauses.get(stage, 0.0))
        self._newest = replace(self._newest, pauses={**self._newest.pauses, stage: longest})

    def checkpoint(self, update: int) -> None:
        """A checkpoint is on the disk."""
        assert self._newest is not None
        self._newest = replace(self._newest, checkpoint_update=update)

    def trained(self, sha256: str) -> None:
        """Every update is done."""
        assert self._newest is not None
        self._newest = replace(self._newest, weights_sha256=sha256)

    def ready(self, workers: int) -> None:
        """Told at once: whoever asked for workers measures how long they took."""
        assert self._newest is not None
        self._newest = replace(self._newest, ready=workers)
        self._wanted.set()

    def wait_for(self, what: str) -> None:
        """Training stands still; told at once, and with the pace that there was."""
        assert self._newest is not None
        self._newest = replace(self._newest, waiting_for=what)
        self._wanted.set()

    def note(self, text: str) -> None:
        """A note is for people."""

    def stop(self) -> None:
        """Send the last report, and return when it is delivered or cannot be."""
        if not self._over.is_set():
            self._over.set()
            self._wanted.set()
            if self._thread.is_alive():
                self._thread.join(timeout=30)

    def _send_until_over(self) -> None:
        sent: Progress | None = None
        while not (self._over.is_set() and sent == self._newest):
            self._wanted.wait(PERIOD_SECONDS)
            self._wanted.clear()
            newest, over = self._newest, self._over.is_set()
            if newest is not None and newest != sent:
                sent = newest if self._deliver(newest, tries=5 if over else 1) or over else sent

    def _deliver(self, report: Progress, tries: int) -> bool:
        for wait in range(tries):
            try:
                self._sink(report.to_json())
            except OSError:
                time.sleep(min(wait, 2) * PERIOD_SECONDS)
            else:
                return True
        return False
