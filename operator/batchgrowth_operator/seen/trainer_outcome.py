"""What the trainer's Job and pods tell: whether it runs, and how it ended."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from batchgrowth import names
from batchgrowth.errors import CheckpointError, DataError, SpecError, WorkloadError

from batchgrowth_operator.seen.observed import Object, Observed

CONTAINER = "trainer"
LONGEST_MESSAGE = 1024

REASONS = {
    SpecError.exit_code: "ManifestRefused",
    WorkloadError.exit_code: "WorkloadFailed",
    DataError.exit_code: "DataFailed",
    CheckpointError.exit_code: "CheckpointFailed",
}
"""Exit codes after which another start would fail in the same way."""

_EXIT_CODE = re.compile(r"exit code (\d+)")


class Outcome(NamedTuple):
    """How a job ended: the status, reason and message of its condition Succeeded."""

    succeeded: bool
    reason: str
    message: str


def is_running(seen: Observed) -> bool:
    """Whether a pod of the trainer may still be at work; those on their way out write their checkpoint."""
    job = seen.child("Job", names.trainer(seen.name))
    status = (job or {}).get("status") or {}
    if job is not None and "deletionTimestamp" not in job["metadata"] and status.get("active", 0) > 0:
        return True
    return any(
        pod["metadata"]["labels"].get(names.ROLE_LABEL) == CONTAINER
        and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        for pod in seen.pods
    )


def outcome_of(seen: Observed) -> Outcome | None:
    """How the trainer's Job ended; None while it has not."""
    job = seen.child("Job", names.trainer(seen.name))
    if job is None:
        return None
    if _condition(job, "Complete"):
        return Outcome(True, "Finished", "Every update of the plan is done.")
    failed = _condition(job, "Failed")
    if failed is None:
        return None
    code, message = _last_words(seen)
    told = failed.get("message", "")
    found = _EXIT_CODE.search(told)
    reason = REASONS.get(code if code is not None else int(found[1]) if found else -1, "RestartsExceeded")
    return Outcome(False, reason, shortened(message or told))


def last_ending(seen: Observed) -> str:
    """How the trainer ended last: its exit code and the end of what it said; empty where no pod is left of it."""
    code, message = _last_words(seen)
    return "" if code is None else shortened(f"exit code {code}: {message}" if message else f"exit code {code}")


def shortened(text: str) -> str:
    """The end of a text, where errors have their point, within the bounds of a condition's message."""
    return text if len(text) <= LONGEST_MESSAGE else "…" + text[1 - LONGEST_MESSAGE :]


def _condition(job: Object, kind: str) -> dict[str, Any] | None:
    conditions: list[dict[str, Any]] = (job.get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c.get("type") == kind and c.get("status") == "True"), None)


def _last_words(seen: Observed) -> tuple[int | None, str]:
    """Exit code and message of the trainer's container that ended last; None and nothing where no pod is left."""
    endings = [
        ending
        for pod in seen.pods_of(CONTAINER)
        for container in (pod.get("status") or {}).get("containerStatuses") or ()
        if (ending := (container.get("state") or {}).get("terminated")) is not None and ending.get("exitCode")
    ]
    if not endings:
        return None, ""
    last = max(endings, key=lambda ending: str(ending.get("finishedAt") or ""))
    return int(last["exitCode"]), str(last.get("message") or "").strip()
