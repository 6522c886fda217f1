"""Why a job's pods do not come up: the first problem that scheduler, nodes and API server report, if any."""

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from batchgrowth import names

from batchgrowth_operator.seen.clock import seconds_since, seconds_until, timestamp_ms
from batchgrowth_operator.seen.observed import CLAIM, TRAINER, Failure, Object, Observed, Ref, annotations_of
from batchgrowth_operator.seen.outcome import truncated

# --- The scheduler that the Dask operator creates for the job's DaskCluster: whether it is complete and ready ---

SETTLED_AFTER_SECONDS = 20.0
"""Time for the Dask operator to create the parts of a new DaskCluster and for the watch to report them, and time for
which a part must be missing after that."""
CREATE_PARTS = "Created"
"""The one phase in which the Dask operator creates the missing parts of a DaskCluster."""
_CREATED = ("Pending", "Running")


def deployment_of(seen: Observed) -> Object | None:
    """The scheduler's Deployment, or None if it does not exist."""
    return seen.parts.get(Ref("Deployment", names.scheduler(seen.name)))


def is_ready(seen: Observed) -> bool:
    """Whether the scheduler's pod is ready."""
    return bool(((deployment_of(seen) or {}).get("status") or {}).get("readyReplicas", 0))


def lacks_parts(seen: Observed) -> bool:
    """Whether the scheduler lost a part that only the Dask operator can create again, and has not begun to."""
    return _is_requested(seen) or seconds_until_parts_lost(seen) == 0


def parts_missing_since(seen: Observed) -> str | None:
    """Since when a part is missing, or was requested, for the annotation that remembers it; None if none is, or the
    cluster is new.
    """
    if _is_requested(seen):
        return _annotation(seen)
    if _seconds_until_settled(seen) != 0:
        return None
    since = None if seconds_until_parts_lost(seen) == 0 else _missing_since(seen)
    return since or timestamp_ms(seen.now)


def seconds_until_parts_lost(seen: Observed) -> float | None:
    """Seconds until a missing part must be looked at again, 0 if it is lost; None if none is missing or none was made.

    It counts as lost only after a while: in a namespace that is being deleted it goes just before the job, and a Dask
    operator that is asked for it there retries without end and keeps its finalizer, so the namespace remains.
    """
    settles = _seconds_until_settled(seen)
    if settles != 0:
        return settles
    return max(0.0, SETTLED_AFTER_SECONDS - seconds_since(_missing_since(seen), seen.now))


def _is_requested(seen: Observed) -> bool:
    """Whether missing parts were requested, and the Dask operator has not changed the phase yet.

    Until then the phase is ours: if we left it out, the API server would remove it, which leaves a status of null, and
    that the schema of a DaskCluster refuses.
    """
    return _phase(seen) == CREATE_PARTS and _annotation(seen) is not None


def _seconds_until_settled(seen: Observed) -> float | None:
    cluster = _cluster(seen)
    if cluster is None or _has_parts(seen) or _phase(seen) not in _CREATED:
        return None
    created = cluster["metadata"].get("creationTimestamp")
    if seconds_until(created, seen.now) > SETTLED_AFTER_SECONDS:
        return 0.0  # the clock was set back, and says nothing about the cluster's age
    return max(0.0, SETTLED_AFTER_SECONDS - seconds_since(created, seen.now))


def _missing_since(seen: Observed) -> str | None:
    """Since when a part is missing; None if that is not known, or was written before the clock was set back."""
    since = _annotation(seen)
    return None if seconds_until(since, seen.now) > SETTLED_AFTER_SECONDS else since


def _has_parts(seen: Observed) -> bool:
    return all(Ref(kind, names.scheduler(seen.name)) in seen.parts for kind in ("Deployment", "Service"))


def _cluster(seen: Observed) -> Object | None:
    return seen.child("DaskCluster", names.cluster(seen.name))


def _phase(seen: Observed) -> str | None:
    phase: str | None = ((_cluster(seen) or {}).get("status") or {}).get("phase")
    return phase


def _annotation(seen: Observed) -> str | None:
    cluster = _cluster(seen)
    return None if cluster is None else annotations_of(cluster).get(names.PARTS_MISSING)


# --- The problems that pods and their events report, in messages that stay the same while the problem does ---

EVENT_LIFE_SECONDS = 180
"""Age beyond which an event is ignored; a kubelet repeats a failed mount every two minutes."""
RESTARTS_OF_THE_BROKEN = 2
"""Restarts after which a container counts as broken."""

_PULL = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
_BROKEN = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"}
_EVENTS = {
    "FailedAttachVolume": "PodBroken",
    "FailedCreate": "PodsRefused",
    "FailedCreatePodSandBox": "PodBroken",
    "FailedMount": "PodBroken",
    "FailedToRetrieveImagePullSecret": "ImagePullFailed",
    "ProvisioningFailed": "VolumePending",
}
_MISSING = re.compile(r'\b(persistentvolumeclaim|secret|configmap|serviceaccount) "([^"]+)" not found', re.IGNORECASE)
_UNBOUND = re.compile("unbound immediate PersistentVolumeClaims|available persistent volumes to bind")
_PULL_SECRET = re.compile(r"image pull secrets \(([^)]+)\)")
_POD_NAME = re.compile(r'pods? "([^"]+)-[a-z0-9]{5}"')
REMEDIES = {
    "ImagePullFailed": "Give an image that the nodes can pull: spec.image, spec.imagePullSecrets.",
    "QuotaExceeded": "Raise the quota, or request less: spec.workers.maximum, the template's resources.",
    "Unschedulable": "Add a node that fits, or request less: spec.workers.maximum, the template.",
    "VolumePending": "`kubectl describe persistentvolumeclaims` says what provides it.",
}


class Problem(NamedTuple):
    """A condition's reason and message."""

    reason: str
    message: str


def pod_problems(pod: Object) -> Iterator[Problem]:
    """The problems in the pod's own status."""
    name = pod["metadata"]["name"]
    for condition in status_list(pod, "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            yield _problem("Unschedulable", name, str(condition.get("message", "")))
    for container in [*status_list(pod, "initContainerStatuses"), *status_list(pod, "containerStatuses")]:
        yield from _container_problems(name, container)


def event_problems(events: tuple[Object, ...], name: str, now: datetime) -> Iterator[Problem]:
    """The problem in the newest event about the object of that name; none if the event is too old."""
    about = [
        event
        for event in events
        if event["involvedObject"].get("name") == name
        and event.get("reason") in _EVENTS
        and seconds_since(_time(event), now) < EVENT_LIFE_SECONDS
    ]
    for event in sorted(about, key=_time, reverse=True)[:1]:
        text = str(event.get("message", "")).removeprefix("Error creating: ")
        if event["reason"] == "FailedCreate":
            yield refusal(text)
        else:
            yield _problem(_EVENTS[event["reason"]], name, text)


def refusal(text: str) -> Problem:
    """The problem in the API server's refusal of a pod, without the pod's name, which changes with each retry."""
    message = _POD_NAME.sub(r"pods \1-…", text)
    return _problem("QuotaExceeded" if "exceeded quota" in message else "PodsRefused", "", message)


def status_list(body: Object | None, field: str) -> list[dict[str, Any]]:
    """A list in the object's status; empty if it is not there."""
    return ((body or {}).get("status") or {}).get(field) or []


def replica_failure(deployment: Object | None) -> dict[str, Any] | None:
    """The condition by which a Deployment reports that its pods are refused; None if they are not."""
    return next(
        (
            condition
            for condition in status_list(deployment, "conditions")
            if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True"
        ),
        None,
    )


def _container_problems(pod: str, container: Object) -> Iterator[Problem]:
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason = waiting.get("reason")
    crash = _crash(container)
    if reason in _PULL:
        message = str(waiting.get("message") or reason)
        # The part after "ErrImagePull: " stays the same while the kubelet backs off.
        yield _problem("ImagePullFailed", pod, message.partition("ErrImagePull: ")[2] or message)
    elif crash is not None and not container.get("ready"):
        yield _problem("PodBroken", pod, crash)
    elif reason in _BROKEN:
        yield _problem("PodBroken", pod, f"{reason}: {waiting.get('message', '')}")


def _crash(container: Object) -> str | None:
    """How a container ended that keeps crashing; None if it does not.

    The text is the same in all three states of a crash loop: waiting, running and terminated.
    """
    waits = ((container.get("state") or {}).get("waiting") or {}).get("reason") == "CrashLoopBackOff"
    if not waits and container.get("restartCount", 0) < RESTARTS_OF_THE_BROKEN:
        return None
    states = ((container.get(field) or {}).get("terminated") for field in ("state", "lastState"))
    last = next(filter(None, states), None)
    if last is None or not last.get("exitCode"):
        return None
    output = str(last.get("message") or "").strip()
    code = f"container {container.get('name')} ends with exit code {last['exitCode']} ({last.get('reason')})"
    return f"{code}: {output}" if output else f"{code}."


def _problem(reason: str, pod: str, text: str) -> Problem:
    message = f"{pod}: {text}" if pod else text
    missing, secret = _MISSING.search(text), _PULL_SECRET.search(text)
    if missing is not None or secret is not None:
        kind, name = missing.groups() if missing is not None else ("secret", secret[1] if secret else "")
        return Problem(
            "ReferenceMissing", _with_remedy(message, f"Create the {kind} {name}, or remove it from the job.")
        )
    if reason == "Unschedulable" and _UNBOUND.search(text):
        reason = "VolumePending"
    return Problem(reason, _with_remedy(message, REMEDIES.get(reason, "")))


def _with_remedy(text: str, remedy: str) -> str:
    end = "" if not remedy or text.endswith((".", "!")) else "."
    return truncated(f"{text}{end} {remedy}".strip())


def _time(event: Object) -> str:
    series = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or "")


# --- Why a job's pods do not come up: the first problem that scheduler, nodes and API server report, if any ---

DASK_OPERATOR_TIMEOUT_SECONDS = 20
"""Time for the Dask operator to react to a new or deleted DaskCluster."""
UNEXPLAINED_AFTER_SECONDS = 8.0
"""Time after which the events of a pod that is pending without an explanation are read."""
MOST_EVENT_READS = 3
"""Objects whose events are read in one pass."""
SHORTEST_EVENT_AGE_SECONDS = 10.0
LONGEST_EVENT_AGE_SECONDS = 60.0
"""Bounds of the time between two reads of those events, which grows with the age of the objects."""


def cluster_problem(seen: Observed) -> Problem | None:
    """The first problem that keeps the scheduler or the workers from running; None if there is none."""
    return next(_cluster_problems(seen), None)


def trainer_problem(seen: Observed) -> Problem | None:
    """The first problem that keeps the trainer from running; None if there is none."""
    return next(_trainer_problems(seen), None)


def unexplained(seen: Observed) -> tuple[Object, ...]:
    """At most MOST_EVENT_READS pending pods, and Jobs without a pod, whose problem only their events can explain."""
    return tuple(_unexplained(seen))[:MOST_EVENT_READS]


def seconds_between_event_reads(seen: Observed) -> float | None:
    """Seconds between two reads of the events of unexplained objects; None if there are no such objects."""
    ages = [_age(body, seen.now) for body in unexplained(seen)]
    return min(LONGEST_EVENT_AGE_SECONDS, max(SHORTEST_EVENT_AGE_SECONDS, min(ages) / 4)) if ages else None


def seconds_until_unexplained(seen: Observed) -> float | None:
    """Seconds until the next pending object counts as unexplained; None if none will."""
    waits = [UNEXPLAINED_AFTER_SECONDS - _age(body, seen.now) for body in _silent(seen)]
    return min((wait for wait in waits if wait > 0), default=None)


def _cluster_problems(seen: Observed) -> Iterator[Problem]:
    yield from map(_refused, seen.failures)
    yield from _dask_operator_problems(seen)
    for deployment in (deployment_of(seen), seen.child("Deployment", names.workers(seen.name))):
        failure = replica_failure(deployment)
        if failure is not None:
            yield refusal(str(failure.get("message", "")))
    for role in ("scheduler", "worker"):
        yield from _role_problems(seen, role)


def _trainer_problems(seen: Observed) -> Iterator[Problem]:
    yield from _claim_problems(seen)
    job = seen.trainer
    if job is not None and _lacks_a_pod(job):
        yield from event_problems(seen.warnings, names.trainer(seen.name), seen.now)
    yield from _role_problems(seen, TRAINER)


def _claim_problems(seen: Observed) -> Iterator[Problem]:
    """Why the claim of the operator's making has no volume; one that only waits for its pod has no problem."""
    claim = seen.child(CLAIM, names.checkpoints(seen.name))
    if claim is None or not _lacks_a_volume(claim):
        return
    name = claim["metadata"]["name"]
    if (claim.get("status") or {}).get("phase") == "Lost":
        yield Problem("VolumePending", f"The volume of the claim {name} is gone; delete the claim to start over.")
    elif claim["spec"].get("storageClassName"):
        yield from event_problems(seen.warnings, name, seen.now)
    elif _age(claim, seen.now) >= UNEXPLAINED_AFTER_SECONDS:
        why = f"The claim {name} has no volume: it names no StorageClass, and the cluster has no default one"
        yield Problem("VolumePending", f"{why}. Give spec.checkpoint.volume.storageClassName, or claimName or uri.")


def _is_provisioned(claim: Object) -> bool:
    """Whether the claim waits for a volume that the provisioner of its class makes, and may say why it does not."""
    return _lacks_a_volume(claim) and bool(claim["spec"].get("storageClassName"))


def _lacks_a_volume(claim: Object) -> bool:
    return (claim.get("status") or {}).get("phase") != "Bound" and "deletionTimestamp" not in claim["metadata"]


def _role_problems(seen: Observed, role: str) -> Iterator[Problem]:
    for pod in seen.pods_of(role):
        if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            if _is_silent(pod) or _may_lack_pull_secret(seen, pod):
                yield from event_problems(seen.warnings, pod["metadata"]["name"], seen.now)
            yield from pod_problems(pod)


def _refused(failure: Failure) -> Problem:
    kind, name = failure.ref
    if failure.code == 404 and kind == "DaskCluster":
        return Problem("DaskOperatorMissing", "The API server has no kind DaskCluster; install the Dask operator.")
    if failure.code == 0:
        return Problem("NameTaken", f"{kind} {name} is not this job's; rename it or the job.")
    if kind == CLAIM and "exceeded quota" in failure.message:
        remedy = "Raise the quota, or give a smaller spec.checkpoint.volume.size"
        return Problem("QuotaExceeded", truncated(f"{failure.message}. {remedy}."))
    return Problem("ChildRefused", truncated(f"{kind} {name}: {failure.message}"))


def _dask_operator_problems(seen: Observed) -> Iterator[Problem]:
    cluster = seen.child("DaskCluster", names.cluster(seen.name))
    if cluster is None:
        return
    metadata, phase = cluster["metadata"], (cluster.get("status") or {}).get("phase")
    if seconds_since(metadata.get("deletionTimestamp"), seen.now) >= DASK_OPERATOR_TIMEOUT_SECONDS:
        yield Problem("DaskOperatorMissing", "The Dask operator does not release the DaskCluster; is it running?")
    elif not phase and seconds_since(metadata.get("creationTimestamp"), seen.now) >= DASK_OPERATOR_TIMEOUT_SECONDS:
        yield Problem("DaskOperatorMissing", "The Dask operator does not process the DaskCluster; is it running?")
    elif phase == "Error":
        yield Problem("ChildRefused", "The Dask operator refuses the DaskCluster; its log says why.")


def _unexplained(seen: Observed) -> Iterator[Object]:
    yield from (body for body in _silent(seen) if _age(body, seen.now) >= UNEXPLAINED_AFTER_SECONDS)
    yield from (pod for pod in seen.pods if _may_lack_pull_secret(seen, pod))


def _silent(seen: Observed) -> Iterator[Object]:
    job, claim = seen.trainer, seen.child(CLAIM, names.checkpoints(seen.name))
    if job is not None and _lacks_a_pod(job):
        yield job
    if job is not None and _is_active(job) and claim is not None and _is_provisioned(claim):
        yield claim
    yield from (pod for pod in seen.pods if "deletionTimestamp" not in pod["metadata"] and _is_silent(pod))


def _lacks_a_pod(job: Object) -> bool:
    return _is_active(job) and not (job.get("status") or {}).get("active", 0)


def _is_active(job: Object) -> bool:
    """Whether the Job has not ended, and is not suspended."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    return not (job["spec"].get("suspend") or any(one.get("type") in ("Complete", "Failed") for one in conditions))


def _is_silent(pod: Object) -> bool:
    """Whether the pod is pending and its status does not say why."""
    return (pod.get("status") or {}).get("phase") == "Pending" and next(pod_problems(pod), None) is None


def _may_lack_pull_secret(seen: Observed, pod: Object) -> bool:
    """Whether the image pull fails and a missing pull secret may be the cause."""
    problem = next(pod_problems(pod), None)
    has_secrets = bool((seen.job.get("spec") or {}).get("imagePullSecrets"))
    return problem is not None and problem.reason == "ImagePullFailed" and has_secrets


def _age(body: Object, now: datetime) -> float:
    """Seconds since creation, or since its last start for a Job, which needs no pod while it is suspended."""
    since = (body.get("status") or {}).get("startTime") if body["kind"] == "Job" else None
    return seconds_since(since or body["metadata"].get("creationTimestamp"), now)
