"""The status that is stored, and what it remembers of its conditions."""

from batchgrowth.status import Condition, FlappingCondition, JobStatus
from pydantic import ValidationError

from batchgrowth_operator.seen.observed import Observed

MOST_TURNS = 5
"""Turns of a condition that are shown at once; the last of them, and those after it, count as flapping."""


def stored_status(seen: Observed) -> JobStatus:
    """The job's stored status, without fields that this version does not know or cannot read."""
    readable = {}
    for key, value in (seen.job.get("status") or {}).items():
        try:
            JobStatus.model_validate({key: value})
        except ValidationError:
            continue
        readable[key] = value
    return JobStatus.model_validate(readable)


def condition(status: JobStatus, kind: str) -> Condition | None:
    """The condition of that type, or None if it was never set."""
    return next((c for c in status.conditions if c.type == kind), None)


def turns_of(status: JobStatus, kind: str) -> FlappingCondition | None:
    """What the status remembers of the turns of a condition; None if it has not turned lately."""
    return next((c for c in (status.flapping.conditions if status.flapping else ()) if c.type == kind), None)


def is_held(status: JobStatus, kind: str) -> bool:
    """Whether the status keeps the condition bad because it flaps."""
    turns = turns_of(status, kind)
    return turns is not None and turns.turns >= MOST_TURNS and condition(status, kind) is not None
