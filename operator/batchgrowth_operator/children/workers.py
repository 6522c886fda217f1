"""The Deployment of all worker pods, and when Kubernetes has to retry the creation of refused ones."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from batchgrowth import names
from batchgrowth.contract.environment import worker_environment
from batchgrowth.spec.pods import CONTAINER, merged

from batchgrowth_operator.children.config import child
from batchgrowth_operator.children.pods import (
    HEALTH_PORT,
    MOUNTS,
    SHARED_MEMORY,
    SHARED_MEMORY_MOUNT,
    container,
    dask_environment,
    environment,
    files_volume,
    less_requested,
    liveness_probe,
    pod_spec,
    scheduler_address,
    with_own_parts,
)
from batchgrowth_operator.children.writes import Manifest
from batchgrowth_operator.seen.clock import parse_timestamp, timestamp
from batchgrowth_operator.seen.observed import Object, Observed, annotations_of
from batchgrowth_operator.seen.problems import deployment_of, replica_failure
from batchgrowth_operator.seen.situation import Situation

# --- When Kubernetes has to retry the creation of pods that the API server refused ---
# Its own back-off grows to a quarter of an hour, so it notices late that a quota was raised. A change of the Deployment
# makes it retry at once.

RETRY_SECONDS = 30
"""Time between two retries, which start at multiples of it."""


def retry_annotation(deployment: Object | None, now: datetime) -> str | None:
    """The time of the latest retry, past or due; None if no pods are refused or the first retry is not due yet."""
    since = _refused_since(deployment, now)
    if since is None or _window(now) <= _window(since):
        return None
    return timestamp(datetime.fromtimestamp(_window(now) * RETRY_SECONDS, UTC))


def scheduler_retry(seen: Observed) -> Iterator[Manifest]:
    """The scheduler's Deployment with a new annotation and nothing else, since the Dask operator owns the rest."""
    found = deployment_of(seen)
    due = retry_annotation(found, seen.now)
    if found is not None and due is not None and annotations_of(found).get(names.RETRIED) != due:
        metadata = {"name": names.scheduler(seen.name), "namespace": seen.namespace}
        yield {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata | {"annotations": {names.RETRIED: due}},
        }


def seconds_until_retry(seen: Observed) -> float | None:
    """Seconds until the next retry; None if no pods are refused."""
    deployments = deployment_of(seen), seen.child("Deployment", names.workers(seen.name))
    if all(_refused_since(deployment, seen.now) is None for deployment in deployments):
        return None
    return RETRY_SECONDS - seen.now.timestamp() % RETRY_SECONDS


def _window(time: datetime) -> int:
    return int(time.timestamp() // RETRY_SECONDS)


def _refused_since(deployment: Object | None, now: datetime) -> datetime | None:
    failure = replica_failure(deployment)
    return None if failure is None else parse_timestamp(str(failure.get("lastTransitionTime") or timestamp(now)))


# --- The Deployment of all worker pods ---

GRACE_SECONDS = 60
"""Time for a worker to finish its update after SIGTERM."""


def worker_deployment(s: Situation, replicas: int) -> Manifest:
    """The Deployment of `replicas` workers that join the job's scheduler, with the user's template merged in."""
    spec = {
        "replicas": replicas,
        "selector": {"matchLabels": {names.JOB_LABEL: s.seen.name, names.ROLE_LABEL: CONTAINER}},
        "revisionHistoryLimit": 1,
        "template": s.once(worker_template),
    }
    retry = retry_annotation(s.seen.child("Deployment", names.workers(s.seen.name)), s.seen.now)
    annotations = {names.RETRIED: retry} if retry else {}
    return child(s, "apps/v1", "Deployment", names.workers(s.seen.name), CONTAINER, annotations, spec=spec)


def worker_template(s: Situation) -> dict[str, Any]:
    """The pod template of the workers: ours, below what the spec adds to all pods, below the user's template."""
    labels = names.labels(s.seen.name, CONTAINER)
    given, pod = s.spec.workers.template, _pod(s)
    [worker] = pod["containers"]
    pod = with_own_parts(s.spec, pod | {"containers": [less_requested(worker, _resources(given))]})
    template: dict[str, Any] = merged({"metadata": {"labels": labels}, "spec": pod}, given)
    return template


def _resources(template: Mapping[str, Any]) -> Mapping[str, Any]:
    """The resources of the worker's container in a user's template."""
    containers = (template.get("spec") or {}).get("containers") or ()
    return next((one.get("resources") or {} for one in containers if one["name"] == CONTAINER), {})


def _pod(s: Situation) -> dict[str, Any]:
    command = ["dask", "worker", scheduler_address(s), "--protocol", "tls", "--no-nanny", "--nthreads", "1"]
    command += ["--name", "$(POD_NAME)", "--memory-limit", "0", "--local-directory", "/tmp"]  # noqa: S108
    # The preload imports torch before the worker registers.
    command += ["--preload", "batchgrowth_trainer.worker_pod"]
    command += ["--no-dashboard", "--dashboard-address", f":{HEALTH_PORT}", "--death-timeout", "120"]
    pod_name = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    worker = container(
        s,
        CONTAINER,
        command,
        env=[pod_name, *environment(**worker_environment(s.spec.workers.threads)), *dask_environment()],
        ports=[{"name": "health", "containerPort": HEALTH_PORT}],
        livenessProbe=liveness_probe("/health", "health"),  # Dask's event loop answers, not the thread that trains
        readinessProbe={"httpGet": {"path": "/health", "port": "health"}, "periodSeconds": 1},
        resources={"requests": {"cpu": "100m"}},  # without a request, a busy node serves every other pod first
        volumeMounts=[*MOUNTS, *([SHARED_MEMORY_MOUNT] if s.spec.workers.loaders else [])],
    )
    account = s.spec.service_account_name
    shared = [SHARED_MEMORY] if s.spec.workers.loaders else []
    return pod_spec(
        s,
        [worker],
        [files_volume(s, with_plan=False), *shared],
        automountServiceAccountToken=False,
        terminationGracePeriodSeconds=GRACE_SECONDS,
        **({"serviceAccountName": account} if account else {}),
    )
