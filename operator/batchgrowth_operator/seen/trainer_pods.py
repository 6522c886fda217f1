"""Whether the trainer's pods still run, which of them failed through no fault of the trainer, and how many ends count
as restarts or retries.

Kubernetes starts a failed trainer again, after 10 s and then twice as long each time. `trainer_job` in children/pods.py
gives the trainer's Job the limit of restarts and the policy that says which ends count; `restarts_of` reads the count.
A trainer that ends with exit code 75, because its cluster failed it, is retried and does not count there. `job_outcome`
in situation.py ends the job at these limits, and job/reconcile.py (`_why_another_trainer`) recreates the Job if
Kubernetes would wait too long.

Kubernetes marks a running pod of a lost node as not ready, deletes it minutes later, and keeps the object until the
node is back or gone; until then its Job makes no other pod. Only pods are read, because nodes are not namespaced.

Kubernetes ends a pod with the last of its containers, native sidecars aside. Another container, such as a mesh's proxy,
may never end, and its Job then neither ends nor makes another pod. situation.py reads from such a pod how the trainer
ended, and job/reconcile.py (`_wanted`) suspends the Job, which makes Kubernetes delete the pod.

A kubelet refuses a pod that was bound to its node but cannot run there: OutOfcpu, NodeAffinity,
UnexpectedAdmissionError. The pod fails before any of its containers has run. Kubernetes removes a pod for a drain, a
preemption or a full node, and marks it with the condition DisruptionTarget. The trainer's Job ignores removed pods by
its podFailurePolicy, but no policy can name refused pods, which have neither an exit code nor a condition:
`restarts_of`, and `trainer_outcome` in situation.py, leave them out.
"""

from collections.abc import Iterator, Sequence

from batchgrowth import names
from batchgrowth.contract.status import MOST_LINGERED, RetriesStatus
from batchgrowth.errors import ClusterError

from batchgrowth_operator.seen.observed import (
    TRAINER,
    Clock,
    Object,
    Observed,
    annotations_of,
    condition_of,
    endings_of,
    is_owned_by,
    is_terminating,
    number_in,
    seconds_since,
    seconds_until,
)

# --- Pods that a node refused, or that Kubernetes removed ---

FAILED = "Failed"
BACKOFF_LIMIT = "BackoffLimitExceeded"
"""The reason of a Job that has failed because of too many failed pods."""


def was_removed(pod: Object) -> bool:
    """Return whether Kubernetes removed the pod, and its Job therefore ignores its end."""
    return _disruption(pod) is not None


def was_refused(pod: Object) -> bool:
    """Return whether the pod's node refused it, before any of its containers ran."""
    status = pod.get("status") or {}
    if status.get("phase") != FAILED or not status.get("reason") or was_removed(pod):
        return False
    return not any(endings_of(pod))


def num_refused(seen: Observed) -> int:
    """Return the number of pods of the trainer's present Job, which must exist, that nodes refused."""
    assert seen.trainer is not None
    uid = seen.trainer["metadata"].get("uid", "")
    return sum(was_refused(pod) and is_owned_by(pod, uid) for pod in seen.pods_of(TRAINER))


def has_failed_by_nodes_alone(seen: Observed) -> bool:
    """Return whether the trainer's Job has failed for its number of failed pods, and would not have without those that
    nodes refused.
    """
    job = seen.trainer or {}
    status = job.get("status") or {}
    if (condition_of(job, FAILED, "True") or {}).get("reason") != BACKOFF_LIMIT:
        return False
    refused = num_refused(seen)
    own = int(status.get("failed", 0)) - refused
    # Kubernetes fails a Job with more failures than its backoffLimit.
    return refused > 0 and own <= int(job["spec"].get("backoffLimit", 0))


def last_removal(seen: Observed) -> tuple[str, str]:
    """Return when the last trainer pod was refused or removed, and the clause that says by what; two empty texts if
    none is left.
    """
    return max(_removals(seen), default=("", ""))


def _removals(seen: Observed) -> Iterator[tuple[str, str]]:
    for pod in seen.pods_of(TRAINER):
        name = pod["metadata"]["name"]
        status = pod.get("status") or {}
        disruption = _disruption(pod)
        if disruption is not None:
            why = _reasoned(disruption.get("reason"), disruption.get("message"))
            yield str(disruption.get("lastTransitionTime") or ""), f"Kubernetes removed pod {name}: {why}"
        elif was_refused(pod):
            node = (pod.get("spec") or {}).get("nodeName") or "?"
            why = _reasoned(status["reason"], status.get("message"))
            created = str(pod["metadata"].get("creationTimestamp") or "")
            yield created, f"node {node} refused pod {name}: {why}. It does not count as a restart"


def _reasoned(reason: str | None, message: str | None) -> str:
    said = " ".join((message or "").split()).rstrip(".")
    return ": ".join(part for part in (reason, said) if part) or "no reason is given"


def _disruption(pod: Object) -> Object | None:
    return condition_of(pod, "DisruptionTarget", "True")


# --- Restarts and retries ---

MOST_FRUITLESS_RETRIES = 10
"""Restarts after exit code 75 without a further update, after which the job has failed."""


def restarts_of(seen: Observed) -> int:
    """Return the number of the trainer's failures that count, including failures before its Job was recreated.

    A pod that its node refused does not count, but it must still exist to be recognized. So of a Job that is being
    deleted, only the failures before it count; the status has the others.
    """
    if seen.trainer is None:
        return 0
    if is_terminating(seen.trainer):
        return restarts_before(seen.trainer)
    failed = int((seen.trainer.get("status") or {}).get("failed", 0))
    return restarts_before(seen.trainer) + max(0, failed - num_refused(seen))


def restarts_before(job: Object) -> int:
    """Return the number of the trainer's restarts before this Job was made."""
    return number_in(annotations_of(job), names.RESTARTS_BEFORE) or 0


def num_retries(seen: Observed, known: RetriesStatus) -> int:
    """Return the number of trainer pods that ended with exit code 75; evicted pods do not count.

    Kubernetes keeps these pods, except those that `known` names: another container outlived their trainer, or their Job
    is recreated because nodes alone have failed it.
    """
    pods = seen.pods_of(TRAINER)
    num = sum(map(_is_retried, pods))
    if known.lingered:
        kept = {pod["metadata"]["name"] for pod in pods}
        num += sum(name not in kept for name in known.lingered)
    return num


def next_retries(
    seen: Observed, known: RetriesStatus | None, update: int, lingering: Sequence[Object]
) -> RetriesStatus:
    """Return the point from which retries count, after `update` updates; a repeated update is not progress.

    A training that ended with exit code 75 may be retried any number of times if it gets further, else
    MOST_FRUITLESS_RETRIES times. The number of ended pods is the count, so it survives the operator and needs no clock.
    """
    previous = known or RetriesStatus()
    deleted = seen.pods_of_job if has_failed_by_nodes_alone(seen) else lingering
    names_of_deleted = [pod["metadata"]["name"] for pod in deleted if _is_retried(pod)]
    if update > previous.update:
        current = RetriesStatus(update=update, lingered=tuple(names_of_deleted[-MOST_LINGERED:]))
        return current.model_copy(update={"before": num_retries(seen, current)})
    lingered = tuple(dict.fromkeys([*previous.lingered, *names_of_deleted]))[-MOST_LINGERED:]
    current = previous.model_copy(update={"lingered": lingered})
    ended = num_retries(seen, current)  # a deleted Job's pods are gone
    return current.model_copy(update={"before": min(previous.before, ended)})


def _is_retried(pod: Object) -> bool:
    """Return whether the trainer in the pod ended with exit code 75, and not because the pod was evicted."""
    return not was_removed(pod) and any(ending["exitCode"] == ClusterError.exit_code for ending in endings_of(pod))


# --- Pods that run, are lost or linger ---

KUBELETS_REASONS = ("ContainersNotReady", "ReadinessGatesNotReady", "PodCompleted", "PodFailed")
"""Reasons that a kubelet gives for a pod that is not ready; they show that its node is there."""
GIVEN_UP_AFTER_SECONDS = 60.0
"""Time for which a node may not answer before its trainer is replaced. Kubernetes itself needs 40 to 50 s to notice."""
LINGERS_AFTER_SECONDS = 15.0
"""Time for the other containers of the trainer's pod to end after the trainer."""


def unreachable_pods(seen: Observed, clock: Clock) -> list[Object]:
    """Return the trainer's pods whose nodes are probably lost."""
    return [pod for pod in seen.trainer_pods if _is_unreachable(pod, clock)]


def is_replaceable(pod: Object, kept: bool) -> bool:
    """Return whether a new trainer may replace an unreachable one without losing the training.

    Either the checkpoints are `kept` outside the pod, or Kubernetes has deleted the pod, which then ends even if its
    node comes back.
    """
    return kept or is_terminating(pod)


def is_given_up(pod: Object, kept: bool, clock: Clock) -> bool:
    """Return whether the trainer's pod is replaceable and its node has been silent for GIVEN_UP_AFTER_SECONDS."""
    return (
        _is_unreachable(pod, clock)
        and is_replaceable(pod, kept)
        and clock.reached(_seconds_lost(pod, clock), GIVEN_UP_AFTER_SECONDS)
    )


def has_lost_trainer(seen: Observed, kept: bool, clock: Clock) -> bool:
    """Return whether a pod of the trainer's Job is given up: then only a new Job makes another pod."""
    return any(is_given_up(pod, kept, clock) for pod in seen.pods_of_job)


def _is_unreachable(pod: Object, clock: Clock) -> bool:
    status = pod.get("status") or {}
    if status.get("phase") != "Running" or any(endings_of(pod)) or _not_ready(pod) is None:
        return False  # a pod that ends by itself has a terminated container
    ends = pod["metadata"].get("deletionTimestamp")
    if ends is None:
        return not _has_answered(pod)
    if seconds_since(ends, clock.now) > 0:
        return True
    # It may be ending by itself, until its grace period is over.
    clock.wake_in(seconds_until(ends, clock.now))
    return not _has_answered(pod) and clock.reached(_seconds_lost(pod, clock), GIVEN_UP_AFTER_SECONDS)


def _seconds_lost(pod: Object, clock: Clock) -> float:
    not_ready = None if _has_answered(pod) else (_not_ready(pod) or {}).get("lastTransitionTime")
    deleted = pod["metadata"].get("deletionTimestamp")
    return max(seconds_since(not_ready, clock.now), seconds_since(deleted, clock.now))


def _has_answered(pod: Object) -> bool:
    """Return whether the pod's kubelet calls it not ready, as it does if another of its containers is not."""
    return (_not_ready(pod) or {}).get("reason") in KUBELETS_REASONS


def _not_ready(pod: Object) -> Object | None:
    return condition_of(pod, "Ready", "False")


def is_cut_off(pod: Object) -> bool:
    """Return whether the pod's node is probably lost to Kubernetes, whatever the pod's role.

    Kubernetes then marks the pod as not ready, and leaves the kubelet's last word on its containers: they are ready.
    """
    status = pod.get("status") or {}
    if status.get("phase") != "Running" or any(endings_of(pod)) or _not_ready(pod) is None or _has_answered(pod):
        return False
    return all(container.get("ready", True) for container in status.get("containerStatuses") or ())


def lingering_pods(seen: Observed, clock: Clock) -> list[Object]:
    """Return the pods of the trainer's Job that run although their trainer ended LINGERS_AFTER_SECONDS ago.

    A pod that is being deleted is one of them until it is gone or its phase says that it has ended.
    """
    return [
        pod
        for pod in seen.pods_of_job
        if (pod.get("status") or {}).get("phase") == "Running"
        and any(clock.passed(ending.get("finishedAt"), LINGERS_AFTER_SECONDS) for ending in endings_of(pod))
    ]


def has_ended(pod: Object) -> bool:
    """Return whether the trainer's container in the pod has ended, or the whole pod."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed") or any(endings_of(pod))


def is_running(seen: Observed, kept: bool, clock: Clock) -> bool:
    """Return whether a trainer pod may still be working, such as a terminating pod that writes its checkpoint.

    A pod that was given up does not count: if it still works, its successor ends it. `kept` is as in is_replaceable.
    """
    job = seen.trainer
    if job is not None and not is_terminating(job) and (job.get("status") or {}).get("active", 0) > 0:
        return True
    return any(not has_ended(pod) and not is_given_up(pod, kept, clock) for pod in seen.trainer_pods)


def is_stopped(seen: Observed, kept: bool, clock: Clock) -> bool:
    """Return whether no trainer works and none has finished, so that the next report comes from another start.

    `kept` is as in is_replaceable.
    """
    if is_running(seen, kept, clock):
        return False
    if any(ending["exitCode"] == 0 for pod in seen.trainer_pods for ending in endings_of(pod)):
        return False  # its Job is about to say that it has finished
    job = seen.trainer
    return job is None or is_terminating(job) or bool(job["spec"].get("suspend")) or is_between_pods(seen)


def is_between_pods(seen: Observed) -> bool:
    """Return whether the trainer's Job goes on without a pod, since Kubernetes waits before it makes the next one.

    A Job that has failed only because nodes refused its pods counts too: the operator makes it again.
    """
    job = seen.trainer
    if job is None or is_terminating(job):
        return False
    status = job.get("status") or {}
    if not status.get("startTime") or status.get("active") or status.get("terminating") or status.get("succeeded"):
        return False
    if any((status.get("uncountedTerminatedPods") or {}).values()):
        return False
    ends = any(c.get("status") == "True" for c in status.get("conditions") or ())
    if ends and not has_failed_by_nodes_alone(seen):
        return False  # it has ended, or is about to
    return all((pod.get("status") or {}).get("phase") == "Failed" for pod in seen.trainer_pods)
