"""What the operator is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Place:
    """Where a Lease is, and who asks for it."""

    namespace: str
    name: str
    holder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`kubeconfig` None is the pod's own service account; no `namespaces` are all of the cluster."""

    image: str
    kubeconfig: Path | None = None
    namespaces: tuple[str, ...] = ()
    metrics_port: int = 0
    """0 serves no metrics."""
    health_port: int = 0
    """0 serves no health."""
    lease: Place | None = None
    """Several operators share the one Lease, and one of them works; None where there is but one."""
