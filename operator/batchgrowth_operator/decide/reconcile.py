"""One pass: from what was seen to what is to be written. Pure: the same world, the same decision.

Level-triggered: nothing here asks what changed. A decision that was carried out leaves the next one empty.
"""

from __future__ import annotations

from collections.abc import Iterator

from batchgrowth import names
from batchgrowth.errors import PlanError, SpecError
from batchgrowth.status import JobStatus

from batchgrowth_operator.decide import children
from batchgrowth_operator.decide.decision import Decision, Manifest
from batchgrowth_operator.decide.defaults import Defaults
from batchgrowth_operator.decide.drift import covers
from batchgrowth_operator.decide.events import events_between
from batchgrowth_operator.decide.retention import Cluster, cluster_policy
from batchgrowth_operator.decide.retries import scheduler_asked_again, seconds_to_a_retry
from batchgrowth_operator.decide.rules import degraded_after, seconds_missing, stalled_after
from batchgrowth_operator.decide.scaling import Workforce, workforce
from batchgrowth_operator.decide.situation import Mode, Situation, seconds_to_deadline, situate, told_status
from batchgrowth_operator.decide.statuses import next_status, paced, rejected_status
from batchgrowth_operator.seen.moments import seconds_since
from batchgrowth_operator.seen.observed import Object, Observed, Ref, annotations_of, ref_of
from batchgrowth_operator.seen.scheduler import seconds_until_missed
from batchgrowth_operator.seen.trainer_outcome import outcome_of
from batchgrowth_operator.seen.troubles import (
    DASK_OPERATOR_PATIENCE_SECONDS,
    seconds_between_warnings,
    seconds_to_a_puzzle,
)


def reconcile(seen: Observed, defaults: Defaults) -> Decision:
    """What is to be written for the job, and when it is worth another look without any change."""
    if "deletionTimestamp" in seen.job["metadata"]:
        return Decision()
    try:
        s = situate(seen, defaults)
    except (SpecError, PlanError) as error:
        return _said(told_status(seen.job.get("status")), rejected_status(seen, error))
    w = workforce(s)
    status, until_report = paced(next_status(s, w), s.told, seen.now, defaults.report_seconds)
    left = _seconds_to_live(s, status)
    if left is not None and left <= 0:
        return Decision(delete_job=True)
    manifests = [manifest for manifest in _wanted(s, w) if not _is_going(seen.children.get(ref_of(manifest)))]
    said = _said(s.told, status)
    return Decision(
        status=said.status,
        events=said.events,
        apply=(
            *(m for m in manifests if not _is_other(m, seen) and not _is_in_place(m, seen)),
            *scheduler_asked_again(seen),
        ),
        delete=tuple(_unwanted(s, manifests)),
        look_again_seconds=_soonest(left, until_report, *_waits(s, w)),
    )


def _said(told: JobStatus, new: JobStatus) -> Decision:
    return Decision(status=None if new == told else new.to_json(), events=events_between(told, new))


def _wanted(s: Situation, w: Workforce) -> Iterator[Manifest]:
    """The children in the order in which they are made: what is mounted comes before who mounts it."""
    if s.mode is not Mode.OVER:
        yield children.plan_config_map(s)
        if s.seen.credentials is not None:
            yield children.tls_secret(s, s.seen.credentials)
        yield children.progress_config_map(s)
        yield children.service_account(s)
        yield children.progress_role(s)
        yield children.progress_role_binding(s)
        yield children.network_policy(s)
    if cluster_policy(s) is Cluster.MAKE:
        yield children.dask_cluster(s)
        yield children.worker_deployment(s, w.requested)
    if _is_trainer_wanted(s):
        yield children.trainer_job(s, suspend=s.mode is not Mode.ACTIVE)


def _is_trainer_wanted(s: Situation) -> bool:
    """Two trainers of one job never meet: a Job is made anew when no pod of the last one is left.

    Nor does a trainer begin on a scheduler that is about to go.
    """
    exists = s.seen.child("Job", names.trainer(s.seen.name)) is not None
    if s.mode is Mode.OVER:
        return exists and s.is_trainer_running and outcome_of(s.seen) is None
    cluster = s.seen.child("DaskCluster", names.cluster(s.seen.name))
    settled = not _is_going(cluster) and not _is_other(children.dask_cluster(s), s.seen)
    return exists or (s.mode is Mode.ACTIVE and settled and not s.is_trainer_running)


def _unwanted(s: Situation, manifests: list[Manifest]) -> Iterator[Ref]:
    for ref in (ref_of(manifest) for manifest in manifests if _is_other(manifest, s.seen)):
        if ref.kind == "Job" or not s.is_trainer_running:
            yield ref
    if cluster_policy(s) is Cluster.RELEASE:
        for ref in (Ref("Deployment", names.workers(s.seen.name)), Ref("DaskCluster", names.cluster(s.seen.name))):
            if ref in s.seen.children and not _is_going(s.seen.children[ref]):
                yield ref


def _is_going(found: Object | None) -> bool:
    return found is not None and "deletionTimestamp" in found["metadata"]


def _is_other(manifest: Manifest, seen: Observed) -> bool:
    """Whether the child was made from other inputs than those of now, and cannot be changed into what it should be."""
    found = seen.children.get(ref_of(manifest))
    wanted = annotations_of(manifest).get(names.INPUTS)
    return found is not None and annotations_of(found).get(names.INPUTS, wanted) != wanted


def _is_in_place(manifest: Manifest, seen: Observed) -> bool:
    """Whether the child is as wanted: made from the same manifest, and nobody has changed it since."""
    found = seen.children.get(ref_of(manifest))
    if found is None:
        return False
    same = annotations_of(found).get(names.MANIFEST) == annotations_of(manifest)[names.MANIFEST]
    return same and covers(found, manifest)


def _seconds_to_live(s: Situation, status: JobStatus) -> float | None:
    if s.mode is not Mode.OVER or s.spec.ttl_seconds_after_finished is None:
        return None
    return s.spec.ttl_seconds_after_finished - seconds_since(status.completion_time, s.seen.now)


def _waits(s: Situation, w: Workforce) -> Iterator[float | None]:
    """Seconds until time alone changes a verdict."""
    yield w.growth_due_seconds
    if s.mode is not Mode.OVER:
        yield seconds_to_deadline(s.seen, s.told, s.spec)
    missing, limit = seconds_missing(s, w), stalled_after(s)
    yield None if missing is None else degraded_after(s) - missing
    yield None if limit is None else limit - s.report_age_seconds
    cluster = s.seen.child("DaskCluster", names.cluster(s.seen.name))
    if cluster is not None and (_is_going(cluster) or not (cluster.get("status") or {}).get("phase")):
        since = cluster["metadata"].get("deletionTimestamp") or cluster["metadata"].get("creationTimestamp")
        yield DASK_OPERATOR_PATIENCE_SECONDS - seconds_since(since, s.seen.now)
    yield seconds_until_missed(s.seen)
    yield seconds_to_a_retry(s.seen)
    yield seconds_to_a_puzzle(s.seen)
    yield seconds_between_warnings(s.seen)


def _soonest(*waits: float | None) -> float | None:
    return min((wait for wait in waits if wait is not None and wait > 0), default=None)
