"""Progress reports while a job trains: one small document, in a file or in the one ConfigMap that a pod may patch.

A start takes the number after the newest one recorded there, so no clock is asked: a trainer on a node whose clock is
behind supersedes its predecessor all the same. In the ConfigMap it claims that number, and reports nothing once a later
start has claimed it.

A trainer's pod asks the API server for nothing else. Its requests go around any proxy in the pod's environment, as
those of the operator do (batchgrowth_operator/api/client.py).
"""

import http.client
import json
import os
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

from batchgrowth.contract.metrics import ExchangeFigures
from batchgrowth.contract.progress import (
    LARGEST_START,
    LONGEST_CAUSE,
    LONGEST_PERIOD_SECONDS,
    MOST_BEGUN,
    MOST_DIFFERING,
    Progress,
    WentBack,
)
from batchgrowth.errors import ClusterError, Interrupted, Superseded
from batchgrowth.expected_batch import ExpectedBatch
from batchgrowth.manifest.files import read_regular
from batchgrowth.names import LAST_START, PROGRESS_KEY, START_KEY
from batchgrowth.plan import Plan
from batchgrowth.position import Position

from batchgrowth_trainer.record.history import EvaluationRow, HistoryRow, ResizeRow
from batchgrowth_trainer.record.storage import replace_file
from batchgrowth_trainer.sinks import events
from batchgrowth_trainer.worker.addresses import bracketed

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT_SECONDS = 10
_UNPROCESSABLE = 422
_LONGEST_MESSAGE = 4096  # bytes of a termination message
_MOST_DIGITS = len(str(LARGEST_START))
_PATIENCE_SECONDS = 120.0
_RETRY_SECONDS = 1.0  # for the number of a start

# --- Where reports go, and the number of this start ---

Deliver = Callable[[str], None]
"""Delivers a report, a JSON document. Raises OSError if it cannot now, Superseded if a later start reports."""
CountStart = Callable[[], int]
"""The number of this start, from the reports of earlier ones. Raises OSError if it cannot read them now."""


def to_file(path: Path) -> tuple[Deliver, CountStart]:
    """Return two functions: one replaces the file with a report, atomically; one numbers the start from that file."""

    def write(report: str) -> None:
        replace_file(path, f"{report}\n".encode(), durable=False)

    def count_start() -> int:
        try:
            return _next_start(_start_of(read_regular(path).decode(errors="replace")))
        except FileNotFoundError:
            return 0

    return write, count_start


def to_config_map(
    namespace: str, name: str, environment: Mapping[str, str] = os.environ, account: Path = _ACCOUNT
) -> tuple[Deliver, CountStart]:
    """Return two functions that act as the pod's service account: one patches a ConfigMap with a report, one numbers
    the start.

    The number comes from the ConfigMap's report and claim, and from the operator's annotation on it. The second
    function claims the number, once; the first then reports only while no later start has claimed the ConfigMap. Both
    read the token and the CA's certificate for each request, since the kubelet replaces them. Errors of the API server
    are OSErrors.
    """
    host = environment["KUBERNETES_SERVICE_HOST"]
    port = environment["KUBERNETES_SERVICE_PORT"]
    url = f"https://{bracketed(host)}:{port}/api/v1/namespaces/{namespace}/configmaps/{name}"

    def answer(method: str, body: Any = None, kind: str = "merge-patch") -> bytes:
        token = (account / "token").read_text().strip()
        https = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=str(account / "ca.crt")))
        # A proxy in the environment is for what is outside of the cluster.
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), https)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": f"application/{kind}+json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, method=method, data=data, headers=headers)
        try:
            with direct.open(request, timeout=_TIMEOUT_SECONDS) as response:
                return bytes(response.read())
        except http.client.HTTPException as error:  # urllib makes OSErrors of every other failure
            raise OSError(f"the API server's answer is cut off, or no HTTP: {error!r}") from error

    claims = _Claims(answer)
    return claims.report, claims.make


def repeat(report: str, path: Path) -> None:
    """Write the last report where the kubelet reads a container's termination message, which the pod's status keeps.

    The operator finds it there if it did not reach the ConfigMap. Does nothing outside of a pod, which has no such
    file, or if the report is longer than the kubelet reads.
    """
    text = report.encode()
    if path.is_file() and len(text) <= _LONGEST_MESSAGE:
        with suppress(OSError):
            path.write_bytes(text)


def numbered(count_start: CountStart, stop_requested: Callable[[], bool], patience: float = _PATIENCE_SECONDS) -> int:
    """Return the number of this start. A trainer must not train without one, because another start may be training.

    Raises ClusterError if the number cannot be had within `patience` seconds, and Interrupted if a stop is requested.
    """
    ends = time.monotonic() + patience
    while not stop_requested():
        try:
            return count_start()
        except OSError as error:
            if time.monotonic() > ends:
                raise ClusterError(
                    f"the API server does not number this start of the trainer ({error}); check that the job's pods "
                    "may connect to it, and that the progress ConfigMap is there"
                ) from error
        time.sleep(_RETRY_SECONDS)
    raise Interrupted("stopped before the first update; there is nothing to resume")


class _Claims:
    """The claim of one start on the ConfigMap; `answer` sends a request and returns the response."""

    def __init__(self, answer: Callable[..., bytes]) -> None:
        self._answer = answer
        self._start: int | None = None

    def make(self) -> int:
        """Return the number of this start, and claim it at the first call. Raises OSError if another start claims it
        first.
        """
        if self._start is None:
            config_map = self._read()
            number = _next_start(_newest(config_map))
            self._write(config_map, number)
            self._start = number
        return self._start

    def report(self, text: str) -> None:
        """Write the report in one request, which the API server answers by 422 if the claim is lost.

        Restores the claim in a ConfigMap that was recreated. Raises Superseded if a later start has claimed it.
        """
        mine = self.make()
        held = {"op": "test", "path": f"/data/{START_KEY}", "value": str(mine)}
        put = {"op": "add", "path": f"/data/{PROGRESS_KEY}", "value": text}
        try:
            self._answer("PATCH", [held, put], "json-patch")
            return
        except urllib.error.HTTPError as error:
            if error.code != _UNPROCESSABLE:
                raise
        config_map = self._read()
        newest = _newest(config_map)
        if newest > mine:
            raise Superseded(f"start {newest} of the trainer reports for the job; this one, start {mine}, ends")
        self._write(config_map, mine)
        self._answer("PATCH", [held, put], "json-patch")

    def _read(self) -> dict[str, Any]:
        try:
            config_map = json.loads(self._answer("GET"))
            return {"metadata": config_map["metadata"], "data": config_map.get("data") or {}}
        except (ValueError, KeyError, TypeError) as error:
            raise OSError(f"not a ConfigMap: {error}") from error

    def _write(self, config_map: Mapping[str, Any], number: int) -> None:
        version = {"resourceVersion": config_map["metadata"].get("resourceVersion")}
        self._answer("PATCH", {"metadata": version, "data": {START_KEY: str(number)}})


def _newest(config_map: Mapping[str, Any]) -> int:
    """Return the number of the newest start that the ConfigMap records, or -1."""
    data = config_map["data"]
    annotations = config_map["metadata"].get("annotations") or {}
    numbers = (data.get(START_KEY, ""), annotations.get(LAST_START, ""))
    known = (int(number) for number in numbers if number.isdecimal() and len(number) <= _MOST_DIGITS)
    return max(_start_of(data.get(PROGRESS_KEY, "")), *(one for one in known if one <= LARGEST_START), -1)


def _start_of(report: str) -> int:
    """Return the start number in the report, or -1 if the report is invalid."""
    try:
        start = Progress.from_json(report).start
    except ValueError:
        return -1
    return start if 0 <= start <= LARGEST_START else -1


def _next_start(start: int) -> int:
    return min(start + 1, LARGEST_START)


# --- The sink ---
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
    """Keeps the newest report, and delivers it regularly, at the end, and at once after changes such as a resize.

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
            metrics = event.summary.get("metrics", {})
            self._newest = replace(
                self._newest,
                loss=event.summary["finalLoss"],
                metrics={name: value for name, value in metrics.items() if value is not None},
                eta_seconds=0.0,
                weights_sha256=event.summary["weightsSha256"],
            )
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
            began = {**begun, stage: round(row.committed_at - took, 3)}
            begun = dict(list(began.items())[-MOST_BEGUN:])  # of the newest stages
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
                # After the last tries it counts as delivered even if they failed, so that this thread ends.
                delivered = delivered if failed and not over else newest

    def _text(self, report: Progress, number: int) -> str:
        # Not in `_newest`: a report that differs from the last one in these alone is not worth a delivery.
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


def period_seconds(running: float) -> float:
    """Return the time between two reports of mere progress, from 1 s to 10 s, `running` seconds after the start."""
    return min(max(running / PERIODS, PERIOD_SECONDS), LONGEST_PERIOD_SECONDS)


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
