"""What one pass writes, decided from what it observed. Pure and idempotent; loop/one_pass.py reads and writes.

Level-triggered: nothing here asks what changed. Once the writes of a pass are carried out, the next has none.
"""

from batchgrowth import names
from batchgrowth.errors import BatchGrowthError, PlanError, SpecError

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
from batchgrowth_operator.children.workers import nudged_scheduler, worker_deployment
from batchgrowth_operator.children.writes import Manifest, Writes
from batchgrowth_operator.job.contention import contention
from batchgrowth_operator.job.events import events_between
from batchgrowth_operator.job.status import differ_in_progress, next_status, rejected_status, throttled
from batchgrowth_operator.job.workforce import Workforce, workforce
from batchgrowth_operator.seen.clock import Clock
from batchgrowth_operator.seen.observed import Object, Observed, Ref, annotations_of, is_terminating, ref_of
from batchgrowth_operator.seen.outcome import has_lost_trainer, is_between_pods, num_retries, outcome_of
from batchgrowth_operator.seen.problems import seconds_between_event_reads, trainer_problem, unexplained
from batchgrowth_operator.seen.situation import ClusterPolicy, Mode, Situation, situate, stored_status
from batchgrowth_operator.settings import Defaults

SHORTEST_LIFE_SECONDS = 30.0
"""Age from which a trainer's Job that waits is made again, so that a trainer that always fails does so slowly."""


def reconcile(seen: Observed, defaults: Defaults) -> Writes:
    """Return the writes for the job, and the time after which to look again even if nothing changes."""
    if is_terminating(seen.job):
        return Writes()  # Kubernetes deletes the children, which the job owns

    # What the job, its children and its trainer's report say together, and how many workers follow from it.
    clock = Clock(seen.now)
    try:
        s = situate(seen, defaults, clock)
    except (SpecError, PlanError) as error:
        return _rejected(seen, error)
    w = workforce(s)
    # A job that is over or suspended needs no new pods: it is released even if an upgraded operator refuses its pods.
    needs_pods = s.mode is Mode.ACTIVE or (s.mode is Mode.SUSPENDED and seen.workers is None)
    if needs_pods and w.refused is not None:
        return _rejected(seen, w.refused)

    # A job is deleted some time after its end, once its status has it, so that those who wait for its end see it.
    if _has_outlived(s) and s.previous.completion_time:
        return Writes(delete_job=True)

    # A child that cannot be changed to what is wanted is deleted, and a later pass makes it again.
    changed: list[Manifest] = []
    recreated: dict[Ref, str] = {}
    for manifest in _wanted(s, w):
        ref = ref_of(manifest)
        found = seen.children.get(ref)
        if is_terminating(found):
            continue
        if _needs_recreation(manifest, found):
            recreated[ref] = "its inputs changed"
        elif ref.kind == "Job" and _waits_too_long(s):
            recreated[ref] = "Kubernetes backs off for long before its next pod"
        elif found is None or not is_in_place(found, manifest):
            changed.append(manifest)

    # The trainer's Job makes no other pod before one on a lost node is gone, so that Job does not wait for its pods.
    abandoned: set[Ref] = set()
    if s.mode is Mode.ACTIVE and has_lost_trainer(seen, s.storage.is_kept, clock):
        abandoned.add(Ref("Job", names.trainer(seen.name)))
        changed = [manifest for manifest in changed if ref_of(manifest) not in abandoned]

    recreated |= dict.fromkeys(abandoned, "its pod is on a lost node")

    # A running trainer keeps its scheduler until it has stopped. A job that is over or suspended releases its cluster.
    delete = [ref for ref in sorted(recreated) if ref.kind == "Job" or not s.is_trainer_running]
    if s.cluster_policy is ClusterPolicy.DELETE:
        delete += [ref_of(child) for child in (seen.workers, seen.cluster) if child and not is_terminating(child)]

    # What others change again and again is put back ever less often.
    fights = contention(seen, changed, clock)
    apply = [manifest for manifest in changed if ref_of(manifest) not in fights.held]
    nudge = nudged_scheduler(seen, clock)
    if nudge is not None:
        apply.append(nudge)

    # The status tells of all this. Progress alone is written now and then.
    status = throttled(next_status(s, w, fights), s.previous, clock, defaults.report_seconds)

    # Events are not watched: the next pass reads those of objects that are pending without an explanation.
    pending = unexplained(seen, clock)
    if pending:
        clock.wake_in(seconds_between_event_reads(pending, seen.now))

    return Writes(
        status=None if status == s.previous else status.to_json(),
        events=events_between(s.previous, status, s.quantity),
        apply=tuple(apply),
        delete=tuple(delete),
        recreated=recreated,
        in_background=frozenset(abandoned),
        requeue_after_seconds=clock.due,  # read last: every rule above may have noted when it changes
        put_backs=fights.put_backs,
        is_conclusive=not (apply or delete) and differ_in_progress(status, s.previous),
    )


def _has_outlived(s: Situation) -> bool:
    """Return whether the job's time to live after its end is over."""
    seconds = s.spec.ttl_seconds_after_finished
    return s.mode is Mode.OVER and seconds is not None and s.clock.reached(s.seen.ended_seconds, seconds)


def _rejected(seen: Observed, error: BatchGrowthError) -> Writes:
    """Return the status of a job that is refused, and no other write: what exists stays as it is."""
    previous = stored_status(seen)
    status = rejected_status(seen, error)
    return Writes(
        status=None if status == previous else status.to_json(),
        events=events_between(previous, status),
    )


def _wanted(s: Situation, w: Workforce) -> list[Manifest]:
    """Return the children in the order in which they are applied: what pods mount comes before the pods."""
    wanted: list[Manifest] = []
    if s.mode is not Mode.OVER:
        wanted.append(plan_config_map(s))
        if s.seen.tls_secrets is not None:
            wanted += secrets(s, s.seen.tls_secrets)
        wanted.append(progress_config_map(s))
        wanted.append(service_account(s))
        wanted.append(progress_role(s))
        wanted.append(progress_role_binding(s))
        wanted.append(network_policy(s))
    if s.mode is Mode.ACTIVE and s.storage.size:
        wanted.append(checkpoint_claim(s))
    cluster: Manifest | None = None
    if s.cluster_policy is ClusterPolicy.APPLY:
        cluster = dask_cluster(s)
        wanted.append(cluster)
        wanted.append(worker_deployment(s, w.template, w.requested))
    if _is_trainer_wanted(s, cluster):
        wanted.append(trainer_job(s, suspend=s.mode is not Mode.ACTIVE))
    return wanted


def _is_trainer_wanted(s: Situation, cluster: Manifest | None) -> bool:
    """Return whether the trainer's Job is wanted.

    A Job is recreated only after the last pod of the old one has ended, so that two trainers of a job never run at
    once, and not while the scheduler is about to be replaced. If its node is lost, a trainer may still work unseen, so
    the fence of the trainer's own package ends it.
    """
    exists = s.seen.trainer is not None
    if s.mode is Mode.OVER:
        return exists and outcome_of(s.seen) is None  # between two pods too: a suspended Job starts no other
    if exists:
        return True
    if cluster is None or s.is_trainer_running:
        return False
    return not is_terminating(s.seen.cluster) and not _needs_recreation(cluster, s.seen.cluster)


def _needs_recreation(manifest: Manifest, found: Object | None) -> bool:
    """Return whether the child was made from other inputs and cannot be updated to the current ones.

    Its annotation says so, and its pods, because others may edit the one and webhooks may rewrite the other.
    """
    wanted = annotations_of(manifest).get(names.INPUTS)
    if found is None or wanted is None or annotations_of(found).get(names.INPUTS, wanted) == wanted:
        return False
    return inputs_digest(found) != wanted


def _waits_too_long(s: Situation) -> bool:
    """Return whether the trainer's Job waits for so long to make its next pod that a new Job is quicker.

    A new Job starts at once. Kubernetes waits before it makes a Job's next pod: 10 s, then twice as long each time, up
    to ten minutes, also for pods that were evicted and with months between them. A trainer that never reported is left
    to Kubernetes. The Job's pods go with it, so not while they count retries, or the API server refuses new ones.
    """
    job = s.seen.trainer
    if s.mode is not Mode.ACTIVE or s.previous.trainer_status is None or job is None or not is_between_pods(s.seen):
        return False
    if num_retries(s.seen) > s.retries.before or trainer_problem(s.seen, s.clock) is not None:
        return False
    return s.clock.passed(job["metadata"].get("creationTimestamp"), SHORTEST_LIFE_SECONDS)
