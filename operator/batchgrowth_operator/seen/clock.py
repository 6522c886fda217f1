"""The time of one pass, when the next is due, timestamps as Kubernetes writes them, and the back-off of a retry."""

from dataclasses import dataclass
from datetime import UTC, datetime

FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 30.0
MOST_DOUBLINGS = 16
"""Doublings of the first back-off that exceed any longest one; a larger exponent would overflow."""


@dataclass(slots=True)
class Clock:
    """The time of one pass. It answers whether a time has passed, and notes when each answer will change.

    So a rule that depends on time asks the clock, and the next pass comes when the answer changes: no rule has to say
    a second time when it is due; outcome.py, for one, asks whether spec.activeDeadlineSeconds has passed. Then
    job/reconcile.py returns the due time with the writes, loop/one_pass.py bounds it by the resync, and loop/queue.py
    wakes the job.
    """

    now: datetime
    requeue_after_seconds: float | None = None
    """Seconds until the first of the answers changes, when the next pass is due; None if time alone changes none."""

    def passed(self, since: str | None, seconds: float) -> bool:
        """Return whether this many seconds have passed since the timestamp; if not, note when they will have passed.

        Without a timestamp, or with one in the future (clocks differ), no time has passed.
        """
        return self.reached(seconds_since(since, self.now), seconds)

    def reached(self, age_seconds: float, seconds: float) -> bool:
        """Return whether an age, measured elsewhere, has reached this many seconds; if not, note when it will."""
        self.wake_in(seconds - age_seconds)
        return age_seconds >= seconds

    def within(self, since: datetime, seconds: float) -> bool:
        """Return whether the time is less than this many seconds ago, and note when it stops being so.

        For a time in the future the answer is no: after a clock was set back, the operator forgets.
        """
        age_seconds = (self.now - since).total_seconds()
        if not 0 <= age_seconds < seconds:
            return False
        self.wake_in(seconds - age_seconds)
        return True

    def wake_when_passed(self, since: str | None, seconds: float) -> None:
        """Note that a decision may change when this many seconds have passed since the timestamp."""
        self.passed(since, seconds)

    def wake_in(self, seconds: float) -> None:
        """Note that a decision may change after this many seconds; ignore times in the past."""
        if seconds > 0 and (self.requeue_after_seconds is None or seconds < self.requeue_after_seconds):
            self.requeue_after_seconds = seconds


def timestamp(time: datetime) -> str:
    """Return the time in RFC 3339, in UTC with whole seconds, as in conditions."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def timestamp_ms(time: datetime) -> str:
    """Return the time in RFC 3339, in UTC with milliseconds, so that durations can be measured from it."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def is_timestamp(text: str) -> bool:
    """Return whether the text is a timestamp, where others may have written something else."""
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def seconds_since(text: str | None, now: datetime) -> float:
    """Return the seconds from the timestamp to `now`; 0 without a timestamp, or if it lies in the future."""
    if not text:
        return 0.0
    return max(0.0, (now - datetime.fromisoformat(text)).total_seconds())


def seconds_until(text: str, now: datetime) -> float:
    """Return the seconds from `now` to the timestamp; 0 if it lies in the past."""
    return max(0.0, (datetime.fromisoformat(text) - now).total_seconds())


def backoff_seconds(failures: int, longest: float = LONGEST_BACKOFF_SECONDS) -> float:
    """Return the wait after this many failures in a row (at least one): exponential, up to `longest` seconds."""
    return min(FIRST_BACKOFF_SECONDS * 2.0 ** min(failures - 1, MOST_DOUBLINGS), longest)
