"""What to tell when a job's status or a child changes: Kubernetes events to its users, log lines to someone on call.

api/events.py posts the events and limits their rate; api/apply.py and loop/one_pass.py log the lines.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from batchgrowth import names
from batchgrowth.contract.status import (
    COMPUTED_WRONGLY,
    FLAPPING,
    HELD_UP,
    RESTATING,
    STAGE_BEGAN,
    STATUS_REFUSED,
    Condition,
    FindingRecord,
    JobStatus,
    StageRecord,
    WorkersStatus,
)
from batchgrowth.errors import redacted
from batchgrowth.spec import KIND

from batchgrowth_operator.children.drift import drifted, shown
from batchgrowth_operator.job.conditions import counted
from batchgrowth_operator.seen.observed import (
    Failure,
    Manifest,
    Observed,
    Ref,
    annotations_of,
    condition,
    ref_of,
    truncated,
)

BAD = {
    ("Accepted", "False"),
    ("Degraded", "True"),
    ("Stalled", "True"),
    ("Stalled", "Unknown"),
    ("Succeeded", "False"),
    ("Contested", "True"),
}
TROUBLES = {*HELD_UP, "NodeUnreachable", "TrainerSuspended", "TrainerUnreachable", "Discarding", "StateLost"}
"""Reasons that are bad whatever their condition."""
QUIET = {
    FLAPPING,
    "WaitingForWorkers",
    "WaitingForScheduler",
    "InProgress",
    "NotStarted",
    "Released",
    "Ended",
    "Paused",
    *RESTATING,
}
"""Reasons without an event: they only say that a job is on its way, or repeat another event."""
RECOVERIES = {
    "ChildrenKept": "No field of the job's objects is changed again and again any more.",
    "FullStrength": "No worker of the stage is missing or adds differently any more.",
    "NotSuspended": "The job was resumed.",
    "ProgressSeen": "Updates are being committed again.",
}
"""Events of conditions that went back to normal."""
LARGEST_WRITTEN_OUT = 10**9
"""Measured value from which on an exponent is written."""
MOST_FIELDS = 4
"""Changed fields of a child that a line of the log names."""


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes event about the job, as `kubectl describe` shows it."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def events_between(previous: JobStatus, new: JobStatus, quantity: str = "") -> tuple[Event, ...]:
    """Return one event for each condition that changed, each finding of a spot check, and each stage that began.

    `quantity` is what the job's growth rule measures; empty if it measures nothing.
    """
    events = []
    stored: dict[str, Condition] = {one.type: one for one in previous.conditions}
    for now in new.conditions:
        before = stored.get(now.type)
        if now.reason in QUIET:
            continue
        if before is None:
            is_news = now.status != "False" or (now.type, now.status) in BAD
        else:
            # A refused job counts as stalled too, but the end of a refusal is not progress.
            is_restored = before.reason in RESTATING and (now.type, now.status) not in BAD
            is_news = (now.status, now.reason) != (before.status, before.reason) and not is_restored
        if is_news:
            is_bad = (now.type, now.status) in BAD | {("ClusterReady", "False")} or now.reason in TROUBLES
            events.append(Event("Warning" if is_bad else "Normal", now.reason, _sentence(before, now, previous, new)))

    events += [Event("Warning", COMPUTED_WRONGLY, wrong_result(found)) for found in _new_findings(previous, new)]

    for last, record in _new_stages(previous, new):
        text = f"Stage {record.index + 1} began with batch size {record.batch_size}."
        # A measured decision is told only if the stage before it is still in the history, which may have been cut.
        if quantity and last is not None and last.index + 1 == record.index:
            batch = f"Batch {last.batch_size:,} → {record.batch_size:,}"
            if last.batch_size == record.batch_size:
                batch = f"Batch stays at {record.batch_size:,}"
            value = "too large to measure" if record.measured is None else measured_value(float(record.measured))
            text = f"{batch}: {quantity} {value}."
        events.append(Event("Normal", STAGE_BEGAN, text))
    return tuple(events)


def _new_stages(previous: JobStatus, new: JobStatus) -> Iterator[tuple[StageRecord | None, StageRecord]]:
    """Yield each stage that began, with the one before it in the history; None for the first."""
    known = {(record.index, record.start_time) for record in previous.history}
    for last, record in zip((None, *new.history), new.history, strict=False):
        if (record.index, record.start_time) not in known:
            yield last, record


def _new_findings(previous: JobStatus, new: JobStatus) -> list[FindingRecord]:
    known = {(found.start, found.times) for found in previous.findings}
    return [found for found in new.findings if (found.start, found.times) not in known]


def wrong_result(found: FindingRecord) -> str:
    """Return the sentences about workers that computed wrongly: which, on which nodes, and which updates are undone."""
    each = [f"{one.pod} on node {one.node}" if one.node else one.pod for one in found.workers]
    text = f"{' and '.join(each)} computed wrongly: {found.cause}. "
    text += f"Training goes back from update {found.reached:,} to update {found.update:,}."
    nodes = sorted({one.node for one in found.workers if one.node})
    if nodes:
        text += f" The hardware is suspect, and a restarted container stays there: kubectl cordon {' '.join(nodes)}, "
        text += "then delete the pod."
    return truncated(redacted(text))


def _sentence(before: Condition | None, now: Condition, previous: JobStatus, new: JobStatus) -> str:
    """Return a sentence about the change, or else the condition's message, which describes the new state."""
    ready = new.workers.ready if new.workers else 0
    if now.reason == "UpdatesCommitted" and not ready:
        return "Training resumes when its workers have joined."
    if now.reason == "UpdatesCommitted":
        return f"Training {'resumed' if previous.history else 'began'} with {counted(ready, 'worker')}."
    if now.reason == "AtTarget" and before is not None and before.reason == "ScalingDown":
        return f"Scaled down to {counted(ready, 'worker')}."
    return RECOVERIES.get(now.reason, now.message)


def measured_value(value: float) -> str:
    """Return the value as text, rounded to three significant digits or to a whole number: 0.0312, 610, 16,000."""
    if 100 <= abs(value) < LARGEST_WRITTEN_OUT:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def status_refused(failure: Failure) -> Event:
    """Return the event about a refused status, which no condition can report."""
    text = f"The API server refuses the job's status: {failure.message}"
    return Event("Warning", STATUS_REFUSED, truncated(redacted(text)))


def heading(seen: Observed, status: Mapping[str, Any] | None = None) -> str:
    """Return the beginning of a log line about a job: namespace and name, and the update if the job trains.

    The update is from `status`, which was just written, or else from the stored status.
    """
    known = status or seen.job.get("status") or {}
    update = (known.get("trainerStatus") or {}).get("update")
    job = f"{seen.namespace}/{seen.name}"
    return job if update is None else f"{job}, update {update}"


def taken_up(stored: JobStatus) -> str:
    """Return the line about a job that this process sees for the first time."""
    if not stored.conditions:
        return "a new job"
    requested = stored.workers.requested if stored.workers else 0
    return f"taken up in phase {stored.phase} with {counted(requested, 'worker')} requested"


def changes(before: JobStatus, new: JobStatus) -> Iterator[str]:
    """Yield a line for each thing that is new in the status, except mere progress."""
    for _, stage in _new_stages(before, new):
        yield f"stage {stage.index + 1} began with batch size {stage.batch_size}"
    workers_before = before.workers or WorkersStatus()
    workers = new.workers or workers_before
    is_resized = workers.requested != workers_before.requested
    if is_resized:
        resizing = condition(new, "Resizing")
        why = f": {resizing.message}" if resizing else ""
        yield f"requests {counted(workers.requested, 'worker')} instead of {workers_before.requested}{why}"
    has_joined = workers.resize_seconds not in (None, workers_before.resize_seconds)
    if has_joined:
        yield f"{counted(workers.ready, 'worker')} joined within {workers.resize_seconds} s of the request"
    if new.restarts > before.restarts:
        yield f"restart {new.restarts} of the trainer"
    yield from map(wrong_result, _new_findings(before, new))
    for now in new.conditions:
        was = condition(before, now.type)
        if now.type == "Resizing" and (is_resized or has_joined):
            is_told = False  # a line above says so
        elif now.reason in RESTATING:
            is_told = False  # the line of another condition says so
        elif was is None:
            is_told = now.status == "True" or (now.type, now.status) in BAD
        else:
            is_told = (now.status, now.reason) != (was.status, was.reason)
        if is_told:
            yield redacted(f"{now.type} is {now.status}, {now.reason}: {now.message}")
    if new.phase != before.phase:
        yield f"phase {before.phase} → {new.phase}"


def applied(seen: Observed, manifest: Manifest) -> str:
    """Return the line about a child that was created or changed. It names what changed, without a Secret's values."""
    ref = ref_of(manifest)
    name = f"{ref.kind}/{ref.name}"
    found = seen.children.get(ref, seen.parts.get(ref))
    if found is None:
        return f"created {name}, which did not exist"
    fields = [shown(path) for path in drifted(found, manifest) if path[-1] != names.MANIFEST]
    text = ", ".join(fields[:MOST_FIELDS]) + (", …" if len(fields) > MOST_FIELDS else "")
    digest = annotations_of(manifest).get(names.MANIFEST)
    if digest is not None and annotations_of(found).get(names.MANIFEST) == digest:
        return f"put back {name}, which another process changed: {text}"
    if ref.kind == "Secret":
        return f"renewed the certificates in {name}: {text}"
    if "spec.replicas" in fields:
        return (
            f"scaled {name} from {found['spec'].get('replicas', 0)} to {manifest['spec']['replicas']} replicas: {text}"
        )
    return f"changed {name}: {text}"


def deleted(ref: Ref, recreated: str | None) -> str:
    """Return the line about a deleted object; `recreated` says why a later pass recreates the object, if it will."""
    if ref.kind == KIND:
        return "deleted the job, whose time to live after its end is over"
    name = f"{ref.kind}/{ref.name}"
    if recreated is not None:
        return f"deleted {name} to recreate it: {recreated}"
    return f"deleted {name}: the job is over or suspended"
