"""The trainer's pods on nodes that do not answer: which of them probably work no longer, and when they are given up.

Kubernetes marks a running pod of a lost node as not ready, deletes it minutes later, and keeps the object until the
node is back or gone; until then its Job makes no other. Only pods are read, since nodes are no object of a namespace.
"""

from batchgrowth_operator.seen.observed import TRAINER, Object, Observed, endings_of, is_owned_by
from batchgrowth_operator.seen.timestamps import seconds_since

GIVEN_UP_AFTER_SECONDS = 60.0
"""Time for which a node may not answer before its trainer is replaced. Kubernetes itself needs 40 to 50 s to notice."""


def unreachable_pods(seen: Observed) -> tuple[Object, ...]:
    """The trainer's pods whose nodes are probably lost."""
    return tuple(pod for pod in seen.pods_of(TRAINER, deleted=True) if _is_unreachable(seen, pod))


def is_replaceable(pod: Object, kept: bool) -> bool:
    """Whether another trainer may take an unreachable one's place: no training is lost by it.

    The one's checkpoints are `kept` outside its pod, or Kubernetes has deleted that, so that it ends even if its node
    is back.
    """
    return kept or "deletionTimestamp" in pod["metadata"]


def is_given_up(seen: Observed, pod: Object, kept: bool) -> bool:
    """Whether the node of a trainer's pod has not answered for GIVEN_UP_AFTER_SECONDS, and another takes its place."""
    return _is_unreachable(seen, pod) and _seconds_until_given_up(seen, pod, kept) == 0


def has_lost_trainer(seen: Observed, kept: bool) -> bool:
    """Whether the pod of the trainer's present Job is given up, so that only another Job makes another pod."""
    uid = seen.trainer["metadata"].get("uid", "") if seen.trainer is not None else ""
    return any(is_given_up(seen, pod, kept) for pod in seen.pods_of(TRAINER, deleted=True) if is_owned_by(pod, uid))


def seconds_until_given_up(seen: Observed, kept: bool) -> float | None:
    """Seconds until a pod is given up if its node stays away; None if none will be."""
    waits = (_seconds_until_given_up(seen, pod, kept) for pod in unreachable_pods(seen))
    return min((wait for wait in waits if wait), default=None)


def _is_unreachable(seen: Observed, pod: Object) -> bool:
    """A pod that ends by itself has a terminated container, or is deleted and within its grace period."""
    status, ends = pod.get("status") or {}, pod["metadata"].get("deletionTimestamp")
    if status.get("phase") != "Running" or _not_ready(pod) is None:
        return False
    if any(endings_of(pod)):
        return False
    return ends is None or seconds_since(ends, seen.now) > 0 or _seconds_lost(seen, pod) >= GIVEN_UP_AFTER_SECONDS


def _seconds_until_given_up(seen: Observed, pod: Object, kept: bool) -> float | None:
    return max(0.0, GIVEN_UP_AFTER_SECONDS - _seconds_lost(seen, pod)) if is_replaceable(pod, kept) else None


def _seconds_lost(seen: Observed, pod: Object) -> float:
    since = (_not_ready(pod) or {}).get("lastTransitionTime"), pod["metadata"].get("deletionTimestamp")
    return max(seconds_since(time, seen.now) for time in since)


def _not_ready(pod: Object) -> Object | None:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if (c.get("type"), c.get("status")) == ("Ready", "False")), None)
