"""Which of several operators works: the one whose name is in the Lease, as long as it renews it.

Two at once would do no harm, only twice the requests: every write is idempotent.  So a pause of the clock or of the
process cannot break anything here.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from batchgrowth_operator.seen.moments import fine_stamp
from batchgrowth_operator.seen.observed import Object
from batchgrowth_operator.server.api import Api, Refused
from batchgrowth_operator.server.settings import Place

LASTS_SECONDS = 15
RENEWED_EVERY_SECONDS = 4.0
TRIED_EVERY_SECONDS = 1.0
LOST_AFTER_SECONDS = 12.0

log = logging.getLogger(__name__)


def claim(place: Place, found: Object | None, unchanged_seconds: float, now: datetime) -> dict[str, Any] | None:
    """The Lease to be written by one who wants to work; None while another holds it.

    `unchanged_seconds` is how long it has looked the same: clocks of others are not trusted.
    """
    stamp = fine_stamp(now).replace("Z", "000Z")  # a MicroTime has six digits
    if found is None:
        metadata = {"name": place.name, "namespace": place.namespace}
        spec = _spec(place, stamp, stamp, 0)
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
    held = found.get("spec") or {}
    mine = held.get("holderIdentity") == place.holder
    if not mine and held.get("holderIdentity") and unchanged_seconds < held.get("leaseDurationSeconds", LASTS_SECONDS):
        return None
    since = held.get("acquireTime", stamp) if mine else stamp
    spec = _spec(place, since, stamp, int(held.get("leaseTransitions", 0)) + (not mine))
    return {**copy.deepcopy(dict(found)), "spec": spec}


async def hold(api: Api, place: Place, begin: Callable[[], None]) -> None:
    """Waits for the Lease, calls `begin` once, and goes on renewing it. Returns when it is lost."""
    seen, seen_at, renewed_at = None, time.monotonic(), None
    while renewed_at is None or time.monotonic() - renewed_at < LOST_AFTER_SECONDS:
        pause = RENEWED_EVERY_SECONDS
        try:
            found = await asyncio.to_thread(api.get_lease, place.namespace, place.name)
            if found != seen:
                seen, seen_at = found, time.monotonic()
            wanted = claim(place, found, time.monotonic() - seen_at, datetime.now(UTC))
            if wanted is not None:
                seen = await asyncio.to_thread(api.put_lease, wanted)
                if renewed_at is None:
                    log.info("%s holds the lease %s/%s", place.holder, place.namespace, place.name)
                    begin()
                renewed_at = seen_at = time.monotonic()
            elif renewed_at is not None:
                break
        except (Refused, OSError) as error:
            log.warning("the lease %s/%s: %s", place.namespace, place.name, error)
            pause = TRIED_EVERY_SECONDS
        await asyncio.sleep(pause)
    log.warning("%s has lost the lease %s/%s", place.holder, place.namespace, place.name)


def _spec(place: Place, since: str, renewed: str, transitions: int) -> dict[str, Any]:
    return {
        "holderIdentity": place.holder,
        "leaseDurationSeconds": LASTS_SECONDS,
        "acquireTime": since,
        "renewTime": renewed,
        "leaseTransitions": transitions,
    }
