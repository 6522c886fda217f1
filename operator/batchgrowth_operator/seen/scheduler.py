"""The scheduler that the Dask operator creates for the job's DaskCluster: whether it is complete and ready."""

from batchgrowth import names

from batchgrowth_operator.seen.observed import Object, Observed, Ref
from batchgrowth_operator.seen.timestamps import seconds_since

SETTLED_AFTER_SECONDS = 20.0
"""Time for the Dask operator to create the parts of a new DaskCluster and for the watch to report them."""
CREATE_PARTS = "Created"
"""The one phase in which the Dask operator creates the missing parts of a DaskCluster."""
_CREATED = ("Pending", "Running")


def deployment_of(seen: Observed) -> Object | None:
    """The scheduler's Deployment, or None if it does not exist."""
    return seen.parts.get(Ref("Deployment", names.scheduler(seen.name)))


def is_ready(seen: Observed) -> bool:
    """Whether the scheduler's pod is ready."""
    return bool(((deployment_of(seen) or {}).get("status") or {}).get("readyReplicas", 0))


def lacks_parts(seen: Observed) -> bool:
    """Whether the scheduler lost a part that only the Dask operator can create again."""
    return seconds_until_parts_lost(seen) == 0


def seconds_until_parts_lost(seen: Observed) -> float | None:
    """Seconds until a missing part counts as lost; None if no part is missing or none was created yet."""
    cluster = seen.child("DaskCluster", names.cluster(seen.name))
    if cluster is None or _has_parts(seen) or (cluster.get("status") or {}).get("phase") not in _CREATED:
        return None
    return max(0.0, SETTLED_AFTER_SECONDS - seconds_since(cluster["metadata"].get("creationTimestamp"), seen.now))


def _has_parts(seen: Observed) -> bool:
    return all(Ref(kind, names.scheduler(seen.name)) in seen.parts for kind in ("Deployment", "Service"))
