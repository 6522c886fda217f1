"""Requesting workers ahead of the milestone that needs them: how early, how many, and how long to keep spare ones."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile

SLACK = 1.5
"""Factor by which workers are requested earlier than their measured start-up time, which varies."""
RELEASE_SLACK = 10.0
"""Start-up times for which spare workers are kept if a later stage needs them: a varying pace causes no churn."""
SMOOTHING = 0.5
"""Weight of the newest measurement in the smoothed start-up time."""


@dataclass(frozen=True, slots=True)
class Upcoming:
    """A later stage: how many workers it wants, and in how many seconds it begins at the current pace."""

    workers: int
    due_seconds: float


def smoothed(lead_seconds: float | None, measured_seconds: float) -> float:
    """The new start-up time of workers: the first measurement as it is, later ones averaged in."""
    if lead_seconds is None:
        return measured_seconds
    return lead_seconds + SMOOTHING * (measured_seconds - lead_seconds)


def window(lead_seconds: float, bound_seconds: float = math.inf) -> float:
    """How many seconds before a stage its workers are requested, at most `bound_seconds`."""
    return min(lead_seconds * SLACK, bound_seconds)


def release_after(lead_seconds: float, bound_seconds: float = math.inf) -> float:
    """How many seconds spare workers are kept; 0 if `bound_seconds` is, which requests no workers ahead."""
    return lead_seconds * RELEASE_SLACK if bound_seconds else 0.0


def requested(
    current: int,
    upcoming: Iterable[Upcoming],
    before: int,
    lead_seconds: float,
    bound_seconds: float = math.inf,
    age_seconds: float = math.inf,
) -> int:
    """The number of workers to request: those of the current stage and of each stage within the window.

    `upcoming` are the later stages in their order. `before` is the last request: it is lowered only to what stages
    within RELEASE_SLACK start-up times want, or at once if `bound_seconds` is 0, which requests workers at the
    milestone itself.

    `age_seconds` is the age of the last request if later stages are only forecast. Since forecasts come and go, such a
    request is not lowered within RELEASE_SLACK start-up times.
    """
    ahead = tuple(takewhile(lambda stage: stage.due_seconds <= lead_seconds * RELEASE_SLACK, upcoming))
    soon = _most(current, ahead, window(lead_seconds, bound_seconds))
    later = _most(current, ahead, release_after(lead_seconds, bound_seconds))
    if soon > before:
        return soon
    if age_seconds < release_after(lead_seconds, bound_seconds):
        return before
    return max(soon, min(later, before))


def _most(current: int, upcoming: tuple[Upcoming, ...], seconds: float) -> int:
    return max([current, *(stage.workers for stage in upcoming if stage.due_seconds <= seconds)])
