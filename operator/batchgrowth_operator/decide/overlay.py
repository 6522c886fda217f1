"""A user's pod template laid over the one that the operator makes for workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from batchgrowth import names
from batchgrowth.errors import Fault, SpecError

CONTAINER = "worker"
MERGE_KEYS = {
    "containers": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Lists whose entries meet by a key, as in a strategic merge patch; every other list is replaced whole."""

OWN_LABELS = frozenset(names.labels("", ""))
OWN_VOLUMES = frozenset({"batchgrowth", "tmp"})
OWN_MOUNTS = frozenset({"/etc/batchgrowth", "/tmp"})  # noqa: S108  (a path inside the container)
OWN_POD_FIELDS = frozenset({"restartPolicy", "serviceAccountName"})
OWN_CONTAINER_FIELDS = frozenset({"args", "command", "image", "imagePullPolicy"})
OWN_VARIABLES = frozenset({"MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"})
OWN_PREFIXES = ("BATCHGROWTH_", "DASK_DISTRIBUTED__COMM__")

INSTEAD = {
    "image": "give spec.image",
    "imagePullPolicy": "give spec.imagePullPolicy",
    "serviceAccountName": "give spec.serviceAccountName",
    "OMP_NUM_THREADS": "give spec.workers.threads",
}


def check_overlay(overlay: Mapping[str, Any]) -> None:
    """Raises SpecError with every part of the overlay that belongs to the operator or is no part of a pod template."""
    faults = list(_faults(overlay))
    if faults:
        raise SpecError(faults)


def merged(base: Any, overlay: Any, key: str = "") -> Any:
    """`overlay` laid over `base`: maps meet by their keys, lists as MERGE_KEYS says, anything else is replaced."""
    if isinstance(base, dict) and isinstance(overlay, dict):
        both = {name: merged(base[name], value, name) for name, value in overlay.items() if name in base}
        return base | overlay | both
    if isinstance(base, list) and isinstance(overlay, list) and key in MERGE_KEYS:
        field = MERGE_KEYS[key]
        over = {entry[field]: entry for entry in overlay}
        kept = [merged(entry, over.pop(entry[field])) if entry[field] in over else entry for entry in base]
        return kept + list(over.values())
    return overlay


def _faults(overlay: Mapping[str, Any]) -> Iterator[Fault]:
    path = "spec.workers.template"
    metadata, pod = overlay.get("metadata", {}), overlay.get("spec", {})
    wrong = [name for name, part in (("metadata", metadata), ("spec", pod)) if not isinstance(part, dict)]
    shapeless = wrong or list(_shapeless(pod, "spec"))
    if shapeless:
        yield from (Fault(f"{path}.{at}", "not of the form of a pod template", "see the PodSpec") for at in shapeless)
        return
    labels = metadata.get("labels") or {}
    yield from (_own(f"{path}.metadata.labels.{name}", name) for name in sorted(OWN_LABELS & set(labels)))
    yield from (_own(f"{path}.spec.{name}", name) for name in sorted(OWN_POD_FIELDS & pod.keys()))
    yield from _own_entries(pod.get("volumes", ()), "name", OWN_VOLUMES, f"{path}.spec.volumes")
    for container in pod.get("containers", ()):
        if container["name"] == CONTAINER:
            yield from _container_faults(container, f"{path}.spec.containers.{CONTAINER}")


def _container_faults(container: Mapping[str, Any], path: str) -> Iterator[Fault]:
    yield from (_own(f"{path}.{name}", name) for name in sorted(OWN_CONTAINER_FIELDS & container.keys()))
    yield from _own_entries(container.get("volumeMounts", ()), "mountPath", OWN_MOUNTS, f"{path}.volumeMounts")
    for variable in container.get("env", ()):
        name = variable["name"]
        if name in OWN_VARIABLES or name.startswith(OWN_PREFIXES):
            yield _own(f"{path}.env.{name}", name)


def _own_entries(entries: Any, key: str, own: frozenset[str], path: str) -> Iterator[Fault]:
    yield from (_own(f"{path}.{entry[key]}", entry[key]) for entry in entries if entry[key] in own)


def _own(path: str, name: str) -> Fault:
    return Fault(path, "the operator sets it", INSTEAD.get(name, "leave it out"))


def _shapeless(node: Mapping[str, Any], path: str) -> Iterator[str]:
    """The paths of lists that meet by a key and whose entries have none."""
    for name, value in node.items():
        if name in MERGE_KEYS:
            if not isinstance(value, list) or any(not _has_key(entry, MERGE_KEYS[name]) for entry in value):
                yield f"{path}.{name}"
            elif name in ("containers", "initContainers"):
                for entry in value:
                    yield from _shapeless(entry, f"{path}.{name}.{entry['name']}")


def _has_key(entry: Any, key: str) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get(key), str | int)
