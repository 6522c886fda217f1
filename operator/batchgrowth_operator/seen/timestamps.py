"""Timestamps, as Kubernetes writes them."""

from datetime import UTC, datetime


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
