"""The observed state of one job: the job, its children and pods, the report of its trainer, and the time."""

from collections.abc import Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from batchgrowth import names
from batchgrowth.contract.progress import Progress

# --- The observed state of one job: the job, its children and pods, and the time ---

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


# --- The stored times that a job's deadline and its time to live count from ---


def active_since(job: Object) -> str | None:
    """When the job last became active; None while it is suspended, or before its status says so."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    active = (c for c in conditions if (c.get("type"), c.get("status")) == ("Suspended", "False"))
    return next((c.get("lastTransitionTime") for c in active), None)


def ended_at(job: Object) -> str | None:
    """When the job ended; None before its status says so."""
    ended: str | None = (job.get("status") or {}).get("completionTime")
    return ended


# --- The trainer's report as it lies in its ConfigMap or with an ended pod, before it is compared with the job ---


def report_of(config_map: Object | None) -> Progress | None:
    """The report; None before the first one. Raises ValueError, naming the field, if the text is not a report."""
    text = _text_of(config_map)
    return None if text is None else _read(text)


def newest_report(seen: Observed) -> Progress | None:
    """The newest report of the job's trainers; None before the first one.

    A trainer that comes to its end repeats its last report as its pod's termination message, since just then the
    ConfigMap may be deleted, or the API server refuse the report. Raises ValueError, naming the field, if the
    ConfigMap's text is not a report.
    """
    written = report_of(seen.child("ConfigMap", names.progress(seen.name)))
    known = [*_repeated(seen), *([] if written is None else [written])]
    return max(known, key=lambda report: (report.start, report.update), default=None)


def mark_of(config_map: Object | None) -> Hashable:
    """What changes in a trainer's report when it has trained: the start and the update; None without a report."""
    try:
        report = report_of(config_map)
    except ValueError:
        return _text_of(config_map)
    return None if report is None else (report.start, report.update)


def news_of(config_map: Object) -> Hashable:
    """What a trainer's ConfigMap says besides how far its training is within a stage; equal as long as it goes on."""
    metadata = config_map["metadata"]
    marks = {name: metadata.get(name) for name in ("uid", "labels", "annotations", "ownerReferences")}
    try:
        report = report_of(config_map)
    except ValueError:
        return str(marks), _text_of(config_map)
    return str(marks), None if report is None else str(_without_position(report))


def _without_position(report: Progress) -> Progress:
    """The report without what changes while a training goes on; that its pace is known remains."""
    return replace(
        report, update=0, epoch=0.0, learning_rate=0.0, loss=None, metrics={}, eta_seconds=None, checkpoint_update=None,
        exchanged=None,
        forecast=None if report.forecast is None else replace(report.forecast, due_seconds=None),
        seconds_per_update=None if report.seconds_per_update is None else 1.0,
    )  # fmt: skip


def _repeated(seen: Observed) -> Iterator[Progress]:
    for pod in seen.pods_of(TRAINER, deleted=True):
        for ending in endings_of(pod):
            if ending["exitCode"] == 0 and ending.get("message"):
                with suppress(ValueError):  # by a trainer of another version, or by a user's code
                    yield _read(ending["message"])


def _text_of(config_map: Object | None) -> str | None:
    return ((config_map or {}).get("data") or {}).get(names.PROGRESS_KEY)


@lru_cache(maxsize=64)  # a pass reads a report several times, and few passes run at once
def _read(text: str) -> Progress:
    return Progress.from_json(text)
