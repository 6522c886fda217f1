"""The Job whose pod drives the training."""

from typing import Any

from batchgrowth import names
from batchgrowth.errors import ClusterError, Interrupted

from batchgrowth_operator.children.config import owned
from batchgrowth_operator.children.drift import digest
from batchgrowth_operator.children.pods import (
    FILES,
    METRICS_PORT,
    MOUNTS,
    container,
    dask_environment,
    environment,
    files_volume,
    image_inputs,
    image_origin,
    liveness_probe,
    own_parts,
    pod_spec,
    scheduler_address,
    shared_inputs,
    shared_parts,
    with_own_parts,
    with_shared_parts,
)
from batchgrowth_operator.seen.observed import TRAINER, Manifest
from batchgrowth_operator.seen.outcome import REASONS, restarts_before
from batchgrowth_operator.seen.situation import Situation
from batchgrowth_operator.seen.storage import CA_FOLDER, CA_VARIABLE, STORE_VARIABLE, VOLUME

CHECKPOINTS = "/checkpoints"
DEFAULT_CA_FOLDER = f"{FILES}/default-ca"
GRACE_SECONDS = 120
"""Time for the trainer to write a checkpoint after SIGTERM."""


def trainer_job(s: Situation, *, suspend: bool) -> Manifest:
    """Return the trainer's Job. It restarts a lost trainer, but no trainer whose error would recur.

    A Job's pod template is immutable, so an existing Job keeps its own; changed inputs recreate the Job.
    """
    existing = s.seen.trainer
    before = s.previous.restarts if existing is None else restarts_before(existing)
    kept = s.spec.checkpoint
    own = own_parts(s.spec)
    inputs = image_inputs(s) | {"claim": s.storage.claim or None} | shared_inputs(s)
    if kept.uri and s.storage.is_kept:  # absent without a store, so that an upgrade of the operator restarts no trainer
        inputs["store"] = [kept.uri, kept.secret_name, *filter(None, [kept.ca_config_map])]
    if own:
        inputs["own"] = own

    # The pod: its container, volumes and metadata, below what the spec adds to all pods.
    variables = environment(
        BATCHGROWTH_NAMESPACE=s.seen.namespace,
        BATCHGROWTH_PROGRESS_CONFIGMAP=names.progress(s.seen.name),
        BATCHGROWTH_SCHEDULER=scheduler_address(s),
    )
    files: list[dict[str, Any]] = []
    if kept.uri:
        variables += environment(**{STORE_VARIABLE: kept.uri})
        ca = kept.ca_config_map or s.defaults.ca_config_map
        if ca:
            # An administrator's is no input, because a change of it must restart no trainer.
            path = f"{CA_FOLDER}/{ca}.crt" if kept.ca_config_map else f"{DEFAULT_CA_FOLDER}/{ca}.crt"
            variables += environment(**{CA_VARIABLE: path})
            items = [{"key": "ca.crt", "path": path.removeprefix(f"{FILES}/")}]
            files.append({"configMap": {"name": ca, "items": items}})
    trainer = container(
        s,
        TRAINER,
        ["python", "-m", "batchgrowth_trainer"],
        env=[*variables, *dask_environment()],
        ports=[{"name": "metrics", "containerPort": METRICS_PORT}],
        livenessProbe=liveness_probe("/livez", "metrics"),
        resources={"requests": {"cpu": "100m", "memory": "512Mi"}},
        volumeMounts=[*MOUNTS, {"name": VOLUME, "mountPath": CHECKPOINTS}],
    )
    if kept.secret_name:
        trainer["envFrom"] = [{"secretRef": {"name": kept.secret_name}}]
    checkpoints: dict[str, Any] = {"name": VOLUME, "emptyDir": {}}
    if s.storage.claim:
        checkpoints = {"name": VOLUME, "persistentVolumeClaim": {"claimName": s.storage.claim}}
    pod = pod_spec(
        s,
        [trainer],
        [files_volume(s, with_plan=True, more=files), checkpoints],
        restartPolicy="Never",
        serviceAccountName=names.trainer(s.seen.name),
        automountServiceAccountToken=True,
        terminationGracePeriodSeconds=GRACE_SECONDS,
    )
    annotations = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(METRICS_PORT),
        names.EPOCHS: str(s.spec.epochs),  # `epochs_of` reads it
    }
    if own or shared_parts(s):  # the API server fills in defaults there, so the pods no longer show what was given
        annotations[names.INPUTS] = digest(inputs)
    template = {"metadata": {"labels": names.labels(s.seen.name, TRAINER), "annotations": annotations}, "spec": pod}
    template = with_shared_parts(s, template)
    template |= {"spec": with_own_parts(own, template["spec"])}

    manifest: Manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": names.trainer(s.seen.name),
            "annotations": image_origin(s) | ({names.RESTARTS_BEFORE: str(before)} if before else {}),
        },
        "spec": {
            "suspend": suspend,
            # Kubernetes enforces the limit of restarts; seen/outcome.py reads that it was reached.
            "backoffLimit": max(0, s.spec.restarts.limit - before),
            "completions": 1,
            "parallelism": 1,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [
                    # Errors that would recur fail the Job.
                    {"action": "FailJob", "onExitCodes": _exit_codes(*REASONS)},
                    # Those that are worth a retry do not count as failures: seen/outcome.py bounds them.
                    {"action": "Ignore", "onExitCodes": _exit_codes(ClusterError.exit_code, Interrupted.exit_code)},
                    # Nor do evicted pods.
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                ]
            },
            "template": template,
        },
    }
    manifest = owned(s, TRAINER, manifest, inputs)
    if existing is not None:
        manifest["spec"]["template"] = existing["spec"]["template"]
    return manifest


def _exit_codes(*codes: int) -> dict[str, Any]:
    return {"containerName": TRAINER, "operator": "In", "values": sorted(codes)}
