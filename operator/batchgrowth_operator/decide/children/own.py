"""What the spec adds to the pods of trainer and workers: volumes, environment, resources and code."""

from collections.abc import Mapping
from typing import Any

from batchgrowth.schema.model import Model
from batchgrowth.spec import JobSpec
from batchgrowth.spec.overlay import merged
from batchgrowth.spec.pods import SOURCE_FOLDER, SOURCE_VOLUME, plain


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
