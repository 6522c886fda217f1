"""Kubernetes events: a sentence for each change of a condition and for each stage that begins."""

from itertools import pairwise

from batchgrowth.contract.status import HELD_UP, STAGE_BEGAN, STATUS_REFUSED, Condition, JobStatus, StageRecord
from batchgrowth.errors import redacted

from batchgrowth_operator.children.writes import Event
from batchgrowth_operator.job.conditions import counted
from batchgrowth_operator.seen.observed import Failure
from batchgrowth_operator.seen.outcome import truncated
from batchgrowth_operator.seen.situation import condition

BAD = {
    ("Accepted", "False"),
    ("Degraded", "True"),
    ("Stalled", "True"),
    ("Stalled", "Unknown"),
    ("Succeeded", "False"),
    ("Contested", "True"),
}
TROUBLES = {*HELD_UP, "TrainerUnreachable", "Discarding", "StateLost"}
"""Reasons that are bad whatever their condition."""
QUIET = {"WaitingForWorkers", "WaitingForScheduler", "InProgress", "NotStarted", "Released", "Ended", "Paused"}
"""Reasons without an event: they only say that a job is on its way, or repeat another event."""
RECOVERIES = {
    "ChildrenKept": "No field of the job's objects is changed again and again any more.",
    "FullStrength": "No worker of the stage is missing or adds differently any more.",
    "NotSuspended": "The job was resumed.",
    "ProgressSeen": "Updates are being committed again.",
}
"""Events of conditions that went back to normal."""
LARGEST_WRITTEN_OUT = 10**9
"""Measured values from here on are written with an exponent."""


def events_between(previous: JobStatus, new: JobStatus, quantity: str = "") -> tuple[Event, ...]:
    """Return one event for each condition that changed, and one for each stage that began.

    `quantity` is what the job's growth rule measures; empty if it measures nothing.
    """
    events = []
    for now in new.conditions:
        before = condition(previous, now.type)
        if now.reason in QUIET:
            continue
        if before is None:
            is_news = now.status != "False" or (now.type, now.status) in BAD
        else:
            is_news = (now.status, now.reason) != (before.status, before.reason)
        if is_news:
            is_bad = (now.type, now.status) in BAD | {("ClusterReady", "False")} or now.reason in TROUBLES
            events.append(Event("Warning" if is_bad else "Normal", now.reason, _sentence(before, now, previous, new)))

    known = {(record.index, record.start_time) for record in previous.history}
    for last, record in pairwise((None, *new.history)):
        if record is not None and (record.index, record.start_time) not in known:
            events.append(Event("Normal", STAGE_BEGAN, _beginning(last, record, quantity)))
    return tuple(events)


def status_refused(failure: Failure) -> Event:
    """Return the event about a status that was refused, which no condition can tell."""
    text = f"The API server refuses the job's status: {failure.message}"
    return Event("Warning", STATUS_REFUSED, truncated(redacted(text)))


def _sentence(before: Condition | None, now: Condition, previous: JobStatus, new: JobStatus) -> str:
    """Return the change as a sentence, if the condition's message, which describes the new state, does not say it."""
    ready = new.workers.ready if new.workers else 0
    if now.reason == "UpdatesCommitted" and not ready:
        return "Training resumes when its workers have joined."
    if now.reason == "UpdatesCommitted":
        return f"Training {'resumed' if previous.history else 'began'} with {counted(ready, 'worker')}."
    if now.reason == "AtTarget" and before is not None and before.reason == "ScalingDown":
        return f"Scaled down to {counted(ready, 'worker')}."
    return RECOVERIES.get(now.reason, now.message)


def _beginning(before: StageRecord | None, record: StageRecord, quantity: str) -> str:
    """Return how a stage began: by which decision, if a measured one follows the stage before it in the history."""
    if not quantity or before is None or before.index + 1 != record.index:
        return f"Stage {record.index} began with batch size {record.batch_size}."
    value = "too large to measure" if record.measured is None else measured_value(float(record.measured))
    if before.batch_size == record.batch_size:
        return f"Batch stays at {record.batch_size:,}: {quantity} {value}."
    return f"Batch {before.batch_size:,} → {record.batch_size:,}: {quantity} {value}."


def measured_value(value: float) -> str:
    """Return three digits, or the whole number if it has more: 0.0312, 610, 16,000."""
    if 100 <= abs(value) < LARGEST_WRITTEN_OUT:
        return f"{value:,.0f}"
    return f"{value:.3g}"
