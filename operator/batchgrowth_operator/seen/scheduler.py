"""The scheduler that the Dask operator makes for the job's DaskCluster: whether it is all there, and at work."""

from __future__ import annotations

from batchgrowth import names

from batchgrowth_operator.seen.moments import seconds_since
from batchgrowth_operator.seen.observed import Object, Observed, Ref

SETTLED_AFTER_SECONDS = 20.0
"""The Dask operator makes the parts of a new DaskCluster within this time, and news of them comes."""
MAKE_PARTS = "Created"
"""The phase in which the Dask operator makes those parts of a DaskCluster that are not there. It looks at no others."""
_MADE = ("Pending", "Running")


def deployment_of(seen: Observed) -> Object | None:
    """The scheduler's Deployment, or None where it is not there."""
    return seen.parts.get(Ref("Deployment", names.scheduler(seen.name)))


def is_ready(seen: Observed) -> bool:
    """Whether a scheduler answers."""
    return bool(((deployment_of(seen) or {}).get("status") or {}).get("readyReplicas", 0))


def lacks_parts(seen: Observed) -> bool:
    """Whether a part was there once and is gone: nobody but the Dask operator can make it again."""
    return seconds_until_missed(seen) == 0


def seconds_until_missed(seen: Observed) -> float | None:
    """Seconds until a part that is not there counts as gone; None where nothing is missing, or not made yet."""
    cluster = seen.child("DaskCluster", names.cluster(seen.name))
    if cluster is None or _has_parts(seen) or (cluster.get("status") or {}).get("phase") not in _MADE:
        return None
    return max(0.0, SETTLED_AFTER_SECONDS - seconds_since(cluster["metadata"].get("creationTimestamp"), seen.now))


def _has_parts(seen: Observed) -> bool:
    return all(Ref(kind, names.scheduler(seen.name)) in seen.parts for kind in ("Deployment", "Service"))
