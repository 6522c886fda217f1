"""The Job whose pod drives the training."""

from typing import Any

from batchgrowth import names
from batchgrowth.errors import ClusterError, Interrupted

from batchgrowth_operator.children.config import child, with_inputs
from batchgrowth_operator.children.drift import digest
from batchgrowth_operator.children.pods import (
    METRICS_PORT,
    MOUNTS,
    container,
    dask_environment,
    environment,
    files_volume,
    image_inputs,
    liveness_probe,
    own_parts,
    pod_spec,
    scheduler_address,
    with_own_parts,
)
from batchgrowth_operator.children.writes import Manifest
from batchgrowth_operator.seen.observed import TRAINER
from batchgrowth_operator.seen.outcome import REASONS, restarts_before
from batchgrowth_operator.seen.situation import Situation
from batchgrowth_operator.seen.storage import STORE_VARIABLE, VOLUME

CHECKPOINTS = "/checkpoints"
GRACE_SECONDS = 120
"""Time for the trainer to write a checkpoint after SIGTERM."""


def trainer_job(s: Situation, *, suspend: bool) -> Manifest:
    """The trainer's Job, which restarts a lost trainer but not one whose error would only recur.

    A Job's pod template is immutable, so an existing Job keeps its own; changed inputs recreate the Job.
    """
    name = names.trainer(s.seen.name)
    existing = s.seen.child("Job", name)
    before = s.previous.restarts if existing is None else restarts_before(existing)
    spec = {
        "suspend": suspend,
        "backoffLimit": max(0, s.spec.restarts.limit - before),
        "completions": 1,
        "parallelism": 1,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": _failure_rules()},
        "template": _template(s),
    }
    annotations = {names.RESTARTS_BEFORE: str(before)} if before else None
    manifest = with_inputs(child(s, "batch/v1", "Job", name, TRAINER, annotations, spec=spec), _inputs(s))
    if existing is not None:
        manifest["spec"]["template"] = existing["spec"]["template"]
    return manifest


def _inputs(s: Situation) -> dict[str, Any]:
    kept = s.spec.checkpoint
    inputs = image_inputs(s) | {"claim": s.storage.claim or None}
    # Absent without a store, so that an upgrade of the operator restarts no trainer.
    inputs |= {"store": [kept.uri, kept.secret_name]} if kept.uri and s.storage.is_kept else {}
    own = own_parts(s.spec)
    return inputs | ({"own": own} if own else {})


def _failure_rules() -> list[dict[str, Any]]:
    """Errors that would recur fail the Job; evicted pods do not count as failures, nor do those that are worth a retry.

    The latter are bounded by `restarts.fruitless`.
    """

    def exits(*codes: int) -> dict[str, Any]:
        return {"onExitCodes": {"containerName": TRAINER, "operator": "In", "values": sorted(codes)}}

    return [
        {"action": "FailJob", **exits(*REASONS)},
        {"action": "Ignore", **exits(ClusterError.exit_code, Interrupted.exit_code)},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]


def _template(s: Situation) -> dict[str, Any]:
    annotations = {"prometheus.io/scrape": "true", "prometheus.io/port": str(METRICS_PORT)}
    if own_parts(s.spec):  # which the API server fills in, so that the pods no longer show what was given
        annotations[names.INPUTS] = digest(_inputs(s))
    claim = s.storage.claim
    kept = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
    spec = pod_spec(
        s,
        [_container(s)],
        [files_volume(s, with_plan=True), {"name": VOLUME, **kept}],
        restartPolicy="Never",
        serviceAccountName=names.trainer(s.seen.name),
        automountServiceAccountToken=True,
        terminationGracePeriodSeconds=GRACE_SECONDS,
    )
    metadata = {"labels": names.labels(s.seen.name, TRAINER), "annotations": annotations}
    return {"metadata": metadata, "spec": with_own_parts(s.spec, spec)}


def _container(s: Situation) -> dict[str, Any]:
    own = environment(
        BATCHGROWTH_NAMESPACE=s.seen.namespace,
        BATCHGROWTH_PROGRESS_CONFIGMAP=names.progress(s.seen.name),
        BATCHGROWTH_SCHEDULER=scheduler_address(s),
    )
    kept = s.spec.checkpoint
    store = environment(**{STORE_VARIABLE: kept.uri}) if kept.uri else []
    secret = {"envFrom": [{"secretRef": {"name": kept.secret_name}}]} if kept.secret_name else {}
    return container(
        s,
        TRAINER,
        ["python", "-m", "batchgrowth_trainer"],
        env=[*own, *store, *dask_environment()],
        **secret,
        ports=[{"name": "metrics", "containerPort": METRICS_PORT}],
        livenessProbe=liveness_probe("/livez", "metrics"),
        resources={"requests": {"cpu": "100m", "memory": "512Mi"}},
        volumeMounts=[*MOUNTS, {"name": VOLUME, "mountPath": CHECKPOINTS}],
    )
