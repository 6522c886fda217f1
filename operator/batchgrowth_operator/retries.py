"""When Kubernetes is asked to try again to make worker pods that it was refused.

It tries more and more rarely by itself, up to a quarter of an hour apart, and so late it would find that a quota was
raised. Whoever changes the Deployment makes it try at once.
"""

from __future__ import annotations

from datetime import UTC, datetime

from batchgrowth import names

from batchgrowth_operator.moments import moment, stamp
from batchgrowth_operator.observed import Observed
from batchgrowth_operator.words import status_list

RETRY_SECONDS = 30


def retried(seen: Observed) -> str | None:
    """When it was last asked, or is to be asked now; None where pods are not refused, or only just were."""
    since = _refused_since(seen)
    if since is None or _window(seen.now) <= _window(since):
        return None
    return stamp(datetime.fromtimestamp(_window(seen.now) * RETRY_SECONDS, UTC))


def seconds_to_a_retry(seen: Observed) -> float | None:
    """Seconds until it is asked the next time; None where pods are not refused."""
    if _refused_since(seen) is None:
        return None
    return RETRY_SECONDS - seen.now.timestamp() % RETRY_SECONDS


def _window(when: datetime) -> int:
    return int(when.timestamp() // RETRY_SECONDS)


def _refused_since(seen: Observed) -> datetime | None:
    for condition in status_list(seen.child("Deployment", names.workers(seen.name)), "conditions"):
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return moment(str(condition.get("lastTransitionTime") or stamp(seen.now)))
    return None
