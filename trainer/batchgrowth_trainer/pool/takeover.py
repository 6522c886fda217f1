"""The fence that keeps two trainers from driving one job, and how a start takes over at the Dask scheduler.

The starts of a job's trainer are numbered. A trainer that was given up may still work when its successor starts, so a
later start takes over in three places where both can meet: in the ConfigMap of the reports (sinks/report.py), at the
Dask scheduler (here), and by its orders to workers (worker/service.py). The first of them that refuses the earlier
start ends it.
"""

import asyncio
import logging
import math
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from batchgrowth.errors import BatchGrowthError, Superseded
from distributed import Client

from batchgrowth_trainer.pool.calls import CALL_SECONDS, Calls
from batchgrowth_trainer.pool.connection import LOST, SchedulerLost, connection

RENEW_SECONDS = 1.0
"""Seconds between two looks at the scheduler: how long an earlier start may go on without knowing of a later one."""

_HOLDER = "batchgrowth-holder"  # the scheduler's metadata with the number and token of the start that holds the job

Holder = tuple[int, str]

log = logging.getLogger(__name__)


class Fence:
    """The fence around one start of a trainer, with its number `start`; any thread may make it fall."""

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.token = uuid.uuid4().hex
        self.granted = False  # by a scheduler
        self._why: Superseded | None = None

    def fall(self, why: Superseded) -> None:
        """Make every later check raise `why`, unless the fence has fallen already."""
        self._why = self._why or why

    def check(self) -> None:
        """Raise Superseded if a later start has taken over."""
        if self._why is not None:
            raise self._why


class Takeover:
    """Takes over the job at the client's scheduler for `fence`, and holds it; does nothing without a fence."""

    def __init__(self, client: Client, calls: Calls, fence: Fence | None) -> None:
        self._client = client
        self._calls = calls
        self._fence = fence
        self.start = fence.start if fence else 0
        self._asked_at = 0.0

    def open(self) -> None:
        """Take over before any order is given. Raise Superseded if a later start holds the job, SchedulerLost."""
        if self._fence is None:
            return
        self._asked_at = time.monotonic()
        try:
            self._calls.wait(take_over(self._client, self._fence), (), CALL_SECONDS)
        except OSError as error:
            raise SchedulerLost(f"{LOST} ({error})") from error
        self._fence.check()

    def poll(self) -> None:
        """Check once a second, without waiting, that this start holds the job. Raise Superseded if another does."""
        if self._fence is None:
            return
        self._fence.check()
        if time.monotonic() - self._asked_at > RENEW_SECONDS:
            self._asked_at = time.monotonic()
            self._calls.start(take_over(self._client, self._fence))


async def take_over(client: Client, fence: Fence) -> None:
    """Take over on the client's event loop, if not done before; let the fence fall if a later start holds the job.

    Raises OSError if the scheduler is lost.
    """
    mine = fence.start, fence.token
    # Looking costs the scheduler less than running a function, and mostly nothing has changed.
    held = tuple(await client.scheduler.get_metadata(keys=[_HOLDER], default=()))
    if held != mine:
        held = tuple(await client._run_on_scheduler(takeover_function(), *mine, not fence.granted))
    if held == mine:
        fence.granted = True
        return
    log.info("start %d of the trainer ends: the scheduler is held by start %d", mine[0], held[0])
    fence.fall(Superseded(f"start {held[0]} of the trainer drives the job; this one, start {mine[0]}, ends"))


def takeover_function() -> Callable[..., Holder]:
    """Return a function for the scheduler: given (start, token, first), it returns the start that then holds the job.

    A later start takes over from an earlier one. If both have the same number, the one that asks for the `first` time
    does. The function is local, so that it is pickled by value: an existing scheduler may lack this package.
    """
    key = _HOLDER

    def take(start: int, token: str, first: bool, dask_scheduler: Any = None) -> Holder:
        start_held, token_held = dask_scheduler.task_metadata.get(key, (-1, ""))
        if start > start_held or (start == start_held and (first or token == token_held)):
            dask_scheduler.task_metadata[key] = start, token
        holder: Holder = dask_scheduler.task_metadata[key]
        return holder

    return take


def take_over_aside(address: str, fence: Fence, over: Callable[[], bool]) -> None:
    """Take over the job in a thread, while this start waits for the folder, which an earlier start may hold; give up
    once `over`.

    So an earlier start that has lost the API server, but still reaches the scheduler, ends and leaves the folder.
    """

    def ignore(_waited_for: str) -> None:
        """Report nothing: the driver reports what it waits for."""

    def run() -> None:
        with suppress(BatchGrowthError, OSError, TimeoutError), connection(address, math.inf, over, ignore) as client:
            made = asyncio.run_coroutine_threadsafe(take_over(client, fence), client.loop.asyncio_loop)
            made.result(CALL_SECONDS)

    threading.Thread(target=run, name="takeover", daemon=True).start()
