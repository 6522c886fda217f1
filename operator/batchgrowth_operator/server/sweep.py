"""Finds what watches did not tell of: an object that went while a watch was broken, a kind that was not watched.

Every minute the versions of all objects are listed and compared with what is known. Nothing is to be found by that as
long as the watches are whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from batchgrowth import names
from batchgrowth.spec import KIND

from batchgrowth_operator.seen.observed import Ref, ref_of
from batchgrowth_operator.server.api import Api, Refused
from batchgrowth_operator.server.kinds import JOBS, WATCHED
from batchgrowth_operator.server.store import Key, Store, key_of, version_of

SWEEP_SECONDS = 60.0
GRACE_SECONDS = 5.0
"""A watch may tell a little later than a list does; what it has not told by then, it will not tell."""

Where = tuple[Key, Ref]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Sweeps these namespaces; the whole cluster where there are none."""

    api: Api
    store: Store
    namespaces: Sequence[str] = ()

    async def for_ever(self, wake: Callable[[Key], None]) -> None:
        """Sweeps now and then, and wakes the jobs of which something was not known."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            for kind, namespace in product(JOBS | WATCHED, self.namespaces or ("",)):
                try:
                    for key in await self.sweep(kind, namespace):
                        wake(key)
                except (Refused, OSError) as error:
                    log.warning("what there is of %s cannot be listed: %s", kind, error)
                except Exception:
                    log.exception("a sweep of %s failed", kind)

    async def sweep(self, kind: str, namespace: str = "") -> list[Key]:
        """Learn what there is of a kind: the jobs of which something was not known."""
        doubtful = await asyncio.to_thread(self._compare, kind, namespace)
        if not doubtful:
            return []
        await asyncio.sleep(GRACE_SECONDS)
        return await asyncio.to_thread(self._learn, doubtful, kind, namespace)

    def _compare(self, kind: str, namespace: str) -> dict[Where, int | None]:
        """Where another version is there than is known; None where none is there."""
        known = self.store.versions(kind, namespace)
        label = None if kind == KIND else names.JOB_LABEL
        listed = {(key_of(body), ref_of(body)): version_of(body) for body in self.api.listed(kind, namespace, label)}
        newer = {where: version for where, version in listed.items() if version > known.get(where, -1)}
        return newer | dict.fromkeys(known.keys() - listed.keys())

    def _learn(self, doubtful: Mapping[Where, int | None], kind: str, namespace: str) -> list[Key]:
        known, missed = self.store.versions(kind, namespace), []
        for (key, ref), version in doubtful.items():
            now = known.get((key, ref), -1)
            if now < version if version is not None else now >= 0:
                self._read(key, ref, now)
                missed.append(key)
        return missed

    def _read(self, key: Key, ref: Ref, known: int) -> None:
        """By a list, for that right is there."""
        for body in self.api.list_of(ref.kind, key.namespace, field_selector=f"metadata.name={ref.name}"):
            self.store.read(key, body)
            return
        self.store.drop(key, ref, known)
