"""What a user adds to the pods of trainer and workers: volumes, environment and resources, in the form of a pod."""

import json
from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema

from batchgrowth.schema.model import Model, Rule, rules_in_schema
from batchgrowth.schema.patterns import MOUNT_PATH, QUANTITY, VARIABLE, VOLUME_NAME, ObjectName
from batchgrowth.spec.template import LOG_VARIABLES, OWN_PREFIXES, OWN_VARIABLES

SOURCE_VOLUME = "batchgrowth-source"
SOURCE_FOLDER = "/etc/batchgrowth-source"
"""The folder of trainer and workers with the files of `workload.source`; it precedes sys.path."""
RESERVED_VOLUMES = ("batchgrowth", SOURCE_VOLUME, "checkpoints", "shared-memory", "tmp")
RESERVED_FOLDERS = ("/checkpoints", "/etc/batchgrowth", SOURCE_FOLDER, "/tmp")  # noqa: S108  (paths inside containers)
RESERVED_VARIABLES = (*sorted(OWN_VARIABLES), "POD_NAME")
OF_PODS = frozenset({"env", "envFrom", "resources", "volumeMounts", "volumes"})
"""Fields of the spec that the trainer does not get: it does not read them, and an older one would refuse them."""
VALUE_SOURCES = ("configMapKeyRef", "fieldRef", "fileKeyRef", "resourceFieldRef", "secretKeyRef")
LARGEST_VOLUMES_BYTES = 16_384


def _cel(names: Iterable[str]) -> str:
    return "[" + ", ".join(f"'{name}'" for name in names) + "]"


def _open_schema(schema: dict[str, Any], model: type[BaseModel]) -> None:
    schema["x-kubernetes-preserve-unknown-fields"] = True
    schema.pop("additionalProperties", None)
    rules_in_schema(schema, model)


def map_list(key: str) -> dict[str, Any]:
    """The schema's extension for a list whose entries are unique by `key`."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


def _is_text(value: Any) -> Any:
    return str(value) if type(value) is int else value


Quantity = Annotated[
    str,
    BeforeValidator(_is_text),
    StringConstraints(pattern=QUANTITY, min_length=1, max_length=32),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "pattern": QUANTITY, "maxLength": 32}),
]
"""An amount of a resource, as a string or a whole number."""


class PodVolume(Model):
    """A volume of a pod: its name, and one source in the form that Kubernetes gives it."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_open_schema)

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
            "name",
            "give the volume one source, such as persistentVolumeClaim: {claimName: data}",
            lambda v: len(v.sources) == 1 and all(isinstance(source, dict) for source in v.sources.values()),
            None,  # CEL cannot see unknown fields
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
        """All fields beside the name that are given."""
        return {name: value for name, value in (self.model_extra or {}).items() if value is not None}

    @property
    def has_token(self) -> bool:
        """Whether a service account's token is projected into the volume."""
        projected = self.sources.get("projected")
        parts = projected.get("sources") if isinstance(projected, dict) else None
        return any(
            isinstance(part, dict) and part.get("serviceAccountToken") is not None
            for part in (parts if isinstance(parts, list) else ())
        )


class VolumeMount(Model):
    """Where a volume appears in the containers."""

    name: str = Field(
        pattern=VOLUME_NAME, min_length=1, max_length=63, description="The name of one of spec.volumes. Required."
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
            lambda m: m.mount_path not in RESERVED_FOLDERS and not m.mount_path.startswith("/etc/batchgrowth/"),
            f"!(self.mountPath in {_cel(RESERVED_FOLDERS)}) && !self.mountPath.startsWith('/etc/batchgrowth/')",
        ),
    )


class EnvVar(Model):
    """An environment variable."""

    name: str = Field(pattern=VARIABLE, min_length=1, max_length=253, description="The name of the variable. Required.")
    value: str | None = Field(None, max_length=4096, description='The value, in quotes. Default: "".')
    value_from: dict[str, Any] | None = Field(
        None,
        max_length=1,
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
        description="Where the value comes from, as in a pod. Default: value. "
        "Example: {secretKeyRef: {name: tokens, key: hub}}.",
    )

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
        Rule(
            "valueFrom",
            f"give one of {', '.join(VALUE_SOURCES)}",
            lambda e: (
                e.value_from is None
                or (
                    len(e.value_from) == 1
                    and all(isinstance(e.value_from.get(name, {}), dict) for name in VALUE_SOURCES)
                    and not e.value_from.keys() - set(VALUE_SOURCES)
                )
            ),
            None,  # CEL cannot see unknown fields
        ),
    )


class EnvSource(Model):
    """A ConfigMap or Secret of the job's namespace."""

    name: ObjectName = Field(description="Its name. Required.")
    optional: bool | None = Field(None, description="Whether it may be missing. Default: false.")


class EnvFrom(Model):
    """A ConfigMap or Secret whose entries are environment variables."""

    prefix: str | None = Field(
        None, pattern=VARIABLE, min_length=1, max_length=63, description="What precedes each name. Default: nothing."
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


class Resources(Model):
    """What each pod requests, and its limits."""

    requests: dict[str, Quantity] | None = Field(
        None, max_length=16, description='What a node reserves for each pod. Default: 100m CPU. Example: {cpu: "2"}.'
    )
    limits: dict[str, Quantity] | None = Field(
        None, max_length=16, description="What each pod may use at most. Default: none. Example: {memory: 4Gi}."
    )


def plain(models: Iterable[Model] | None) -> list[dict[str, Any]]:
    """The models as a manifest spells them, without what was left out."""
    return [model.model_dump(mode="json", by_alias=True, exclude_none=True) for model in models or ()]


def once(field: str, key: str) -> Callable[[Any], bool]:
    """The check of a rule that the entries of a list, which may be left out, differ in that key."""

    def holds(spec: Any) -> bool:
        keys = [getattr(entry, key) for entry in getattr(spec, field) or ()]
        return len(set(keys)) == len(keys)

    return holds


RULES = (
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
        "mount volumes that spec.volumes names",
        lambda s: {m.name for m in s.volume_mounts or ()} <= {v.name for v in s.volumes or ()},
        "!has(self.volumeMounts) || self.volumeMounts.all(m, "
        "has(self.volumes) && self.volumes.exists(v, v.name == m.name))",
    ),
)
"""Rules of JobSpec about these fields together."""
