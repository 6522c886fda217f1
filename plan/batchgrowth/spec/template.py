"""The rules of `workers.template`, a user's overlay on the worker pods: its form, and the parts the operator owns."""

from collections.abc import Iterator, Mapping
from typing import Any

from batchgrowth import names

CONTAINER = "worker"
"""Name of the worker pods' main container."""
MERGE_KEYS = {
    "containers": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Lists that merge by a key of their entries, as in a strategic merge patch; other lists are replaced."""
PROBES = frozenset({"livenessProbe", "readinessProbe", "startupProbe"})
PROBE_HANDLERS = frozenset({"exec", "grpc", "httpGet", "tcpSocket"})
"""What a probe may do; the API server refuses one that does two of these."""

OWN_LABELS = frozenset(names.labels("", ""))
OWN_VOLUMES = frozenset({"batchgrowth", "batchgrowth-source", "tmp"})
OWN_MOUNTS = frozenset({"/etc/batchgrowth", "/etc/batchgrowth-source", "/tmp"})  # noqa: S108  (a path inside the container)
OWN_POD_FIELDS = frozenset({"restartPolicy", "serviceAccount", "serviceAccountName"})
OWN_CONTAINER_FIELDS = frozenset({"args", "command", "image", "imagePullPolicy"})
OWN_VARIABLES = frozenset({"MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"})
OWN_PREFIXES = ("BATCHGROWTH_", "DASK_DISTRIBUTED__COMM__")
LOG_VARIABLES = frozenset({"BATCHGROWTH_LOG_FORMAT", "BATCHGROWTH_LOG_LEVEL"})
"""Variables that users may set in spite of their prefix."""

INSTEAD = {
    "image": "give spec.image",
    "imagePullPolicy": "give spec.imagePullPolicy",
    "serviceAccount": "give spec.serviceAccountName",
    "serviceAccountName": "give spec.serviceAccountName",
    "OMP_NUM_THREADS": "give spec.workers.threads",
}

Broken = tuple[str, Any, str]
"""Path below the template, the value given there, and a remedy."""


def template_faults(template: Mapping[str, Any]) -> list[Broken]:
    """The parts of the template that the operator owns or that have not the form of a pod template."""
    metadata, pod = template.get("metadata", {}), template.get("spec", {})
    parts = (("metadata", metadata), ("spec", pod))
    wrong = [(name, part) for name, part in parts if not isinstance(part, dict)]
    shapeless = wrong or [*_shapeless(metadata, "metadata"), *_shapeless(pod, "spec")]
    if shapeless:
        return [(path, value, "give it the form that it has in a pod template") for path, value in shapeless]
    return list(_owned(metadata, pod))


def _owned(metadata: Mapping[str, Any], pod: Mapping[str, Any]) -> Iterator[Broken]:
    yield from _own_fields(metadata.get("labels") or {}, OWN_LABELS, "metadata.labels")
    yield from _own_fields(pod, OWN_POD_FIELDS, "spec")
    yield from _own_entries(pod.get("volumes", ()), "name", OWN_VOLUMES, "spec.volumes")
    for container in pod.get("containers", ()):
        if container["name"] == CONTAINER:
            path = f"spec.containers.{CONTAINER}"
            yield from _own_fields(container, OWN_CONTAINER_FIELDS, path)
            yield from _own_entries(container.get("volumeMounts", ()), "mountPath", OWN_MOUNTS, f"{path}.volumeMounts")
            variables = {name for entry in container.get("env", ()) if (name := entry["name"]).startswith(OWN_PREFIXES)}
            own = (OWN_VARIABLES | variables) - LOG_VARIABLES
            yield from _own_entries(container.get("env", ()), "name", own, f"{path}.env")


def _own_fields(node: Mapping[str, Any], own: frozenset[str], path: str) -> Iterator[Broken]:
    yield from (_own(f"{path}.{name}", node[name], name) for name in sorted(own & node.keys()))


def _own_entries(entries: Any, key: str, own: frozenset[str], path: str) -> Iterator[Broken]:
    yield from (_own(f"{path}.{entry[key]}", entry, entry[key]) for entry in entries if entry[key] in own)


def _own(path: str, value: Any, name: str) -> Broken:
    return path, value, f"the operator sets it: {INSTEAD.get(name, 'leave it out')}"


def _shapeless(node: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Labels that are no map, and lists that merge by a key and have an entry without it."""
    for name, value in node.items():
        if name == "labels" and not isinstance(value, dict | None):
            yield f"{path}.{name}", value
        elif name in MERGE_KEYS:
            if not isinstance(value, list) or any(not _has_key(entry, MERGE_KEYS[name]) for entry in value):
                yield f"{path}.{name}", value
            elif name in ("containers", "initContainers"):
                for entry in value:
                    yield from _shapeless(entry, f"{path}.{name}.{entry['name']}")


def _has_key(entry: Any, key: str) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get(key), int if key == "containerPort" else str)
