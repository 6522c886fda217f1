"""From the store to one job's Observed; reads what no watch brings."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from batchgrowth import names

from batchgrowth_operator import tls
from batchgrowth_operator.api import Api
from batchgrowth_operator.observed import Credentials, Failure, Object, Observed, Ref, is_owned_by
from batchgrowth_operator.store import Key, Store

SECRET_SECONDS = 600
"""A Secret that somebody deleted is put back within this time: it is not watched."""


@dataclass(slots=True)
class Observer:
    """Sees jobs: through `store` what is watched, through `api` the rest."""

    api: Api
    store: Store
    _secrets_read: dict[Key, float] = field(default_factory=dict)

    async def observe(self, key: Key, failures: tuple[Failure, ...]) -> Observed | None:
        """What is known of the job now; None where it is not there."""
        job = self.store.job(key)
        if job is None:
            self._secrets_read.pop(key, None)
            return None
        await self._read_secret(key)
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

    async def _read_secret(self, key: Key) -> None:
        known = _secret(key) in self.store.belongings(key)
        if known and time.monotonic() - self._secrets_read.get(key, -SECRET_SECONDS) < SECRET_SECONDS:
            return
        found = await asyncio.to_thread(self.api.get, _secret(key), key.namespace)
        if found is None:
            self.store.drop(key, _secret(key))
        else:
            self.store.read(key, found)
        self._secrets_read[key] = time.monotonic()


def _secret(key: Key) -> Ref:
    return Ref("Secret", names.tls(key.name))


def _credentials(key: Key, secret: Object | None, now: datetime) -> Credentials | None:
    if secret is not None and tls.is_fresh(secret, now):
        return None
    return tls.issue(key.name, key.namespace, now, secret)
