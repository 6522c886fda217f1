"""The DaskCluster: the scheduler, under a name that users' tools find, and no workers of its own."""

from batchgrowth import names

from batchgrowth_operator.children.config import owned
from batchgrowth_operator.children.pods import (
    DASHBOARD_PORT,
    MOUNTS,
    SCHEDULER_PORT,
    container,
    dask_environment,
    files_volume,
    image_inputs,
    liveness_probe,
    pod_spec,
)
from batchgrowth_operator.children.writes import Manifest
from batchgrowth_operator.seen.problems import CREATE_PARTS, missing_parts
from batchgrowth_operator.seen.situation import Situation

DASK = "kubernetes.dask.org/v1"
RELOADS = ("--preload", "batchgrowth_trainer.worker.certificates")
"""Reloads renewed certificates; Dask itself reads them once."""
COMM = "tcp-comm"
HTTP = "http-dashboard"
"""Names of the ports: the DaskCluster's schema wants the port of a probe or service to be a string."""


def dask_cluster(s: Situation) -> Manifest:
    """Return the DaskCluster of the job.

    The Dask operator never updates a scheduler, so changed inputs recreate the DaskCluster. Nor does it restore a
    deleted part, unless the phase is set to CREATE_PARTS.
    """
    ports = ["--port", str(SCHEDULER_PORT), "--dashboard-address", f":{DASHBOARD_PORT}"]
    scheduler = container(
        s,
        "scheduler",
        ["dask", "scheduler", "--protocol", "tls", *ports, *RELOADS],
        env=dask_environment(),
        ports=[{"name": COMM, "containerPort": SCHEDULER_PORT}, {"name": HTTP, "containerPort": DASHBOARD_PORT}],
        # Not the TLS port: the scheduler would log a failed handshake every second.
        livenessProbe=liveness_probe("/health", HTTP),
        readinessProbe={"httpGet": {"path": "/health", "port": HTTP}, "periodSeconds": 1},
        resources={"requests": {"cpu": "100m", "memory": "256Mi"}},
        volumeMounts=MOUNTS,
    )
    pod = pod_spec(s, [scheduler], [files_volume(s, with_plan=False)], automountServiceAccountToken=False)
    service = {
        "type": "ClusterIP",
        "selector": {"dask.org/cluster-name": names.cluster(s.seen.name), "dask.org/component": "scheduler"},
        "ports": [
            {"name": COMM, "protocol": "TCP", "port": SCHEDULER_PORT, "targetPort": COMM},
            {"name": HTTP, "protocol": "TCP", "port": DASHBOARD_PORT, "targetPort": HTTP},
        ],
    }
    missing = missing_parts(s.seen, s.clock)
    manifest = {
        "apiVersion": DASK,
        "kind": "DaskCluster",
        "metadata": {
            "name": names.cluster(s.seen.name),
            "annotations": {names.PARTS_MISSING: missing.since} if missing else {},
        },
        "spec": {
            "scheduler": {"spec": pod, "service": service},
            "worker": {"replicas": 0, "spec": {"containers": [container(s, "worker", ["dask", "worker"])]}},
        },
    }
    manifest = owned(s, "scheduler", manifest, image_inputs(s))
    if missing is not None and missing.are_requested:
        manifest["status"] = {"phase": CREATE_PARTS}
    return manifest
