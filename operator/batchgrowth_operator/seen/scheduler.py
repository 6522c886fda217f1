"""The scheduler that the Dask operator creates for the job's DaskCluster: whether it is complete and ready."""

from batchgrowth import names

from batchgrowth_operator.seen.observed import Object, Observed, Ref, annotations_of
from batchgrowth_operator.seen.timestamps import seconds_since, seconds_until, timestamp_ms

SETTLED_AFTER_SECONDS = 20.0
"""Time for the Dask operator to create the parts of a new DaskCluster and for the watch to report them, and time for
which a part must be missing after that."""
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
    """Whether the scheduler lost a part that only the Dask operator can create again, and has not begun to."""
    return _is_requested(seen) or seconds_until_parts_lost(seen) == 0


def parts_missing_since(seen: Observed) -> str | None:
    """Since when a part is missing, or was requested, for the annotation that remembers it; None if none is, or the
    cluster is new.
    """
    if _is_requested(seen):
        return _annotation(seen)
    if _seconds_until_settled(seen) != 0:
        return None
    since = None if seconds_until_parts_lost(seen) == 0 else _missing_since(seen)
    return since or timestamp_ms(seen.now)


def seconds_until_parts_lost(seen: Observed) -> float | None:
    """Seconds until a missing part must be looked at again, 0 if it is lost; None if none is missing or none was made.

    It counts as lost only after a while: in a namespace that is being deleted it goes just before the job, and a Dask
    operator that is asked for it there retries without end and keeps its finalizer, so the namespace remains.
    """
    settles = _seconds_until_settled(seen)
    if settles != 0:
        return settles
    return max(0.0, SETTLED_AFTER_SECONDS - seconds_since(_missing_since(seen), seen.now))


def _is_requested(seen: Observed) -> bool:
    """Whether missing parts were requested, and the Dask operator has not changed the phase yet.

    Until then the phase is ours: if we left it out, the API server would remove it, which leaves a status of null, and
    that the schema of a DaskCluster refuses.
    """
    return _phase(seen) == CREATE_PARTS and _annotation(seen) is not None


def _seconds_until_settled(seen: Observed) -> float | None:
    cluster = _cluster(seen)
    if cluster is None or _has_parts(seen) or _phase(seen) not in _CREATED:
        return None
    created = cluster["metadata"].get("creationTimestamp")
    if seconds_until(created, seen.now) > SETTLED_AFTER_SECONDS:
        return 0.0  # the clock was set back, and says nothing about the cluster's age
    return max(0.0, SETTLED_AFTER_SECONDS - seconds_since(created, seen.now))


def _missing_since(seen: Observed) -> str | None:
    """Since when a part is missing; None if that is not known, or was written before the clock was set back."""
    since = _annotation(seen)
    return None if seconds_until(since, seen.now) > SETTLED_AFTER_SECONDS else since


def _has_parts(seen: Observed) -> bool:
    return all(Ref(kind, names.scheduler(seen.name)) in seen.parts for kind in ("Deployment", "Service"))


def _cluster(seen: Observed) -> Object | None:
    return seen.child("DaskCluster", names.cluster(seen.name))


def _phase(seen: Observed) -> str | None:
    phase: str | None = ((_cluster(seen) or {}).get("status") or {}).get("phase")
    return phase


def _annotation(seen: Observed) -> str | None:
    cluster = _cluster(seen)
    return None if cluster is None else annotations_of(cluster).get(names.PARTS_MISSING)
