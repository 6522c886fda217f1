"""The scheduler that the Dask operator creates for the job's DaskCluster: whether it is complete and ready."""

from batchgrowth import names

from batchgrowth_operator.seen.observed import Object, Observed, Ref
from batchgrowth_operator.seen.timestamps import seconds_since

SETTLED_AFTER_SECONDS = 20.0
"""Time for the Dask operator to create the parts of a new DaskCluster and for the watch to report them.

Also the time after which a part that was there counts as lost. In a namespace that is being deleted, parts go before
the job does; a Dask operator that is asked to create them there fails, retries, and keeps its finalizer until it
succeeds, so the namespace would remain.
"""
CREATE_PARTS = "Created"
"""The one phase in which the Dask operator creates the missing parts of a DaskCluster."""
_CREATED = ("Pending", "Running")


def deployment_of(seen: Observed) -> Object | None:
    """The scheduler's Deployment, or None if it does not exist."""
    return seen.parts.get(Ref("Deployment", names.scheduler(seen.name)))


def is_ready(seen: Observed) -> bool:
    """Whether the scheduler's pod is ready, and there is a Service to reach it by."""
    return _has_parts(seen) and bool(((deployment_of(seen) or {}).get("status") or {}).get("readyReplicas", 0))


def lacks_parts(seen: Observed) -> bool:
    """Whether the scheduler lost a part that only the Dask operator can create again."""
    return seconds_until_parts_lost(seen) == 0


def seconds_until_parts_lost(seen: Observed) -> float | None:
    """Seconds until a missing part counts as lost; None if no part is missing or none was created yet.

    None also if the workers' Deployment is missing: it is recreated first, which fails in a namespace being deleted.
    """
    cluster = seen.child("DaskCluster", names.cluster(seen.name))
    workers = seen.child("Deployment", names.workers(seen.name))
    if (
        cluster is None
        or workers is None
        or _has_parts(seen)
        or (cluster.get("status") or {}).get("phase") not in _CREATED
    ):
        return None
    missing = seconds_since(_not_ready_since(seen), seen.now)
    age = seconds_since(cluster["metadata"].get("creationTimestamp"), seen.now)
    return max(0.0, SETTLED_AFTER_SECONDS - min(age, missing))


def _not_ready_since(seen: Observed) -> str | None:
    """Since when the stored status says that the Dask cluster is not ready; None if it does not say so yet."""
    conditions = (seen.job.get("status") or {}).get("conditions") or ()
    found = next((each for each in conditions if each["type"] == "ClusterReady" and each["status"] != "True"), None)
    return found.get("lastTransitionTime") if found else None


def _has_parts(seen: Observed) -> bool:
    return all(Ref(kind, names.scheduler(seen.name)) in seen.parts for kind in ("Deployment", "Service"))
