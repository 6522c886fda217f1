"""What was seen of one job: the job, its children and pods, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from batchgrowth import names

Object = Mapping[str, Any]
"""A Kubernetes object as plain JSON."""


class Ref(NamedTuple):
    """A child of a job, within the job's namespace."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A write that the API server refused: of which object, with which HTTP status and text; 0 where it is taken."""

    ref: Ref
    code: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The keys of the TLS Secret and their PEM texts, freshly issued."""

    pem: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Everything that a decision is made from.

    `children` holds what belongs to this job by owner reference, `parts` what belongs to its DaskCluster; `pods` are
    those that carry its label. `credentials` are there when the Secret is missing or soon too old. `failures` are those
    of the last pass, `warnings` the events about what is held up without a word of its own.
    """

    job: Object
    now: datetime
    children: Mapping[Ref, Object] = field(default_factory=dict)
    parts: Mapping[Ref, Object] = field(default_factory=dict)
    pods: tuple[Object, ...] = ()
    credentials: Credentials | None = None
    failures: tuple[Failure, ...] = ()
    warnings: tuple[Object, ...] = ()

    @property
    def name(self) -> str:
        """The job's name."""
        return str(self.job["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """The job's namespace."""
        return str(self.job["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        """The job's uid."""
        return str(self.job["metadata"]["uid"])

    @property
    def generation(self) -> int:
        """Counts the changes of the job's spec."""
        return int(self.job["metadata"].get("generation", 0))

    def child(self, kind: str, name: str) -> Object | None:
        """The child, or None where it is not there."""
        return self.children.get(Ref(kind, name))

    def pods_of(self, role: str) -> tuple[Object, ...]:
        """The pods of one role that are not on their way out."""
        return tuple(
            pod
            for pod in self.pods
            if labels_of(pod).get(names.ROLE_LABEL) == role and "deletionTimestamp" not in pod["metadata"]
        )


def labels_of(body: Object) -> Mapping[str, str]:
    """The labels of an object."""
    return body["metadata"].get("labels") or {}


def annotations_of(body: Object) -> Mapping[str, str]:
    """The annotations of an object."""
    return body["metadata"].get("annotations") or {}


def ref_of(body: Object) -> Ref:
    """Which child an object is."""
    return Ref(body["kind"], body["metadata"]["name"])


def is_owned_by(body: Object, uid: str) -> bool:
    """Whether an owner reference of the object names this uid."""
    return any(owner.get("uid") == uid for owner in body["metadata"].get("ownerReferences") or ())
