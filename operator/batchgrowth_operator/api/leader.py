"""Leader election: only the operator that holds the Lease works, as long as it renews the Lease.

`hold` renews the Lease, and returns when it is lost: process.py (`lead` in `_operate`) then ends the process, and until
it has ended, `bounded` refuses its writes. Two leaders at once, as after a process was paused, do no harm: every write
is idempotent, so there are only more requests.
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

from batchgrowth_operator.api.client import LEASE_TIMEOUT_SECONDS, Api, Refused
from batchgrowth_operator.seen.observed import Object, timestamp_ms
from batchgrowth_operator.settings import LeaseLock

DURATION_SECONDS = 15
"""Time without a renewal after which another operator may take the Lease."""
RENEW_SECONDS = 4.0
"""Pause between two renewals."""
RETRY_SECONDS = 1.0
"""Pause after a request that failed."""
LOST_AFTER_SECONDS = 12.0
"""Time after which the holder stops working, counted from the request of the last successful renewal."""
THREADS = 4
"""Threads for the requests; one that hangs keeps its thread for up to another timeout."""

log = logging.getLogger(__name__)


class NotLeading(OSError):
    """Another operator may lead by now, so this one must not write."""


class Leadership:
    """How long this process may still write: as long as it certainly holds the Lease; forever if there is none."""

    def __init__(self, *, needs_lease: bool) -> None:
        self._ends = math.inf
        if needs_lease:
            self._ends = -math.inf

    def extend(self, requested: float) -> None:
        """Extend the leadership after a renewal of the Lease that was requested at that monotonic time."""
        self._ends = requested + LOST_AFTER_SECONDS

    def end(self) -> None:
        """End the leadership, because another operator holds the Lease."""
        self._ends = -math.inf

    @property
    def seconds_left(self) -> float:
        """Return the seconds for which this process may still write; 0 or less once the leadership is over."""
        return self._ends - time.monotonic()


def bounded(api: Api, seconds_left: float) -> Api:
    """Return the API with a timeout that ends before the leadership does. Raises NotLeading if the leadership is over.

    So a process does not write after a long pause, and a request that hangs fails before another operator leads.
    """
    if seconds_left <= 0:
        raise NotLeading("the lease was not renewed in time")
    return api.within(seconds_left)


async def hold(api: Api, lock: LeaseLock, leadership: Leadership, begin: Callable[[], None]) -> None:
    """Acquire the Lease, call `begin` once, and keep renewing the Lease until it is lost.

    Requests for the Lease have threads of their own, so that slow writes cannot delay a renewal, and time out before
    the leadership ends.
    """
    lease = f"{lock.namespace}/{lock.name}"
    seen = None
    seen_at = time.monotonic()
    holder = None
    holds = False
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="lease")

    async def answer(request: Callable[..., Any], *arguments: Any) -> Any:
        left = max(leadership.seconds_left, 0) if holds else math.inf
        running = asyncio.get_running_loop().run_in_executor(pool, request, *arguments)
        return await asyncio.wait_for(running, min(left, LEASE_TIMEOUT_SECONDS))

    while not holds or leadership.seconds_left > 0:
        pause = RENEW_SECONDS
        try:
            found = await answer(api.get_lease, lock.namespace, lock.name)
            # Machines' clocks differ, so this process measures for itself how long the Lease has not changed.
            if found != seen:
                seen = found
                seen_at = time.monotonic()
            desired = lease_to_write(lock, found, time.monotonic() - seen_at, datetime.now(UTC))
            if desired is not None:
                # Taken before the request, since the server may renew the Lease at any moment from here on.
                requested = time.monotonic()
                seen = await answer(api.put_lease, desired)
                leadership.extend(requested)
                seen_at = time.monotonic()
                if not holds:
                    holds = True
                    log.info("%s acquired the lease %s and leads", lock.holder, lease)
                    begin()
            elif holds:
                log.warning("another operator, %s, took the lease %s", _holder(found), lease)
                leadership.end()
                break
            elif _holder(found) != holder:
                holder = _holder(found)
                log.info("%s waits for the lease %s, which %s holds", lock.holder, lease, holder)
        except (Refused, OSError) as error:
            log.warning("the lease %s: %s; retrying", lease, str(error) or type(error).__name__)
            pause = RETRY_SECONDS
        except Exception:
            log.exception("the lease %s could not be renewed; retrying", lease)
            pause = RETRY_SECONDS
        if holds:
            pause = min(pause, max(leadership.seconds_left, 0))
        await asyncio.sleep(pause)
    pool.shutdown(wait=False, cancel_futures=True)
    log.warning("%s lost the lease %s and ends", lock.holder, lease)


def lease_to_write(
    lock: LeaseLock, found: Object | None, unchanged_seconds: float, now: datetime
) -> dict[str, Any] | None:
    """Return the Lease to write in order to hold it; None while another operator holds it.

    `unchanged_seconds` is how long the Lease has not changed, since other machines' clocks are not trusted.
    """
    micro_time = timestamp_ms(now).replace("Z", "000Z")
    lease: dict[str, Any] = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": lock.name, "namespace": lock.namespace},
    }
    held_since = micro_time
    transitions = 0
    if found is not None:
        # With its resourceVersion, by which the write conflicts if another operator was faster.
        lease = copy.deepcopy(dict(found))
        held = found.get("spec") or {}
        holder = held.get("holderIdentity")
        transitions = int(held.get("leaseTransitions", 0))
        if holder == lock.holder:
            held_since = held.get("acquireTime", micro_time)
        elif holder and unchanged_seconds < held.get("leaseDurationSeconds", DURATION_SECONDS):
            return None
        else:
            transitions += 1
    lease["spec"] = {
        "holderIdentity": lock.holder,
        "leaseDurationSeconds": DURATION_SECONDS,
        "acquireTime": held_since,
        "renewTime": micro_time,
        "leaseTransitions": transitions,
    }
    return lease


def _holder(found: Object | None) -> str | None:
    return ((found or {}).get("spec") or {}).get("holderIdentity")
