"""Fields of a status that the CRD of the cluster does not declare, since it is older than the operator.

The API server then refuses the status as a whole, by server-side apply even if unknown fields may be dropped.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from batchgrowth.spec import API_VERSION, KIND

from batchgrowth_operator.api.cache import Store, key_of
from batchgrowth_operator.api.client import CONFLICT, GONE, Api, Refused
from batchgrowth_operator.api.events import EventPoster
from batchgrowth_operator.api.leader import bounded
from batchgrowth_operator.children.writes import Manifest, Writes
from batchgrowth_operator.job.events import status_refused
from batchgrowth_operator.job.status import declared
from batchgrowth_operator.seen.observed import Failure, Object, Observed, Ref, is_owned_by, ref_of

# --- Fields of a status that the CRD of the cluster does not declare, since it is older than the operator ---


# --- Carrying out what a pass decided: the one place that writes ---


class Outdated(Exception):
    """The job or a child changed since it was observed; another pass must decide."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes through `api`, within the seconds that are left of the leadership, and stores the responses in `store`.

    Events are left to the `poster`, so that no other write waits for them.
    """

    api: Api
    store: Store
    poster: EventPoster
    seconds_left: Callable[[], float] = lambda: math.inf

    def _writing(self) -> Api:
        """The API for the next write. Raises NotLeading if this process, which may have been paused, must not write."""
        return bounded(self.api, self.seconds_left())

    def carry_out(self, seen: Observed, writes: Writes) -> tuple[Failure, ...]:
        """The writes that the API server refused.

        After the first, nothing is created any more, nor deleted to be made again, nor is the job, since that may
        depend on it; what exists is still changed, suspended and released. The events of a status that is not stored
        wait until it is, or each further pass would post them again. Raises Outdated if the job or a child has changed,
        OSError if no server answers or this process no longer leads.
        """
        status = None if writes.status is None else self._write_status(seen, writes)
        failures = [] if status is None else [status]
        for manifest in writes.apply:
            if not failures or ref_of(manifest) in seen.children:
                failures += self._apply(seen, manifest)
        for ref in writes.delete:
            if not failures or ref not in writes.recreated:
                failures += self._delete(seen, ref, seen.children[ref], waits=ref not in writes.in_background)
        for event in writes.events if status is None else [status_refused(status)]:
            self.poster.record(seen, event)
        if writes.delete_job and not failures:
            failures += self._delete(seen, Ref(KIND, seen.name), seen.job)
        return tuple(failures)

    def _write_status(self, seen: Observed, writes: Writes) -> Failure | None:
        """Writes the status with the observed resource version, so that a job edited since is refused as a conflict."""
        job = {"name": seen.name, "namespace": seen.namespace}
        version = {"uid": seen.uid, "resourceVersion": seen.job["metadata"]["resourceVersion"]}
        manifest = {"apiVersion": API_VERSION, "kind": KIND, "metadata": job | version, "status": writes.status}
        try:
            self.store.update(self._applied_status(manifest), is_concluded=writes.is_conclusive)
        except Refused as refused:
            if refused.code in (CONFLICT, GONE):
                raise Outdated from refused
            return Failure(Ref(KIND, seen.name), refused.code, str(refused))
        return None

    def _applied_status(self, manifest: Manifest) -> Object:
        """The job after the write of its status, without what an older CRD does not declare."""
        try:
            return self._writing().apply(manifest, "status")
        except Refused as refused:
            status = declared(manifest["status"], str(refused))
            if status is None:
                raise
            return self._writing().apply({**manifest, "status": status}, "status")

    def _apply(self, seen: Observed, manifest: Manifest) -> Iterator[Failure]:
        ref = ref_of(manifest)
        try:
            if ref not in seen.children and ref not in seen.parts:
                found = self.api.get(ref, seen.namespace)
                if found is not None:
                    yield self._found_unseen(seen, ref, found)
                    return
            self.store.update(self._writing().apply(manifest))
        except Refused as refused:
            yield Failure(ref, refused.code, str(refused))

    def _found_unseen(self, seen: Observed, ref: Ref, found: Object) -> Failure:
        """Handles an existing object that was not observed: another owner's is a failure, ours calls for a new pass."""
        if not is_owned_by(found, seen.uid):
            return Failure(ref, 0, "is not this job's")
        self.store.refresh(key_of(seen.job), found)
        raise Outdated

    def _delete(self, seen: Observed, ref: Ref, found: Object, *, waits: bool = True) -> Iterator[Failure]:
        """Deletes the object, a Job only with its last pod unless that is not waited for."""
        propagation = "Foreground" if ref.kind == "Job" and waits else "Background"
        try:
            self._writing().delete(ref, seen.namespace, found["metadata"]["uid"], propagation)
        except Refused as refused:
            yield Failure(ref, refused.code, str(refused))
