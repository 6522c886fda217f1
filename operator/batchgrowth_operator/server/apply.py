"""Carries out a decision: the one place that writes."""

from collections.abc import Callable
from dataclasses import dataclass

from batchgrowth.spec import API_VERSION, KIND

from batchgrowth_operator.decide.decision import Decision, Manifest
from batchgrowth_operator.seen.observed import Failure, Object, Observed, Ref, is_owned_by, ref_of
from batchgrowth_operator.server.api import CONFLICT, GONE, Api, Refused
from batchgrowth_operator.server.recorder import Recorder
from batchgrowth_operator.server.store import Store, key_of
from batchgrowth_operator.server.undeclared import declared


class Outdated(Exception):
    """The job or a child changed since it was observed; another pass must decide."""


class NotLeading(OSError):
    """Another operator may lead by now, so this one must not write."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes through `api` and stores the responses in `store`; asks before each write whether it may.

    Events are left to the `recorder`, so that no other write waits for them.
    """

    api: Api
    store: Store
    recorder: Recorder
    may_write: Callable[[], bool] = lambda: True

    def _writing(self) -> Api:
        """The API. Raises NotLeading if this process, which may have been paused for long, must not write."""
        if not self.may_write():
            raise NotLeading("the lease was not renewed in time")
        return self.api

    def carry_out(self, seen: Observed, decision: Decision) -> tuple[Failure, ...]:
        """The writes that the API server refused.

        After the first, nothing is created any more, nor deleted to be made again, since that may depend on it; what
        exists is still changed, suspended and released. Raises Outdated if the job or a child has changed, OSError if
        no server answers or this process no longer leads.
        """
        failures: list[Failure] = []
        if decision.status is not None:
            self._write_status(seen, decision.status)
        for manifest in decision.apply:
            if failures and ref_of(manifest) not in seen.children:
                continue
            failure = self._apply(seen, manifest)
            if failure is not None:
                failures.append(failure)
        for ref in decision.delete:
            if not (failures and ref in decision.renewed):
                self._delete(seen, ref, seen.children[ref], waits=ref not in decision.abandoned)
        for event in decision.events:
            self.recorder.record(seen, event)
        if decision.delete_job:
            self._delete(seen, Ref(KIND, seen.name), seen.job)
        return tuple(failures)

    def _write_status(self, seen: Observed, status: Manifest) -> None:
        """Writes the status with the observed resource version, so that a job edited since is refused as a conflict."""
        job = {"name": seen.name, "namespace": seen.namespace}
        version = {"uid": seen.uid, "resourceVersion": seen.job["metadata"]["resourceVersion"]}
        manifest = {"apiVersion": API_VERSION, "kind": KIND, "metadata": job | version, "status": status}
        try:
            self.store.update(self._applied_status(manifest))
        except Refused as refused:
            if refused.code in (CONFLICT, GONE):
                raise Outdated from refused
            raise

    def _applied_status(self, manifest: Manifest) -> Object:
        """The job after the write of its status, without what an older CRD does not declare."""
        try:
            return self._writing().apply(manifest, "status")
        except Refused as refused:
            status = declared(manifest["status"], str(refused))
            if status is None:
                raise
            return self._writing().apply({**manifest, "status": status}, "status")

    def _apply(self, seen: Observed, manifest: Manifest) -> Failure | None:
        ref = ref_of(manifest)
        try:
            if ref not in seen.children and ref not in seen.parts:
                found = self.api.get(ref, seen.namespace)
                if found is not None:
                    return self._found_unseen(seen, ref, found)
            self.store.update(self._writing().apply(manifest))
        except Refused as refused:
            return Failure(ref, refused.code, str(refused))
        return None

    def _found_unseen(self, seen: Observed, ref: Ref, found: Object) -> Failure | None:
        """Handles an existing object that was not observed: another owner's is a failure, ours calls for a new pass."""
        if not is_owned_by(found, seen.uid):
            return Failure(ref, 0, "is not this job's")
        self.store.refresh(key_of(seen.job), found)
        raise Outdated

    def _delete(self, seen: Observed, ref: Ref, found: Object, *, waits: bool = True) -> None:
        """Deletes the object, a Job only with its last pod unless that is not waited for."""
        propagation = "Foreground" if ref.kind == "Job" and waits else "Background"
        self._writing().delete(ref, seen.namespace, found["metadata"]["uid"], propagation)
