"""Timestamps, as Kubernetes writes them, and how long to wait before the next attempt."""

from datetime import UTC, datetime

# --- Timestamps, as Kubernetes writes them ---


def timestamp(time: datetime) -> str:
    """RFC 3339 in UTC with whole seconds, as in conditions."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def timestamp_ms(time: datetime) -> str:
    """RFC 3339 in UTC with milliseconds, for times that durations are measured from."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_timestamp(text: str) -> datetime:
    """The time that a Kubernetes timestamp denotes."""
    return datetime.fromisoformat(text)


def seconds_since(text: str | None, now: datetime) -> float:
    """Seconds from the timestamp to `now`; 0 without a timestamp, or if it lies in the future (clocks differ)."""
    return max(0.0, (now - parse_timestamp(text)).total_seconds()) if text else 0.0


def seconds_until(text: str | None, now: datetime) -> float:
    """Seconds from `now` to the timestamp; 0 without a timestamp, or if it lies in the past."""
    return max(0.0, (parse_timestamp(text) - now).total_seconds()) if text else 0.0


# --- How long to wait before the next attempt ---

FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 30.0
MOST_DOUBLINGS = 16
"""Doublings of the first back-off that exceed any longest one; a larger exponent would overflow."""


def backoff_seconds(failures: int, longest: float = LONGEST_BACKOFF_SECONDS) -> float:
    """The wait after that many failures in a row, at least one: exponential, up to `longest` seconds."""
    return min(FIRST_BACKOFF_SECONDS * 2.0 ** min(failures - 1, MOST_DOUBLINGS), longest)
