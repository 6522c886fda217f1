"""Which Kubernetes events are created, repeated or left out, by the rules of client-go's event correlator.

The same event again is one object with a count; many similar ones share one; and a job has a budget of event writes.
"""

from dataclasses import dataclass, field
from datetime import datetime

from batchgrowth_operator.decide.decision import Event
from batchgrowth_operator.decide.drift import digest
from batchgrowth_operator.server.store import Key

WINDOW_SECONDS = 600.0
"""Time after its last occurrence in which an event counts as the same."""
MOST_SIMILAR = 10
"""Messages of one reason that have an event of their own; those beyond share one."""
BURST = 25
"""Writes of one job's events at once, before REFILL_SECONDS bounds them."""
REFILL_SECONDS = 300.0
"""Time in which a job may write one more event."""
COMBINED = "(combined from similar events): "

Kind = tuple[str, str]
"""Type and reason of an event."""


@dataclass(slots=True)
class Series:
    """Occurrences of one event: `name` is that of its object, which exists if it `is_posted`."""

    name: str
    first: datetime
    last: datetime
    message: str
    count: int = 0
    is_posted: bool = False


@dataclass(slots=True)
class _Job:
    uid: str
    filled: datetime
    tokens: float = BURST
    series: dict[tuple[Kind, str], Series] = field(default_factory=dict)


class Correlator:
    """What is remembered of each job's events: at most MOST_SIMILAR + 1 for a reason, for WINDOW_SECONDS."""

    def __init__(self) -> None:
        self._jobs: dict[Key, _Job] = {}

    def observe(self, key: Key, uid: str, event: Event, now: datetime, name: str, times: int = 1) -> Series | None:
        """The series to write, with this event in it; None if the job has written too many events.

        An event of a reason that the window has not seen is always written, whatever the others were. `name` is that
        of a new object, `times` how often the event occurred: 0 if it was counted before and is tried again, which
        costs no further write. An event that is left out counts when its series is written again.
        """
        job = self._jobs.get(key)
        if job is None or job.uid != uid:
            job = self._jobs[key] = _Job(uid, now)
        job.series = {i: s for i, s in job.series.items() if 0 <= (now - s.last).total_seconds() < WINDOW_SECONDS}
        kind: Kind = (event.type, event.reason)
        similar = [message for known, message in job.series if known == kind]
        message = digest(event.message)
        is_combined = message not in similar and len(similar) >= MOST_SIMILAR
        series = job.series.setdefault((kind, "" if is_combined else message), Series(name, now, now, ""))
        series.message = (COMBINED if is_combined else "") + event.message
        series.count += times
        series.last = now
        return series if not times or _has_token(job, now) or not similar else None

    def forget(self, key: Key) -> None:
        """Forgets the events of a job that is gone."""
        self._jobs.pop(key, None)


def _has_token(job: _Job, now: datetime) -> bool:
    """Whether the job may write an event now; takes a token if there is one."""
    job.tokens = min(BURST, job.tokens + max(0.0, (now - job.filled).total_seconds()) / REFILL_SECONDS)
    job.filled = now
    if job.tokens < 1:
        return False
    job.tokens -= 1
    return True
