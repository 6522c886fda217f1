"""Decides from the observed state what one pass writes. Pure and idempotent: loop/one_pass.py makes the pass, and
`Writer.carry_out` in api/apply.py writes.

Level-triggered: nothing here asks what changed. After a pass has carried out its writes, the next pass has none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from batchgrowth.errors import BatchGrowthError, PlanError, SpecError

from batchgrowth_operator.children.config import (
    checkpoint_claim,
    network_policy,
    plan_config_map,
    progress_config_map,
    secrets,
    trainer_account,
)
from batchgrowth_operator.children.dask_cluster import dask_cluster, nudged_scheduler, worker_deployment
from batchgrowth_operator.children.drift import contention, has_other_inputs, matches_manifest
from batchgrowth_operator.children.pods import trainer_job
from batchgrowth_operator.job.announcements import Event, events_between
from batchgrowth_operator.job.status import is_progress_only, next_status, rejected_status, throttled
from batchgrowth_operator.job.worker_count import Workforce, workforce
from batchgrowth_operator.seen.observed import (
    Clock,
    Manifest,
    Observed,
    PutBack,
    Ref,
    is_terminating,
    ref_of,
    stored_status,
)
from batchgrowth_operator.seen.problems import (
    seconds_between_event_reads,
    trainer_problem,
    unexplained,
)
from batchgrowth_operator.seen.refused_objects import is_of_dying_namespace
from batchgrowth_operator.seen.situation import ClusterPolicy, Mode, Situation, situate, trainer_outcome
from batchgrowth_operator.seen.trainer_pods import (
    has_failed_by_nodes_alone,
    has_lost_trainer,
    is_between_pods,
    num_refused,
    num_retries,
)
from batchgrowth_operator.settings import Defaults

SHORTEST_LIFE_SECONDS = 30.0
"""Least age at which a trainer's Job is recreated for waiting too long, so that a failing trainer restarts slowly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writes:
    """What one pass writes, in this order: status, events, apply, delete, deletion of the job.

    The status comes first because it records what was decided: if the operator dies after it, the next pass writes the
    rest. Events follow it at once, because the next pass compares with the stored status and has none. Children are
    applied before others are deleted, because a child that is recreated may need one whose write is refused.
    """

    status: Manifest | None = None
    """The whole status; None if it does not change."""
    apply: tuple[Manifest, ...] = ()
    """Children to create or change."""
    delete: tuple[Ref, ...] = ()
    """Children to delete."""
    recreated: Mapping[Ref, str] = field(default_factory=dict)
    """Children to recreate, each with the reason; those not in `delete` wait until the running trainer has stopped."""
    in_background: frozenset[Ref] = frozenset()
    """Those of `delete` that go at once, without waiting for the end of their pods."""
    events: tuple[Event, ...] = ()
    """Kubernetes events about the job."""
    delete_job: bool = False
    """Whether the job itself is deleted, because its time to live is over."""
    requeue_after_seconds: float | None = None
    """Seconds after which time alone may change what is written; None if only an event can."""
    put_backs: Mapping[Ref, PutBack] = field(default_factory=dict)
    """Children that others changed lately, which the next pass must know."""
    is_progress_only: bool = False
    """Whether progress in the status is the only write, which needs no further pass: see `Store.is_progress_echo`."""

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to write."""
        return self.status is None and not (self.apply or self.delete or self.events or self.delete_job)


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

    # A job is deleted some time after its end, but not before its status has the end, for which others may wait.
    time_to_live = s.spec.ttl_seconds_after_finished
    is_expired = s.mode is Mode.OVER and time_to_live is not None and clock.reached(seen.ended_seconds, time_to_live)
    if is_expired and s.previous.completion_time:
        return Writes(delete_job=True)

    # A child that cannot be changed to what is desired is deleted, and a later pass makes it again.
    trainer = Ref("Job", seen.names.trainer)
    is_trainer_lost = s.mode is Mode.ACTIVE and has_lost_trainer(seen, s.storage.is_kept, clock)
    changed: dict[Ref, Manifest] = {}
    recreated: dict[Ref, str] = {}
    for manifest in _wanted(s, w):
        ref = ref_of(manifest)
        found = seen.children.get(ref)
        if found is None:
            changed[ref] = manifest
        elif ref == trainer and is_trainer_lost:  # even if it is terminating: it would wait for its lost pod
            recreated[ref] = "its pod is on a lost node"
        elif is_terminating(found):
            continue  # a later pass makes it again, once it is gone
        elif has_other_inputs(found, manifest):
            recreated[ref] = "its inputs changed"
        elif ref == trainer and (why := _why_another_trainer(s)):
            recreated[ref] = why
        elif not matches_manifest(found, manifest):
            changed[ref] = manifest

    # A running trainer keeps its scheduler until it has stopped. A job that is over or suspended releases its cluster
    # (`cluster_policy` in seen/situation.py).
    delete = [ref for ref in sorted(recreated) if ref == trainer or not s.is_trainer_running]
    if s.cluster_policy is ClusterPolicy.DELETE:
        delete += [ref_of(child) for child in (seen.workers, seen.cluster) if child and not is_terminating(child)]

    # A child that others change again and again is put back ever less often.
    fights = contention(seen, changed, clock)
    apply: list[Manifest] = []
    # In a namespace that is being deleted, these writes would be refused or keep the namespace, because the Dask
    # operator retries what it is asked for.
    if not any(map(is_of_dying_namespace, seen.failures)):
        apply = [manifest for ref, manifest in changed.items() if ref not in fights.held]
        apply += nudged_scheduler(seen, clock)

    # The status tells of all this, so it comes after. Progress alone is written only now and then.
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
        in_background=frozenset({trainer} if is_trainer_lost else ()),
        # Read last: every rule above may have noted when its answer changes, as at a deadline, to wake the job then.
        requeue_after_seconds=clock.requeue_after_seconds,
        # Without the children that this pass deletes: no other process deletes those.
        put_backs={ref: known for ref, known in fights.put_backs.items() if ref not in delete},
        is_progress_only=not (apply or delete) and is_progress_only(status, s.previous),
    )


def _rejected(seen: Observed, error: BatchGrowthError) -> Writes:
    """Return only the status and events of a refused job; its existing objects stay as they are.

    A job that was over before its spec was refused, as by a newer operator, is still deleted after its time to live.
    """
    previous = stored_status(seen)
    clock = Clock(seen.now)
    time_to_live = (seen.job.get("spec") or {}).get("ttlSecondsAfterFinished")
    if (
        previous.completion_time
        and isinstance(time_to_live, int)  # it may be what the refusal is about
        and time_to_live >= 0
        and clock.reached(seen.ended_seconds, time_to_live)
    ):
        return Writes(delete_job=True)
    status = rejected_status(seen, error)
    return Writes(
        status=None if status == previous else status.to_json(),
        events=events_between(previous, status),
        requeue_after_seconds=clock.requeue_after_seconds,
    )


def _wanted(s: Situation, w: Workforce) -> list[Manifest]:
    """Return the children in the order in which to apply them: objects that pods mount come before the pods."""
    desired: list[Manifest] = []
    if s.mode is not Mode.OVER:
        desired.append(plan_config_map(s))
        if s.seen.tls_secrets is not None:
            desired += secrets(s, s.seen.tls_secrets)
        desired.append(progress_config_map(s))
        desired += trainer_account(s)
        desired.append(network_policy(s))
    if s.mode is Mode.ACTIVE and s.storage.size:
        desired.append(checkpoint_claim(s))
    cluster: Manifest | None = None
    if s.cluster_policy is ClusterPolicy.APPLY:
        cluster = dask_cluster(s)
        desired.append(cluster)
        desired.append(worker_deployment(s, w.template, w.requested))
    if _is_trainer_wanted(s, cluster):
        # Kubernetes deletes the pods of a suspended Job, and with them the containers that run on after the trainer.
        desired.append(trainer_job(s, suspend=s.mode is not Mode.ACTIVE or bool(s.lingering)))
    return desired


def _is_trainer_wanted(s: Situation, cluster: Manifest | None) -> bool:
    """Return whether the trainer's Job is desired.

    A Job is recreated only after the last pod of the old one has ended, so that two trainers of a job never run at
    once, and not while the scheduler is about to be replaced. If its node is lost, the old trainer may still run
    unseen; the fence in the trainer's own package ends it.
    """
    exists = s.seen.trainer is not None
    if s.mode is Mode.OVER:
        return exists and trainer_outcome(s.seen) is None  # between two pods too: a suspended Job starts no other
    if exists:
        return True
    if cluster is None or s.is_trainer_running:
        return False
    return not is_terminating(s.seen.cluster) and not (
        s.seen.cluster is not None and has_other_inputs(s.seen.cluster, cluster)
    )


def _why_another_trainer(s: Situation) -> str:
    """Return why the trainer's Job is made again though its inputs are the same; "" if it is not."""
    if s.mode is Mode.ACTIVE and s.trained_epochs != s.spec.epochs:
        return f"spec.epochs was {s.trained_epochs:,} and is {s.spec.epochs:,}"
    if _waits_too_long(s):
        if num_refused(s.seen):
            return "a node refused its pod"
        return "Kubernetes backs off for long before its next pod"
    return ""


def _waits_too_long(s: Situation) -> bool:
    """Return whether a new trainer's Job would start its pod sooner than the present Job starts its next one.

    A new Job starts at once. Kubernetes waits before it makes a Job's next pod: 10 s, then twice as long each time, up
    to ten minutes, also for pods that were evicted and with months between them. A trainer that never reported is left
    to Kubernetes, unless nodes have refused its pods. The Job must stay while the API server refuses new pods, and
    while its pods, which are deleted with it, count retries. A Job that only nodes have
    failed makes no more pods, so it is recreated all the same, and `next_retries` remembers its pods.
    """
    job = s.seen.trainer
    if s.mode is not Mode.ACTIVE or job is None or not is_between_pods(s.seen):
        return False
    if s.previous.trainer_status is None and not num_refused(s.seen):
        return False
    if trainer_problem(s.seen, s.clock) is not None:
        return False
    if num_retries(s.seen, s.retries) > s.retries.before and not has_failed_by_nodes_alone(s.seen):
        return False
    return s.clock.passed(job["metadata"].get("creationTimestamp"), SHORTEST_LIFE_SECONDS)
