"""Whether the workers' pods keep within the limits of the installation, and what becomes of a job whose pods do not."""

from batchgrowth import names
from batchgrowth.errors import PodLimitError
from batchgrowth.pod_limits import pod_faults

from batchgrowth_operator.decide.children.workers import worker_template
from batchgrowth_operator.decide.situation import Mode, Situation

PODS_NOT_ALLOWED = "PodsNotAllowed"
"""Reason of the condition Accepted."""


def pods_refused(s: Situation) -> PodLimitError | None:
    """What in the workers' pods exceeds the limits; None if nothing does."""
    faults = pod_faults(s.spec, s.once(worker_template), s.defaults.pods)
    return PodLimitError(faults) if faults else None


def held_by(s: Situation) -> PodLimitError | None:
    """Why nothing of the job is created or changed; None if the job goes on.

    A job that is over or suspended needs no new pods: it is released even if an upgraded operator refuses its pods.
    """
    has_workers = s.seen.child("Deployment", names.workers(s.seen.name)) is not None
    needs_pods = s.mode is Mode.ACTIVE or (s.mode is Mode.SUSPENDED and not has_workers)
    return s.once(pods_refused) if needs_pods else None
