"""One pass: from the observed state to the writes. Pure and idempotent.

Level-triggered: nothing here asks what changed. Once a decision is carried out, the next one is empty.
"""

from collections.abc import Iterator

from batchgrowth import names
from batchgrowth.contract.status import JobStatus
from batchgrowth.errors import PlanError, SpecError

from batchgrowth_operator.children.config import (
    checkpoint_claim,
    network_policy,
    plan_config_map,
    progress_config_map,
    progress_role,
    progress_role_binding,
    secrets,
    service_account,
)
from batchgrowth_operator.children.drift import is_in_place
from batchgrowth_operator.children.pods import inputs_digest
from batchgrowth_operator.children.scheduler import dask_cluster
from batchgrowth_operator.children.trainer import trainer_job
from batchgrowth_operator.children.workers import scheduler_retry, seconds_until_retry, worker_deployment
from batchgrowth_operator.children.writes import Manifest, Writes
from batchgrowth_operator.job.conditions import degraded_after, held_by, seconds_missing, stalled_after
from batchgrowth_operator.job.contention import contention
from batchgrowth_operator.job.events import events_between
from batchgrowth_operator.job.status import differ_in_progress, next_status, rejected_status, throttled
from batchgrowth_operator.job.workers import Workforce, workforce
from batchgrowth_operator.seen.clock import seconds_since
from batchgrowth_operator.seen.observed import Object, Observed, Ref, annotations_of, ref_of
from batchgrowth_operator.seen.outcome import has_lost_trainer, outcome_of, seconds_until_given_up
from batchgrowth_operator.seen.problems import (
    DASK_OPERATOR_TIMEOUT_SECONDS,
    seconds_between_event_reads,
    seconds_until_parts_lost,
    seconds_until_unexplained,
)
from batchgrowth_operator.seen.situation import (
    ClusterPolicy,
    Mode,
    Situation,
    seconds_to_deadline,
    seconds_until_renewal,
    situate,
    stored_status,
)
from batchgrowth_operator.settings import Defaults


def reconcile(seen: Observed, defaults: Defaults) -> Writes:
    """The writes for the job, and the time after which to look again even if nothing changes."""
    if "deletionTimestamp" in seen.job["metadata"]:
        return Writes()
    try:
        s = situate(seen, defaults)
    except (SpecError, PlanError) as error:
        return _reported(stored_status(seen), rejected_status(seen, error))
    refused = held_by(s)
    if refused is not None:
        return _reported(s.previous, rejected_status(seen, refused))
    w = workforce(s)
    manifests = [manifest for manifest in _wanted(s, w) if not _is_terminating(seen.children.get(ref_of(manifest)))]
    abandoned = _abandoned(s)
    renewed = {ref_of(m) for m in manifests if _needs_recreation(m, seen) or _waits_too_long(m, s)} | abandoned
    changed = [m for m in manifests if ref_of(m) not in renewed and not _is_in_place(m, seen)]
    fights = contention(seen, changed)
    wanted, until_steady = next_status(s, w, fights)
    status, until_report = throttled(wanted, s.previous, seen.now, defaults.report_seconds)
    left = _seconds_to_live(s)
    if left is not None and left <= 0 and s.previous.completion_time:  # so those who wait for its end see it
        return Writes(delete_job=True)
    reported = _reported(s.previous, status, s.quantity)
    apply = (*(manifest for manifest in changed if ref_of(manifest) not in fights.held), *scheduler_retry(seen))
    delete = tuple(_unwanted(s, renewed))
    return Writes(
        status=reported.status,
        events=reported.events,
        apply=apply,
        delete=delete,
        recreated=frozenset(renewed),
        in_background=abandoned,
        requeue_after_seconds=_soonest(left, until_report, until_steady, fights.due_seconds, *_waits(s, w)),
        put_backs=fights.put_backs,
        is_conclusive=not (apply or delete) and differ_in_progress(status, s.previous),
    )


def _reported(previous: JobStatus, new: JobStatus, quantity: str = "") -> Writes:
    return Writes(status=None if new == previous else new.to_json(), events=events_between(previous, new, quantity))


def _wanted(s: Situation, w: Workforce) -> Iterator[Manifest]:
    """The children in the order in which they are applied: volumes' sources come before the pods that mount them."""
    if s.mode is not Mode.OVER:
        yield plan_config_map(s)
        if s.seen.credentials is not None:
            yield from secrets(s, s.seen.credentials)
        yield progress_config_map(s)
        yield service_account(s)
        yield progress_role(s)
        yield progress_role_binding(s)
        yield network_policy(s)
    if s.mode is Mode.ACTIVE and s.storage.size:
        yield checkpoint_claim(s)
    cluster = dask_cluster(s) if s.cluster_policy is ClusterPolicy.APPLY else None
    if cluster is not None:
        yield cluster
        yield worker_deployment(s, w.requested)
    if _is_trainer_wanted(s, cluster):
        yield trainer_job(s, suspend=s.mode is not Mode.ACTIVE)


def _is_trainer_wanted(s: Situation, cluster: Manifest | None) -> bool:
    """Whether the trainer's Job is wanted.

    A Job is recreated only after the last pod of the old one has ended, so that two trainers of a job never run at
    once, and not while the scheduler is about to be replaced. One whose node is lost may still work unseen, so the
    fence of the trainer's own package ends it.
    """
    exists = s.seen.trainer is not None
    if s.mode is Mode.OVER:
        return exists and outcome_of(s.seen) is None  # between two pods too: a suspended Job starts no other
    if exists or cluster is None or s.is_trainer_running:
        return exists
    return not _is_terminating(s.seen.children.get(ref_of(cluster))) and not _needs_recreation(cluster, s.seen)


def _abandoned(s: Situation) -> frozenset[Ref]:
    """The trainer's Job if its pod is on a lost node: it makes no other pod before that one is gone."""
    if s.mode is Mode.ACTIVE and has_lost_trainer(s.seen, s.storage.is_kept):
        return frozenset({Ref("Job", names.trainer(s.seen.name))})
    return frozenset()


def _unwanted(s: Situation, renewed: set[Ref]) -> Iterator[Ref]:
    for ref in sorted(renewed):
        if ref.kind == "Job" or not s.is_trainer_running:
            yield ref
    if s.cluster_policy is ClusterPolicy.DELETE:
        for ref in (Ref("Deployment", names.workers(s.seen.name)), Ref("DaskCluster", names.cluster(s.seen.name))):
            if ref in s.seen.children and not _is_terminating(s.seen.children[ref]):
                yield ref


def _is_terminating(found: Object | None) -> bool:
    return found is not None and "deletionTimestamp" in found["metadata"]


def _needs_recreation(manifest: Manifest, seen: Observed) -> bool:
    """Whether the child was made from other inputs and cannot be updated to the current ones.

    Its annotation says so, and its pods, because others may edit the one and webhooks may rewrite the other.
    """
    found = seen.children.get(ref_of(manifest))
    wanted = annotations_of(manifest).get(names.INPUTS)
    if found is None or wanted is None or annotations_of(found).get(names.INPUTS, wanted) == wanted:
        return False
    return inputs_digest(found) != wanted


def _waits_too_long(manifest: Manifest, s: Situation) -> bool:
    return manifest["kind"] == "Job" and _seconds_until_renewal(s) == 0


def _seconds_until_renewal(s: Situation) -> float | None:
    """See restarts.seconds_until_renewal; a trainer that never reported is left to Kubernetes."""
    if s.mode is not Mode.ACTIVE or s.previous.trainer_status is None:
        return None
    return seconds_until_renewal(s.seen, s.retries)


def _is_in_place(manifest: Manifest, seen: Observed) -> bool:
    found = seen.children.get(ref_of(manifest))
    return found is not None and is_in_place(found, manifest)


def _seconds_to_live(s: Situation) -> float | None:
    if s.mode is not Mode.OVER or s.spec.ttl_seconds_after_finished is None:
        return None
    return s.spec.ttl_seconds_after_finished - s.seen.ended_seconds


def _waits(s: Situation, w: Workforce) -> Iterator[float | None]:
    """Seconds until each time at which the decision may change without any event."""
    yield w.growth_due_seconds
    yield w.release_due_seconds
    if s.mode is not Mode.OVER:
        yield seconds_to_deadline(s.seen, s.spec)
    missing, limit = seconds_missing(s, w), stalled_after(s)
    yield None if missing is None else degraded_after(s) - missing
    yield None if limit is None else limit - s.report_age_seconds
    cluster = s.seen.child("DaskCluster", names.cluster(s.seen.name))
    if cluster is not None and (_is_terminating(cluster) or not (cluster.get("status") or {}).get("phase")):
        since = cluster["metadata"].get("deletionTimestamp") or cluster["metadata"].get("creationTimestamp")
        yield DASK_OPERATOR_TIMEOUT_SECONDS - seconds_since(since, s.seen.now)
    yield _seconds_until_renewal(s)
    yield seconds_until_parts_lost(s.seen)
    yield seconds_until_given_up(s.seen, s.storage.is_kept)
    yield seconds_until_retry(s.seen)
    yield seconds_until_unexplained(s.seen)
    yield seconds_between_event_reads(s.seen)


def _soonest(*waits: float | None) -> float | None:
    return min((wait for wait in waits if wait is not None and wait > 0), default=None)
