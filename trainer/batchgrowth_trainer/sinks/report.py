"""Progress reports while a job trains: one small document; delivery.py has where it goes."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from itertools import islice
from typing import Any

from batchgrowth.contract.figures import ExchangeFigures
from batchgrowth.contract.progress import (
    LONGEST_CAUSE,
    LONGEST_PERIOD_SECONDS,
    MOST_BEGUN,
    MOST_DIFFERING,
    Progress,
    WentBack,
)
from batchgrowth.errors import Superseded
from batchgrowth.expected_batch import ExpectedBatch
from batchgrowth.plan import Plan
from batchgrowth.position import Position

from batchgrowth_trainer.record.history import EvaluationRow, HistoryRow, ResizeRow
from batchgrowth_trainer.sinks import events
from batchgrowth_trainer.sinks.delivery import CountStart, Deliver

# A thread of its own delivers the newest report and retries a failed one with the next; training never waits for it.

PERIOD_SECONDS = 1.0
"""Shortest time between two reports of progress alone, and the time before a failed delivery is tried again."""
PERIODS = 20
"""After this many periods each period is longer than the last: a twentieth of the time since the start."""
_STOP_SECONDS = 30.0  # the longest that the end of a run waits for the last report to be delivered
_LAST_TRIES = 5
_SMOOTHING = 0.1
_FIELDS_OF_A_ROW = {field.name for field in fields(HistoryRow)} & {field.name for field in fields(Progress)}
"""The fields of a report that are those of the newest row, by the same names."""


class Reporter:
    """Keeps the newest report, and delivers it regularly, at once after a resize, a look or a wait, and at the end.

    A long training is reported less often, since a cluster may run a thousand of them: see `period_seconds`.
    """

    def __init__(
        self,
        deliver: Deliver,
        count_start: CountStart = lambda: 0,
        on_superseded: Callable[[Superseded], None] = lambda _: None,
    ) -> None:
        """Keep the arguments. Before the first delivery, `count_start` is called for this start's number, until it
        succeeds.

        The number grows with each start of the job's trainer: reports of a later start supersede those of earlier ones.
        `on_superseded` is called if a later start has reported; after that, nothing is delivered.
        """
        self._deliver = deliver
        self._count_start = count_start
        self._on_superseded = on_superseded
        self._number: int | None = None
        self._plan: Plan | None = None
        self._newest: Progress | None = None
        self._exchanged = ExchangeFigures()
        self._pace = 0.0
        self._beat = 0
        self._due = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress reports", daemon=True)

    @property
    def newest(self) -> str:
        """Return the newest report, delivered or not; empty before the first one, or while this start has no number."""
        if self._newest is None or self._number is None:
            return ""
        return self._text(self._newest, self._number)

    def handle(self, event: events.Event) -> None:
        match event:
            case HistoryRow():
                self._row(event)
            case ResizeRow():
                assert self._newest is not None
                assert self._plan is not None
                stage = str(self._plan.stage_at(event.update).index)
                longest = max(event.pause_seconds, self._newest.pauses.get(stage, 0.0))
                self._change(pauses={**self._newest.pauses, stage: longest})
            case events.Looked():
                self._plan = event.plan
                forecast = self._ahead(event.forecast, event.row.update)
                self._change(updates=event.plan.updates, decisions=event.decisions, forecast=forecast, at_once=True)
            case ExchangeFigures():
                self._exchanged = self._exchanged.then(event)
            case EvaluationRow():
                self._change(metrics=dict(event.metrics))
            case events.EndedEarly(plan):
                self._plan = plan
                self._change(**_end_of(plan), eta_seconds=0.0, forecast=None, at_once=True)
            case events.Undone():
                self._undone(event)
            case events.CheckpointSaved(update=update):
                self._change(checkpoint_update=update)
            case events.Finished(sha256):
                self._change(weights_sha256=sha256)
            case events.WorkersReady(count):
                # The operator measures how long workers take to join, so each second of delay would count.
                self._change(ready=count, at_once=True)
            case events.Waiting(cause):
                self._change(waiting_for=cause, at_once=True)
            case events.ArithmeticDiffers(workers):
                self._change(differing=dict(islice(workers.items(), MOST_DIFFERING)), at_once=True)
            case events.Started() | events.FoundFinished():
                self._start(event)
            case events.Stopped():
                self._stop()

    def _start(self, event: events.Started | events.FoundFinished) -> None:
        self._plan = event.plan
        self._newest = Progress(**_at(event.plan, event.position), workers=0, decisions=event.decisions)
        if isinstance(event, events.FoundFinished):
            self._newest = replace(self._newest, **_result_of(event.summary))
        self._due.set()
        self._thread.start()

    def _row(self, row: HistoryRow) -> None:
        last = self._newest
        plan = self._plan
        assert last is not None
        assert plan is not None
        took = row.update_seconds
        self._pace = took if not self._pace else self._pace + _SMOOTHING * (took - self._pace)
        stage = str(row.stage)
        begun = last.begun
        if stage not in begun and row.committed_at:
            begun = _with_stage(begun, stage, row.committed_at - took)
        crews = last.crews
        if row.workers > crews.get(stage, 0):
            crews = {**crews, stage: row.workers}
        self._newest = replace(
            last,
            crews=crews,
            begun=begun,
            **{name: getattr(row, name) for name in _FIELDS_OF_A_ROW},
            waiting_for=None,
            seconds_per_update=self._pace,
            forecast=self._ahead(last.forecast, row.update),
            eta_seconds=last.eta_seconds if row.remaining_seconds is None else row.remaining_seconds,
        )
        if row.stage != last.stage or row.workers != last.workers:
            self._due.set()

    def _undone(self, event: events.Undone) -> None:
        """Report which workers computed wrongly, and from where training goes on."""
        assert self._newest is not None
        self._plan = event.plan
        before = self._newest.went_back
        went_back = WentBack(
            times=1 if before is None else before.times + 1,
            workers=event.workers[:MOST_DIFFERING],
            cause=event.cause[:LONGEST_CAUSE],
            reached=event.position.update + event.updates,
            update=event.position.update,
        )
        self._change(
            **_at(event.plan, event.position),
            decisions=event.decisions,
            forecast=None,
            went_back=went_back,
            at_once=True,
        )

    def _ahead(self, forecast: ExpectedBatch | None, update: int) -> ExpectedBatch | None:
        """Return the forecast with the present seconds until its look; None once that look is over."""
        if forecast is None or forecast.update <= update:
            return None
        return replace(forecast, due_seconds=self._pace * (forecast.update - update))

    def _change(self, *, at_once: bool = False, **changes: Any) -> None:
        """Change these fields of the report; deliver it at once, or after the period."""
        assert self._newest is not None
        self._newest = replace(self._newest, **changes)
        if at_once:
            self._due.set()

    def _stop(self) -> None:
        if not self._over.is_set():
            self._over.set()
            self._due.set()
            if self._thread.is_alive():
                self._thread.join(timeout=_STOP_SECONDS)

    def _run(self) -> None:
        delivered = None
        began = time.monotonic()
        spoke = began
        failed = False
        while not (self._over.is_set() and delivered == self._newest):
            self._due.wait(PERIOD_SECONDS if failed else period_seconds(time.monotonic() - began))
            self._due.clear()
            newest = self._newest
            over = self._over.is_set()
            is_silent = not over and time.monotonic() - spoke >= LONGEST_PERIOD_SECONDS
            if newest is not None and (newest != delivered or is_silent):
                self._beat += 1
                spoke = time.monotonic()
                failed = not self._try(newest, tries=_LAST_TRIES if over else 1)
                delivered = delivered if failed and not over else newest

    def _text(self, report: Progress, number: int) -> str:
        return replace(report, start=number, exchanged=self._exchanged, beat=self._beat).to_json()

    def _try(self, report: Progress, tries: int) -> bool:
        for wait in range(tries):
            try:
                if self._number is None:
                    self._number = self._count_start()
                self._deliver(self._text(report, self._number))
            except Superseded as why:
                self._on_superseded(why)
                return True
            except OSError:
                time.sleep(min(wait, 2) * PERIOD_SECONDS)
            else:
                return True
        return False


def _with_stage(begun: Mapping[str, float], stage: str, time: float) -> dict[str, float]:
    """Return when the newest stages began, with one more."""
    known = {**begun, stage: round(time, 3)}
    return dict(list(known.items())[-MOST_BEGUN:])


def period_seconds(running: float) -> float:
    """Return the time between two reports of mere progress, from 1 s to 10 s, `running` seconds after the start."""
    return min(max(running / PERIODS, PERIOD_SECONDS), LONGEST_PERIOD_SECONDS)


def _result_of(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a report that say how a training ended."""
    return {
        "loss": summary["finalLoss"],
        "metrics": {name: value for name, value in summary.get("metrics", {}).items() if value is not None},
        "eta_seconds": 0.0,
        "weights_sha256": summary["weightsSha256"],
    }


def _at(plan: Plan, position: Position) -> dict[str, Any]:
    """Return the fields of a report that say where the training is."""
    stage = plan.stage_at(position.update)
    return {
        "update": position.update,
        "epoch": position.epoch + position.offset / plan.examples_per_epoch,
        **_end_of(plan),
        "stage": stage.index,
        "batch_size": stage.batch_size,
        "learning_rate": plan.learning_rate_at(position),
        "checkpoint_update": position.update or None,
    }


def _end_of(plan: Plan) -> dict[str, Any]:
    """Return the fields of a report that say where the training ends."""
    ended = plan.epochs if plan.ended_early else None
    return {"updates": plan.updates, "epochs": plan.epochs, "ended_at_epoch": ended}
