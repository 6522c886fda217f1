"""What must hold for every write, judged by what the writer had observed and by what the API server has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

from batchgrowth import names
from batchgrowth.spec import KIND
from batchgrowth_operator.seen.observed import TRAINER as CONTAINER
from batchgrowth_operator.seen.observed import Ref, active_since, ended_at, is_owned_by, labels_of
from controllers import CLUSTER, JOB, SCHEDULER, TRAINER, WORKERS
from instances import DEFAULT_IMAGE, Instance
from model_api import Body, Server

JOB_REF = Ref(KIND, JOB)
TAMPERED = "tampered"
"""What the user writes into annotations of the operator."""
BAD_ARGUMENT = "not a name"
"""A workload's argument that the API server stores and that the operator refuses."""

DEADLINE = "DeadlineExceeded"
ROUNDING_SECONDS = 2
"""What is lost where timestamps have whole seconds, and the `Date` of responses too."""

Rule = Callable[[Instance, str, Ref, Body], Iterator[str]]


class Written(NamedTuple):
    """When a time in the status was written, in true seconds, and by which life of which process."""

    life: object
    seconds: float


class Safety:
    """Collects the violations, since a pass survives whatever is raised in it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.violations: list[str] = []
        self._written: dict[str, dict[str, Written]] = {}  # uid -> each time that its status has had, once written

    def before_write(self, instance: Instance, verb: str, ref: Ref, manifest: Body) -> None:
        if self._is_refused(ref, manifest, verb):
            return
        self._note_times(instance, verb, manifest)
        for rule in (
            self._lease,
            self._deletion,
            self._status,
            self._apply,
            self._trainer,
            self._workers,
            self._delete,
        ):
            self.violations += [
                f"{instance.name}: {verb} {'/'.join(ref)}: {text}" for text in rule(instance, verb, ref, manifest)
            ]

    def _is_refused(self, ref: Ref, manifest: Body, verb: str) -> bool:
        """Whether the API server will refuse the write, since the object has changed."""
        found = (self.server.objects.get(ref) or {"metadata": {}})["metadata"]
        given = manifest.get("metadata", {})
        return verb != "post" and any(given.get(f, found.get(f)) != found.get(f) for f in ("uid", "resourceVersion"))

    def _lease(self, instance: Instance, verb: str, ref: Ref, manifest: Body) -> Iterator[str]:
        if self.server.lease is None or self.server.lease["spec"]["holderIdentity"] != instance.name:
            yield "another holds the lease"

    def _deletion(self, instance: Instance, verb: str, ref: Ref, manifest: Body) -> Iterator[str]:
        if "deletionTimestamp" in instance.view.job["metadata"]:
            yield "the job is being deleted"

    def _status(self, instance: Instance, verb: str, ref: Ref, manifest: Body) -> Iterator[str]:
        if verb != "status" or ref not in self.server.objects:
            return
        old, new = self.server.objects[ref].get("status") or {}, manifest["status"]
        for field in ("startTime", "completionTime"):
            if old.get(field, new.get(field)) != new.get(field):
                yield f"{field} changes"
        if is_over(old) and verdict_of(new) != verdict_of(old):
            yield f"the outcome changes from {verdict_of(old)} to {verdict_of(new)}"
        if verdict_of(new)[1] == DEADLINE and not is_over(old):
            yield from self._early(instance, active_since({"status": old}), "activeDeadlineSeconds")
        if new.get("restarts", 0) < old.get("restarts", 0):
            yield "restarts are taken back"
        if _position(new) < _position(old):
            yield "the position is taken back"
        known = [_identity(record) for record in old.get("history", ())]
        if known != [_identity(record) for record in new.get("history", ())][: len(known)]:
            yield "the history changes"

    def _apply(self, instance: Instance, verb: str, ref: Ref, manifest: Body) -> Iterator[str]:
        if verb != "apply":
            return
        found, job = self.server.objects.get(ref), instance.view.job
        if BAD_ARGUMENT in job["spec"]["workload"].get("arguments", {}):
            yield "the job is not accepted"
        if found is None and instance.client.refusals:
            yield "created after a refused write"
        if found is None and is_over(job.get("status") or {}):
            yield "created for a job that is over"
        if found is not None and not self._is_ours(found, job["metadata"]["uid"]):
            yield "changed, and another's"
        if ref == CLUSTER and found is not None and "status" not in manifest:
            own = self.server.applied.get(found["metadata"]["uid"], {}).get("status")
            if own and own == found.get("status"):  # the schema of a DaskCluster refuses the status that would be left
                yield f"{own} is taken back, unseen by the Dask operator"

    def _trainer(self, instance: Instance, verb: str, ref: Ref, manifest: Body) -> Iterator[str]:
        job = instance.view.job
        halted = job["spec"].get("suspend") or is_over(job.get("status") or {})
        if (verb, ref) == ("apply", TRAINER) and halted and not manifest["spec"]["suspend"]:
            yield "a trainer for a job that is suspended or over"

    def _workers(self, instance: Instance, verb: str, ref: Ref, manifest: Body) -> Iterator[str]:
        if (verb, ref) == ("apply", WORKERS):
            bounds, replicas = instance.view.job["spec"]["workers"], manifest["spec"]["replicas"]
            if not bounds["minimum"] <= replicas <= bounds["maximum"]:
                yield f"{replicas} replicas, outside of {bounds['minimum']} to {bounds['maximum']}"

    def _delete(self, instance: Instance, verb: str, ref: Ref, manifest: Body) -> Iterator[str]:
        if verb != "delete":
            return
        found, job = self.server.objects[ref], instance.view.job
        if ref == JOB_REF:
            yield from self._early_end(instance)
            if instance.client.refusals:
                yield "the job goes after a refused write"
            return
        if not self._is_ours(found, job["metadata"]["uid"]):
            yield "deleted, and another's"
        halted = job["spec"].get("suspend") or is_over(job.get("status") or {}) or _has_ended(instance)
        is_released = ref in (CLUSTER, WORKERS) and halted
        is_renewed = ref in (TRAINER, CLUSTER) and (_is_outdated(instance, ref) or _waits(instance, ref))
        if is_renewed and not is_released and instance.client.refusals:
            yield "deleted to be made again after a refused write"
        if not is_released and not is_renewed:
            yield "deleted without need"
        if ref in (CLUSTER, WORKERS) and _runs_trainer(instance):
            yield "deleted under a running trainer"

    def _early_end(self, instance: Instance) -> Iterator[str]:
        job = instance.view.job
        ended = ended_at(job)
        if job["spec"].get("ttlSecondsAfterFinished") is None or not ended:
            yield "the job has no time to live, or its status does not say that it is over"
        else:
            yield from self._early(instance, ended, "ttlSecondsAfterFinished")

    def _early(self, instance: Instance, since: str | None, limit: str) -> Iterator[str]:
        """Whether the time from that stored one to the limit has not passed.

        What the process has seen pass is what did pass, whatever the clocks say. For what passed before its first
        pass, the API server's clock at that pass is believed.
        """
        job, now = instance.view.job, self.server.seconds
        written = self._written[job["metadata"]["uid"]].get(str(since))
        passed = 0.0
        if written is not None and written.life is instance.life:
            passed = now - written.seconds
        elif since is not None:
            began, date = instance.began
            passed = now - began + max(0.0, (date - datetime.fromisoformat(since)).total_seconds())
        if passed < job["spec"][limit] - ROUNDING_SECONDS:
            yield f"{limit} have not passed, but {passed:g}"

    def _note_times(self, instance: Instance, verb: str, manifest: Body) -> None:
        if verb == "status":
            known = self._written.setdefault(manifest["metadata"]["uid"], {})
            for stamp in (active_since(manifest), ended_at(manifest)):
                known.setdefault(str(stamp), Written(instance.life, self.server.seconds))

    def _is_ours(self, body: Body, uid: str) -> bool:
        cluster = self.server.objects.get(CLUSTER)
        part = body["metadata"]["name"] == SCHEDULER and cluster is not None
        return is_owned_by(body, uid) or (part and is_owned_by(body, cluster["metadata"]["uid"]))


def verdict_of(status: Body) -> tuple[str, str, str]:
    """Status, reason and message of the condition Succeeded."""
    found = (c for c in status.get("conditions", ()) if c["type"] == "Succeeded")
    return next(((c["status"], c["reason"], c["message"]) for c in found), ("Unknown", "", ""))


def is_over(status: Body) -> bool:
    """Whether the status records an outcome."""
    return verdict_of(status)[0] != "Unknown"


def _has_ended(instance: Instance) -> bool:
    """Whether the trainer's Job has, or the deadline, as the instance knows."""
    job = instance.view.children.get(TRAINER) or {}
    deadline = instance.view.job["spec"].get("activeDeadlineSeconds")
    return bool((job.get("status") or {}).get("conditions")) or deadline is not None


def _is_outdated(instance: Instance, ref: Ref) -> bool:
    """Whether the child has another image than the job, or someone wrote into its annotation."""
    found = instance.view.children[ref]
    pod = found["spec"]["template"]["spec"] if ref == TRAINER else found["spec"]["scheduler"]["spec"]
    is_tampered = (found["metadata"].get("annotations") or {}).get(names.INPUTS) == TAMPERED
    return is_tampered or pod["containers"][0]["image"] != instance.view.job["spec"].get("image", DEFAULT_IMAGE)


def _waits(instance: Instance, ref: Ref) -> bool:
    """Whether the child is a trainer's Job that waits to make its next pod, as the instance knows."""
    status = instance.view.children[ref].get("status") or {}
    return ref == TRAINER and not status.get("active") and "startTime" in status


def _runs_trainer(instance: Instance) -> bool:
    """Whether a trainer may be working, as the instance knows: that of another's Job is none of the job's."""
    children, job = instance.view.children, instance.view.job["metadata"]["uid"]
    others = [
        body["metadata"]["uid"] for ref, body in children.items() if ref.kind == "Job" and not is_owned_by(body, job)
    ]
    pods = (body for ref, body in children.items() if ref.kind == "Pod")
    return any(
        not any(is_owned_by(pod, uid) for uid in others)
        and labels_of(pod).get(names.ROLE_LABEL) == CONTAINER
        and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        for pod in pods
    )


def _position(status: Body) -> tuple[int, int]:
    """The start and its updates; until a start reports, those of the one before, since its checkpoint may be older."""
    known = status.get("trainerStatus") or {}
    is_awaited = "start" in known and "lastUpdatedTime" not in known
    return known.get("start", -1) - is_awaited, known.get("update", -1)


def _identity(record: Body) -> tuple[Any, ...]:
    return record["index"], record["batchSize"], record.get("firstUpdate"), record["startTime"]
