"""Leader election: of several operators, the holder of the Lease works, as long as it renews it.

Two leaders at once would only double the requests, since every write is idempotent. So a paused clock or process does
no harm.
"""

import asyncio
import copy
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from batchgrowth_operator.seen.observed import Object
from batchgrowth_operator.seen.timestamps import timestamp_ms
from batchgrowth_operator.server.api import Api, Refused
from batchgrowth_operator.server.settings import LeaseLock

DURATION_SECONDS = 15
"""Time without a renewal after which another operator may take the Lease."""
RENEW_SECONDS = 4.0
RETRY_SECONDS = 1.0
LOST_AFTER_SECONDS = 12.0
"""Time without a successful renewal after which the holder stops working."""

log = logging.getLogger(__name__)


def claim(lock: LeaseLock, found: Object | None, unchanged_seconds: float, now: datetime) -> dict[str, Any] | None:
    """The Lease to write in order to hold it; None while another operator holds it.

    `unchanged_seconds` is how long the Lease has not changed, since other machines' clocks are not trusted.
    """
    micro_time = timestamp_ms(now).replace("Z", "000Z")
    if found is None:
        metadata = {"name": lock.name, "namespace": lock.namespace}
        spec = _spec(lock, micro_time, micro_time, 0)
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
    held = found.get("spec") or {}
    holder, duration = held.get("holderIdentity"), held.get("leaseDurationSeconds", DURATION_SECONDS)
    mine = holder == lock.holder
    if not mine and holder and unchanged_seconds < duration:
        return None
    since = held.get("acquireTime", micro_time) if mine else micro_time
    spec = _spec(lock, since, micro_time, int(held.get("leaseTransitions", 0)) + (not mine))
    return {**copy.deepcopy(dict(found)), "spec": spec}


async def hold(api: Api, lock: LeaseLock, begin: Callable[[], None]) -> None:
    """Acquires the Lease, calls `begin` once, and keeps renewing the Lease. Returns when it is lost."""
    seen, seen_at, renewed_at = None, time.monotonic(), None
    while renewed_at is None or time.monotonic() - renewed_at < LOST_AFTER_SECONDS:
        pause = RENEW_SECONDS
        try:
            found = await asyncio.to_thread(api.get_lease, lock.namespace, lock.name)
            if found != seen:
                seen, seen_at = found, time.monotonic()
            wanted = claim(lock, found, time.monotonic() - seen_at, datetime.now(UTC))
            if wanted is not None:
                seen = await asyncio.to_thread(api.put_lease, wanted)
                if renewed_at is None:
                    log.info("%s acquired the lease %s/%s", lock.holder, lock.namespace, lock.name)
                    begin()
                renewed_at = seen_at = time.monotonic()
            elif renewed_at is not None:
                break
        except (Refused, OSError) as error:
            log.warning("the lease %s/%s: %s", lock.namespace, lock.name, error)
            pause = RETRY_SECONDS
        await asyncio.sleep(pause)
    log.warning("%s lost the lease %s/%s", lock.holder, lock.namespace, lock.name)


def _spec(lock: LeaseLock, since: str, renewed: str, transitions: int) -> dict[str, Any]:
    return {
        "holderIdentity": lock.holder,
        "leaseDurationSeconds": DURATION_SECONDS,
        "acquireTime": since,
        "renewTime": renewed,
        "leaseTransitions": transitions,
    }
