"""Kubernetes events: a sentence for each change of a condition and for each stage that begins."""

from collections.abc import Iterator

from batchgrowth.conditions import HELD_UP, STAGE_BEGAN
from batchgrowth.status import Condition, JobStatus

from batchgrowth_operator.decide.decision import Event
from batchgrowth_operator.decide.rules import counted
from batchgrowth_operator.decide.situation import condition

BAD = {("Accepted", "False"), ("Degraded", "True"), ("Stalled", "True"), ("Succeeded", "False")}
QUIET = {"WaitingForWorkers", "WaitingForScheduler", "InProgress", "NotStarted", "Released", "Ended", "Paused"}
"""Reasons without an event: they only say that a job is on its way, or repeat another event."""
RECOVERIES = {
    "FullStrength": "No worker of the stage is missing any more.",
    "NotSuspended": "The job was resumed.",
    "ProgressSeen": "Updates are being committed again.",
}
"""Events of conditions that went back to normal."""


def events_between(previous: JobStatus, new: JobStatus) -> tuple[Event, ...]:
    """One event for each condition that changed, and one for each stage that began."""
    return (*_condition_events(previous, new), *_stage_events(previous, new))


def _condition_events(previous: JobStatus, new: JobStatus) -> Iterator[Event]:
    for now in new.conditions:
        before = condition(previous, now.type)
        known = (before.status, before.reason) if before else ("False", now.reason)
        first_refusal = before is None and (now.type, now.status) in BAD
        if now.reason not in QUIET and ((now.status, now.reason) != known or first_refusal):
            yield Event("Warning" if _is_bad(now) else "Normal", now.reason, _sentence(before, now, previous, new))


def _is_bad(now: Condition) -> bool:
    return (now.type, now.status) in BAD | {("ClusterReady", "False")} or now.reason in HELD_UP


def _sentence(before: Condition | None, now: Condition, previous: JobStatus, new: JobStatus) -> str:
    """The change as a sentence, if the condition's message, which describes the new state, does not express it."""
    ready = new.workers.ready if new.workers else 0
    if now.reason == "UpdatesCommitted" and not ready:
        return "Training resumes when its workers have joined."
    if now.reason == "UpdatesCommitted":
        return f"Training {'resumed' if previous.history else 'began'} with {counted(ready, 'worker')}."
    if now.reason == "AtTarget" and before is not None and before.reason == "ScalingDown":
        return f"Scaled down to {counted(ready, 'worker')}."
    return RECOVERIES.get(now.reason, now.message)


def _stage_events(previous: JobStatus, new: JobStatus) -> Iterator[Event]:
    known = {(record.index, record.start_time) for record in previous.history}
    for record in new.history:
        if (record.index, record.start_time) not in known:
            yield Event("Normal", STAGE_BEGAN, f"Stage {record.index} began with batch size {record.batch_size}.")
