"""Trainer pods that ended through no doing of the trainer: a node refused them, or Kubernetes removed them.

A kubelet refuses a pod that was bound to its node but cannot run there: OutOfcpu, NodeAffinity,
UnexpectedAdmissionError. The pod fails before any of its containers has run. Kubernetes removes a pod for a drain, a
preemption or a full node, and marks it with the condition DisruptionTarget. The trainer's Job ignores the second kind
by its podFailurePolicy, but no policy can name the first, since such a pod has neither an exit code nor a condition:
`restarts_of` and `trainer_outcome` in outcome.py leave it out.
"""

from collections.abc import Iterator

from batchgrowth_operator.seen.observed import TRAINER, Object, Observed, condition_of, endings_of, is_owned_by

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
