"""Whether the trainer's pods still run, which of them ended through no fault of the trainer, and where they keep their
checkpoints.

Kubernetes marks a running pod of a lost node as not ready, deletes it minutes later, and keeps the object until the
node is back or gone; until then its Job makes no other pod. Only pods are read, because nodes are not namespaced.

Kubernetes ends a pod with the last of its containers, native sidecars aside. Another container, such as a mesh's proxy,
may never end, and its Job then neither ends nor makes another pod. situation.py reads from such a pod how the trainer
ended, and job/reconcile.py (`_wanted`) suspends the Job, which makes Kubernetes delete the pod.

A kubelet refuses a pod that was bound to its node but cannot run there: OutOfcpu, NodeAffinity,
UnexpectedAdmissionError. The pod fails before any of its containers has run. Kubernetes removes a pod for a drain, a
preemption or a full node, and marks it with the condition DisruptionTarget. The trainer's Job ignores removed pods by
its podFailurePolicy, but no policy can name refused pods, which have neither an exit code nor a condition:
`restarts_of` and `trainer_outcome` in situation.py leave them out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from batchgrowth.spec import JobSpec

from batchgrowth_operator.seen.observed import (
    CLAIM,
    TRAINER,
    Clock,
    Object,
    Observed,
    Ref,
    condition_of,
    endings_of,
    is_owned_by,
    is_terminating,
    seconds_since,
    seconds_until,
)
from batchgrowth_operator.settings import Defaults

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


# Where a job's checkpoints are kept: at the place in its spec, or else at the operator's default. A trainer that exists
# keeps its storage, so a changed default affects only jobs that have no trainer yet.

VOLUME = "checkpoints"
"""The trainer's volume with its checkpoints."""
STORE_VARIABLE = "BATCHGROWTH_CHECKPOINT_URI"
"""The trainer's environment variable with the URI of the object store that keeps its checkpoints."""

CA_VARIABLE = "BATCHGROWTH_CHECKPOINT_CA"
"""The trainer's environment variable with the file of the CAs that it trusts for that store."""
CA_FOLDER = "/etc/batchgrowth/store-ca"
"""The folder of that file if the spec names the ConfigMap, after which the file is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The storage that outlives the trainer's pod."""

    claim: str = ""
    """The claim that the trainer mounts; empty if there is none."""
    size: str = ""
    """The size of the operator's own claim; empty if there is none."""
    storage_class: str = ""
    is_kept: bool = True
    is_default: bool = False
    """Whether the spec names no place."""
    is_awaited: bool = False
    """Whether the spec names a place for the next trainer: the one that runs has none, and would lose its training by
    moving there."""


NONE = Storage(is_kept=False)


def storage_of(spec: JobSpec, seen: Observed, defaults: Defaults, clock: Clock) -> Storage:
    """Return where the job's checkpoints are kept."""
    own = seen.names.checkpoints
    has_none = False
    if seen.trainer is not None:
        pod = seen.trainer["spec"]["template"]["spec"]
        mounts = any(v["name"] == VOLUME and "persistentVolumeClaim" in v for v in pod.get("volumes") or ())
        has_none = not mounts and not any(map(store_of, pod["containers"]))
    volume = spec.checkpoint.volume
    has_place = volume is not None or spec.checkpoint.uri is not None
    # Before the places in the spec: a trainer that runs without one would lose its training by moving there.
    if has_none and has_place and is_running(seen, kept=False, clock=clock):
        return Storage(is_kept=False, is_awaited=True)
    if spec.checkpoint.uri is not None:
        return Storage()
    if volume is not None and volume.claim_name is not None:
        return Storage(claim=volume.claim_name)
    if volume is not None:
        return Storage(claim=own, size=volume.size or "", storage_class=volume.storage_class_name or "")
    if has_none:
        return NONE
    size = size_of(seen.children.get(Ref(CLAIM, own))) or defaults.checkpoint_size
    if not size:
        return NONE
    return Storage(claim=own, size=size, is_default=True)


def store_of(container: Object) -> list[str | None]:
    """Return the object store that this trainer container uses, its Secret, and the ConfigMap with its CAs if the spec
    names one; empty if there is no store.
    """
    variables = {entry["name"]: entry.get("value") for entry in container.get("env") or ()}
    if STORE_VARIABLE not in variables:
        return []
    secrets = [source["secretRef"]["name"] for source in container.get("envFrom") or () if "secretRef" in source]
    store = [variables[STORE_VARIABLE], next(iter(secrets), None)]
    folder, _, file = str(variables.get(CA_VARIABLE)).rpartition("/")
    return [*store, file.removesuffix(".crt")] if folder == CA_FOLDER else store


def size_of(claim: Object | None) -> str:
    """Return the size that the claim asks for; empty without a claim."""
    requests = (((claim or {}).get("spec") or {}).get("resources") or {}).get("requests") or {}
    return str(requests.get("storage", ""))


def class_of(claim: Object | None) -> str:
    """Return the class of the claim; empty without a claim or if it has none yet."""
    return ((claim or {}).get("spec") or {}).get("storageClassName") or ""
