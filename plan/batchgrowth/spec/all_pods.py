"""`spec.pods`: what a user asks for the pods of scheduler, trainer and workers alike.

The scheduler's pod is part of a DaskCluster, so these are the fields that the schema of a DaskCluster has: the API
server drops any other. What only workers need belongs in `workers.template`.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints

from batchgrowth.schema import LABEL_VALUE, LARGEST_INT32, QUALIFIED_NAME, Model, ObjectName, Rule
from batchgrowth.spec.pods import (
    PodVolume,
    PullSecret,
    SharedEnvVar,
    VolumeMount,
    map_list,
    once,
    part_of_a_pod,
    rules_of_volumes,
)

LabelText = Annotated[str, StringConstraints(pattern=LABEL_VALUE, max_length=63)]
AnnotationText = Annotated[str, StringConstraints(max_length=262_144)]
ShortText = Annotated[str, StringConstraints(max_length=4096)]
UserId = Annotated[int, Field(ge=0, le=LARGEST_INT32)]

_QUALIFIED = re.compile(QUALIFIED_NAME)
OWN_DOMAINS = ("batchgrowth.dev/", "dask.org/")
"""Prefixes of the labels and annotations by which the two operators know their pods."""
MANAGED_BY = "app.kubernetes.io/managed-by"
AFFINITIES = ("nodeAffinity", "podAffinity", "podAntiAffinity")
OF_METADATA = ("labels", "annotations")
OF_CONTAINERS = ("env", "volumeMounts")
"""The fields of `spec.pods` that belong to a pod's metadata, and those that belong to its container."""


def qualified(field: str) -> Rule:
    """Return the rule that a map's keys have the form that the API server accepts for labels and annotations."""
    return Rule(
        field,
        "give keys of at most 63 letters, digits, dashes, dots and underscores, beginning and ending with a letter or "
        "digit; a domain and a slash may come before",
        lambda model: all(_QUALIFIED.fullmatch(key) for key in model.value_at(field) or ()),
        None,  # a CRD cannot describe the keys of a map
    )


def _not_ours(field: str) -> Rule:
    return Rule(
        field,
        f"leave it out: the operators set {MANAGED_BY} and what begins with {' or '.join(OWN_DOMAINS)}",
        lambda pods: not any(key == MANAGED_BY or key.startswith(OWN_DOMAINS) for key in pods.value_at(field) or ()),
        None,  # a CRD cannot bound the length of keys, without which CEL counts a loop over them as too expensive
    )


class Toleration(Model):
    """A taint of nodes that the pods tolerate."""

    key: str | None = Field(None, max_length=316, description="The taint's key. Default: all keys.")
    operator: Literal["Exists", "Equal"] | None = Field(
        None, description="Whether the taint must have the value, or only the key. Default: Equal."
    )
    value: LabelText | None = Field(None, description='The taint\'s value. Default: "".')
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="The taint's effect. Default: all effects."
    )
    toleration_seconds: int | None = Field(
        None,
        ge=0,
        le=LARGEST_INT32,
        description="How long the pods stay on a node that gets the taint NoExecute. Unit: seconds. Default: for ever.",
    )


class TopologySpread(Model):
    """How the pods are spread over zones or nodes."""

    max_skew: int = Field(
        ge=1, le=LARGEST_INT32, description="How many more pods a zone may have than another. Required. Example: 1."
    )
    topology_key: str = Field(
        min_length=1,
        max_length=316,
        description="The nodes' label whose values are the zones. Required. Example: kubernetes.io/hostname.",
    )
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = Field(
        description="Whether a pod waits, if it would break this. Required."
    )
    label_selector: dict[str, Any] | None = Field(
        None,
        max_length=2,
        json_schema_extra=part_of_a_pod(
            "The pods that are counted, as in a pod. Default: none. "
            "Example: {matchLabels: {batchgrowth.dev/job: digits}}."
        ),
    )


class SeLinuxOptions(Model):
    """The SELinux context of the containers."""

    level: ShortText | None = Field(None, description="The level. Default: the runtime's.")
    role: ShortText | None = Field(None, description="The role. Default: the runtime's.")
    type: ShortText | None = Field(None, description="The type. Default: the runtime's.")
    user: ShortText | None = Field(None, description="The user. Default: the runtime's.")


class SeccompProfile(Model):
    """The seccomp profile of the containers."""

    type: Literal["RuntimeDefault", "Localhost", "Unconfined"] = Field(description="Which profile. Required.")
    localhost_profile: ShortText | None = Field(
        None, description="The profile's path on the node, for Localhost. Default: none."
    )


class Sysctl(Model):
    """A parameter of the kernel."""

    name: str = Field(min_length=1, max_length=253, description="Its name. Required.")
    value: ShortText = Field(description="Its value. Required.")


class PodSecurityContext(Model):
    """The security context of the pods; fields that are left out keep the operator's values."""

    run_as_user: UserId | None = Field(None, description="The user. Default: 65532.")
    run_as_group: UserId | None = Field(None, description="The group. Default: 65532.")
    run_as_non_root: bool | None = Field(None, description="Whether root is refused. Default: true.")
    fs_group: UserId | None = Field(None, description="The group of the volumes' files. Default: 65532.")
    fs_group_change_policy: Literal["Always", "OnRootMismatch"] | None = Field(
        None, description="When the files of a volume get that group. Default: Always."
    )
    supplemental_groups: tuple[UserId, ...] | None = Field(
        None,
        strict=False,
        max_length=32,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
        description="Further groups, at most 32. Default: none.",
    )
    se_linux_options: SeLinuxOptions | None = Field(None, description="The SELinux context. Default: the runtime's.")
    seccomp_profile: SeccompProfile | None = Field(None, description="The seccomp profile. Default: RuntimeDefault.")
    sysctls: tuple[Sysctl, ...] | None = Field(
        None,
        strict=False,
        max_length=32,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
        description="Parameters of the kernel, at most 32. Default: none.",
    )


class Pods(Model):
    """What the pods of scheduler, trainer and workers have in common."""

    labels: dict[str, LabelText] | None = Field(
        None, max_length=64, description="Labels, at most 64. Default: none. Example: {cost-center: research}."
    )
    annotations: dict[str, AnnotationText] | None = Field(
        None, max_length=64, description="Annotations, at most 64. Default: none."
    )
    node_selector: dict[str, LabelText] | None = Field(
        None, max_length=64, description="Labels that nodes must have. Default: none. Example: {pool: training}."
    )
    tolerations: tuple[Toleration, ...] | None = Field(
        None,
        strict=False,
        max_length=64,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
        description="Taints of nodes that the pods tolerate, at most 64. Default: none. "
        "Example: [{key: training, operator: Exists}].",
    )
    affinity: dict[str, Any] | None = Field(
        None,
        max_length=3,
        json_schema_extra={"properties": {name: part_of_a_pod(f"As {name} in a pod.") for name in AFFINITIES}},
        description="Nodes and neighbouring pods that are required or preferred, as in a pod. Default: none.",
    )
    topology_spread_constraints: tuple[TopologySpread, ...] | None = Field(
        None,
        strict=False,
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
        description="How the pods are spread over zones or nodes, at most 16. Default: not at all.",
    )
    priority_class_name: ObjectName | None = Field(
        None, description="Name of the pods' PriorityClass. Default: the cluster's default class."
    )
    runtime_class_name: ObjectName | None = Field(
        None, description="Name of the pods' RuntimeClass. Default: the nodes' own runtime."
    )
    image_pull_secrets: tuple[PullSecret, ...] | None = Field(
        None,
        strict=False,
        max_length=16,
        json_schema_extra=map_list("name"),
        description="Secrets for pulling images, at most 16, besides those of spec.imagePullSecrets. Default: none.",
    )
    security_context: PodSecurityContext | None = Field(
        None, description="The pods' security context. Default: that of the Pod Security Standard restricted."
    )
    env: tuple[SharedEnvVar, ...] | None = Field(
        None,
        strict=False,
        max_length=64,
        json_schema_extra=map_list("name"),
        description="Environment variables, at most 64; spec.env takes precedence. Default: none.",
    )
    volumes: tuple[PodVolume, ...] | None = Field(
        None,
        strict=False,
        max_length=32,
        json_schema_extra=map_list("name"),
        description="Volumes, as in a pod, at most 32; spec.volumes takes precedence. Default: none.",
    )
    volume_mounts: tuple[VolumeMount, ...] | None = Field(
        None,
        strict=False,
        max_length=32,
        json_schema_extra=map_list("mountPath"),
        description="Where these volumes appear, at most 32. Default: nowhere.",
    )

    rules: ClassVar = (
        qualified("labels"),
        qualified("annotations"),
        qualified("nodeSelector"),
        _not_ours("labels"),
        _not_ours("annotations"),
        Rule(
            "affinity",
            f"give one of {', '.join(AFFINITIES)}",
            lambda p: all(name in AFFINITIES and isinstance(part, dict) for name, part in (p.affinity or {}).items()),
            None,  # the properties of the field say so already
        ),
        Rule(
            "imagePullSecrets",
            "give each secret once",
            once("image_pull_secrets", "name"),
            None,  # the list type of the field says so already
        ),
        *rules_of_volumes("spec.pods.volumes"),
    )


def plain_pods(pods: Pods | None) -> dict[str, Any]:
    """Return the fields that are given, as a manifest spells them."""
    if pods is None:
        return {}
    return pods.model_dump(mode="json", by_alias=True, exclude_none=True)


def overlay_of(given: Mapping[str, Any], container: str) -> dict[str, Any]:
    """Return the given fields as an overlay of a pod template whose only container has that name."""
    pod = {name: part for name, part in given.items() if name not in (*OF_METADATA, *OF_CONTAINERS)}
    inside = {name: given[name] for name in OF_CONTAINERS if name in given}
    if inside:
        pod["containers"] = [{"name": container, **inside}]
    return {"metadata": {name: given[name] for name in OF_METADATA if name in given}, "spec": pod}
