"""Finds changes that the watches missed: an object deleted while a watch was broken, a kind that was not watched.

Every minute the versions of all objects are listed and compared with the store. As long as the watches work, the two
agree.
"""

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
"""Time by which a watch may lag behind a list before its event counts as missed."""

Place = tuple[Key, Ref]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Sweeps these namespaces, or without any the whole cluster."""

    api: Api
    store: Store
    namespaces: Sequence[str] = ()

    async def run(self, wake: Callable[[Key], None]) -> None:
        """Sweeps every SWEEP_SECONDS until cancelled and wakes the jobs with missed changes."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            for kind, namespace in product(JOBS | WATCHED, self.namespaces or ("",)):
                try:
                    for key in await self.sweep(kind, namespace):
                        wake(key)
                except (Refused, OSError) as error:
                    log.warning("cannot list %s: %s", kind, error)
                except Exception:
                    log.exception("the sweep of %s failed", kind)

    async def sweep(self, kind: str, namespace: str = "") -> list[Key]:
        """Brings the store up to date for one kind. Returns the jobs with missed changes."""
        suspects = await asyncio.to_thread(self._differences, kind, namespace)
        if not suspects:
            return []
        await asyncio.sleep(GRACE_SECONDS)
        return await asyncio.to_thread(self._refresh_stale, suspects, kind, namespace)

    def _differences(self, kind: str, namespace: str) -> dict[Place, int | None]:
        """The objects whose listed version is newer than the known one; None for known objects that are not listed."""
        known = self.store.versions(kind, namespace)
        label = None if kind == KIND else names.JOB_LABEL
        listed = {(key_of(body), ref_of(body)): version_of(body) for body in self.api.listed(kind, namespace, label)}
        newer = {place: version for place, version in listed.items() if version > known.get(place, -1)}
        return newer | dict.fromkeys(known.keys() - listed.keys())

    def _refresh_stale(self, suspects: Mapping[Place, int | None], kind: str, namespace: str) -> list[Key]:
        known, missed = self.store.versions(kind, namespace), []
        for (key, ref), version in suspects.items():
            now = known.get((key, ref), -1)
            if now < version if version is not None else now >= 0:
                self._read(key, ref, now)
                missed.append(key)
        return missed

    def _read(self, key: Key, ref: Ref, known: int) -> None:
        """Reads one object by a list, which the operator is permitted to do for every kind."""
        for body in self.api.list_of(ref.kind, key.namespace, field_selector=f"metadata.name={ref.name}"):
            self.store.refresh(key, body)
            return
        self.store.discard(key, ref, known)
