"""The Deployment of all worker pods, and the annotation that makes Kubernetes retry refused pods at once.

How many replicas it has is computed in job/workforce.py, and api/apply.py patches it.
"""

from datetime import UTC, datetime
from typing import Any

from batchgrowth import names
from batchgrowth.contract.environment import worker_environment
from batchgrowth.spec.pods import CONTAINER, merged

from batchgrowth_operator.children.config import owned
from batchgrowth_operator.children.pods import (
    HEALTH_PORT,
    MOUNTS,
    SHARED_MEMORY,
    SHARED_MEMORY_MOUNT,
    container,
    dask_environment,
    environment,
    files_volume,
    image_origin,
    less_requested,
    liveness_probe,
    own_parts,
    pod_spec,
    readiness_probe,
    scheduler_address,
    with_own_parts,
    with_shared_parts,
)
from batchgrowth_operator.seen.clock import Clock, timestamp
from batchgrowth_operator.seen.observed import WORKER, Manifest, Object
from batchgrowth_operator.seen.problems import replica_failure
from batchgrowth_operator.seen.situation import Situation

GRACE_SECONDS = 60
"""Time for a worker to finish its update after SIGTERM; more than the three times in worker/termination.py."""
NUDGE_SECONDS = 30
"""Time between two nudges, which come at multiples of it."""


def worker_template(s: Situation) -> dict[str, Any]:
    """Return the workers' pod template: ours, below spec.pods, the spec's parts for trainer and workers, and the user's
    template.
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
        env=[pod_name, *environment(**worker_environment(s.spec.workers.threads)), *dask_environment()],
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
    ours |= {"spec": with_own_parts(own_parts(s.spec), ours["spec"])}
    template: dict[str, Any] = merged(ours, given)
    return template


def worker_deployment(s: Situation, template: dict[str, Any], replicas: int) -> Manifest:
    """Return the Deployment of that many workers, which join the job's scheduler."""
    nudge = last_nudge(s.seen.workers, s.clock)
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": names.workers(s.seen.name),
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
    failure = replica_failure(deployment)
    if failure is None:
        return None
    clock.wake_in(NUDGE_SECONDS - clock.now.timestamp() % NUDGE_SECONDS)
    since = datetime.fromisoformat(str(failure.get("lastTransitionTime") or timestamp(clock.now)))
    window = int(clock.now.timestamp() // NUDGE_SECONDS)
    if window <= int(since.timestamp() // NUDGE_SECONDS):
        return None
    return timestamp(datetime.fromtimestamp(window * NUDGE_SECONDS, UTC))
