"""Parts that the pods of trainer, workers and scheduler share: image, TLS, security, volumes and environment."""

from collections.abc import Mapping
from typing import Any

from batchgrowth import names
from batchgrowth.contract.environment import DASK
from batchgrowth.manifest.pod_limits import RESTRICTED_CONTAINER, RESTRICTED_POD
from batchgrowth.schema import Model
from batchgrowth.spec import JobSpec
from batchgrowth.spec.pods import SOURCE_FOLDER, SOURCE_VOLUME, merged, plain

from batchgrowth_operator.children.drift import digest
from batchgrowth_operator.seen.observed import Object, annotations_of, mounted_claims
from batchgrowth_operator.seen.situation import Situation
from batchgrowth_operator.seen.storage import store_of

# Parts shared by the pods of trainer, workers and scheduler: image, TLS, and the Pod Security profile `restricted`.

READ_BY_GROUP = 0o440
FILES = "/etc/batchgrowth"
SCHEDULER_PORT = 8786
DASHBOARD_PORT = 8787
HEALTH_PORT = 8788
METRICS_PORT = 9090

_CERTIFICATE, _KEY = f"{FILES}/tls/tls.crt", f"{FILES}/tls/tls.key"

TMP = {"name": "tmp", "emptyDir": {}}
SHARED_MEMORY = {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}
"""Through which loaders hand examples over; container runtimes give a container 64 MiB. It counts as its memory."""
SHARED_MEMORY_MOUNT = {"name": "shared-memory", "mountPath": "/dev/shm"}  # noqa: S108  (a path inside the container)
MOUNTS = [
    {"name": "batchgrowth", "mountPath": FILES, "readOnly": True},
    {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  (a path inside the container)
]


def image(s: Situation) -> str:
    """spec.image, or without it the image that training began with: an operator upgrade must not change it midway."""
    if s.spec.image is not None:
        return s.spec.image
    if not s.update:
        return s.defaults.image
    for kind, name in (("Job", names.trainer(s.seen.name)), ("Deployment", names.workers(s.seen.name))):
        found = s.seen.child(kind, name)
        if found is not None:
            return str(found["spec"]["template"]["spec"]["containers"][0]["image"])
    return s.defaults.image


def image_inputs(s: Situation) -> dict[str, Any]:
    """The image settings whose change recreates pods."""
    return {
        "image": image(s),
        "policy": s.spec.image_pull_policy,
        "secrets": [p.name for p in s.spec.image_pull_secrets],
    }


def inputs_digest(found: Object) -> str:
    """The digest of the inputs from which a DaskCluster or a trainer's Job was made, as its own pod has them.

    The pod template of a Job, which cannot be edited, names it if users added parts to the pod.
    """
    template = found["spec"].get("template") or {}
    told = annotations_of(template).get(names.INPUTS) if "metadata" in template else None
    return told or digest(_inputs_found(found))


def _inputs_found(found: Object) -> dict[str, Any]:
    spec = found["spec"]
    pod = (spec.get("template") or spec["scheduler"])["spec"]
    [first, *_] = pod.get("containers") or [{}]
    inputs = {
        "image": first.get("image"),
        "policy": first.get("imagePullPolicy"),
        "secrets": [secret["name"] for secret in pod.get("imagePullSecrets") or ()],
    }
    if "template" not in spec:
        return inputs
    store = store_of(first)
    return inputs | {"claim": next(iter(mounted_claims(found)), None)} | ({"store": store} if store else {})


def container(s: Situation, name: str, command: list[str], **parts: Any) -> dict[str, Any]:
    """A container that meets the profile `restricted`."""
    return {
        "name": name,
        "image": image(s),
        "imagePullPolicy": s.spec.image_pull_policy,
        "command": command,
        "securityContext": RESTRICTED_CONTAINER,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **parts,
    }


def liveness_probe(path: str, port: str) -> dict[str, Any]:
    """Restarts a container that answers no GET for five minutes, as long as Dask waits for a silent worker.

    The first five minutes do not count: on a busy node a container may load torch for minutes before it listens.
    Not a startup probe, which would delay a worker's readiness, and make a starting trainer look unreachable.
    """
    patience = {"initialDelaySeconds": 300, "periodSeconds": 20, "timeoutSeconds": 10, "failureThreshold": 15}
    return {"httpGet": {"path": path, "port": port}, **patience}


def pod_spec(
    s: Situation, containers: list[dict[str, Any]], volumes: list[dict[str, Any]], **parts: Any
) -> dict[str, Any]:
    """A pod that meets the profile `restricted`."""
    pull = [{"name": secret.name} for secret in s.spec.image_pull_secrets]
    return {
        "containers": containers,
        "volumes": [*volumes, TMP],
        "securityContext": RESTRICTED_POD,
        **({"imagePullSecrets": pull} if pull else {}),
        **parts,
    }


def files_volume(s: Situation, *, with_plan: bool) -> dict[str, Any]:
    """The volume at /etc/batchgrowth: the certificates below tls, and with `with_plan` the job and its plan."""
    keys = ("ca.crt", "tls.crt", "tls.key")
    secret = {"name": names.tls(s.seen.name), "items": [{"key": key, "path": f"tls/{key}"} for key in keys]}
    sources: list[dict[str, Any]] = [{"secret": secret}]
    if with_plan:
        items = [{"key": key, "path": key} for key in (names.JOB_KEY, names.PLAN_KEY)]
        sources.append({"configMap": {"name": names.plan(s.seen.name), "items": items}})
    return {"name": "batchgrowth", "projected": {"defaultMode": READ_BY_GROUP, "sources": sources}}


def environment(**values: str) -> list[dict[str, Any]]:
    """The environment variables in the form of a container's `env`."""
    return [{"name": name, "value": value} for name, value in values.items()]


def dask_environment() -> list[dict[str, Any]]:
    """Environment variables: a writable HOME, TLS as Dask's only protocol in every role, and its other settings."""
    roles = ("SCHEDULER", "WORKER", "CLIENT")
    return environment(
        HOME="/tmp",  # noqa: S108  (a path inside the container)
        DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME="tls",
        DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION="true",
        DASK_DISTRIBUTED__COMM__TLS__CA_FILE=f"{FILES}/tls/ca.crt",
        **{f"DASK_{key.upper().replace('.', '__').replace('-', '_')}": str(value) for key, value in DASK.items()},
        **{f"DASK_DISTRIBUTED__COMM__TLS__{role}__CERT": _CERTIFICATE for role in roles},
        **{f"DASK_DISTRIBUTED__COMM__TLS__{role}__KEY": _KEY for role in roles},
    )


def scheduler_address(s: Situation) -> str:
    """The address of the job's Dask scheduler."""
    return f"tls://{names.scheduler(s.seen.name)}.{s.seen.namespace}.svc:{SCHEDULER_PORT}"


# --- What the spec adds to the pods of trainer and workers: volumes, environment, resources and code ---


def own_parts(spec: JobSpec) -> dict[str, Any]:
    """The parts that the spec gives, by their field; empty if it gives none."""
    parts = {
        "volumes": plain(spec.volumes),
        "volumeMounts": plain(spec.volume_mounts),
        "env": plain(spec.env),
        "envFrom": plain(spec.env_from),
        "resources": _plain(spec.resources),
        "source": _plain(spec.workload.source),
    }
    return {name: part for name, part in parts.items() if part}


def with_own_parts(spec: JobSpec, pod: dict[str, Any]) -> dict[str, Any]:
    """The pod with these parts laid over it and over its one container."""
    parts = own_parts(spec)
    [container] = pod["containers"]
    over = {
        "name": container["name"],
        "env": parts.get("env", []),
        "envFrom": [*container.get("envFrom", []), *parts.get("envFrom", [])],
        "resources": parts.get("resources", {}),
        "volumeMounts": parts.get("volumeMounts", []),
    }
    volumes = parts.get("volumes", [])
    if "source" in parts:
        source = {"name" if key == "configMap" else key: part for key, part in parts["source"].items()}
        volumes = [*volumes, {"name": SOURCE_VOLUME, "configMap": source}]
        over["volumeMounts"] = [
            *over["volumeMounts"], {"name": SOURCE_VOLUME, "mountPath": SOURCE_FOLDER, "readOnly": True}
        ]  # fmt: skip
    base = pod | {"containers": [less_requested(container, parts.get("resources", {}))]}
    result: dict[str, Any] = merged(base, {"containers": [{k: v for k, v in over.items() if v}], "volumes": volumes})
    return result


def _plain(model: Model | None) -> dict[str, Any]:
    return plain([model])[0] if model else {}


def less_requested(container: dict[str, Any], resources: Mapping[str, Any]) -> dict[str, Any]:
    """The container without our request for what is limited: as in a pod, what is limited is requested as well."""
    limited = resources.get("limits") or {}
    requests = {name: amount for name, amount in container["resources"]["requests"].items() if name not in limited}
    return container | {"resources": container["resources"] | {"requests": requests}}
