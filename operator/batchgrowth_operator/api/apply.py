"""The only module of the operator's process that writes a job and its children; it logs each write."""

import logging
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

from batchgrowth.spec import API_VERSION, KIND

from batchgrowth_operator.api.cache import Key, Store, key_of
from batchgrowth_operator.api.client import Api, Refused
from batchgrowth_operator.api.events import EventPoster
from batchgrowth_operator.api.leader import bounded
from batchgrowth_operator.children.dask_cluster import DASK_FINALIZER
from batchgrowth_operator.job.announcements import applied, changes, deleted, heading, status_refused
from batchgrowth_operator.job.reconcile import Writes
from batchgrowth_operator.seen.observed import (
    Failure,
    Manifest,
    Object,
    Observed,
    Ref,
    finalizers_of,
    is_owned_by,
    ref_of,
    stored_status,
)
from batchgrowth_operator.seen.refused_objects import FOREIGN

log = logging.getLogger(__name__)

BUSY = frozenset(
    {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)
"""Status codes of a server that serves no writes at the moment. They say nothing about the write itself, unlike a 500,
with which the API server also answers if a webhook is away or etcd is full."""

_FIELD = re.compile(r"\.status\.([\w.]+(?:\[[^\]]*\][\w.]*)*): field not declared in schema")
_TYPE = re.compile(r"\bstatus\.conditions\[(\d+)\]\.type: Unsupported value")
_INDEX = re.compile(r"\[[^\]]*\]")


class Outdated(Exception):
    """The job or a child changed since it was observed; another pass must decide."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes through `api` while this process leads, and stores the responses in `store`.

    Events are left to the `poster`, so that no other write waits for them.
    """

    api: Api
    store: Store
    poster: EventPoster
    seconds_left: Callable[[], float] = lambda: math.inf
    """Returns the seconds for which this process still leads."""

    def carry_out(self, seen: Observed, writes: Writes) -> tuple[Failure, ...]:
        """Write what the pass decided, and return the writes that the API server refused.

        After the first refusal, this pass leaves to the next one what may depend on the refused write: it creates no
        child, deletes none in order to recreate it, and does not delete the job. It still changes, suspends and
        releases children that exist.

        Raises Outdated if the job or a child has changed; OSError if no server answers or this process no longer leads.
        """
        failures: list[Failure] = []
        events = writes.events
        if writes.status is not None:
            refused = self._write_status(seen, writes)
            if refused is not None:
                failures.append(refused)
                # The events of a status that is not stored wait until it is, or each further pass would post them.
                events = () if refused.code in BUSY else (status_refused(refused),)
        # Before the writes that may raise: the next pass finds the status stored, and has no event for it.
        for event in events:
            self.poster.record(seen, event)

        for manifest in writes.apply:
            if not failures or ref_of(manifest) in seen.children:
                failures += self._apply(seen, manifest)
        for ref in writes.delete:
            if not failures or ref not in writes.recreated:
                failures += self._delete(seen, writes, ref)
        if writes.delete_job and not failures:
            failures += self._delete(seen, writes, Ref(KIND, seen.name))
        return tuple(failures)

    def release(self, key: Key, cluster: Object) -> None:
        """Take the Dask operator's finalizer from the DaskCluster of a job that is gone.

        Raises Refused; OSError if no server answers or this process no longer leads.
        """
        ref = ref_of(cluster)
        metadata = cluster["metadata"]
        others = [name for name in finalizers_of(cluster) if name != DASK_FINALIZER]
        self._writing().release(ref, key.namespace, metadata["resourceVersion"], others)
        since = metadata["deletionTimestamp"]
        log.warning(
            "%s/%s: the Dask operator has not released DaskCluster %s since %s; released it", *key, ref.name, since
        )

    def _write_status(self, seen: Observed, writes: Writes) -> Failure | None:
        """Write the status with the observed resource version, and return the failure if the API server refuses it.

        Raises Outdated if the job was edited or deleted since.
        """
        job = {"name": seen.name, "namespace": seen.namespace}
        version = {"uid": seen.uid, "resourceVersion": seen.job["metadata"]["resourceVersion"]}
        manifest: Manifest = {
            "apiVersion": API_VERSION, "kind": KIND, "metadata": job | version, "status": writes.status
        }  # fmt: skip
        try:
            stored = self._apply_status(manifest)
        except Refused as refused:
            if refused.code in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
                raise Outdated from refused
            return Failure(Ref(KIND, seen.name), refused.code, str(refused))
        self.store.update(stored, is_progress_only=writes.is_progress_only)
        about = heading(seen, writes.status)
        written = replace(seen, job={**seen.job, "status": writes.status})
        for line in changes(stored_status(seen), stored_status(written)):
            log.info("%s: %s", about, line)
        log.debug("%s: wrote the status", about)
        return None

    def _apply_status(self, manifest: Manifest) -> Object:
        """Apply the status, without what an older CRD does not know, and return the stored job.

        Such a CRD refuses the whole status for a field or a type of condition that it does not declare, even by
        server-side apply, and even if unknown fields may be dropped. It checks types once it knows all fields.
        """
        while True:
            try:
                return self._writing().apply(manifest, "status")
            except Refused as refused:
                known = without_undeclared(manifest["status"], str(refused))
                if known is None or known == manifest["status"]:
                    raise
                manifest = {**manifest, "status": known}

    def _apply(self, seen: Observed, manifest: Manifest) -> list[Failure]:
        """Create or change a child by server-side apply. Raises Outdated if the child exists although it was not
        observed.
        """
        ref = ref_of(manifest)
        is_new = ref not in seen.children and ref not in seen.parts
        try:
            if is_new:
                # An apply would take over another owner's object of that name.
                found = self.api.get(ref, seen.namespace)
                if found is not None and not is_owned_by(found, seen.uid):
                    return [Failure(ref, FOREIGN, "is not this job's")]
                if found is not None:
                    self.store.refresh(key_of(seen.job), found)
                    raise Outdated
            self.store.update(self._writing().apply(manifest))
        except Refused as refused:
            return [Failure(ref, refused.code, str(refused), "create" if is_new else "change")]
        log.info("%s: %s", heading(seen), applied(seen, manifest))
        return []

    def _delete(self, seen: Observed, writes: Writes, ref: Ref) -> list[Failure]:
        """Delete a child or the job. A Job is deleted after its last pod, unless the writes say not to wait."""
        found = seen.job if ref.kind == KIND else seen.children[ref]
        waits = ref.kind == "Job" and ref not in writes.in_background
        propagation = "Foreground" if waits else "Background"
        try:
            self._writing().delete(ref, seen.namespace, found["metadata"]["uid"], propagation)
        except Refused as refused:
            return [Failure(ref, refused.code, str(refused), "delete")]
        log.info("%s: %s", heading(seen), deleted(ref, writes.recreated.get(ref)))
        return []

    def _writing(self) -> Api:
        """Return the API for the next write. Raises NotLeading if this process may no longer write."""
        return bounded(self.api, self.seconds_left())


def without_undeclared(status: dict[str, Any], refusal: str) -> dict[str, Any] | None:
    """Return the status without the fields and types of conditions that the API server refused as undeclared; None if
    the refusal names none.

    The cluster's CRD does not declare them if it is older than the operator.
    """
    paths = [_INDEX.sub("", path).split(".") for path in _FIELD.findall(refusal)]
    kept: Any = status
    for path in paths:
        kept = _without(kept, path)
    unknown = {int(index) for index in _TYPE.findall(refusal)}
    if unknown:
        conditions = [each for index, each in enumerate(kept["conditions"]) if index not in unknown]
        kept = {**kept, "conditions": conditions}
    return kept if paths or unknown else None


def _without(value: Any, path: list[str]) -> Any:
    """Return the value without the field at the path, in every entry of lists."""
    if isinstance(value, list):
        return [_without(entry, path) for entry in value]
    name, *rest = path
    if not isinstance(value, dict) or name not in value:
        return value
    if not rest:
        return {key: inner for key, inner in value.items() if key != name}
    return {**value, name: _without(value[name], rest)}
