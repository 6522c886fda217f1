"""Posts Kubernetes events and limits their rate; job/announcements.py decides which events a job has.

A thread posts them behind all other writes. They are correlated by the rules of client-go: a repeated event becomes a
count in one object, many similar events share one, and a job has a budget of event writes.
"""

import logging
import math
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from threading import Event as Flag
from threading import Lock, Thread

from batchgrowth import names
from batchgrowth.spec import API_VERSION, KIND

from batchgrowth_operator.api.cache import Key, key_of
from batchgrowth_operator.api.client import Api, Refused
from batchgrowth_operator.api.leader import bounded
from batchgrowth_operator.children.drift import digest
from batchgrowth_operator.job.announcements import Event
from batchgrowth_operator.seen.observed import Manifest, Observed, timestamp, timestamp_ms

WINDOW_SECONDS = 600.0
"""Time after its last occurrence in which an event counts as the same."""
MOST_SIMILAR = 10
"""Messages of one reason that have an event of their own; those beyond share one."""
BURST = 25
"""Writes of one job's events at once, before REFILL_SECONDS bounds them."""
REFILL_SECONDS = 300.0
"""Time in which a job may write one more event."""
COMBINED = "(combined from similar events): "

PAUSE_SECONDS = 0.05
"""Shortest pause between two events, even of different jobs."""
PATIENCE = 4
"""Least ratio of that pause to the time that the API server took for the event before."""
BEHIND_SECONDS = 2.0
"""Age of a waiting event from which later ones of its job and reason are combined with it."""
RETRY_SECONDS = 5.0
"""Pause after a request without an answer."""
MOST_WAITING = 5_000
"""The most pairs of job and reason whose events wait; beyond that, the oldest are dropped, warnings last."""
FLUSH_SECONDS = 2.0
"""Time that `stop` allows for posting the events that still wait."""
MOST_BYTES = 1024
"""The longest message of an event, which the API server counts in bytes (a condition's in characters)."""

Kind = tuple[str, str]
"""Type and reason of an event."""
ObjectKind = tuple[Key, str]
"""An event's job and reason."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Series:
    """Occurrences of one event: `name` is the name of its object, which exists if it `is_posted`."""

    name: str
    first: datetime
    last: datetime
    message: str
    touched: datetime
    """When an occurrence was last posted or left out. `last` may be older: warnings overtake the events before them."""
    count: int = 0
    is_posted: bool = False


@dataclass(slots=True)
class _Job:
    uid: str
    filled: datetime
    tokens: float = BURST
    series: dict[tuple[Kind, str], Series] = field(default_factory=dict)


class Correlator:
    """Remembers each job's events for WINDOW_SECONDS: at most MOST_SIMILAR + 1 for a reason."""

    def __init__(self) -> None:
        self._jobs: dict[Key, _Job] = {}

    def observe(
        self, key: Key, uid: str, event: Event, at: datetime, now: datetime, name: str, times: int = 1
    ) -> Series | None:
        """Add this event to a series and return the series to write; None if the job has written too many events.

        The first event of a reason in the window is always written, whatever the others were. An event that is left
        out counts when its series is written again.

        Args:
            key: The job.
            uid: The job's uid; another job of that name starts with a new budget.
            event: What happened.
            at: When it happened.
            now: The time of posting, from which the window and the budget count.
            name: The name of the event's object, if it gets a new one.
            times: How often it happened; 0 for an event that was counted before and is tried again.
        """
        job = self._jobs.get(key)
        if job is None or job.uid != uid:
            job = self._jobs[key] = _Job(uid, now)
        job.series = {i: s for i, s in job.series.items() if 0 <= (now - s.touched).total_seconds() < WINDOW_SECONDS}
        kind: Kind = (event.type, event.reason)
        similar = [message for known, message in job.series if known == kind]
        message = digest(event.message)
        is_combined = message not in similar and len(similar) >= MOST_SIMILAR
        series = job.series.setdefault((kind, "" if is_combined else message), Series(name, at, at, "", now))
        series.message = COMBINED + event.message.removeprefix(COMBINED) if is_combined else event.message
        series.count = max(1, series.count + times)  # one that is tried again may have left the window meanwhile
        series.last = at
        series.touched = now

        # The job's budget: each write takes a token, and every REFILL_SECONDS adds one.
        if not times:
            return series  # its first try had the token
        job.tokens = min(BURST, job.tokens + max(0.0, (now - job.filled).total_seconds()) / REFILL_SECONDS)
        job.filled = now
        if job.tokens >= 1:
            job.tokens -= 1
            return series
        return None if similar else series

    def forget(self, key: Key) -> None:
        """Forget the events of a job that is gone."""
        self._jobs.pop(key, None)


@dataclass(slots=True)
class Occurrence:
    """A waiting event; `times` counts its occurrences since it began to wait, the last of them at `at`."""

    uid: str
    event: Event
    since: datetime
    at: datetime
    times: int = 1


@dataclass(slots=True)
class EventPoster:
    """Posts events in a separate thread, after all other writes: a pass hands events over and does not wait for them.

    It posts one event at a time, while this process leads, and pauses longer the slower the API server answers. It
    combines events of one job and reason if many wait or one has waited long: the newest message stays, with the count
    of all of them. Warnings come first.
    """

    api: Api
    seconds_left: Callable[[], float] = lambda: math.inf
    correlator: Correlator = field(default_factory=Correlator)
    _warnings: dict[ObjectKind, deque[Occurrence]] = field(default_factory=dict)
    _others: dict[ObjectKind, deque[Occurrence]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)  # passes hand events over in other threads
    _arrived: Flag = field(default_factory=Flag)
    _stopping: Flag = field(default_factory=Flag)
    _thread: Thread | None = None
    _ends: float = 0.0

    def start(self) -> None:
        """Begin to post events."""
        self._thread = Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Post the waiting events without pauses, and end the thread: after the last event, after the first request
        without an answer, or after FLUSH_SECONDS.
        """
        self._ends = time.monotonic() + FLUSH_SECONDS
        self._stopping.set()
        self._arrived.set()
        if self._thread is not None:
            self._thread.join(FLUSH_SECONDS)

    def record(self, seen: Observed, event: Event) -> None:
        """Queue an event of a job, to be posted soon."""
        kind = (key_of(seen.job), event.reason)
        now = seen.now
        lane = self._warnings if event.type == "Warning" else self._others
        with self._lock:
            waiting = lane.setdefault(kind, deque())
            same = next((one for one in waiting if (one.uid, one.event) == (seen.uid, event)), None)
            has_waited_long = waiting and (now - waiting[-1].since).total_seconds() >= BEHIND_SECONDS
            if same is not None:
                same.at = now
                same.times += 1
            elif waiting and waiting[-1].uid == seen.uid and (len(waiting) >= MOST_SIMILAR or has_waited_long):
                last = waiting[-1]
                last.event = Event(event.type, event.reason, COMBINED + event.message)
                last.at = now
                last.times += 1
            else:
                waiting.append(Occurrence(seen.uid, event, now, now))
            if len(self._warnings) + len(self._others) > MOST_WAITING:
                crowded = self._others or self._warnings
                crowded.pop(next(iter(crowded)))
        self._arrived.set()

    def forget(self, key: Key) -> None:
        """Forget the events of a job that is gone."""
        with self._lock:
            for lane in (self._warnings, self._others):
                for kind in [kind for kind in lane if kind[0] == key]:
                    del lane[kind]
        self.correlator.forget(key)

    def post_next(self) -> float | None:
        """Post the next event, and return the seconds to pause; None if nothing waits."""
        if (self._warnings or self._others) and self.seconds_left() <= 0:
            return RETRY_SECONDS
        taken = self._take()
        if taken is None:
            return None
        key, occurrence = taken
        began = time.monotonic()
        try:
            self._post(key, occurrence)
        except Refused as refused:
            log.warning("%s/%s: cannot post the event %s: %s", *key, occurrence.event.reason, refused)
        except OSError as error:
            log.warning("%s/%s: the event %s waits: %s", *key, occurrence.event.reason, error)
            self._put_back(key, occurrence)
            if self._stopping.is_set():
                self._ends = time.monotonic()  # without pauses, the tries would not end
            return RETRY_SECONDS
        return max(PAUSE_SECONDS, PATIENCE * (time.monotonic() - began))

    def _run(self) -> None:
        while not self._is_over():
            try:
                pause = self.post_next()
            except Exception:
                log.exception("an event was not posted")
                pause = RETRY_SECONDS
            if pause is not None:
                self._stopping.wait(pause)
            else:
                self._arrived.wait()
                self._arrived.clear()

    def _is_over(self) -> bool:
        if not self._stopping.is_set():
            return False
        return not (self._warnings or self._others) or time.monotonic() >= self._ends or self.seconds_left() <= 0

    def _take(self) -> tuple[Key, Occurrence] | None:
        """Take the next event: warnings first, jobs and reasons in turn; None if none waits."""
        with self._lock:
            lane = self._warnings or self._others
            if not lane:
                return None
            kind = next(iter(lane))
            waiting = lane.pop(kind)
            occurrence = waiting.popleft()
            if waiting:
                lane[kind] = waiting
        return kind[0], occurrence

    def _put_back(self, key: Key, occurrence: Occurrence) -> None:
        """Keep the event to be posted later; the correlator has counted it already."""
        occurrence.times = 0
        lane = self._warnings if occurrence.event.type == "Warning" else self._others
        with self._lock:
            lane.setdefault((key, occurrence.event.reason), deque()).appendleft(occurrence)

    def _post(self, key: Key, occurrence: Occurrence) -> None:
        """Create the event, or increase the count of the existing event that the correlator chose."""
        name = f"{key.name}.{secrets.token_hex(8)}"
        now = self.api.clock.now()
        series = self.correlator.observe(
            key, occurrence.uid, occurrence.event, occurrence.at, now, name, occurrence.times
        )
        if series is None:
            return
        is_repeated = False
        change = {"message": fitting(series.message), "count": series.count, "lastTimestamp": timestamp(series.last)}
        if series.is_posted:  # unless the API server has dropped it, which it does after an hour
            api = bounded(self.api, self.seconds_left())
            is_repeated = api.repeat_event(key.namespace, series.name, change)
        if not is_repeated:
            api = bounded(self.api, self.seconds_left())
            try:
                api.post_event(key.namespace, _event(key, occurrence, series))
            except Refused as refused:
                if refused.code != HTTPStatus.CONFLICT:
                    raise
                api.repeat_event(key.namespace, series.name, change)  # a request whose answer was lost has made it
        series.is_posted = True


def fitting(message: str) -> str:
    """Return the message of an event cut to MOST_BYTES; its end stays, which names an error's cause."""
    head = COMBINED if message.startswith(COMBINED) else ""
    text = message.removeprefix(head).encode()
    room = MOST_BYTES - len(head)
    if len(text) <= room:
        return message
    return f"{head}…{text[len('…'.encode()) - room :].decode(errors='ignore')}"


def _event(key: Key, occurrence: Occurrence, series: Series) -> Manifest:
    about = {"apiVersion": API_VERSION, "kind": KIND, "name": key.name, "namespace": key.namespace}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": series.name, "namespace": key.namespace},
        "involvedObject": about | {"uid": occurrence.uid},
        "type": occurrence.event.type,
        "reason": occurrence.event.reason,
        "message": fitting(series.message),
        "action": "Reconcile",
        "firstTimestamp": timestamp(series.first),
        "lastTimestamp": timestamp(series.last),
        "eventTime": timestamp_ms(series.first).replace("Z", "000Z"),
        "reportingComponent": names.FIELD_MANAGER,
        "reportingInstance": names.FIELD_MANAGER,
        "count": series.count,
    }
