"""How the trainer runs or ended, from its Job and pods, those on nodes that do not answer included."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from batchgrowth import names
from batchgrowth.errors import CheckpointError, ClusterError, DataError, SpecError, WorkloadError

from batchgrowth_operator.seen.clock import seconds_since
from batchgrowth_operator.seen.observed import TRAINER, Object, Observed, annotations_of, endings_of, is_owned_by

# The trainer's pods on nodes that do not answer: which of them probably work no longer, and when they are given up.
# Kubernetes marks a running pod of a lost node as not ready, deletes it minutes later, and keeps the object until the
# node is back or gone; until then its Job makes no other. Only pods are read, since nodes are no object of a namespace.

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


# --- The trainer's state, from its Job and pods: whether it runs, and how it ended ---

LONGEST_MESSAGE = 1024

REASONS = {
    SpecError.exit_code: "ManifestRefused",
    WorkloadError.exit_code: "WorkloadFailed",
    DataError.exit_code: "DataFailed",
    CheckpointError.exit_code: "CheckpointFailed",
}
"""Exit codes that a restart would only repeat, and their reasons."""

KILLED = 137
"""The exit code of a container that SIGKILL ended."""
_KILLED_OTHERWISE = "killed, as a hung container is by its liveness probe: the pod's events say why"

_LONGEST_COUNT = 9
"""Digits of a number of restarts that may be believed."""
_EXIT_CODE = re.compile(r"exit code (\d+)")


class Outcome(NamedTuple):
    """The end of a job: status, reason and message of its condition Succeeded."""

    succeeded: bool
    reason: str
    message: str


def is_running(seen: Observed, kept: bool) -> bool:
    """Whether a trainer pod may still be working; a terminating one writes its checkpoint.

    One that was given up does not count: if it still works, its successor ends it. For `kept` see lost.is_replaceable.
    """
    job = seen.trainer
    status = (job or {}).get("status") or {}
    if job is not None and "deletionTimestamp" not in job["metadata"] and status.get("active", 0) > 0:
        return True
    return any(
        (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed") and not is_given_up(seen, pod, kept)
        for pod in seen.pods_of(TRAINER, deleted=True)
    )


def is_between_pods(seen: Observed) -> bool:
    """Whether the trainer's Job goes on, but has no pod now: Kubernetes waits before it makes the next."""
    job = seen.trainer
    status = (job or {}).get("status") or {}
    if job is None or "deletionTimestamp" in job["metadata"] or not status.get("startTime"):
        return False
    counts = status.get("active"), status.get("terminating"), status.get("succeeded")
    uncounted = (status.get("uncountedTerminatedPods") or {}).values()
    ending = (c for c in status.get("conditions") or () if c.get("status") == "True")
    return not (any(counts) or any(uncounted) or any(ending)) and not any(
        (pod.get("status") or {}).get("phase") != "Failed" for pod in seen.pods_of(TRAINER, deleted=True)
    )


def restarts_of(seen: Observed) -> int:
    """The failures of the trainer that count, those before its Job was made again included."""
    job = seen.trainer
    return 0 if job is None else restarts_before(job) + int((job.get("status") or {}).get("failed", 0))


def restarts_before(job: Object) -> int:
    """The restarts of the trainer before this Job was made."""
    known = annotations_of(job).get(names.RESTARTS_BEFORE, "")
    return int(known) if known.isdecimal() and len(known) <= _LONGEST_COUNT else 0


def outcome_of(seen: Observed) -> Outcome | None:
    """How the trainer's Job ended; None if it has not."""
    job = seen.trainer
    if job is None:
        return None
    if _condition(job, "Complete"):
        return Outcome(True, "Finished", "Every update of the plan is done.")
    failed = _condition(job, "Failed")
    if failed is None:
        return None
    code, message = _last_termination(seen)
    failure = failed.get("message", "")
    found = _EXIT_CODE.search(failure)
    reason = REASONS.get(code if code is not None else int(found[1]) if found else -1, "RestartsExceeded")
    return Outcome(False, reason, truncated(message or failure))


def num_retries(seen: Observed) -> int:
    """The trainer pods that ended with exit code 75; Kubernetes keeps them, and evicted ones do not count."""
    return sum(
        ending["exitCode"] == ClusterError.exit_code
        for pod in seen.pods_of(TRAINER)
        if not any(c.get("type") == "DisruptionTarget" for c in (pod.get("status") or {}).get("conditions") or ())
        for ending in _endings(pod)
    )


def last_exit(seen: Observed) -> str:
    """Exit code and last output of the trainer pod that ended last; empty if no such pod is left."""
    code, message = _last_termination(seen)
    return "" if code is None else truncated(f"exit code {code}: {message}" if message else f"exit code {code}")


def truncated(text: str) -> str:
    """The end of the text, which names an error's cause, cut to the length of a condition's message."""
    return text if len(text) <= LONGEST_MESSAGE else "…" + text[1 - LONGEST_MESSAGE :]


def _condition(job: Object, kind: str) -> dict[str, Any] | None:
    conditions: list[dict[str, Any]] = (job.get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c.get("type") == kind and c.get("status") == "True"), None)


def _last_termination(seen: Observed) -> tuple[int | None, str]:
    """Exit code and message of the trainer container that ended last; None and "" if no such pod is left."""
    endings = [ending for pod in seen.pods_of(TRAINER) for ending in _endings(pod)]
    if not endings:
        return None, ""
    last = max(endings, key=lambda ending: str(ending.get("finishedAt") or ""))
    return int(last["exitCode"]), _said(last)


def _said(ending: Object) -> str:
    """The container's last output; after a kill, which no output explains, what may have killed it at the end."""
    output = str(ending.get("message") or "").strip()
    if ending["exitCode"] != KILLED:
        return output
    why = "out of memory" if ending.get("reason") == "OOMKilled" else _KILLED_OTHERWISE
    return f"{output} ({why})" if output else why


def _endings(pod: Object) -> Iterator[dict[str, Any]]:
    """How the pod's containers ended that ended with an error."""
    return (ending for ending in endings_of(pod) if ending["exitCode"])
