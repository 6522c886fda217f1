"""Carries out a decision: the one place that writes."""

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from batchgrowth import names
from batchgrowth.spec import API_VERSION, KIND

from batchgrowth_operator.decide.decision import Decision, Event, Manifest
from batchgrowth_operator.seen.observed import Failure, Object, Observed, Ref, is_owned_by, ref_of
from batchgrowth_operator.seen.timestamps import timestamp, timestamp_ms
from batchgrowth_operator.server.api import CONFLICT, GONE, Api, Refused
from batchgrowth_operator.server.correlator import Correlator, Series
from batchgrowth_operator.server.store import Key, Store, key_of
from batchgrowth_operator.server.undeclared import declared

log = logging.getLogger(__name__)


class Outdated(Exception):
    """The job or a child changed since it was observed; another pass must decide."""


class NotLeading(OSError):
    """Another operator may lead by now, so this one must not write."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes through `api` and stores the responses in `store`; asks before each write whether it may."""

    api: Api
    store: Store
    may_write: Callable[[], bool] = lambda: True
    correlator: Correlator = field(default_factory=Correlator)

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
            self._post(seen, event)
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

    def forget(self, key: Key) -> None:
        """Forgets the events of a job that is gone."""
        self.correlator.forget(key)

    def _post(self, seen: Observed, event: Event) -> None:
        """Creates an event or counts it in the one that exists; see the correlator."""
        name = f"{seen.name}.{secrets.token_hex(8)}"
        series = self.correlator.observe(key_of(seen.job), seen.uid, event, seen.now, name)
        if series is None:
            return
        try:
            if not series.is_posted or not self._repeat(seen, series):
                self._writing().post_event(seen.namespace, _event(seen, event, series))
            series.is_posted = True
        except Refused as refused:
            log.warning("%s/%s: cannot post the event %s: %s", *key_of(seen.job), event.reason, refused)

    def _repeat(self, seen: Observed, series: Series) -> bool:
        """Whether the event still existed, to count this one; the API server drops events after an hour."""
        change = {"message": series.message, "count": series.count, "lastTimestamp": timestamp(series.last)}
        return self._writing().repeat_event(seen.namespace, series.name, change)


def _event(seen: Observed, event: Event, series: Series) -> Manifest:
    job = {"apiVersion": API_VERSION, "kind": KIND, "name": seen.name, "namespace": seen.namespace, "uid": seen.uid}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": series.name, "namespace": seen.namespace},
        "involvedObject": job,
        "type": event.type,
        "reason": event.reason,
        "message": series.message,
        "action": "Reconcile",
        "firstTimestamp": timestamp(series.first),
        "lastTimestamp": timestamp(series.last),
        "eventTime": timestamp_ms(series.first).replace("Z", "000Z"),
        "reportingComponent": names.FIELD_MANAGER,
        "reportingInstance": names.FIELD_MANAGER,
        "count": series.count,
    }
