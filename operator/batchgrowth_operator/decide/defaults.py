"""What the operator was told when it was started, as far as decisions depend on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """`image` is that of trainer, workers and scheduler where a job names none; times are seconds."""

    image: str
    first_lead_seconds: float = 10.0
    report_seconds: float = 5.0
    """The shortest time between two status writes that tell only of progress."""
