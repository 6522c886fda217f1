"""The trainer's state, from its Job and pods: whether it runs, and how it ended."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from batchgrowth import names
from batchgrowth.errors import CheckpointError, ClusterError, DataError, SpecError, WorkloadError

from batchgrowth_operator.seen.observed import Object, Observed, labels_of
from batchgrowth_operator.seen.timestamps import seconds_since

CONTAINER = "trainer"
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

_EXIT_CODE = re.compile(r"exit code (\d+)")


class Outcome(NamedTuple):
    """The end of a job: status, reason and message of its condition Succeeded."""

    succeeded: bool
    reason: str
    message: str


def is_running(seen: Observed) -> bool:
    """Whether a trainer pod may still be working; a terminating one writes its checkpoint."""
    job = seen.child("Job", names.trainer(seen.name))
    status = (job or {}).get("status") or {}
    if job is not None and "deletionTimestamp" not in job["metadata"] and status.get("active", 0) > 0:
        return True
    return any(
        pod["metadata"]["labels"].get(names.ROLE_LABEL) == CONTAINER
        and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        for pod in seen.pods
    )


def unreachable_pod(seen: Observed) -> str | None:
    """The trainer's pod if its node is probably lost; None if there is none.

    Kubernetes marks a running pod of a lost node as not ready, deletes it minutes later, and keeps it until the node is
    back or gone. A pod that ends by itself has a terminated container, or is deleted and within its grace period.
    """
    for pod in seen.pods:
        metadata, status = pod["metadata"], pod.get("status") or {}
        ends = metadata.get("deletionTimestamp")
        containers = status.get("containerStatuses") or ()
        if (
            labels_of(pod).get(names.ROLE_LABEL) == CONTAINER
            and status.get("phase") == "Running"
            and any((c.get("type"), c.get("status")) == ("Ready", "False") for c in status.get("conditions") or ())
            and not any("terminated" in (one.get("state") or {}) for one in containers)
            and (ends is None or seconds_since(ends, seen.now) > 0)
        ):
            return str(metadata["name"])
    return None


def outcome_of(seen: Observed) -> Outcome | None:
    """How the trainer's Job ended; None if it has not."""
    job = seen.child("Job", names.trainer(seen.name))
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
        for pod in seen.pods_of(CONTAINER)
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
    endings = [ending for pod in seen.pods_of(CONTAINER) for ending in _endings(pod)]
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
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        ending = (container.get("state") or {}).get("terminated")
        if ending is not None and ending.get("exitCode"):
            yield ending
