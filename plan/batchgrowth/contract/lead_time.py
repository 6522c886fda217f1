"""Requesting workers ahead of the milestone that needs them: how early, how many, and when to let spare workers go."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

SLACK = 1.5
"""Factor by which workers are requested earlier than their measured start-up time, which varies."""
RELEASE_SLACK = 10.0
"""How long spare workers are kept for a later stage, in start-up times, so that a varying pace causes no churn."""
SMOOTHING = 0.5
"""Weight of the newest measurement in the smoothed start-up time."""


@dataclass(frozen=True, slots=True)
class Upcoming:
    """A later stage: the number of workers that it wants, and the seconds until it begins at the current pace."""

    workers: int
    due_seconds: float


def smoothed(lead_seconds: float | None, measured_seconds: float) -> float:
    """Return the start-up time of workers after a measurement: the first measurement, then a moving average."""
    if lead_seconds is None:
        return measured_seconds
    return lead_seconds + SMOOTHING * (measured_seconds - lead_seconds)


def window(lead_seconds: float, bound_seconds: float = math.inf) -> float:
    """Return the seconds before a stage at which its workers are requested, at most `bound_seconds`."""
    return min(lead_seconds * SLACK, bound_seconds)


def release_after(lead_seconds: float, bound_seconds: float = math.inf) -> float:
    """Return the seconds for which spare workers are kept; 0 if `bound_seconds` is 0, so none are requested ahead."""
    if bound_seconds == 0:
        return 0.0
    return lead_seconds * RELEASE_SLACK


def requested(
    current: int,
    upcoming: Iterable[Upcoming],
    before: int,
    lead_seconds: float,
    bound_seconds: float = math.inf,
    age_seconds: float = math.inf,
) -> int:
    """Return the number of workers to request: enough for the current stage and for each stage within the window.

    `upcoming` are the later stages in their order. `before` is the last request. The new request is lower only as far
    as stages within RELEASE_SLACK start-up times permit; if `bound_seconds` is 0, which requests workers at the
    milestone itself, it is lower at once.

    `age_seconds` is the age of the last request if later stages are only forecast. Since forecasts come and go, such a
    request is not lowered within RELEASE_SLACK start-up times.
    """
    ask_seconds = window(lead_seconds, bound_seconds)
    keep_seconds = release_after(lead_seconds, bound_seconds)
    soon = current
    later = current
    for stage in upcoming:
        if stage.due_seconds > lead_seconds * RELEASE_SLACK:
            break  # the stages come in their order, so all others are later still
        if stage.due_seconds <= ask_seconds:
            soon = max(soon, stage.workers)
        if stage.due_seconds <= keep_seconds:
            later = max(later, stage.workers)
    if soon > before:
        return soon  # a larger request is sent at once; only a smaller one waits
    if age_seconds < keep_seconds:
        return before
    return max(soon, min(later, before))
