"""From the store to one job's Observed; reads what no watch brings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from batchgrowth import names
from batchgrowth.spec import KIND

from batchgrowth_operator import tls
from batchgrowth_operator.api import Api
from batchgrowth_operator.observed import Credentials, Failure, Object, Observed, Ref, is_owned_by, labels_of
from batchgrowth_operator.overlay import CONTAINER
from batchgrowth_operator.store import Key, Store

REFRESH_SECONDS = 600
"""Watches do not tell of what went while they were broken, and Secrets are not watched: so often all is read anew."""


@dataclass(slots=True)
class Observer:
    """Sees jobs: through `store` what is watched, through `api` the rest."""

    api: Api
    store: Store
    _refreshed: dict[Key, float] = field(default_factory=dict)

    async def observe(self, key: Key, failures: tuple[Failure, ...]) -> Observed | None:
        """What is known of the job now; None where it is not there."""
        if self.store.job(key) is not None:
            await asyncio.to_thread(self._refresh, key)
        job = self.store.job(key)
        if job is None:
            self._refreshed.pop(key, None)
            return None
        now, uid = datetime.now(UTC), job["metadata"]["uid"]
        seen = self.store.belongings(key)
        children = {ref: body for ref, body in seen.items() if ref.kind != "Pod" and is_owned_by(body, uid)}
        pods = sorted((body for ref, body in seen.items() if ref.kind == "Pod"), key=lambda p: p["metadata"]["name"])
        return Observed(
            job=job,
            now=now,
            children=children,
            pods=tuple(pods),
            credentials=_credentials(key, children.get(_secret(key)), now),
            failures=failures,
        )

    def _refresh(self, key: Key) -> None:
        """Reads the Secret where it is not known, and everything of the job where that is long ago."""
        first = key not in self._refreshed
        if first or time.monotonic() - self._refreshed[key] >= REFRESH_SECONDS:
            for ref in () if first else _doubtful(key, self.store.belongings(key)):
                self._read(key, ref)
            self._refreshed[key] = time.monotonic()
        elif _secret(key) in self.store.belongings(key):
            return
        self._read(key, _secret(key))

    def _read(self, key: Key, ref: Ref) -> None:
        found = self.api.get(ref, key.namespace)
        if found is None:
            self.store.drop(key, ref)
        else:
            self.store.read(key, found)


def _doubtful(key: Key, seen: Mapping[Ref, Object]) -> list[Ref]:
    """The job and what belongs to it; workers that run are many, and none of them holds anything up."""
    running = [ref for ref, body in seen.items() if ref.kind == "Pod" and body["status"].get("phase") == "Running"]
    workers = [ref for ref in running if labels_of(seen[ref]).get(names.ROLE_LABEL) == CONTAINER]
    return [Ref(KIND, key.name), *(ref for ref in seen if ref not in workers and ref != _secret(key))]


def _secret(key: Key) -> Ref:
    return Ref("Secret", names.tls(key.name))


def _credentials(key: Key, secret: Object | None, now: datetime) -> Credentials | None:
    if secret is not None and tls.is_fresh(secret, now):
        return None
    return tls.issue(key.name, key.namespace, now, secret)
