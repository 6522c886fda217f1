"""The Dask cluster of a job: the DaskCluster with the scheduler, and the Deployment of all worker pods.

The DaskCluster has no workers; users' tools find it by the job's name. The Dask operator makes its parts, a Deployment
and a Service, and this file says when to ask for them again. job/worker_count.py computes how many replicas the workers
have, and api/apply.py patches them; an annotation makes Kubernetes retry refused pods at once.
"""

from datetime import UTC, datetime
from typing import Any, NamedTuple

from batchgrowth import names
from batchgrowth.contract.environment import worker_environment
from batchgrowth.spec.pods import CONTAINER, merged

from batchgrowth_operator.children.config import owned
from batchgrowth_operator.children.drift import digest
from batchgrowth_operator.children.pods import (
    DASHBOARD_PORT,
    DASK_ENVIRONMENT,
    HEALTH_PORT,
    MOUNTS,
    SCHEDULER_PORT,
    SHARED_MEMORY,
    SHARED_MEMORY_MOUNT,
    container,
    environment,
    files_volume,
    image_inputs,
    image_origin,
    less_requested,
    liveness_probe,
    pod_spec,
    readiness_probe,
    scheduler_address,
    shared_inputs,
    shared_parts,
    user_parts,
    with_own_parts,
    with_shared_parts,
)
from batchgrowth_operator.seen.observed import (
    WORKER,
    Clock,
    Manifest,
    Object,
    Observed,
    Ref,
    annotations_of,
    condition_of,
    finalizers_of,
    is_terminating,
    is_timestamp,
    seconds_since,
    seconds_until,
    timestamp,
    timestamp_ms,
)
from batchgrowth_operator.seen.problems import REPLICA_FAILURE
from batchgrowth_operator.seen.situation import Situation

# --- The workers' Deployment ---

GRACE_SECONDS = 60
"""Time for a worker to finish its update after SIGTERM; more than the sum of the times in worker/termination.py."""
NUDGE_SECONDS = 30
"""Time between two nudges, which come at multiples of it."""


def worker_template(s: Situation) -> dict[str, Any]:
    """Return the workers' pod template: ours, overlaid by spec.pods, then by the spec's parts for trainer and workers,
    and last by the user's template.
    """
    command = ["dask", "worker", scheduler_address(s), "--protocol", "tls", "--no-nanny", "--nthreads", "1"]
    command += ["--name", "$(POD_NAME)", "--memory-limit", "0", "--local-directory", "/tmp"]  # noqa: S108
    # The preload imports torch before the worker registers.
    command += ["--preload", "batchgrowth_trainer.worker_pod"]
    command += ["--no-dashboard", "--dashboard-address", f":{HEALTH_PORT}", "--death-timeout", "120"]
    pod_name = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    has_loaders = bool(s.spec.workers.loaders)
    worker = container(
        s,
        CONTAINER,
        command,
        env=[pod_name, *environment(**worker_environment(s.spec.workers.threads)), *DASK_ENVIRONMENT],
        ports=[{"name": "health", "containerPort": HEALTH_PORT}],
        livenessProbe=liveness_probe("/health", "health"),  # Dask's event loop answers, not the thread that trains
        readinessProbe=readiness_probe("health"),
        resources={"requests": {"cpu": "100m"}},  # without a request, a busy node serves every other pod first
        volumeMounts=[*MOUNTS, SHARED_MEMORY_MOUNT] if has_loaders else [*MOUNTS],
    )
    given = s.spec.workers.template
    for one in (given.get("spec") or {}).get("containers") or ():
        if one["name"] == CONTAINER:
            worker = less_requested(worker, one.get("resources") or {})
    files = files_volume(s, with_plan=False)
    pod = pod_spec(
        s,
        [worker],
        [files, SHARED_MEMORY] if has_loaders else [files],
        automountServiceAccountToken=False,
        terminationGracePeriodSeconds=GRACE_SECONDS,
    )
    if s.spec.service_account_name:
        pod["serviceAccountName"] = s.spec.service_account_name
    ours = with_shared_parts(s, {"metadata": {"labels": names.labels(s.seen.name, WORKER)}, "spec": pod})
    ours |= {"spec": with_own_parts(user_parts(s.text).own, ours["spec"])}
    template: dict[str, Any] = merged(ours, given)
    return template


def worker_deployment(s: Situation, template: dict[str, Any], replicas: int) -> Manifest:
    """Return the Deployment of that many workers, which join the job's scheduler."""
    nudge = last_nudge(s.seen.workers, s.clock)
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": s.seen.names.workers,
            "annotations": image_origin(s) | ({names.RETRIED: nudge} if nudge else {}),
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {names.JOB_LABEL: s.seen.name, names.ROLE_LABEL: WORKER}},
            "revisionHistoryLimit": 1,
            "template": template,
        },
    }
    return owned(s, WORKER, manifest)


def last_nudge(deployment: Object | None, clock: Clock) -> str | None:
    """Return the time of the latest nudge, past or due; None if no pods are refused or the first nudge is not due yet.

    Kubernetes' back-off grows to a quarter of an hour, so it notices late that a quota was raised. A changed
    annotation of the Deployment makes it retry at once.
    """
    failure = condition_of(deployment, REPLICA_FAILURE, "True")
    if failure is None:
        return None
    clock.wake_in(NUDGE_SECONDS - clock.now.timestamp() % NUDGE_SECONDS)
    since = datetime.fromisoformat(str(failure.get("lastTransitionTime") or timestamp(clock.now)))
    # Multiples of the clock's time, so that every pass, and every operator, computes the same nudge.
    window = int(clock.now.timestamp() // NUDGE_SECONDS)
    if window <= int(since.timestamp() // NUDGE_SECONDS):
        return None
    return timestamp(datetime.fromtimestamp(window * NUDGE_SECONDS, UTC))


# --- The DaskCluster, and its parts ---

DASK = "kubernetes.dask.org/v1"
RELOADS = ("--preload", "batchgrowth_trainer.worker.certificates")
"""Reloads renewed certificates; Dask itself reads them once."""
COMM = "tcp-comm"
HTTP = "http-dashboard"
"""Names of the ports: the DaskCluster's schema wants the port of a probe or service to be a string."""
SETTLED_AFTER_SECONDS = 20.0
"""Time for the Dask operator to create the parts of a new DaskCluster and for the watch to report them, and time for
which a part must be missing after that."""
RELEASED_AFTER_SECONDS = 15.0
"""Time for the Dask operator to release a DaskCluster that is being deleted, which it does at once if it works."""
DASK_FINALIZER = "kopf.zalando.org/KopfFinalizerMarker"
"""The finalizer that the Dask operator puts on each DaskCluster, because it runs a timer for each."""
CREATE_PARTS = "Created"
"""The one phase in which the Dask operator creates the missing parts of a DaskCluster."""


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
        env=[*DASK_ENVIRONMENT],
        ports=[{"name": COMM, "containerPort": SCHEDULER_PORT}, {"name": HTTP, "containerPort": DASHBOARD_PORT}],
        # Not the TLS port: the scheduler would log a failed handshake every second.
        livenessProbe=liveness_probe("/health", HTTP),
        readinessProbe=readiness_probe(HTTP),
        resources=dict(s.defaults.scheduler_resources),
        volumeMounts=MOUNTS,
    )
    pod = pod_spec(s, [scheduler], [files_volume(s, with_plan=False)], automountServiceAccountToken=False)
    inputs = image_inputs(s) | shared_inputs(s)
    template: dict[str, Any] = {"spec": pod}
    if shared_parts(s):  # the pod does not show who gave which part, so it names the digest
        metadata = {"annotations": {names.INPUTS: digest(inputs)}}
        template = with_shared_parts(s, {"metadata": metadata, "spec": pod})
    service = {
        "type": "ClusterIP",
        "selector": {"dask.org/cluster-name": s.seen.names.cluster, "dask.org/component": "scheduler"},
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
            "name": s.seen.names.cluster,
            "annotations": {names.PARTS_MISSING: missing.since} if missing else {},
        },
        "spec": {
            "scheduler": {**template, "service": service},
            # The schema of a DaskCluster requires workers; the job's own are a Deployment, see above.
            "worker": {"replicas": 0, "spec": {"containers": [container(s, "worker", ["dask", "worker"])]}},
        },
    }
    manifest = owned(s, "scheduler", manifest, inputs)
    # After `owned`, because this request must not change the digest by which drift is found.
    if missing is not None and missing.are_requested:
        manifest["status"] = {"phase": CREATE_PARTS}
    return manifest


def seconds_to_release(cluster: Object, now: datetime) -> float | None:
    """Return the seconds until this operator releases a DaskCluster whose job is gone; None if nothing holds it.

    If the Dask operator is gone, or waits for a part that it cannot make because the namespace is being deleted, it
    does not release the DaskCluster. The namespace would then stay for good. The finalizer protects nothing: the parts
    are deleted with their owner.
    """
    if not is_terminating(cluster) or DASK_FINALIZER not in finalizers_of(cluster):
        return None
    return max(0.0, RELEASED_AFTER_SECONDS - seconds_since(cluster["metadata"]["deletionTimestamp"], now))


class MissingParts(NamedTuple):
    """The time since which the DaskCluster lacks a part, and whether to ask the Dask operator to create it again."""

    since: str
    are_requested: bool


def missing_parts(seen: Observed, clock: Clock) -> MissingParts | None:
    """Return since when the DaskCluster lacks a part, which only the Dask operator can recreate; None if all exist.

    A part counts as lost only after a while. In a namespace that is being deleted, the part goes just before the
    job; a Dask operator that is asked for it would retry endlessly and keep its finalizer, and the namespace would
    remain.
    """
    if seen.cluster is None:
        return None
    phase = (seen.cluster.get("status") or {}).get("phase")
    known = annotations_of(seen.cluster).get(names.PARTS_MISSING)
    if phase == CREATE_PARTS and known is not None:
        # Until the Dask operator changes the phase, it stays in our manifest: if we left it out, the API server would
        # remove it and leave a status of null, which the schema of a DaskCluster refuses.
        return MissingParts(known, are_requested=True)

    has_service = Ref("Service", seen.names.scheduler) in seen.parts
    if phase not in ("Pending", "Running") or (seen.scheduler is not None and has_service):
        return None

    # A time far in the future was written before the clock was set back, and says nothing about an age.
    created = seen.cluster["metadata"].get("creationTimestamp")
    is_dated = seconds_until(created, clock.now) <= SETTLED_AFTER_SECONDS
    if is_dated and not clock.passed(created, SETTLED_AFTER_SECONDS):
        return None
    if known and (not is_timestamp(known) or seconds_until(known, clock.now) > SETTLED_AFTER_SECONDS):
        known = None
    if clock.passed(known, SETTLED_AFTER_SECONDS):
        return MissingParts(timestamp_ms(clock.now), are_requested=True)
    return MissingParts(known or timestamp_ms(clock.now), are_requested=False)


def nudged_scheduler(seen: Observed, clock: Clock) -> list[Manifest]:
    """Return a manifest that makes Kubernetes retry the scheduler's refused pod; no manifest if no retry is due.

    It sets one annotation and nothing else, since the Dask operator owns the rest of that Deployment.
    """
    nudge = last_nudge(seen.scheduler, clock)
    if seen.scheduler is None or nudge is None or annotations_of(seen.scheduler).get(names.RETRIED) == nudge:
        return []
    manifest: Manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": seen.names.scheduler,
            "namespace": seen.namespace,
            "annotations": {names.RETRIED: nudge},
        },
    }
    return [manifest]
