"""The operator's settings that decisions depend on."""

from dataclasses import dataclass

from batchgrowth.pod_limits import STRICTEST, PodLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """`image` is used by jobs without spec.image; times are seconds."""

    image: str
    pods: PodLimits = STRICTEST
    first_lead_seconds: float = 10.0
    """Lead time of a job whose workers have not been timed yet."""
    report_seconds: float = 5.0
    """Shortest time between two status writes that differ in progress only."""
