"""Progress reports while a job trains: one small document, delivered to a file or to a ConfigMap.

A thread of its own delivers the newest report and retries a failed one with the next; training never waits for it.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

from batchgrowth.decisions import Decision
from batchgrowth.errors import Superseded
from batchgrowth.exchanged import Exchanged
from batchgrowth.forecast import Forecast
from batchgrowth.plan import Plan, Position
from batchgrowth.progress import LONGEST_PERIOD_SECONDS, MOST_DIFFERING, Progress

from batchgrowth_trainer.record.history import EvaluationRow, HistoryRow, ResizeRow
from batchgrowth_trainer.sinks import events
from batchgrowth_trainer.sinks.delivery import CountStart, Deliver

PERIOD_SECONDS = 1.0
"""Shortest time between two reports of progress alone, and the time before a failed delivery is tried again."""
PERIODS = 20
"""After this many periods each period is longer than the last: a twentieth of the time since the start."""
_STOP_SECONDS = 30.0  # the longest that the end of a run waits for the last report to be delivered
_LAST_TRIES = 5
_SMOOTHING = 0.1


class Reporter:
    """Keeps the newest report, and delivers it regularly, at once after a resize, a look or a wait, and at the end.

    A training that lasts long is reported less often, since a cluster may run a thousand of them: see `period_seconds`.
    """

    def __init__(
        self,
        deliver: Deliver,
        count_start: CountStart = lambda: 0,
        on_superseded: Callable[[Superseded], None] = lambda _: None,
    ) -> None:
        """`count_start` gives the number of this start; it is called until it raises no OSError, before any delivery.

        The number grows with each start of the job's trainer: the reports of a later start supersede all earlier.
        `on_superseded` is called if one has reported; then nothing is delivered any more.
        """
        self._deliver, self._count_start, self._on_superseded = deliver, count_start, on_superseded
        self._number: int | None = None
        self._plan: Plan | None = None
        self._newest: Progress | None = None
        self._exchanged = Exchanged()
        self._pace = 0.0
        self._due, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress reports", daemon=True)

    @property
    def newest(self) -> str:
        """The newest report, delivered or not; empty before the first one, or without a number of this start."""
        if self._newest is None or self._number is None:
            return ""
        return self._text(self._newest, self._number)

    def handle(self, event: events.Event) -> None:
        """See Sink."""
        match event:
            case HistoryRow():
                self._row(event)
            case ResizeRow():
                self._resize(event)
            case events.Looked():
                self._look(event)
            case events.Started(_, plan, position, decisions):
                self._start(plan, position, decisions)
            case events.Stopped():
                self._stop()
            case events.BytesSent() | events.ReplicasApart() | events.Compressed() | events.Stale() | events.BackedUp():
                self._exchanged = _after(self._exchanged, event)
            case _:
                self._simple_change(event)

    def _simple_change(self, event: events.Event) -> None:
        match event:
            case EvaluationRow():
                self._change(metrics=dict(event.metrics))
            case events.EndedEarly(plan):
                self._plan = plan
                self._change(**_end_of(plan), eta_seconds=0.0, forecast=None)
                self._due.set()
            case events.CheckpointSaved(update=update):
                self._change(checkpoint_update=update)
            case events.Finished(sha256):
                self._change(weights_sha256=sha256)
            case events.WorkersReady(count):  # delivered at once: the operator measures how long workers take to join
                self._change(ready=count)
                self._due.set()
            case events.Waiting(cause):
                self._change(waiting_for=cause)
                self._due.set()
            case events.ArithmeticDiffers(workers):
                self._change(differing=dict(islice(workers.items(), MOST_DIFFERING)))
                self._due.set()

    def _start(self, plan: Plan, position: Position, decisions: tuple[Decision, ...]) -> None:
        stage = plan.stage_at(position.update)
        self._plan = plan
        self._newest = Progress(
            update=position.update,
            epoch=position.epoch + position.offset / plan.examples_per_epoch,
            **_end_of(plan),
            stage=stage.index,
            batch_size=stage.batch_size,
            learning_rate=plan.learning_rate_at(position),
            workers=0,
            checkpoint_update=position.update or None,
            decisions=decisions,
        )
        self._due.set()
        self._thread.start()

    def _row(self, row: HistoryRow) -> None:
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
            forecast=self._ahead(last.forecast, row.update),
            eta_seconds=self._pace / row.batch_size * plan.examples_per_epoch * (plan.epochs - row.epoch),
        )
        if row.stage != last.stage or row.workers != last.workers:
            self._due.set()

    def _resize(self, row: ResizeRow) -> None:
        assert self._newest is not None
        assert self._plan is not None
        stage = str(self._plan.stage_at(row.update).index)
        longest = max(row.pause_seconds, self._newest.pauses.get(stage, 0.0))
        self._change(pauses={**self._newest.pauses, stage: longest})

    def _look(self, event: events.Looked) -> None:
        self._plan, forecast = event.plan, self._ahead(event.forecast, event.row.update)
        self._change(updates=event.plan.updates, decisions=event.decisions, forecast=forecast)
        self._due.set()

    def _ahead(self, forecast: Forecast | None, update: int) -> Forecast | None:
        """The forecast with the seconds until its look; None once that look is over."""
        if forecast is None or forecast.update <= update:
            return None
        return replace(forecast, due_seconds=self._pace * (forecast.update - update))

    def _change(self, **changes: Any) -> None:
        assert self._newest is not None
        self._newest = replace(self._newest, **changes)

    def _stop(self) -> None:
        if not self._over.is_set():
            self._over.set()
            self._due.set()
            if self._thread.is_alive():
                self._thread.join(timeout=_STOP_SECONDS)

    def _run(self) -> None:
        delivered, began, failed = None, time.monotonic(), False
        while not (self._over.is_set() and delivered == self._newest):
            self._due.wait(PERIOD_SECONDS if failed else period_seconds(time.monotonic() - began))
            self._due.clear()
            newest, over = self._newest, self._over.is_set()
            if newest is not None and newest != delivered:
                failed = not self._try(newest, tries=_LAST_TRIES if over else 1)
                delivered = delivered if failed and not over else newest

    def _text(self, report: Progress, number: int) -> str:
        return replace(report, start=number, exchanged=self._exchanged).to_json()

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


def period_seconds(running: float) -> float:
    """The time between two reports of progress alone, `running` seconds after the start: from 1 s to 10 s."""
    return min(max(running / PERIODS, PERIOD_SECONDS), LONGEST_PERIOD_SECONDS)


def _after(known: Exchanged, event: events.Exchanged) -> Exchanged:
    match event:
        case events.BytesSent(count):
            return replace(known, bytes_sent=known.bytes_sent + count)
        case events.ReplicasApart(distance):
            return replace(known, replica_distance=distance)
        case events.Compressed(error):
            return replace(known, compression_error=error)
        case events.Stale(largest, mean):
            return replace(known, largest_staleness=largest, mean_staleness=mean)
        case events.BackedUp(first, second):
            return replace(known, backups=known.backups + first + second, backups_first=known.backups_first + first)


def _end_of(plan: Plan) -> dict[str, Any]:
    """The fields of a report that say where the training ends."""
    ended = plan.epochs if plan.ended_early else None
    return {"updates": plan.updates, "epochs": plan.epochs, "ended_at_epoch": ended}
