"""From the store to one job's Observed; reads what no watch brings."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from batchgrowth import names
from batchgrowth.spec import KIND

from batchgrowth_operator import tls
from batchgrowth_operator.api import Api
from batchgrowth_operator.kinds import WATCHED
from batchgrowth_operator.observed import Credentials, Failure, Object, Observed, Ref, is_owned_by, ref_of
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
        due = first or time.monotonic() - self._refreshed[key] >= REFRESH_SECONDS
        if due and not first:
            self._list(key, KIND, field_selector=f"metadata.name={key.name}")
            for kind in WATCHED:
                self._list(key, kind, label_selector=names.selector(key.name))
        if due or _secret(key) not in self.store.belongings(key):
            self._read_secret(key)
        if due:
            self._refreshed[key] = time.monotonic()

    def _list(self, key: Key, kind: str, **selectors: str) -> None:
        known = [ref for ref in self.store.all_of(key) if ref.kind == kind]
        found = {ref_of(body): body for body in self.api.list_of(kind, key.namespace, **selectors)}
        for body in found.values():
            self.store.read(key, body)
        for ref in known:
            if ref not in found:
                self.store.drop(key, ref)

    def _read_secret(self, key: Key) -> None:
        found = self.api.get(_secret(key), key.namespace)
        if found is None:
            self.store.drop(key, _secret(key))
        else:
            self.store.read(key, found)


def _secret(key: Key) -> Ref:
    return Ref("Secret", names.tls(key.name))


def _credentials(key: Key, secret: Object | None, now: datetime) -> Credentials | None:
    if secret is not None and tls.is_fresh(secret, now):
        return None
    return tls.issue(key.name, key.namespace, now, secret)
