"""The stored times that a job's deadline and its time to live count from."""

from batchgrowth_operator.seen.observed import Object


def active_since(job: Object) -> str | None:
    """When the job last became active; None while it is suspended, or before its status says so."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    active = (c for c in conditions if (c.get("type"), c.get("status")) == ("Suspended", "False"))
    return next((c.get("lastTransitionTime") for c in active), None)


def ended_at(job: Object) -> str | None:
    """When the job ended; None before its status says so."""
    ended: str | None = (job.get("status") or {}).get("completionTime")
    return ended
