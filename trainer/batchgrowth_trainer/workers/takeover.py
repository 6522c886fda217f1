"""A trainer's claim at the Dask scheduler, and the fence that keeps two trainers of one job from both driving it."""

import asyncio
import math
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from batchgrowth.errors import BatchGrowthError, Superseded
from distributed import Client
from distributed.client import ClosedClientError

from batchgrowth_trainer.workers.calls import CALL_SECONDS, Calls
from batchgrowth_trainer.workers.connection import LOST, SchedulerLost, connection

# --- What keeps two trainers of one job from both driving it, if the first one was given up but still works ---
# The starts of a job's trainer are numbered. A later one claims the job where both can meet: in the ConfigMap of the
# reports, at the Dask scheduler, and by its orders to workers. Whichever of them refuses the earlier start ends it.


class Fence:
    """The claim of one start of a trainer, `start` being its number; any thread may let it fall."""

    def __init__(self, start: int = 0) -> None:
        self.start, self.token = start, uuid.uuid4().hex
        self.granted = False  # by a scheduler
        self._why: Superseded | None = None

    def fall(self, why: Superseded) -> None:
        """Make every later check raise `why`, unless it fell before."""
        self._why = self._why or why

    def check(self) -> None:
        """Raises Superseded if a later start has taken over."""
        if self._why is not None:
            raise self._why


# --- The claim of a trainer at the Dask scheduler, where the driver of a job that was given up meets its successor ---

RENEW_SECONDS = 1.0
"""Time between two renewals of a claim: how long an earlier start may go on without knowing of a later one."""

_HOLDER = "batchgrowth-holder"  # the scheduler's metadata with the number and token of the start that holds the job

Holder = tuple[int, str]


def takeover_function() -> Callable[..., Holder]:
    """A function for the scheduler that returns who holds the job, after a claim of (start, token).

    A later start takes over from an earlier one, and of two with one number the one that claims for the first time.
    The function is local, so that it is pickled by value: an existing scheduler may lack this package.
    """
    key = _HOLDER

    def claim(start: int, token: str, first: bool, dask_scheduler: Any = None) -> Holder:
        start_held, token_held = dask_scheduler.task_metadata.get(key, (-1, ""))
        if start > start_held or (start == start_held and (first or token == token_held)):
            dask_scheduler.task_metadata[key] = start, token
        holder: Holder = dask_scheduler.task_metadata[key]
        return holder

    return claim


class Takeover:
    """Claims the job for `fence` at the client's scheduler; without a fence it claims nothing."""

    def __init__(self, client: Client, calls: Calls, fence: Fence | None) -> None:
        self._client, self._calls, self._fence = client, calls, fence
        self.start = fence.start if fence else 0
        self._asked_at = 0.0

    def open(self) -> None:
        """Takeover before any order is given. Raises Superseded if a later start holds the job, SchedulerLost."""
        if self._fence is None:
            return
        self._asked_at = time.monotonic()
        try:
            self._calls.wait(take_over(self._client, self._fence), (), CALL_SECONDS)
        except (ClosedClientError, OSError) as error:
            raise SchedulerLost(f"{LOST} ({error})") from error
        self._fence.check()

    def poll(self) -> None:
        """Renew the claim once a second, without waiting for it. Raises Superseded if a later start holds the job."""
        if self._fence is None:
            return
        self._fence.check()
        if time.monotonic() - self._asked_at > RENEW_SECONDS:
            self._asked_at = time.monotonic()
            self._calls.start(take_over(self._client, self._fence))


async def take_over(client: Client, fence: Fence) -> None:
    """Takeover, on the client's event loop, unless the claim holds; let the fence fall if a later start holds the job.

    Raises OSError if the scheduler is lost.
    """
    mine = fence.start, fence.token
    held = tuple(await client.scheduler.get_metadata(keys=[_HOLDER], default=()))
    if held != mine:
        held = tuple(await client._run_on_scheduler(takeover_function(), *mine, not fence.granted))
    if held == mine:
        fence.granted = True
    else:
        fence.fall(Superseded(f"start {held[0]} of the trainer drives the job; this one, start {mine[0]}, ends"))


def take_over_aside(address: str, fence: Fence, over: Callable[[], bool]) -> None:
    """Takeover the job in a thread of its own, unless it is `over` before: another start may hold what this one waits for.

    So one that cannot be reached from the API server, but reaches its scheduler, ends and leaves its folder.
    """

    def run() -> None:
        with suppress(BatchGrowthError, OSError, TimeoutError), connection(address, math.inf, over, _ignore) as client:
            made = asyncio.run_coroutine_threadsafe(take_over(client, fence), client.loop.asyncio_loop)
            made.result(CALL_SECONDS)

    threading.Thread(target=run, name="claim", daemon=True).start()


def _ignore(_: str) -> None:
    """What is waited for is said by the driver."""
