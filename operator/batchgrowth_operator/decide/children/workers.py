"""The Deployment of all worker pods."""

from collections.abc import Mapping
from typing import Any

from batchgrowth import names
from batchgrowth.environment import worker_environment
from batchgrowth.spec.overlay import merged
from batchgrowth.spec.template import CONTAINER

from batchgrowth_operator.decide.children.base import child
from batchgrowth_operator.decide.children.own import less_requested, with_own_parts
from batchgrowth_operator.decide.children.pods import (
    HEALTH_PORT,
    MOUNTS,
    SHARED_MEMORY,
    SHARED_MEMORY_MOUNT,
    container,
    dask_environment,
    environment,
    files_volume,
    liveness_probe,
    pod_spec,
    scheduler_address,
)
from batchgrowth_operator.decide.decision import Manifest
from batchgrowth_operator.decide.retries import retry_annotation
from batchgrowth_operator.decide.situation import Situation

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
