"""What the log says about a job, for someone on call: what changed, what was written, and why."""

from collections.abc import Iterator, Mapping
from typing import Any

from batchgrowth import names
from batchgrowth.contract.status import JobStatus, WorkersStatus
from batchgrowth.errors import redacted
from batchgrowth.spec import KIND

from batchgrowth_operator.children.drift import drifted, shown
from batchgrowth_operator.children.writes import Manifest, Writes
from batchgrowth_operator.job.conditions import counted
from batchgrowth_operator.job.events import BAD
from batchgrowth_operator.seen.observed import Observed, Ref, annotations_of, ref_of
from batchgrowth_operator.seen.situation import condition

MOST_FIELDS = 4
"""Changed fields of a child that a line names."""


def heading(seen: Observed, status: Mapping[str, Any] | None = None) -> str:
    """Return the job's namespace and name, and its update once it trains, which begin each line about it.

    `status` is the one that was just written; without it the stored one counts.
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
    """Return a line for each thing that a status tells and the one before did not; progress alone is none."""
    for stage in new.history:
        if stage.index not in {known.index for known in before.history}:
            yield f"stage {stage.index} began with batch size {stage.batch_size}"
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
    for now in new.conditions:
        was = condition(before, now.type)
        if now.type == "Resizing" and (is_resized or has_joined):
            is_told = False  # a line above says so
        elif was is None:
            is_told = now.status == "True" or (now.type, now.status) in BAD
        else:
            is_told = (now.status, now.reason) != (was.status, was.reason)
        if is_told:
            yield redacted(f"{now.type} is {now.status}, {now.reason}: {now.message}")
    if new.phase != before.phase:
        yield f"phase {before.phase} → {new.phase}"


def applied(seen: Observed, manifest: Manifest) -> str:
    """Return the line about a child that was created or changed: what changed, but for a Secret's values."""
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


def deleted(writes: Writes, ref: Ref) -> str:
    """Return the line about an object that was deleted."""
    if ref.kind == KIND:
        return "deleted the job, whose time to live after its end is over"
    name = f"{ref.kind}/{ref.name}"
    if ref in writes.recreated:
        return f"deleted {name} to make it again: {writes.recreated[ref]}"
    return f"deleted {name}: the job is over or suspended"
