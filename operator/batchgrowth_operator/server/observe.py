"""From the store to one job's Observed; reads what no watch brings."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from batchgrowth import names
from batchgrowth.spec import KIND

from batchgrowth_operator.seen.observed import Credentials, Failure, Object, Observed, Ref, is_owned_by
from batchgrowth_operator.seen.troubles import puzzles, seconds_between_warnings
from batchgrowth_operator.server import tls
from batchgrowth_operator.server.api import Api, Refused
from batchgrowth_operator.server.store import Key, Store

LONGEST_REST_SECONDS = 600
SECRET_SECONDS = 30
"""Secrets are not watched: so often that of a job with a cluster is read, for a new pod does not start without it."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Observer:
    """Sees jobs: through `store` what is watched, through `api` the rest."""

    api: Api
    store: Store
    _secret_read: dict[Key, float] = field(default_factory=dict)
    _warned: dict[Key, tuple[float, tuple[Object, ...]]] = field(default_factory=dict)

    async def observe(self, key: Key, failures: tuple[Failure, ...]) -> Observed | None:
        """What is known of the job now; None where it is not there."""
        if Ref(KIND, key.name) in self.store.refs(key):
            await asyncio.to_thread(self._read_secret_if_due, key)
        job = self.store.job(key)
        if job is None:
            self._secret_read.pop(key, None)
            self._warned.pop(key, None)
            return None
        now, uid = datetime.now(UTC), job["metadata"]["uid"]
        seen = self.store.belongings(key)
        children = {ref: body for ref, body in seen.items() if ref.kind != "Pod" and is_owned_by(body, uid)}
        pods = sorted((body for ref, body in seen.items() if ref.kind == "Pod"), key=lambda p: p["metadata"]["name"])
        observed = Observed(
            job=job,
            now=now,
            children=children,
            parts=_parts(children.get(Ref("DaskCluster", names.cluster(key.name))), seen),
            pods=tuple(pods),
            credentials=_credentials(key, children.get(_secret(key)), now),
            failures=failures,
        )
        return replace(observed, warnings=await asyncio.to_thread(self._warnings, key, observed))

    def rest_seconds(self, key: Key) -> float:
        """The longest time without a look at the job."""
        return SECRET_SECONDS if self._has_cluster(key) else LONGEST_REST_SECONDS

    def _read_secret_if_due(self, key: Key) -> None:
        age = time.monotonic() - self._secret_read.get(key, -math.inf)
        due = age >= (SECRET_SECONDS if self._has_cluster(key) else LONGEST_REST_SECONDS)
        if due or _secret(key) not in self.store.refs(key):
            self._read_secret(key)
            self._secret_read[key] = time.monotonic()

    def _has_cluster(self, key: Key) -> bool:
        return Ref("DaskCluster", names.cluster(key.name)) in self.store.refs(key)

    def _warnings(self, key: Key, seen: Observed) -> tuple[Object, ...]:
        """The events about what is held up without a word of its own; those of a moment ago where they were just read.

        They are for people alone: where they may not be read, the job goes on without them.
        """
        pause = seconds_between_warnings(seen)
        if pause is None:
            return ()
        read_at, found = self._warned.get(key, (-math.inf, ()))
        if time.monotonic() - read_at >= pause:
            try:
                uids = (str(body["metadata"]["uid"]) for body in puzzles(seen))
                found = tuple(event for uid in uids for event in self.api.warnings(key.namespace, uid))
            except Refused as refused:
                log.warning("%s/%s: events cannot be read: %s", *key, refused)
            self._warned[key] = time.monotonic(), found
        return found

    def _read_secret(self, key: Key) -> None:
        found = self.api.get(_secret(key), key.namespace)
        if found is None:
            self.store.drop(key, _secret(key))
        else:
            self.store.read(key, found)


def _parts(cluster: Object | None, seen: Mapping[Ref, Object]) -> Mapping[Ref, Object]:
    uid = cluster["metadata"]["uid"] if cluster is not None else ""
    return {ref: body for ref, body in seen.items() if is_owned_by(body, uid)}


def _secret(key: Key) -> Ref:
    return Ref("Secret", names.tls(key.name))


def _credentials(key: Key, secret: Object | None, now: datetime) -> Credentials | None:
    if secret is not None and tls.is_fresh(secret, now):
        return None
    return tls.issue(key.name, key.namespace, now, secret)
