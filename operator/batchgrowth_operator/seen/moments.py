"""Points in time, as Kubernetes writes them."""

from __future__ import annotations

from datetime import UTC, datetime


def stamp(moment: datetime) -> str:
    """RFC 3339 in UTC with whole seconds, as conditions have it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def fine_stamp(moment: datetime) -> str:
    """RFC 3339 in UTC with milliseconds, where durations are taken from it."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment(text: str) -> datetime:
    """The point in time that a text of Kubernetes names."""
    return datetime.fromisoformat(text)


def seconds_since(text: str | None, now: datetime) -> float:
    """Seconds from then to now, at least 0: clocks differ. 0 where there is no then."""
    return max(0.0, (now - moment(text)).total_seconds()) if text else 0.0
