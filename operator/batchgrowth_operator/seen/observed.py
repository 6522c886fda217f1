"""The observed state of one job: the job, its children and pods, and the time."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from batchgrowth import names

TRAINER = "trainer"
"""The role of the trainer's pods, and the name of their container."""
CLAIM = "PersistentVolumeClaim"
Object = Mapping[str, Any]
"""A Kubernetes object as plain JSON."""


class Ref(NamedTuple):
    """A child of a job, within the job's namespace."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A refused write: the object, the API server's HTTP status and text; code 0 if another owner has that name."""

    ref: Ref
    code: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What to write to the Secret of the authority and to the one that pods mount: PEM texts by key.

    Empty for a Secret that stays as it is.
    """

    authority: Mapping[str, str] = field(default_factory=dict)
    tls: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PutBack:
    """The last time that the operator put fields of a child back which others had changed.

    `uid` is the child's, `manifest` the digest of what was written, and `rounds` how often each field was put back.
    `manager` is the other that had changed such a field, or empty if the child does not say.
    """

    uid: str
    manifest: str
    rounds: Mapping[str, int]
    at: datetime
    manager: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """All inputs of a decision.

    `children` are the objects owned by the job, `parts` those owned by its DaskCluster, and `pods` those with the job's
    label. `credentials` is set if a Secret is missing or a certificate is due. `failures` are the last pass's
    refused writes to children; a status that is stored need not say that it was refused. `warnings` are the Warning
    events about objects whose status does not explain why they are pending. `put_backs` are what the decision before
    returned: the children that others changed lately. `report_age_seconds` is the time since this process first saw the
    trainer's newest report, `active_seconds` the time since the job last became active, and `ended_seconds` the time
    since it ended: 0 before its status says so.

    `now` is the API server's time of day. The three ages follow the monotonic clock, whatever `now` does.
    """

    job: Object
    now: datetime
    children: Mapping[Ref, Object] = field(default_factory=dict)
    parts: Mapping[Ref, Object] = field(default_factory=dict)
    pods: tuple[Object, ...] = ()
    credentials: Credentials | None = None
    failures: tuple[Failure, ...] = ()
    warnings: tuple[Object, ...] = ()
    put_backs: Mapping[Ref, PutBack] = field(default_factory=dict)
    report_age_seconds: float = 0.0
    active_seconds: float = 0.0
    ended_seconds: float = 0.0

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
        """metadata.generation: the number of changes of the spec."""
        return int(self.job["metadata"].get("generation", 0))

    @property
    def operator_class(self) -> str:
        """The class of the operator that runs the job; empty for operators without one."""
        return (self.job.get("spec") or {}).get("operatorClass") or ""

    def child(self, kind: str, name: str) -> Object | None:
        """The child, or None if it does not exist."""
        return self.children.get(Ref(kind, name))

    @property
    def trainer(self) -> Object | None:
        """The trainer's Job, or None if it does not exist."""
        return self.child("Job", names.trainer(self.name))

    def pods_of(self, role: str, *, deleted: bool = False) -> tuple[Object, ...]:
        """The pods of one role, those being deleted only if `deleted`."""
        return tuple(
            pod
            for pod in self.pods
            if labels_of(pod).get(names.ROLE_LABEL) == role and (deleted or "deletionTimestamp" not in pod["metadata"])
        )


def endings_of(pod: Object) -> Iterator[dict[str, Any]]:
    """How each container of the pod ended that has."""
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        ending = (container.get("state") or {}).get("terminated")
        if ending is not None:
            yield ending


def labels_of(body: Object) -> Mapping[str, str]:
    """The object's labels; empty if it has none."""
    return body["metadata"].get("labels") or {}


def annotations_of(body: Object) -> Mapping[str, str]:
    """The object's annotations; empty if it has none."""
    return body["metadata"].get("annotations") or {}


def ref_of(body: Object) -> Ref:
    """The object's kind and name."""
    return Ref(body["kind"], body["metadata"]["name"])


def mounted_claims(job: Object) -> list[str]:
    """The names of the claims in the pod template of a Job."""
    volumes = job["spec"]["template"]["spec"].get("volumes") or ()
    return [v["persistentVolumeClaim"]["claimName"] for v in volumes if "persistentVolumeClaim" in v]


def is_owned_by(body: Object, uid: str) -> bool:
    """Whether an owner reference of the object names this uid."""
    return any(owner.get("uid") == uid for owner in body["metadata"].get("ownerReferences") or ())


def is_pod_of(pod: Object, job: str) -> bool:
    """Whether the pod's controller is the job's trainer Job, or a ReplicaSet of its workers or its scheduler.

    A pod of a trainer Job that was deleted is still the job's.
    """
    sets = tuple(f"{deployment}-" for deployment in (names.workers(job), names.scheduler(job)))
    return any(
        (owner.get("kind"), owner.get("name")) == ("Job", names.trainer(job))
        or (owner.get("kind") == "ReplicaSet" and str(owner.get("name")).startswith(sets))
        for owner in pod["metadata"].get("ownerReferences") or ()
        if owner.get("controller")
    )
