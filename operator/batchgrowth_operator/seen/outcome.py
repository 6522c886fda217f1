"""How the trainer runs or ended, from its Job and its pods, including pods on nodes that do not answer.

Kubernetes marks a running pod of a lost node as not ready, deletes it minutes later, and keeps the object until the
node is back or gone; until then its Job makes no other pod. Only pods are read, because nodes are not namespaced.
"""

import re
from typing import Any, NamedTuple

from batchgrowth import names
from batchgrowth.errors import CheckpointError, ClusterError, DataError, SpecError, WorkloadError

from batchgrowth_operator.seen.clock import Clock, seconds_since, seconds_until
from batchgrowth_operator.seen.observed import (
    TRAINER,
    Object,
    Observed,
    annotations_of,
    endings_of,
    is_owned_by,
    is_terminating,
)

GIVEN_UP_AFTER_SECONDS = 60.0
"""Time for which a node may not answer before its trainer is replaced. Kubernetes itself needs 40 to 50 s to notice."""
LONGEST_MESSAGE = 1024
"""Characters of a condition's message."""
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
    """Return whether the node of the trainer's pod has been silent for GIVEN_UP_AFTER_SECONDS."""
    return (
        _is_unreachable(pod, clock)
        and is_replaceable(pod, kept)
        and clock.reached(_seconds_lost(pod, clock), GIVEN_UP_AFTER_SECONDS)
    )


def has_lost_trainer(seen: Observed, kept: bool, clock: Clock) -> bool:
    """Return whether a pod of the trainer's Job is given up, so that only a new Job makes another pod."""
    if seen.trainer is None:
        return False
    uid = seen.trainer["metadata"].get("uid", "")
    return any(is_owned_by(pod, uid) and is_given_up(pod, kept, clock) for pod in seen.trainer_pods)


def _is_unreachable(pod: Object, clock: Clock) -> bool:
    status = pod.get("status") or {}
    if status.get("phase") != "Running" or any(endings_of(pod)) or _not_ready(pod) is None:
        return False  # a pod that ends by itself has a terminated container
    ends = pod["metadata"].get("deletionTimestamp")
    if ends is None or seconds_since(ends, clock.now) > 0:
        return True
    # It may be ending by itself, until its grace period is over.
    clock.wake_in(seconds_until(ends, clock.now))
    return clock.reached(_seconds_lost(pod, clock), GIVEN_UP_AFTER_SECONDS)


def _seconds_lost(pod: Object, clock: Clock) -> float:
    not_ready = (_not_ready(pod) or {}).get("lastTransitionTime")
    deleted = pod["metadata"].get("deletionTimestamp")
    return max(seconds_since(not_ready, clock.now), seconds_since(deleted, clock.now))


def _not_ready(pod: Object) -> Object | None:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if (c.get("type"), c.get("status")) == ("Ready", "False")), None)


def is_running(seen: Observed, kept: bool, clock: Clock) -> bool:
    """Return whether a trainer pod may still be working; a terminating one writes its checkpoint.

    A pod that was given up does not count: if it still works, its successor ends it. `kept` is as in is_replaceable.
    """
    job = seen.trainer
    if job is not None and not is_terminating(job) and (job.get("status") or {}).get("active", 0) > 0:
        return True
    for pod in seen.trainer_pods:
        has_ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        if not has_ended and not is_given_up(pod, kept, clock):
            return True
    return False


def is_between_pods(seen: Observed) -> bool:
    """Return whether the trainer's Job goes on without a pod, since Kubernetes waits before it makes the next one."""
    job = seen.trainer
    if job is None or is_terminating(job):
        return False
    status = job.get("status") or {}
    if not status.get("startTime") or status.get("active") or status.get("terminating") or status.get("succeeded"):
        return False
    if any((status.get("uncountedTerminatedPods") or {}).values()):
        return False
    if any(c.get("status") == "True" for c in status.get("conditions") or ()):
        return False  # it has ended, or is about to
    return all((pod.get("status") or {}).get("phase") == "Failed" for pod in seen.trainer_pods)


def restarts_of(seen: Observed) -> int:
    """Return the number of the trainer's failures that count, including those before its Job was recreated."""
    if seen.trainer is None:
        return 0
    return restarts_before(seen.trainer) + int((seen.trainer.get("status") or {}).get("failed", 0))


def restarts_before(job: Object) -> int:
    """Return the restarts of the trainer before this Job was made."""
    known = annotations_of(job).get(names.RESTARTS_BEFORE, "")
    if not known.isdecimal() or len(known) > _LONGEST_COUNT:
        return 0
    return int(known)


def outcome_of(seen: Observed) -> Outcome | None:
    """Return how the trainer's Job ended; None if it has not."""
    conditions = ((seen.trainer or {}).get("status") or {}).get("conditions") or ()
    holding = {c.get("type"): c for c in reversed(conditions) if c.get("status") == "True"}
    if "Complete" in holding:
        return Outcome(True, "Finished", "Every update of the plan is done.")
    if "Failed" not in holding:
        return None
    failure = holding["Failed"].get("message", "")
    code, message = _last_termination(seen)
    if code is None:  # its pods are gone, but the Job may name the exit code
        found = _EXIT_CODE.search(failure)
        code = int(found[1]) if found else -1
    return Outcome(False, REASONS.get(code, "RestartsExceeded"), truncated(message or failure))


def num_retries(seen: Observed) -> int:
    """Return the number of trainer pods that ended with exit code 75, which Kubernetes keeps; evicted ones not."""
    retries = 0
    for pod in seen.pods_of(TRAINER):
        if any(c.get("type") == "DisruptionTarget" for c in (pod.get("status") or {}).get("conditions") or ()):
            continue
        retries += sum(ending["exitCode"] == ClusterError.exit_code for ending in endings_of(pod))
    return retries


def last_exit(seen: Observed) -> str:
    """Return exit code and last output of the trainer pod that ended last; empty if no such pod is left."""
    code, message = _last_termination(seen)
    if code is None:
        return ""
    if not message:
        return f"exit code {code}"
    return truncated(f"exit code {code}: {message}")


def truncated(text: str) -> str:
    """Return the end of the text, which names an error's cause, at most as long as a condition's message."""
    if len(text) <= LONGEST_MESSAGE:
        return text
    return "…" + text[1 - LONGEST_MESSAGE :]


def _last_termination(seen: Observed) -> tuple[int | None, str]:
    """Return exit code and message of the trainer container that failed last; None and "" if no such pod is left.

    The message is the container's last output; after a kill, which output does not explain, it ends with the likely
    cause.
    """
    endings: list[dict[str, Any]] = []
    for pod in seen.pods_of(TRAINER):
        endings += [ending for ending in endings_of(pod) if ending["exitCode"]]
    if not endings:
        return None, ""
    last = max(endings, key=lambda ending: str(ending.get("finishedAt") or ""))
    code = int(last["exitCode"])
    output = str(last.get("message") or "").strip()
    if code != KILLED:
        return code, output
    why = "out of memory" if last.get("reason") == "OOMKilled" else _KILLED_OTHERWISE
    return code, f"{output} ({why})" if output else why
