"""What was observed of one job: its manifest and status, its children and pods; and the clock of one pass."""

from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal, NamedTuple

from batchgrowth import names
from batchgrowth.contract.status import Condition, JobStatus
from batchgrowth.spec.pods import CONTAINER
from pydantic import ValidationError

TRAINER = "trainer"
"""The role of the trainer's pods, and the name of their container."""
WORKER = CONTAINER
"""The role of the workers' pods, and the name of their container."""
CLAIM = "PersistentVolumeClaim"
LONGEST_MESSAGE = 1024
"""Characters of a condition's message."""
LONGEST_COUNT = 9
"""Digits of the longest number in an annotation that is believed."""
Object = Mapping[str, Any]
"""A Kubernetes object as plain JSON."""
Manifest = dict[str, Any]
"""What the operator applies of an object: the fields that it wants."""


class Ref(NamedTuple):
    """A child of a job, within the job's namespace."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A write that the API server refused."""

    ref: Ref
    code: int
    """The HTTP status; 0 if another owner has an object of that name."""
    message: str
    attempt: Literal["", "create", "change", "delete"] = field(default="", compare=False)
    """What the write would have done to the object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSecrets:
    """What to write to the authority's Secret and to the Secret that pods mount: PEM texts by key, empty for a Secret
    that stays unchanged.
    """

    authority: Mapping[str, str] = field(default_factory=dict)
    tls: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PutBack:
    """The last time at which the operator restored fields of a child that others had changed."""

    uid: str
    """The child's uid."""
    manifest: str
    """Digest of what was written."""
    rounds: Mapping[str, int]
    """How often each field was put back."""
    at: datetime
    manager: str = ""
    """The field manager that had changed such a field; empty if the child does not name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """What requests to the API server say about a trainer that is silent."""

    refusal: str = ""
    """Why the operator cannot read the trainer's reports now; empty if it can."""
    policies: tuple[str, ...] = ()
    """NetworkPolicies of others that apply to the job's pods."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """All inputs of a pass."""

    job: Object
    now: datetime
    """The API server's time of day. The three ages below follow the monotonic clock, whatever `now` does."""
    children: Mapping[Ref, Object] = field(default_factory=dict)
    """The objects that the job owns."""
    parts: Mapping[Ref, Object] = field(default_factory=dict)
    """The objects that the job's DaskCluster owns."""
    strangers: Mapping[Ref, Object] = field(default_factory=dict)
    """The other objects with the job's label that are no pods, such as those of an earlier job of this name."""
    pods: tuple[Object, ...] = ()
    """The pods of the job's trainer, workers and scheduler, by their controller: `is_pod_of`."""
    tls_secrets: TlsSecrets | None = None
    """What to write to the Secrets of TLS; None unless one is missing or a certificate is due."""
    failures: tuple[Failure, ...] = ()
    """The last pass's refused writes to children. A refused status is not among them."""
    warnings: tuple[Object, ...] = ()
    """The Warning events about objects whose status does not explain why they are pending."""
    put_backs: Mapping[Ref, PutBack] = field(default_factory=dict)
    """The children that others changed lately, as the pass before returned them."""
    last_report: datetime | None = None
    """When this process first saw the newest text of the trainer's report, by the API server's time of day; None
    without one."""
    inquiry: Inquiry | None = None
    """What was found out about a trainer whose reports have stopped; None while they come."""
    report_age_seconds: float = 0.0
    """Seconds since this process first saw the trainer's newest report."""
    active_seconds: float = 0.0
    """Seconds since the job last became active; 0 before its status says so."""
    ended_seconds: float = 0.0
    """Seconds since the job ended; 0 before its status says so."""

    @cached_property
    def name(self) -> str:
        """Return the job's name."""
        return str(self.job["metadata"]["name"])

    @cached_property
    def names(self) -> names.Names:
        """Return the names of the job's children."""
        return names.of(self.name)

    @cached_property
    def namespace(self) -> str:
        """Return the job's namespace."""
        return str(self.job["metadata"]["namespace"])

    @cached_property
    def uid(self) -> str:
        """Return the job's uid."""
        return str(self.job["metadata"]["uid"])

    @cached_property
    def generation(self) -> int:
        """Return metadata.generation, the number of changes of the spec."""
        return int(self.job["metadata"].get("generation", 0))

    @cached_property
    def trainer(self) -> Object | None:
        """Return the trainer's Job, or None if it does not exist."""
        return self.children.get(Ref("Job", self.names.trainer))

    @cached_property
    def workers(self) -> Object | None:
        """Return the Deployment of the workers, or None if it does not exist."""
        return self.children.get(Ref("Deployment", self.names.workers))

    @cached_property
    def cluster(self) -> Object | None:
        """Return the DaskCluster, or None if it does not exist."""
        return self.children.get(Ref("DaskCluster", self.names.cluster))

    @cached_property
    def scheduler(self) -> Object | None:
        """Return the Deployment that the Dask operator makes for the scheduler, or None if it does not exist."""
        return self.parts.get(Ref("Deployment", self.names.scheduler))

    @property
    def is_scheduler_ready(self) -> bool:
        """Return whether the scheduler's pod is ready."""
        return bool(((self.scheduler or {}).get("status") or {}).get("readyReplicas", 0))

    @cached_property
    def trainer_pods(self) -> tuple[Object, ...]:
        """Return the trainer's pods, including pods that are being deleted."""
        return tuple(pod for pod in self.pods if labels_of(pod).get(names.ROLE_LABEL) == TRAINER)

    @cached_property
    def pods_of_job(self) -> list[Object]:
        """Return the pods of the trainer's present Job, including pods that are being deleted; none without a Job."""
        if self.trainer is None:
            return []
        uid = self.trainer["metadata"].get("uid", "")
        return [pod for pod in self.trainer_pods if is_owned_by(pod, uid)]

    def pods_of(self, role: str) -> tuple[Object, ...]:
        """Return the pods of one role, except pods that are being deleted."""
        return tuple(
            pod
            for pod in self.pods
            if labels_of(pod).get(names.ROLE_LABEL) == role and "deletionTimestamp" not in pod["metadata"]
        )


def endings_of(pod: Object) -> list[dict[str, Any]]:
    """Return the terminated state of the pod's own container, which is named after its role; empty if it has not ended.

    Other containers, such as a mesh's proxy, do not count.
    """
    role = labels_of(pod).get(names.ROLE_LABEL)
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    endings = [(one.get("state") or {}).get("terminated") for one in statuses if one["name"] == role]
    return [ending for ending in endings if ending is not None]


def labels_of(body: Object) -> Mapping[str, str]:
    """Return the object's labels; empty if it has none."""
    return body["metadata"].get("labels") or {}


def annotations_of(body: Object) -> Mapping[str, str]:
    """Return the object's annotations; empty if it has none."""
    return body["metadata"].get("annotations") or {}


def number_in(annotations: Mapping[str, str], name: str) -> int | None:
    """Return the whole number in an annotation; None if there is none, or others have written something else."""
    text = annotations.get(name, "")
    if not text.isdecimal() or len(text) > LONGEST_COUNT:
        return None
    return int(text)


def operator_class_of(job: Object) -> str:
    """Return spec.operatorClass, the class of the job's operators; empty for operators without a class."""
    return (job.get("spec") or {}).get("operatorClass") or ""


def ref_of(body: Object) -> Ref:
    """Return the object's kind and name."""
    return Ref(body["kind"], body["metadata"]["name"])


def condition_of(body: Object | None, kind: str, status: str) -> dict[str, Any] | None:
    """Return the condition of that type and status in the object's status; None if there is none."""
    found: dict[str, Any]
    for found in ((body or {}).get("status") or {}).get("conditions") or ():
        if (found.get("type"), found.get("status")) == (kind, status):
            return found
    return None


def finalizers_of(body: Object) -> list[str]:
    """Return the finalizers that keep the object while it is being deleted."""
    return list(body["metadata"].get("finalizers") or ())


def is_terminating(body: Object | None) -> bool:
    """Return whether the object exists and is being deleted."""
    return body is not None and "deletionTimestamp" in body["metadata"]


def mounted_claims(job: Object) -> list[str]:
    """Return the names of the claims in the pod template of a Job."""
    volumes = job["spec"]["template"]["spec"].get("volumes") or ()
    return [v["persistentVolumeClaim"]["claimName"] for v in volumes if "persistentVolumeClaim" in v]


def is_owned_by(body: Object, uid: str) -> bool:
    """Return whether an owner reference of the object names this uid."""
    return any(owner.get("uid") == uid for owner in body["metadata"].get("ownerReferences") or ())


def is_pod_of(pod: Object, job: str, others: Container[str]) -> bool:
    """Return whether the pod's controller is the job's trainer Job, or a ReplicaSet of its workers or its scheduler.

    A pod of a trainer Job that was deleted is still the job's; a pod of another's Job with the trainer's name, whose
    uid is in `others`, is not.
    """
    sets = (f"{names.of(job).workers}-", f"{names.of(job).scheduler}-")
    return any(
        (owner.get("kind"), owner.get("name")) == ("Job", names.of(job).trainer)
        or (owner.get("kind") == "ReplicaSet" and str(owner.get("name")).startswith(sets))
        for owner in pod["metadata"].get("ownerReferences") or ()
        if owner.get("controller") and owner.get("uid") not in others
    )


def is_older(body: Object, job: Object) -> bool:
    """Return whether the object was created before the job, so that it is of an earlier job of this name."""
    # Timestamps in UTC with whole seconds sort as text.
    created = body["metadata"].get("creationTimestamp")
    return bool(created) and created < job["metadata"].get("creationTimestamp", "")


# The stored status: what the pass before this one wrote, and the times from which deadline and time to live count.


def stored_status(seen: Observed) -> JobStatus:
    """Return the job's stored status, without fields and conditions that this version does not know or cannot read."""
    status = seen.job.get("status") or {}
    with suppress(ValidationError):
        return JobStatus.model_validate(status)
    # Field by field only now: a newer operator has written a field, or somebody has edited it.
    readable: dict[str, Any] = {}
    for key, value in status.items():
        kept = value
        if key == "conditions":  # types of a newer operator are dropped alone: others say whether the job is over
            kept = [one for one in value or () if _is_readable({key: [one]})]
        if _is_readable({key: kept}):
            readable[key] = kept
    return JobStatus.model_validate(readable)


def _is_readable(status: Object) -> bool:
    try:
        JobStatus.model_validate(status)
    except ValidationError:
        return False
    return True


def truncated(text: str) -> str:
    """Return the end of the text, which names an error's cause, at most as long as a condition's message."""
    if len(text) <= LONGEST_MESSAGE:
        return text
    return "…" + text[1 - LONGEST_MESSAGE :]


def condition(status: JobStatus, kind: str) -> Condition | None:
    """Return the condition of that type, or None if it was never set."""
    for one in status.conditions:
        if one.type == kind:
            return one
    return None


def active_since(job: Object) -> str | None:
    """Return when the job last became active; None while it is suspended, or as long as its status does not say it."""
    since: str | None = (condition_of(job, "Suspended", "False") or {}).get("lastTransitionTime")
    return since


def ended_at(job: Object) -> str | None:
    """Return when the job ended; None before its status says so."""
    ended: str | None = (job.get("status") or {}).get("completionTime")
    return ended


# The time of one pass, when the next is due, timestamps as Kubernetes writes them, and the back-off of a retry.

FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 30.0
MOST_DOUBLINGS = 16
"""Doublings of the first back-off that exceed any longest one; a larger exponent would overflow."""


@dataclass(slots=True)
class Clock:
    """The time of one pass. It answers whether a time has passed, and notes when each answer will change.

    A rule that depends on time asks the clock, as `job_outcome` asks whether spec.activeDeadlineSeconds has passed, and
    the next pass comes when the answer changes, so no rule has to say when that is. For this, job/reconcile.py returns
    the due time with the writes, loop/one_pass.py bounds it by the resync, and loop/queue.py wakes the job.
    """

    now: datetime
    requeue_after_seconds: float | None = None
    """Seconds until the first of the answers changes, when the next pass is due; None if time alone changes none."""

    def passed(self, since: str | None, seconds: float) -> bool:
        """Return whether this many seconds have passed since the timestamp; if not, note when they will have passed.

        Without a timestamp, or with one in the future (clocks differ), no time has passed.
        """
        return self.reached(seconds_since(since, self.now), seconds)

    def reached(self, age_seconds: float, seconds: float) -> bool:
        """Return whether an age, measured elsewhere, has reached this many seconds; if not, note when it will."""
        self.wake_in(seconds - age_seconds)
        return age_seconds >= seconds

    def within(self, since: datetime, seconds: float) -> bool:
        """Return whether the time is less than this many seconds ago, and note when it stops being so.

        For a time in the future the answer is no: after a clock was set back, the operator forgets.
        """
        age_seconds = (self.now - since).total_seconds()
        if not 0 <= age_seconds < seconds:
            return False
        self.wake_in(seconds - age_seconds)
        return True

    def wake_in(self, seconds: float) -> None:
        """Note that a decision may change after this many seconds; ignore times in the past."""
        if seconds > 0 and (self.requeue_after_seconds is None or seconds < self.requeue_after_seconds):
            self.requeue_after_seconds = seconds


def timestamp(time: datetime) -> str:
    """Return the time in RFC 3339, in UTC with whole seconds, as in conditions."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def timestamp_ms(time: datetime) -> str:
    """Return the time in RFC 3339, in UTC with milliseconds, so that durations can be measured from it."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def is_timestamp(text: str) -> bool:
    """Return whether the text is a timestamp; others may have written something else."""
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def seconds_since(text: str | None, now: datetime) -> float:
    """Return the seconds from the timestamp to `now`; 0 without a timestamp, or if it lies in the future."""
    if not text:
        return 0.0
    return max(0.0, (now - datetime.fromisoformat(text)).total_seconds())


def seconds_until(text: str, now: datetime) -> float:
    """Return the seconds from `now` to the timestamp; 0 if it lies in the past."""
    return max(0.0, (datetime.fromisoformat(text) - now).total_seconds())


def backoff_seconds(failures: int, longest: float = LONGEST_BACKOFF_SECONDS) -> float:
    """Return the wait after this many failures in a row (at least one): exponential, up to `longest` seconds."""
    return min(FIRST_BACKOFF_SECONDS * 2.0 ** min(failures - 1, MOST_DOUBLINGS), longest)
