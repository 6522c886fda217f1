"""The parts that the pods of trainer, workers and scheduler share: image, TLS, security, probes, volumes, environment;
and the trainer's Job.

`with_own_parts` adds what the spec gives only the pods of trainer and workers, such as their resources. The template
of the workers' pods is `worker_template` in dask_cluster.py.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from batchgrowth import names
from batchgrowth.contract.environment import DASK, HASH_SEED
from batchgrowth.errors import ClusterError, Interrupted
from batchgrowth.manifest.pod_limits import IDENTITY, RESTRICTED_CONTAINER, RESTRICTED_POD
from batchgrowth.spec.all_pods import overlay_of, plain_pods
from batchgrowth.spec.pods import SOURCE_FOLDER, SOURCE_VOLUME, merged, plain

from batchgrowth_operator.children.config import METRICS_PORT, owned
from batchgrowth_operator.children.drift import digest
from batchgrowth_operator.seen.observed import TRAINER, Manifest
from batchgrowth_operator.seen.progress import MOST_TEXTS, stored
from batchgrowth_operator.seen.situation import CA_FOLDER, CA_VARIABLE, REASONS, STORE_VARIABLE, VOLUME, Situation
from batchgrowth_operator.seen.trainer_pods import restarts_before

READ_BY_GROUP = 0o440
FILES = "/etc/batchgrowth"
SCHEDULER_PORT = 8786
DASHBOARD_PORT = 8787
HEALTH_PORT = 8788

NAME_OF_USER = {"name": "USER", "value": "batchgrowth"}
"""A name for a user that the platform chooses: Python's `getpass` and torch's cache folders look for one."""
TMP = {"name": "tmp", "emptyDir": {}}
SHARED_MEMORY = {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}
"""Loaders hand over examples through it; runtimes by themselves give 64 MiB. It counts as the container's memory."""
SHARED_MEMORY_MOUNT = {"name": "shared-memory", "mountPath": "/dev/shm"}  # noqa: S108  (a path inside the container)
MOUNTS = [
    {"name": "batchgrowth", "mountPath": FILES, "readOnly": True},
    {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  (a path inside the container)
]


def image_origin(s: Situation) -> dict[str, str]:
    """Return the annotation with the job's default image for a child whose image is spec.image; empty without one."""
    return {} if s.spec.image is None else {names.DEFAULT_IMAGE: s.default_image}


def image_inputs(s: Situation) -> dict[str, Any]:
    """Return the image settings whose change recreates pods."""
    return {
        "image": s.image,
        "policy": s.spec.image_pull_policy,
        "secrets": [secret.name for secret in s.spec.image_pull_secrets],
    }


def container(s: Situation, name: str, command: list[str], **parts: Any) -> dict[str, Any]:
    """Return a container that meets the profile `restricted`."""
    return {
        "name": name,
        "image": s.image,
        "imagePullPolicy": s.spec.image_pull_policy,
        "command": command,
        "securityContext": RESTRICTED_CONTAINER,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **parts,
    }


def pod_spec(
    s: Situation, containers: list[dict[str, Any]], volumes: list[dict[str, Any]], **parts: Any
) -> dict[str, Any]:
    """Return a pod that meets the profile `restricted`."""
    pod = {
        "containers": containers,
        "volumes": [*volumes, TMP],
        "securityContext": RESTRICTED_POD,
        # Else every Service of the namespace would be in the pod's environment, those of other jobs too.
        "enableServiceLinks": False,
        **parts,
    }
    if not s.defaults.fixed_user:
        pod["securityContext"] = {name: part for name, part in RESTRICTED_POD.items() if name not in IDENTITY}
        pod["containers"] = [container | {"env": [*container.get("env", ()), NAME_OF_USER]} for container in containers]
    if s.spec.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": secret.name} for secret in s.spec.image_pull_secrets]
    return pod


class UserParts(NamedTuple):
    """What the spec adds to pods, as a manifest spells it."""

    pods: dict[str, Any]
    """To the pods of scheduler, trainer and workers: spec.pods."""
    own: dict[str, Any]
    """To the pods of trainer and workers only, by field."""


@lru_cache(maxsize=MOST_TEXTS)  # only an edit of the spec changes them
def user_parts(text: str) -> UserParts:
    """Return what the spec of the job with this text adds to pods. The caller must not change it."""
    spec = stored(text).job.spec
    own: dict[str, Any] = {
        "volumes": plain(spec.volumes),
        "volumeMounts": plain(spec.volume_mounts),
        "env": plain(spec.env),
        "envFrom": plain(spec.env_from),
    }
    if spec.resources is not None:
        [own["resources"]] = plain([spec.resources])
    if spec.workload.source is not None:
        [own["source"]] = plain([spec.workload.source])
    return UserParts(plain_pods(spec.pods), {name: part for name, part in own.items() if part})


def shared_inputs(s: Situation) -> dict[str, Any]:
    """Return the job's own spec.pods, whose change recreates pods; another default of the chart recreates none."""
    given = user_parts(s.text).pods
    return {"pods": given} if given else {}


def shared_parts(s: Situation) -> dict[str, Any]:
    """Return what all pods of the job have in common: spec.pods over the chart's defaults."""
    parts: dict[str, Any] = merged(s.defaults.job_pods, user_parts(s.text).pods)
    return parts


def with_shared_parts(s: Situation, template: dict[str, Any]) -> dict[str, Any]:
    """Return the pod template after merging into it what all pods of the job have in common."""
    parts = shared_parts(s)
    if not parts:
        return template
    [container] = template["spec"]["containers"]
    result: dict[str, Any] = merged(template, overlay_of(parts, container["name"]))
    return result


def readiness_probe(port: str) -> dict[str, Any]:
    """Return the probe of scheduler and workers, made every second, because training waits for them."""
    return {"httpGet": {"path": "/health", "port": port}, "periodSeconds": 1}


def liveness_probe(path: str, port: str) -> dict[str, Any]:
    """Return a probe that restarts a container after five minutes without an answer, the time that Dask waits for
    workers.

    The first five minutes do not count: on a busy node a container may load torch for minutes before it listens. A
    startup probe would delay a worker's readiness, and make a starting trainer look unreachable.
    """
    return {
        "httpGet": {"path": path, "port": port},
        "initialDelaySeconds": 300,
        "periodSeconds": 20,
        "timeoutSeconds": 10,
        "failureThreshold": 15,
    }


def files_volume(s: Situation, *, with_plan: bool, more: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Return the volume at /etc/batchgrowth: the certificates below tls, `with_plan` the job and its plan, and more
    sources.
    """
    certificates = {
        "name": s.seen.names.tls,
        "items": [
            {"key": "ca.crt", "path": "tls/ca.crt"},
            {"key": "tls.crt", "path": "tls/tls.crt"},
            {"key": "tls.key", "path": "tls/tls.key"},
        ],
    }
    plan = {
        "name": s.seen.names.plan,
        "items": [
            {"key": names.JOB_KEY, "path": names.JOB_KEY},
            {"key": names.PLAN_KEY, "path": names.PLAN_KEY},
        ],
    }
    sources: list[dict[str, Any]] = [{"secret": certificates}]
    if with_plan:
        sources.append({"configMap": plan})
    sources += more
    return {"name": "batchgrowth", "projected": {"defaultMode": READ_BY_GROUP, "sources": sources}}


def environment(**values: str) -> list[dict[str, Any]]:
    """Return the environment variables as a container's `env` lists them."""
    return [{"name": name, "value": value} for name, value in values.items()]


_ROLES = ("SCHEDULER", "WORKER", "CLIENT")
DASK_ENVIRONMENT = environment(
    HOME="/tmp",  # noqa: S108
    PYTHONHASHSEED=HASH_SEED,
    DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME="tls",
    DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION="true",
    DASK_DISTRIBUTED__COMM__TLS__CA_FILE=f"{FILES}/tls/ca.crt",
    **{f"DASK_{key.upper().replace('.', '__').replace('-', '_')}": str(value) for key, value in DASK.items()},
    **{f"DASK_DISTRIBUTED__COMM__TLS__{role}__CERT": f"{FILES}/tls/tls.crt" for role in _ROLES},
    **{f"DASK_DISTRIBUTED__COMM__TLS__{role}__KEY": f"{FILES}/tls/tls.key" for role in _ROLES},
)
"""The environment variables of every pod: a writable HOME, the order of sets, TLS as the only protocol of Dask in every
role, and Dask's other settings.

HOME is a path inside the container. A proxy in the environment needs no setting: Dask connects without HTTP, and the
trainer's requests to the API server go around it (the trainer's sinks/report.py).
"""


def scheduler_address(s: Situation) -> str:
    """Return the address of the job's Dask scheduler."""
    return f"tls://{s.seen.names.scheduler}.{s.seen.namespace}.svc:{SCHEDULER_PORT}"


def with_own_parts(parts: Mapping[str, Any], pod: dict[str, Any]) -> dict[str, Any]:
    """Return the pod after merging the spec's parts into it and into its only container."""
    if not parts:
        return pod
    [container] = pod["containers"]
    resources = parts.get("resources", {})
    env_from = [*container.get("envFrom", []), *parts.get("envFrom", [])]
    volumes = list(parts.get("volumes", ()))
    mounts = list(parts.get("volumeMounts", ()))
    if "source" in parts:
        source = {"name" if key == "configMap" else key: part for key, part in parts["source"].items()}
        volumes.append({"name": SOURCE_VOLUME, "configMap": source})
        mounts.append({"name": SOURCE_VOLUME, "mountPath": SOURCE_FOLDER, "readOnly": True})
    over = {
        "name": container["name"],
        "env": parts.get("env"),
        "envFrom": env_from,
        "resources": resources,
        "volumeMounts": mounts,
    }
    over = {name: part for name, part in over.items() if part}
    base = pod | {"containers": [less_requested(container, resources)]}
    result: dict[str, Any] = merged(base, {"containers": [over], "volumes": volumes})
    return result


def less_requested(container: dict[str, Any], resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return the container without our requests for the resources that the user limits: a limit is a request too."""
    limited = resources.get("limits") or {}
    requests = {name: amount for name, amount in container["resources"]["requests"].items() if name not in limited}
    return container | {"resources": container["resources"] | {"requests": requests}}


# The Job whose pod drives the training.

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
    own = user_parts(s.text).own
    inputs = image_inputs(s) | {"claim": s.storage.claim or None} | shared_inputs(s)
    if kept.uri and s.storage.is_kept:  # absent without a store, so that an upgrade of the operator restarts no trainer
        inputs["store"] = [kept.uri, kept.secret_name, *filter(None, [kept.ca_config_map])]
    if own:
        inputs["own"] = own

    # The pod: its container, volumes and metadata, below what the spec adds to all pods.
    variables = environment(
        BATCHGROWTH_NAMESPACE=s.seen.namespace,
        BATCHGROWTH_PROGRESS_CONFIGMAP=s.seen.names.progress,
        BATCHGROWTH_SCHEDULER=scheduler_address(s),
    )
    files: list[dict[str, Any]] = []
    if kept.uri:
        variables += environment(**{STORE_VARIABLE: kept.uri})
        ca = kept.ca_config_map or s.defaults.ca_config_map
        if ca:
            # An administrator's ConfigMap is no input, because a change of it must restart no trainer.
            path = f"{CA_FOLDER}/{ca}.crt" if kept.ca_config_map else f"{DEFAULT_CA_FOLDER}/{ca}.crt"
            variables += environment(**{CA_VARIABLE: path})
            items = [{"key": "ca.crt", "path": path.removeprefix(f"{FILES}/")}]
            files.append({"configMap": {"name": ca, "items": items}})
    trainer = container(
        s,
        TRAINER,
        ["python", "-m", "batchgrowth_trainer"],
        env=[*variables, *DASK_ENVIRONMENT],
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
        serviceAccountName=s.seen.names.trainer,
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

    ends = {"containerName": TRAINER, "operator": "In"}
    retried = sorted((ClusterError.exit_code, Interrupted.exit_code))
    manifest: Manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": s.seen.names.trainer,
            "annotations": image_origin(s) | ({names.RESTARTS_BEFORE: str(before)} if before else {}),
        },
        "spec": {
            "suspend": suspend,
            # Kubernetes enforces the limit of restarts; seen/situation.py reads that it was reached.
            "backoffLimit": max(0, s.spec.restarts.limit - before),
            "completions": 1,
            "parallelism": 1,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [
                    # Errors that would recur fail the Job.
                    {"action": "FailJob", "onExitCodes": ends | {"values": sorted(REASONS)}},
                    # Those that are worth a retry do not count as failures: `job_outcome` bounds them.
                    {"action": "Ignore", "onExitCodes": ends | {"values": retried}},
                    # Nor do evicted pods.
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                ]
            },
            "template": template,
        },
    }
    manifest = owned(s, TRAINER, manifest, inputs)
    if existing is not None:
        # After `owned`, so that the digest is of the template that a new Job would have.
        manifest["spec"]["template"] = existing["spec"]["template"]
    return manifest
