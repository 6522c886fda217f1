"""Collects one job's Observed from the store, and what is not watched, such as Secrets, from the API server."""

import asyncio
import logging
import math
import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from batchgrowth import names
from batchgrowth.spec import KIND

from batchgrowth_operator import certificates
from batchgrowth_operator.api.cache import Key, Store
from batchgrowth_operator.api.client import Api, Refused
from batchgrowth_operator.seen.observed import (
    Clock,
    Failure,
    Inquiry,
    Object,
    Observed,
    PutBack,
    Ref,
    TlsSecrets,
    active_since,
    condition_of,
    ended_at,
    is_older,
    is_owned_by,
    is_pod_of,
    seconds_since,
)
from batchgrowth_operator.seen.problems import seconds_between_event_reads, unexplained
from batchgrowth_operator.seen.progress import foreign_policies, mark_of, needs_inquiry, news_of, text_of
from batchgrowth_operator.seen.trainer_pods import has_ended

RESYNC_SECONDS = 600
"""Longest time between two passes of a job."""
SECRET_SECONDS = 30
"""Time between two reads of the Secrets of a job with a cluster, one of which new pods mount."""
SETTLED_SECONDS = 300
"""The same while no pod of the job starts: running pods have mounted the Secret. The first new pod ends that time."""
INQUIRY_SECONDS = 30.0
"""Time between two inquiries about a silent trainer."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Memory:
    """The observer's memory of a job between passes. Times are of the monotonic clock."""

    uid: str = ""
    """The job's uid; empty before its first pass."""
    secrets_read: float = -math.inf
    """When the Secrets were last read."""
    unrenewed: tuple[Any, ...] = ()
    """The time at which Secrets were read that needed no renewal, and their versions; empty before."""
    put_backs: Mapping[Ref, PutBack] = field(default_factory=dict)
    """What the last pass put back."""
    warnings_read: float = -math.inf
    warnings: tuple[Object, ...] = ()
    first_seen: dict[str, tuple[Hashable, float]] = field(default_factory=dict)
    """The newest report, activity and end of the job, each with the time at which this process first saw it."""
    news: int | None = None
    """Hash of what the trainer's newest report says besides its position."""
    last_report: tuple[int, datetime] | None = None
    """Hash of the newest text of the trainer's report, and the API server's time of day at which it was first seen."""
    inquiry: Inquiry | None = None
    inquired: float = -math.inf


@dataclass(slots=True)
class Observer:
    """Observes jobs: watched objects from `store`, other objects through `api`, and only pods that the job controls."""

    api: Api
    store: Store
    _memories: dict[Key, Memory] = field(default_factory=dict)

    async def observe(self, key: Key, failures: tuple[Failure, ...]) -> Observed | None:
        """Return the job's current state, with the failures of its last pass; None if the job does not exist.

        Raises Refused or OSError if the Secrets cannot be read.
        """
        known = {*self.store.refs(key)}
        authority, tls = _secrets(key)
        read_ago = time.monotonic() - self._memory(key).secrets_read
        are_secrets_due = read_ago >= self.resync_seconds(key) or not {authority, tls} <= known
        if Ref(KIND, key.name) in known and are_secrets_due:
            await asyncio.to_thread(self._read_secrets, key)
        # The store is read without a pause from here on, so that all of it is of one moment.
        job = self.store.job(key)
        if job is None:
            self.forget(key)
            self.store.discard(key, authority)  # Secrets are not watched, so no event removes them
            self.store.discard(key, tls)
            return None
        now = self.api.clock.now()
        active = active_since(job)
        ended = ended_at(job)
        uid = job["metadata"]["uid"]
        memory = self._memory(key)
        if memory.uid not in ("", uid):  # an earlier job of this name was deleted unnoticed
            memory = self._memories[key] = Memory(secrets_read=memory.secrets_read)
            failures = ()
        memory.uid = uid
        stored = self.store.children(key)
        children = {ref: body for ref, body in stored.items() if ref.kind != "Pod" and is_owned_by(body, uid)}
        parts = _parts(children.get(Ref("DaskCluster", names.of(key.name).cluster)), stored)
        strangers = {
            ref: body for ref, body in stored.items() if ref.kind != "Pod" and ref not in children and ref not in parts
        }
        others = {str(body["metadata"]["uid"]) for body in strangers.values()}
        pods = [body for ref, body in stored.items() if ref.kind == "Pod" and is_pod_of(body, key.name, others)]
        # An earlier job's trainer is waited for, but its end and its last report are not this job's.
        pods = [pod for pod in pods if not (is_older(pod, job) and has_ended(pod))]
        observed = Observed(
            job=job,
            now=now,
            children=children,
            parts=parts,
            strangers=strangers,
            pods=tuple(sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))),
            tls_secrets=self._renewed(key, now, children),
            failures=tuple(failure for failure in failures if failure.ref.kind != KIND),
            put_backs=self._memory(key).put_backs,
            last_report=self._last_report(key, children.get(_report_ref(key)), now),
            report_age_seconds=self._age(key, "report", mark_of(children.get(_report_ref(key)))),
            active_seconds=self._age(key, "active", active, seconds_since(active, now)),
            ended_seconds=self._age(key, "ended", ended, seconds_since(ended, now)),
        )
        if needs_inquiry(observed):
            observed = replace(observed, inquiry=await asyncio.to_thread(self._inquiry, key))
            report = _report_ref(key)
            if text_of(self.store.child(key, report)) != text_of(stored.get(report)):
                return await self.observe(key, failures)  # the trainer has reported after all
        pending = unexplained(observed, Clock(now))
        if not pending:
            return observed
        return replace(observed, warnings=await asyncio.to_thread(self._warnings, key, pending, now))

    def forget(self, key: Key) -> None:
        """Forget a job that is gone."""
        self._memories.pop(key, None)

    def left_cluster(self, key: Key) -> Object | None:
        """Return the DaskCluster of a job that is gone; None if none is left."""
        found = self.store.child(key, Ref("DaskCluster", names.of(key.name).cluster))
        owners = () if found is None else found["metadata"].get("ownerReferences") or ()
        return found if any(owner.get("kind") == KIND for owner in owners) else None

    def note_change(self, key: Key, ref: Ref) -> bool:
        """Note a change as it arrives; return whether it may need a pass soon.

        The age of a trainer's report counts from this call, because the pass that reads the report may come much later.
        If the report only says that training goes on, that pass can wait.
        """
        if ref != _report_ref(key):
            return True
        config_map = self.store.child(key, ref)
        job = self.store.job(key)
        if config_map is None or job is None or not is_owned_by(config_map, job["metadata"]["uid"]):
            return True
        self._age(key, "report", mark_of(config_map))
        self._last_report(key, config_map, self.api.clock.now())
        news = hash(news_of(config_map))
        memory = self._memory(key)
        is_new = news != memory.news
        memory.news = news
        return is_new

    def remember(self, key: Key, put_backs: Mapping[Ref, PutBack], refused: tuple[Failure, ...] = ()) -> None:
        """Remember for the next pass what this pass put back, except in children that the API server refused."""
        refs = {failure.ref for failure in refused}
        self._memory(key).put_backs = {ref: known for ref, known in put_backs.items() if ref not in refs}

    def _memory(self, key: Key) -> Memory:
        return self._memories.setdefault(key, Memory())

    def resync_seconds(self, key: Key) -> float:
        """Return the longest time until the job's next pass."""
        if Ref("DaskCluster", names.of(key.name).cluster) not in self.store.refs(key):
            return RESYNC_SECONDS
        # The Secrets are read less often while every desired worker is ready, and no pod waits for its volumes.
        workers = self.store.child(key, Ref("Deployment", names.of(key.name).workers)) or {}
        desired = (workers.get("spec") or {}).get("replicas", 0)
        ready = (workers.get("status") or {}).get("readyReplicas", 0)
        if not 0 < desired <= ready:
            return SECRET_SECONDS
        for pod in self.store.pods(key):
            is_pending = (pod.get("status") or {}).get("phase") == "Pending"
            if is_pending and condition_of(pod, "PodScheduled", "False") is None:  # one without a node cannot mount
                return SECRET_SECONDS
        return SETTLED_SECONDS

    def _age(self, key: Key, what: str, mark: Hashable, before: float = 0.0) -> float:
        """Return the seconds since this process first saw that mark; 0 if `mark` is None.

        `before` is the mark's age before this process saw it. It counts only for the first mark of a job, because this
        process saw every later one arrive.
        """
        first_seen = self._memory(key).first_seen
        now = time.monotonic()
        if what not in first_seen:
            first_seen[what] = mark, now - before
        elif first_seen[what][0] != mark:
            first_seen[what] = mark, now
        return 0.0 if mark is None else now - first_seen[what][1]

    def _last_report(self, key: Key, config_map: Object | None, now: datetime) -> datetime | None:
        """Return when this process first saw the newest text of the trainer's report; None before the first one."""
        text = text_of(config_map)
        if text is None:
            return None
        memory = self._memory(key)
        mark = hash(text)
        if memory.last_report is None or memory.last_report[0] != mark:
            memory.last_report = mark, now
        return memory.last_report[1]

    def _inquiry(self, key: Key) -> Inquiry:
        """Return what the API server says about a silent trainer; ask it again only after INQUIRY_SECONDS.

        The trainer's ConfigMap is read too, in case the watch has missed a report.
        """
        memory = self._memory(key)
        if memory.inquiry is None or time.monotonic() - memory.inquired >= INQUIRY_SECONDS:
            refusal = ""
            policies: tuple[str, ...] = ()
            try:
                found = self.api.get(_report_ref(key), key.namespace)
                if found is not None:
                    self.store.refresh(key, found)
                policies = foreign_policies(self.api.list_of("NetworkPolicy", key.namespace), key.name)
            except (Refused, OSError) as error:
                refusal = str(error)
            memory.inquiry = Inquiry(refusal=refusal, policies=policies)
            memory.inquired = time.monotonic()
        return memory.inquiry

    def _renewed(self, key: Key, now: datetime, children: Mapping[Ref, Object]) -> TlsSecrets | None:
        """Return what to write to the Secrets; a None is remembered until the Secrets are read again or change."""
        found = [children.get(ref) for ref in _secrets(key)]
        memory = self._memory(key)
        versions = (
            memory.secrets_read,
            *((one or {}).get("metadata", {}).get("resourceVersion") for one in found),
        )
        if memory.unrenewed == versions:
            return None
        successor = certificates.renewed(key.name, key.namespace, now, *found)
        if successor is None:
            memory.unrenewed = versions
        return successor

    def _read_secrets(self, key: Key) -> None:
        for ref in _secrets(key):
            found = self.api.get(ref, key.namespace)
            if found is None:
                self.store.discard(key, ref)
            else:
                self.store.refresh(key, found)
        self._memory(key).secrets_read = time.monotonic()

    def _warnings(self, key: Key, pending: tuple[Object, ...], now: datetime) -> tuple[Object, ...]:
        """Return the Warning events about these objects, whose status does not explain why they are pending.

        They are read again after a while. They only serve messages: if the operator cannot read them, the job goes
        on without them.
        """
        memory = self._memory(key)
        if time.monotonic() - memory.warnings_read >= seconds_between_event_reads(pending, now):
            try:
                uids = (str(body["metadata"]["uid"]) for body in pending)
                memory.warnings = tuple(event for uid in uids for event in self.api.warnings(key.namespace, uid))
            except (Refused, OSError) as error:
                log.warning("%s/%s: cannot read events: %s", *key, error)
            memory.warnings_read = time.monotonic()
        return memory.warnings


def _parts(cluster: Object | None, stored: Mapping[Ref, Object]) -> Mapping[Ref, Object]:
    uid = cluster["metadata"]["uid"] if cluster is not None else ""
    return {ref: body for ref, body in stored.items() if is_owned_by(body, uid)}


def _report_ref(key: Key) -> Ref:
    return Ref("ConfigMap", names.of(key.name).progress)


def _secrets(key: Key) -> tuple[Ref, Ref]:
    """Return the authority's Secret and the Secret that pods mount."""
    return Ref("Secret", names.of(key.name).authority), Ref("Secret", names.of(key.name).tls)
