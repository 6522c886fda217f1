"""What a user adds to the pods of a job, and the rules of `workers.template`."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema

from batchgrowth import names
from batchgrowth.schema import MOUNT_PATH, QUANTITY, VARIABLE, VOLUME_NAME, Model, ObjectName, Rule, rules_in_schema

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
"""What a probe may do; the API server refuses a probe that does two of these."""

OWN_LABELS = frozenset(names.labels("", ""))
SOURCE_VOLUME = "batchgrowth-source"
SOURCE_FOLDER = "/etc/batchgrowth-source"
"""The folder of trainer and workers with the files of `workload.source`; it precedes sys.path."""
OWN_VOLUMES = frozenset({"batchgrowth", SOURCE_VOLUME, "tmp"})
OWN_FOLDERS = frozenset({"/etc/batchgrowth", SOURCE_FOLDER, "/tmp"})  # noqa: S108  (a path inside the container)
FILES_PREFIX = "/etc/batchgrowth/"
"""The beginning of each path below the folder with the job, its plan and its certificates."""
OWN_POD_FIELDS = frozenset({"restartPolicy", "serviceAccount", "serviceAccountName"})
OWN_CONTAINER_FIELDS = frozenset({"args", "command", "image", "imagePullPolicy"})
OWN_VARIABLES = frozenset({"MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POD_NAME"})
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
    """Return the parts of the template that the operator owns, or that are malformed."""
    metadata = template.get("metadata", {})
    pod = template.get("spec", {})
    shapeless = [(name, part) for name, part in (("metadata", metadata), ("spec", pod)) if not isinstance(part, dict)]
    if not shapeless:
        shapeless = [*_shapeless(metadata, "metadata"), *_shapeless(pod, "spec")]
    if shapeless:
        return [(path, value, "give it the form that it has in a pod template") for path, value in shapeless]
    return list(_owned(metadata, pod))


def _owned(metadata: Mapping[str, Any], pod: Mapping[str, Any]) -> Iterator[Broken]:
    """Yield the parts of a well-formed template that the operator owns."""
    yield from _own_fields(metadata.get("labels") or {}, OWN_LABELS, "metadata.labels")
    yield from _own_fields(pod, OWN_POD_FIELDS, "spec")
    yield from _own_entries(pod.get("volumes", ()), "name", OWN_VOLUMES, "spec.volumes")
    for container in pod.get("containers", ()):
        if container["name"] == CONTAINER:
            path = f"spec.containers.{CONTAINER}"
            yield from _own_fields(container, OWN_CONTAINER_FIELDS, path)
            mounts = container.get("volumeMounts", ())
            below = {entry["mountPath"] for entry in mounts if entry["mountPath"].startswith(FILES_PREFIX)}
            yield from _own_entries(mounts, "mountPath", OWN_FOLDERS | below, f"{path}.volumeMounts")
            variables = {entry["name"] for entry in container.get("env", ())}
            prefixed = {name for name in variables if name.startswith(OWN_PREFIXES)}
            own = (OWN_VARIABLES | prefixed) - LOG_VARIABLES
            yield from _own_entries(container.get("env", ()), "name", own, f"{path}.env")


def _own_fields(node: Mapping[str, Any], own: frozenset[str], path: str) -> Iterator[Broken]:
    for name in sorted(own & node.keys()):
        yield _own(f"{path}.{name}", node[name], name)


def _own_entries(entries: Any, key: str, own: frozenset[str], path: str) -> Iterator[Broken]:
    for entry in entries:
        if entry[key] in own:
            yield _own(f"{path}.{entry[key]}", entry, entry[key])


def _own(path: str, value: Any, name: str) -> Broken:
    return path, value, f"the operator sets it: {INSTEAD.get(name, 'leave it out')}"


def _shapeless(node: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Yield labels that are not a map, and lists that merge by a key but have an entry without that key."""
    for name, value in node.items():
        if name == "labels" and not isinstance(value, dict | None):
            yield f"{path}.{name}", value
        elif name in MERGE_KEYS:
            key = MERGE_KEYS[name]
            kind = int if key == "containerPort" else str
            if not isinstance(value, list) or not all(
                isinstance(entry, dict) and isinstance(entry.get(key), kind) for entry in value
            ):
                yield f"{path}.{name}", value
            elif name in ("containers", "initContainers"):
                for entry in value:
                    yield from _shapeless(entry, f"{path}.{name}.{entry['name']}")


# From here on: what a user adds to the pods of trainer and workers alike, in the form of a pod.

RESERVED_VOLUMES = tuple(sorted({*OWN_VOLUMES, "checkpoints", "shared-memory"}))
RESERVED_FOLDERS = tuple(sorted({*OWN_FOLDERS, "/checkpoints"}))
RESERVED_VARIABLES = tuple(sorted(OWN_VARIABLES))
OF_PODS = frozenset({"env", "envFrom", "pods", "resources", "volumeMounts", "volumes"})
"""Fields left out of the manifest that a trainer reads: it needs none of them, and an older one would refuse them."""
VALUE_SOURCES = ("configMapKeyRef", "fieldRef", "fileKeyRef", "resourceFieldRef", "secretKeyRef")
SHARED_SOURCES = tuple(name for name in VALUE_SOURCES if name != "fileKeyRef")
"""The sources that the schema of a DaskCluster has, which the scheduler's pod is a part of."""
LARGEST_VOLUMES_BYTES = 16_384


def _cel(names: Iterable[str]) -> str:
    return "[" + ", ".join(f"'{name}'" for name in names) + "]"


def part_of_a_pod(description: str) -> dict[str, Any]:
    """Return the schema of a map with the form that Kubernetes gives it, which our schema does not repeat."""
    return {
        "description": description,
        "type": "object",
        "maxProperties": 128,
        "default": None,
        "x-kubernetes-preserve-unknown-fields": True,
    }


def map_list(key: str) -> dict[str, Any]:
    """Return the schema's extension for a list whose entries are unique by `key`."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


def _integer_as_text(value: Any) -> Any:
    if type(value) is int:  # True is no amount, though it is an int
        return str(value)
    return value


Quantity = Annotated[
    str,
    BeforeValidator(_integer_as_text),
    StringConstraints(pattern=QUANTITY, min_length=1, max_length=32),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "pattern": QUANTITY, "maxLength": 32, "minimum": 0}),
]
"""An amount of a resource, as a string or a whole number."""


def _volume_schema(schema: dict[str, Any], model: type[BaseModel]) -> None:
    schema["x-kubernetes-preserve-unknown-fields"] = True
    schema["minProperties"] = 2  # the name and one source
    schema["maxProperties"] = 2
    schema.pop("additionalProperties", None)
    rules_in_schema(schema, model)


class PodVolume(Model):
    """A volume of a pod: its name, and one source in the form that Kubernetes gives it."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_volume_schema)

    name: str = Field(
        pattern=VOLUME_NAME, min_length=1, max_length=63, description="The name that volumeMounts refer to. Required."
    )

    rules: ClassVar = (
        Rule(
            "name",
            f"give another name; the operator's own volumes are {', '.join(RESERVED_VOLUMES)}",
            lambda v: v.name not in RESERVED_VOLUMES,
            f"!(self.name in {_cel(RESERVED_VOLUMES)})",
        ),
        Rule(
            "",
            "give the volume one source, such as persistentVolumeClaim: {claimName: data}",
            lambda v: len(v.sources) == 1 and all(isinstance(source, dict) for source in v.sources.values()),
            None,  # the number of properties says so already; CEL cannot see unknown fields
        ),
        Rule(
            "name",
            "project no serviceAccountToken into all pods; mount it by workers.template, with spec.serviceAccountName",
            lambda v: not v.has_token,
            None,  # CEL cannot see unknown fields
        ),
    )

    @property
    def sources(self) -> dict[str, Any]:
        """Return all given fields except the name."""
        return {name: value for name, value in (self.model_extra or {}).items() if value is not None}

    @property
    def has_token(self) -> bool:
        """Return True if a service account's token is projected into the volume."""
        projected = self.sources.get("projected")
        if not isinstance(projected, dict) or not isinstance(projected.get("sources"), list):
            return False
        parts = [part for part in projected["sources"] if isinstance(part, dict)]
        return any(part.get("serviceAccountToken") is not None for part in parts)


class VolumeMount(Model):
    """Where a volume appears in the containers."""

    name: str = Field(
        pattern=VOLUME_NAME, min_length=1, max_length=63, description="The name of one of the volumes. Required."
    )
    mount_path: str = Field(
        pattern=MOUNT_PATH, min_length=2, max_length=255, description="The folder. Required. Example: /data."
    )
    sub_path: str | None = Field(
        None,
        min_length=1,
        max_length=255,
        description="The folder or file of the volume that is mounted. Default: the whole volume.",
    )
    read_only: bool | None = Field(None, description="Whether pods may only read there. Default: false.")

    rules: ClassVar = (
        Rule(
            "mountPath",
            f"give another folder; the operator mounts its own at {', '.join(RESERVED_FOLDERS)}",
            lambda m: m.mount_path not in RESERVED_FOLDERS and not m.mount_path.startswith(FILES_PREFIX),
            f"!(self.mountPath in {_cel(RESERVED_FOLDERS)}) && !self.mountPath.startsWith('{FILES_PREFIX}')",
        ),
    )


def _from_one_of(sources: tuple[str, ...]) -> Rule:
    return Rule(
        "valueFrom",
        f"give one of {', '.join(sources)}",
        lambda e: (
            e.value_from is None
            or (
                len(e.value_from) == 1
                and all(isinstance(e.value_from.get(name, {}), dict) for name in sources)
                and not e.value_from.keys() - set(sources)
            )
        ),
        None,  # the properties of the field say so already
    )


def _value_from(sources: tuple[str, ...]) -> Any:
    return Field(
        None,
        max_length=1,
        json_schema_extra={
            "minProperties": 1,
            "properties": {name: part_of_a_pod(f"As {name} in a pod.") for name in sources},
        },
        description="Where the value comes from, as in a pod. Default: value. "
        "Example: {secretKeyRef: {name: tokens, key: hub}}.",
    )


class EnvVar(Model):
    """An environment variable."""

    name: str = Field(pattern=VARIABLE, min_length=1, max_length=253, description="The name of the variable. Required.")
    value: str | None = Field(None, max_length=4096, description='The value, in quotes. Default: "".')
    value_from: dict[str, Any] | None = _value_from(VALUE_SOURCES)

    rules: ClassVar = (
        Rule(
            "name",
            f"leave it out: the operator sets {', '.join(RESERVED_VARIABLES)} and what begins with "
            f"{' or '.join(OWN_PREFIXES)}",
            lambda e: e.name in LOG_VARIABLES or not (e.name in RESERVED_VARIABLES or e.name.startswith(OWN_PREFIXES)),
            f"self.name in {_cel(sorted(LOG_VARIABLES))} || !(self.name in {_cel(RESERVED_VARIABLES)} || "
            + " || ".join(f"self.name.startsWith('{prefix}')" for prefix in OWN_PREFIXES)
            + ")",
        ),
        Rule(
            "valueFrom",
            "give either value or valueFrom, not both",
            lambda e: e.value is None or e.value_from is None,
            "!has(self.value) || !has(self.valueFrom)",
        ),
        _from_one_of(VALUE_SOURCES),
    )


class SharedEnvVar(EnvVar):
    """An environment variable of all pods."""

    value_from: dict[str, Any] | None = _value_from(SHARED_SOURCES)

    rules: ClassVar = (*EnvVar.rules[:-1], _from_one_of(SHARED_SOURCES))


class EnvSource(Model):
    """A ConfigMap or Secret of the job's namespace."""

    name: ObjectName = Field(description="Its name. Required.")
    optional: bool | None = Field(None, description="Whether it may be missing. Default: false.")


class EnvFrom(Model):
    """A ConfigMap or Secret whose entries are environment variables."""

    prefix: str | None = Field(
        None,
        pattern=VARIABLE,
        min_length=1,
        max_length=63,
        description="Text that is put before each name. Default: nothing.",
    )
    config_map_ref: EnvSource | None = Field(None, description="The ConfigMap. Default: none.")
    secret_ref: EnvSource | None = Field(None, description="The Secret. Default: none.")

    rules: ClassVar = (
        Rule(
            "secretRef",
            "give either configMapRef or secretRef",
            lambda f: (f.config_map_ref is None) != (f.secret_ref is None),
            "has(self.configMapRef) != has(self.secretRef)",
        ),
    )


class PullSecret(Model):
    """A secret of the job's namespace that can pull the image."""

    name: ObjectName = Field(description="Name of a Secret in the namespace of the job. Required.")


class Resources(Model):
    """What each pod requests, and its limits."""

    requests: dict[str, Quantity] | None = Field(
        None, max_length=16, description='What a node reserves for each pod. Default: 100m CPU. Example: {cpu: "2"}.'
    )
    limits: dict[str, Quantity] | None = Field(
        None, max_length=16, description="What each pod may use at most. Default: none. Example: {memory: 4Gi}."
    )


def plain(models: Iterable[Model] | None) -> list[dict[str, Any]]:
    """Return the models as a manifest spells them, without fields that were left out."""
    return [model.model_dump(mode="json", by_alias=True, exclude_none=True) for model in models or ()]


def once(field: str, key: str) -> Callable[[Any], bool]:
    """Return a check that no two entries of a list have the same key; the list may be absent."""

    def holds(spec: Any) -> bool:
        keys = [getattr(entry, key) for entry in getattr(spec, field) or ()]
        return len(set(keys)) == len(keys)

    return holds


def rules_of_volumes(volumes: str) -> tuple[Rule, ...]:
    """Return the rules about volumes, mounts and variables together, of a model that has these fields.

    Args:
        volumes: The path of the volumes, for messages.
    """
    return (
        *(
            Rule(name, f"give each {what} once", once(field, key), None)  # the list type of the field says so already
            for name, field, key, what in (
                ("volumes", "volumes", "name", "name"),
                ("volumeMounts", "volume_mounts", "mount_path", "mountPath"),
                ("env", "env", "name", "name"),
            )
        ),
        Rule(
            "volumes",
            f"give at most {LARGEST_VOLUMES_BYTES} bytes of JSON",
            lambda s: len(json.dumps(plain(s.volumes))) <= LARGEST_VOLUMES_BYTES,
            None,  # CEL cannot measure a part whose fields the schema does not know
        ),
        Rule(
            "volumeMounts",
            f"mount volumes that {volumes} names",
            lambda s: {m.name for m in s.volume_mounts or ()} <= {v.name for v in s.volumes or ()},
            "!has(self.volumeMounts) || self.volumeMounts.all(m, "
            "has(self.volumes) && self.volumes.exists(v, v.name == m.name))",
        ),
    )


RULES = rules_of_volumes("spec.volumes")
"""Rules of JobSpec about these fields together."""


OF_ONE_SOURCE = frozenset({"env", "volumes"})
"""Lists whose entries have a name and one source; the overlay's source replaces the other."""


def merged(base: Any, overlay: Any, key: str = "") -> Any:
    """Return `base` with `overlay` merged in: maps merge by their keys, lists as MERGE_KEYS says; all else is replaced.

    A field that is null in the overlay is left out, so that Kubernetes' default holds.
    A probe's handler replaces one of another kind.
    """
    if isinstance(base, dict) and isinstance(overlay, dict):
        if key in PROBES and PROBE_HANDLERS & overlay.keys():
            base = {name: value for name, value in base.items() if name not in PROBE_HANDLERS - overlay.keys()}
        both = {name: merged(base[name], value, name) for name, value in overlay.items() if name in base}
        return {name: value for name, value in (base | overlay | both).items() if value is not None}
    if isinstance(base, list) and isinstance(overlay, list) and key in MERGE_KEYS:
        field = MERGE_KEYS[key]
        over = {entry[field]: entry for entry in overlay}
        entries = []
        for entry in base:
            if entry[field] in over:
                changed = over.pop(entry[field])
                if key in OF_ONE_SOURCE and len(changed) > 1:  # it has a source, and not the name alone
                    entry = {name: value for name, value in entry.items() if name in changed}
                entry = merged(entry, changed)
            entries.append(entry)
        return entries + list(over.values())
    return overlay
