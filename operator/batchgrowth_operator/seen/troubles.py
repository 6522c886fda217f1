"""What keeps a job from its pods: the words of scheduler, node and API server, sorted by what a user can do."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from batchgrowth import names

from batchgrowth_operator.seen.moments import seconds_since
from batchgrowth_operator.seen.observed import Failure, Object, Observed
from batchgrowth_operator.seen.scheduler import deployment_of
from batchgrowth_operator.seen.trainer_outcome import CONTAINER as TRAINER
from batchgrowth_operator.seen.trainer_outcome import shortened
from batchgrowth_operator.seen.words import Trouble, of_events, of_pod, refusal, replica_failure

DASK_OPERATOR_PATIENCE_SECONDS = 20
PUZZLED_AFTER_SECONDS = 8.0
"""A pod that waits for so long, and says nothing of why, is worth a look at its events."""
MOST_PUZZLES = 3
WARNINGS_SECONDS = 10.0
MOST_WARNINGS_SECONDS = 60.0
"""So often the events about puzzles are read anew: rarely where they are old."""


def cluster_trouble(seen: Observed) -> Trouble | None:
    """What keeps the scheduler or the workers from coming, first things first; None where all is on its way."""
    return next(_cluster_troubles(seen), None)


def trainer_trouble(seen: Observed) -> Trouble | None:
    """What keeps the trainer from its work; None where nothing is known to."""
    return next(_trainer_troubles(seen), None)


def puzzles(seen: Observed) -> tuple[Object, ...]:
    """The objects that have no pod, or whose pod does not come, without their own status saying why: a few at most.

    Nobody but the events about them knows.
    """
    return tuple(_puzzles(seen))[:MOST_PUZZLES]


def seconds_between_warnings(seen: Observed) -> float | None:
    """Seconds from one look at the events about puzzles to the next; None where there are none."""
    ages = [_age(body, seen.now) for body in puzzles(seen)]
    return min(MOST_WARNINGS_SECONDS, max(WARNINGS_SECONDS, min(ages) / 4)) if ages else None


def seconds_to_a_puzzle(seen: Observed) -> float | None:
    """Seconds until one that still has time becomes a puzzle; None where none is on its way to be one."""
    waits = [PUZZLED_AFTER_SECONDS - _age(body, seen.now) for body in _silent(seen)]
    return min((wait for wait in waits if wait > 0), default=None)


def _cluster_troubles(seen: Observed) -> Iterator[Trouble]:
    yield from map(_refused, seen.failures)
    yield from _unanswered(seen)
    for deployment in (deployment_of(seen), seen.child("Deployment", names.workers(seen.name))):
        failure = replica_failure(deployment)
        if failure is not None:
            yield refusal(str(failure.get("message", "")))
    for role in ("scheduler", "worker"):
        yield from _held_up(seen, role)


def _trainer_troubles(seen: Observed) -> Iterator[Trouble]:
    job = seen.child("Job", names.trainer(seen.name))
    if job is not None and _lacks_a_pod(job):
        yield from of_events(seen.warnings, names.trainer(seen.name), seen.now)
    yield from _held_up(seen, TRAINER)


def _held_up(seen: Observed, role: str) -> Iterator[Trouble]:
    for pod in seen.pods_of(role):
        if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            if _says_nothing(pod) or _wants_pull_secret(seen, pod):
                yield from of_events(seen.warnings, pod["metadata"]["name"], seen.now)
            yield from of_pod(pod)


def _refused(failure: Failure) -> Trouble:
    kind, name = failure.ref
    if failure.code == 404 and kind == "DaskCluster":
        return Trouble("DaskOperatorMissing", "The API server knows no DaskCluster; install the Dask operator.")
    if failure.code == 0:
        return Trouble("NameTaken", f"{kind} {name} is not this job's; rename it or the job.")
    return Trouble("ChildRefused", shortened(f"{kind} {name}: {failure.message}"))


def _unanswered(seen: Observed) -> Iterator[Trouble]:
    cluster = seen.child("DaskCluster", names.cluster(seen.name))
    if cluster is None:
        return
    metadata, phase = cluster["metadata"], (cluster.get("status") or {}).get("phase")
    if seconds_since(metadata.get("deletionTimestamp"), seen.now) >= DASK_OPERATOR_PATIENCE_SECONDS:
        yield Trouble("DaskOperatorMissing", "Nobody lets the old DaskCluster go; is the Dask operator running?")
    elif not phase and seconds_since(metadata.get("creationTimestamp"), seen.now) >= DASK_OPERATOR_PATIENCE_SECONDS:
        yield Trouble("DaskOperatorMissing", "Nobody took up the DaskCluster; is the Dask operator running?")
    elif phase == "Error":
        yield Trouble("ChildRefused", "The Dask operator refuses the DaskCluster; its log says why.")


def _puzzles(seen: Observed) -> Iterator[Object]:
    yield from (body for body in _silent(seen) if _age(body, seen.now) >= PUZZLED_AFTER_SECONDS)
    yield from (pod for pod in seen.pods if _wants_pull_secret(seen, pod))


def _silent(seen: Observed) -> Iterator[Object]:
    job = seen.child("Job", names.trainer(seen.name))
    if job is not None and _lacks_a_pod(job):
        yield job
    yield from (pod for pod in seen.pods if "deletionTimestamp" not in pod["metadata"] and _says_nothing(pod))


def _lacks_a_pod(job: Object) -> bool:
    status = job.get("status") or {}
    over = any(condition.get("type") in ("Complete", "Failed") for condition in status.get("conditions") or ())
    return not (over or job["spec"].get("suspend") or status.get("active", 0))


def _says_nothing(pod: Object) -> bool:
    """Whether a pod has not begun and its status does not say what for."""
    return (pod.get("status") or {}).get("phase") == "Pending" and next(of_pod(pod), None) is None


def _wants_pull_secret(seen: Observed, pod: Object) -> bool:
    """Whether a pull fails that might have failed for want of its secret."""
    trouble = next(of_pod(pod), None)
    return trouble is not None and trouble.reason == "ImagePullFailed" and bool(_spec(seen).get("imagePullSecrets"))


def _spec(seen: Observed) -> dict[str, Any]:
    return seen.job.get("spec") or {}


def _age(body: Object, now: datetime) -> float:
    """Of a Job since it was last started: while it is suspended it needs no pod."""
    since = (body.get("status") or {}).get("startTime") if body["kind"] == "Job" else None
    return seconds_since(since or body["metadata"].get("creationTimestamp"), now)
