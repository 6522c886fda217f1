"""Why a job's pods do not come up: the first problem that scheduler, nodes and API server report, if any."""

from collections.abc import Iterator
from datetime import datetime

from batchgrowth import names

from batchgrowth_operator.seen.observed import CLAIM, TRAINER, Failure, Object, Observed
from batchgrowth_operator.seen.problems import Problem, event_problems, pod_problems, refusal, replica_failure
from batchgrowth_operator.seen.scheduler import deployment_of
from batchgrowth_operator.seen.timestamps import seconds_since
from batchgrowth_operator.seen.trainer_outcome import truncated

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
