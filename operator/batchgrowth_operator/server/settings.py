"""The operator's settings, from its command line."""

from dataclasses import dataclass
from pathlib import Path

from batchgrowth.logs import LogFormat, LogLevel
from batchgrowth.pod_limits import STRICTEST, PodLimits

from batchgrowth_operator.decide.defaults import OPEN, Network


@dataclass(frozen=True, slots=True)
class LeaseLock:
    """A Lease, and the name under which this operator holds it."""

    namespace: str
    name: str
    holder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Without `kubeconfig` the pod's service account is used; without `namespaces` all are watched."""

    image: str
    kubeconfig: Path | None = None
    namespaces: tuple[str, ...] = ()
    operator_class: str = ""
    """Only jobs with this spec.operatorClass are served; empty for those without one."""
    metrics_port: int = 0
    """Port of the metrics endpoint; 0 for none."""
    health_port: int = 0
    """Port of the health endpoint; 0 for none."""
    pods: PodLimits = STRICTEST
    """What jobs may ask for their pods."""
    network: Network = OPEN
    """The connections that jobs' pods may make and accept."""
    checkpoint_size: str = ""
    """Size of the claim of a job whose spec names no place for its checkpoints; empty for none."""
    lease: LeaseLock | None = None
    """The Lease by which several operators elect a leader; None for a single operator."""
    log_level: LogLevel = LogLevel.info
    log_format: LogFormat = LogFormat.text
