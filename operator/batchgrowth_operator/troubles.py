"""What keeps pods from running: the words of scheduler, node and API server, sorted by what a user can do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from batchgrowth import names

from batchgrowth_operator.moments import seconds_since
from batchgrowth_operator.observed import Failure, Object, Observed
from batchgrowth_operator.trainer_outcome import shortened

DASK_OPERATOR_PATIENCE_SECONDS = 20

_PULL = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
_BROKEN = {"CrashLoopBackOff", "CreateContainerConfigError", "CreateContainerError", "RunContainerError"}


class Trouble(NamedTuple):
    """A reason of the condition ClusterReady, and the words of whoever complained."""

    reason: str
    message: str


def trouble_of(seen: Observed) -> Trouble | None:
    """The first thing that a user should look at; None where all is on its way."""
    return next(_troubles(seen), None)


def _troubles(seen: Observed) -> Iterator[Trouble]:
    yield from map(_refused, seen.failures)
    yield from _unanswered(seen)
    yield from _refused_pods(seen)
    for pod in seen.pods:
        yield from _held_up(pod)


def _refused(failure: Failure) -> Trouble:
    kind, name = failure.ref
    if failure.code == 404 and kind == "DaskCluster":
        return Trouble("DaskOperatorMissing", "The API server knows no DaskCluster; install the Dask operator.")
    if failure.code == 0:
        return Trouble("NameTaken", f"{kind} {name} is not this job's; rename it or the job.")
    return Trouble("ChildRefused", shortened(f"{kind} {name}: {failure.message}"))


def _unanswered(seen: Observed) -> Iterator[Trouble]:
    cluster = seen.child("DaskCluster", names.cluster(seen.name))
    if cluster is None or (cluster.get("status") or {}).get("phase"):
        return
    if seconds_since(cluster["metadata"].get("creationTimestamp"), seen.now) >= DASK_OPERATOR_PATIENCE_SECONDS:
        yield Trouble("DaskOperatorMissing", "Nobody took up the DaskCluster; is the Dask operator running?")


def _refused_pods(seen: Observed) -> Iterator[Trouble]:
    deployment = seen.child("Deployment", names.workers(seen.name))
    for condition in _list(deployment, "conditions"):
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            message = str(condition.get("message", ""))
            yield Trouble("QuotaExceeded" if "exceeded quota" in message else "PodsRefused", shortened(message))


def _held_up(pod: Object) -> Iterator[Trouble]:
    name = pod["metadata"]["name"]
    for condition in _list(pod, "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            yield Trouble("Unschedulable", shortened(f"{name}: {condition.get('message', '')}"))
    for container in [*_list(pod, "initContainerStatuses"), *_list(pod, "containerStatuses")]:
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason")
        if reason in _PULL or reason in _BROKEN:
            kind = "ImagePullFailed" if reason in _PULL else "PodBroken"
            yield Trouble(kind, shortened(f"{name}: {reason}: {waiting.get('message', '')}"))


def _list(body: Object | None, field: str) -> list[dict[str, Any]]:
    return ((body or {}).get("status") or {}).get(field) or []
