"""What happens to the cluster of a job: the DaskCluster and the workers."""

from __future__ import annotations

from enum import Enum

from batchgrowth_operator.decide.situation import Mode, Situation


class Cluster(Enum):
    """Make it as the spec says, leave it as it is, or let it go."""

    MAKE = "make"
    KEEP = "keep"
    RELEASE = "release"


def cluster_policy(s: Situation) -> Cluster:
    """A cluster is never taken from under a trainer: it may be writing its last checkpoint."""
    if s.mode is Mode.ACTIVE:
        return Cluster.MAKE
    if s.is_trainer_running:
        return Cluster.KEEP
    if s.outcome is None:
        return Cluster.RELEASE
    failed = not s.outcome.succeeded
    retained = s.spec.cluster_retention == "Retain" or (s.spec.cluster_retention == "RetainOnFailure" and failed)
    return Cluster.KEEP if retained else Cluster.RELEASE
