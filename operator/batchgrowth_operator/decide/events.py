"""What is worth a line under `kubectl describe`: changes, and nothing but changes."""

from __future__ import annotations

from collections.abc import Iterator

from batchgrowth.conditions import HELD_UP
from batchgrowth.status import Condition, JobStatus

from batchgrowth_operator.decide.decision import Event
from batchgrowth_operator.decide.situation import condition

BAD = {("Accepted", "False"), ("Degraded", "True"), ("Stalled", "True"), ("Succeeded", "False")}
QUIET = {"WaitingForWorkers", "WaitingForScheduler", "InProgress", "NotStarted", "Released", "Ended", "Paused"}


def events_between(told: JobStatus, new: JobStatus) -> tuple[Event, ...]:
    """One event for each condition that changed, and one for each stage that began."""
    return (*_condition_events(told, new), *_stage_events(told, new))


def _condition_events(told: JobStatus, new: JobStatus) -> Iterator[Event]:
    for now in new.conditions:
        before = condition(told, now.type)
        said = (before.status, before.reason) if before else ("False", now.reason)
        first_refusal = before is None and (now.type, now.status) in BAD
        if now.reason not in QUIET and ((now.status, now.reason) != said or first_refusal):
            yield Event("Warning" if _is_bad(now) else "Normal", now.reason, now.message or f"{now.type}: {now.status}")


def _is_bad(now: Condition) -> bool:
    return (
        (now.type, now.status) in BAD or (now.type == "ClusterReady" and now.status == "False") or now.reason in HELD_UP
    )


def _stage_events(told: JobStatus, new: JobStatus) -> Iterator[Event]:
    known = {(record.index, record.start_time) for record in told.history}
    for record in new.history:
        if (record.index, record.start_time) not in known:
            yield Event("Normal", "StageBegan", f"Stage {record.index}: batch {record.batch_size}.")
