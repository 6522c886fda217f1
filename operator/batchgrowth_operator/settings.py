"""The operator's settings, from its command line, and the part of them that decisions depend on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchgrowth.contract.logs import LogFormat, LogLevel
from batchgrowth.manifest.pod_limits import STRICTEST, PodLimits

Rule = dict[str, Any]
"""A part of a NetworkPolicy, as the Kubernetes API defines it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The connections that jobs' pods may make and accept."""

    metrics_from: tuple[Rule, ...] = ()
    """The peers that may read trainers' metrics; without any, all may."""
    egress: tuple[Rule, ...] | None = None
    """Rules for connections of a job's pods beside those to DNS and to each other; None allows all."""


OPEN = Network()


SCHEDULER_RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": "2", "memory": "2Gi"}}
"""Requests and limits, which a namespace's quota may demand; a scheduler handles a few messages a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """The part of Settings that a pass depends on: defaults for specs, and limits of the installation."""

    image: str
    """Image of jobs without spec.image."""
    pods: PodLimits = STRICTEST
    """Limits of what jobs may ask for in their pods."""
    job_pods: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of spec.pods of all jobs, as a manifest spells them."""
    scheduler_resources: Mapping[str, Any] = field(default_factory=lambda: SCHEDULER_RESOURCES)
    """What the scheduler of each job requests, and its limits."""
    fixed_user: bool = True
    """Whether pods run as the images' own user; False leaves user and groups to the platform."""
    network: Network = OPEN
    """The connections that jobs' pods may make and accept."""
    checkpoint_size: str = ""
    """Size of the claim of a job whose spec names no place for its checkpoints; empty for none."""
    ca_config_map: str = ""
    """ConfigMap of each job's namespace with the CAs of its object store, if the spec names none; empty for none."""
    report_seconds: float = 5.0
    """Shortest time in seconds between two status writes that differ in progress only."""


@dataclass(frozen=True, slots=True)
class LeaseLock:
    """A Lease by which several operators elect a leader."""

    namespace: str
    name: str
    holder: str
    """The name under which this operator holds the lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The operator's settings, from its command line."""

    defaults: Defaults
    kubeconfig: Path | None = None
    """File with the API server's address and credentials; None for those of the pod's service account."""
    namespaces: tuple[str, ...] = ()
    """Namespaces that are watched; empty for all."""
    operator_class: str = ""
    """Only jobs with this spec.operatorClass are served; empty for those without one."""
    metrics_port: int = 0
    """Port of the metrics endpoint; 0 for none."""
    health_port: int = 0
    """Port of the health endpoint; 0 for none."""
    health_host: str = ""
    """Address on which the health endpoint listens; empty for every IPv4 address."""
    lease: LeaseLock | None = None
    """The Lease by which several operators elect a leader; None for a single operator."""
    log_level: LogLevel = LogLevel.info
    log_format: LogFormat = LogFormat.text
