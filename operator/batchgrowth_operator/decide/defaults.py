"""The operator's settings that decisions depend on."""

from dataclasses import dataclass
from typing import Any

from batchgrowth.pod_limits import STRICTEST, PodLimits

Rule = dict[str, Any]
"""A part of a NetworkPolicy, as the Kubernetes API defines it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """`metrics_from` are the peers that may read trainers' metrics; without any, all may.

    `egress` are the rules for connections of a job's pods beside those to DNS and to each other; None allows all.
    """

    metrics_from: tuple[Rule, ...] = ()
    egress: tuple[Rule, ...] | None = None


OPEN = Network()


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """`image` is used by jobs without spec.image; times are seconds."""

    image: str
    pods: PodLimits = STRICTEST
    network: Network = OPEN
    checkpoint_size: str = ""
    """Size of the claim of a job whose spec names no place for its checkpoints; empty for none."""
    first_lead_seconds: float = 10.0
    """Lead time of a job whose workers have not been timed yet."""
    report_seconds: float = 5.0
    """Shortest time between two status writes that differ in progress only."""
