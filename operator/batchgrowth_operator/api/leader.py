"""Leader election: of several operators, the holder of the Lease works, as long as it renews it.

Two leaders at once would only double the requests, since every write is idempotent. So a paused clock or process does
no harm.
"""

import asyncio
import copy
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from batchgrowth_operator.api.client import Api, Refused
from batchgrowth_operator.seen.clock import timestamp_ms
from batchgrowth_operator.seen.observed import Object
from batchgrowth_operator.settings import LeaseLock

DURATION_SECONDS = 15
"""Time without a renewal after which another operator may take the Lease."""
RENEW_SECONDS = 4.0
RETRY_SECONDS = 1.0
LOST_AFTER_SECONDS = 12.0
"""Time since the last successful renewal was requested after which the holder stops working."""
REQUEST_SECONDS = 5.0
"""Timeout of a request, so that two of them fit between a renewal and the loss."""
THREADS = 4
"""A request that hangs keeps its thread for up to another timeout."""

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


class NotLeading(OSError):
    """Another operator may lead by now, so this one must not write."""


def bounded(api: Api, seconds_left: float) -> Api:
    """The API for a write that ends before the leadership does. Raises NotLeading if the leadership is over.

    So a process that was paused for long does not write, and a request that hangs fails before another operator leads.
    """
    if seconds_left <= 0:
        raise NotLeading("the lease was not renewed in time")
    return api.within(seconds_left)


class Leadership:
    """How long this process may still write: as long as it surely holds the Lease, or for ever without one."""

    def __init__(self, *, needs_lease: bool) -> None:
        self._ends = -math.inf if needs_lease else math.inf

    def extend(self, requested: float) -> None:
        """The Lease was renewed by a request that was sent at that time of the monotonic clock."""
        self._ends = requested + LOST_AFTER_SECONDS

    @property
    def seconds_left(self) -> float:
        """Negative or 0 if it is over."""
        return self._ends - time.monotonic()


async def hold(api: Api, lock: LeaseLock, leadership: Leadership, begin: Callable[[], None]) -> None:
    """Acquires the Lease, calls `begin` once, and keeps renewing the Lease. Returns when it is lost.

    Its requests have threads of their own, so slow writes cannot delay them, and end before the leadership does.
    """
    seen, seen_at, holds = None, time.monotonic(), False
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="lease")

    async def answer(request: Callable[..., Any], *arguments: Any) -> Any:
        left = max(leadership.seconds_left, 0) if holds else math.inf
        running = asyncio.get_running_loop().run_in_executor(pool, request, *arguments)
        return await asyncio.wait_for(running, min(left, REQUEST_SECONDS))

    while not holds or leadership.seconds_left > 0:
        pause = RENEW_SECONDS
        try:
            found = await answer(api.get_lease, lock.namespace, lock.name)
            if found != seen:
                seen, seen_at = found, time.monotonic()
            wanted = claim(lock, found, time.monotonic() - seen_at, datetime.now(UTC))
            if wanted is not None:
                requested = time.monotonic()
                seen = await answer(api.put_lease, wanted)
                leadership.extend(requested)
                seen_at = time.monotonic()
                if not holds:
                    holds = True
                    log.info("%s acquired the lease %s/%s", lock.holder, lock.namespace, lock.name)
                    begin()
            elif holds:
                break
        except (Refused, OSError) as error:
            log.warning("the lease %s/%s: %s", lock.namespace, lock.name, str(error) or type(error).__name__)
            pause = RETRY_SECONDS
        except Exception:
            log.exception("the lease %s/%s could not be renewed", lock.namespace, lock.name)
            pause = RETRY_SECONDS
        await asyncio.sleep(min(pause, max(leadership.seconds_left, 0)) if holds else pause)
    pool.shutdown(wait=False, cancel_futures=True)
    log.warning("%s lost the lease %s/%s", lock.holder, lock.namespace, lock.name)


def _spec(lock: LeaseLock, since: str, renewed: str, transitions: int) -> dict[str, Any]:
    return {
        "holderIdentity": lock.holder,
        "leaseDurationSeconds": DURATION_SECONDS,
        "acquireTime": since,
        "renewTime": renewed,
        "leaseTransitions": transitions,
    }
