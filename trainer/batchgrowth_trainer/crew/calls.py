"""Waiting for workers' answers without being held up by a worker that is gone.

Dask goes on dialling a dead worker for half a minute, and its own calls wait as long; the driver has others to look
after.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Collection, Coroutine
from typing import Any, TypeVar

from distributed import Client

_LOOK_SECONDS = 0.02

Answer = TypeVar("Answer")


class Calls:
    """Coroutines on the client's event loop; `here` are the workers that are registered with the scheduler.

    `check` raises where there is nothing to wait for any longer.
    """

    def __init__(self, client: Client, check: Callable[[], None] = lambda: None) -> None:
        self._check = check
        self._loop: asyncio.AbstractEventLoop = client.loop.asyncio_loop
        self.here: set[str] = set()
        self._under_way: set[concurrent.futures.Future[Any]] = set()

    def wait(self, work: Coroutine[Any, Any, Answer], workers: Collection[str], seconds: float) -> Answer | None:
        """What the work returns; None where one of these workers leaves before that, or the time is over.

        Raises what the work or the check raises.
        """
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        ends = time.monotonic() + seconds
        try:
            while not concurrent.futures.wait([running], timeout=_LOOK_SECONDS).done:
                if time.monotonic() > ends or not self.here.issuperset(workers):
                    return None
                self._check()
        finally:
            running.cancel()  # nothing, where it is done
        return running.result()

    def send(self, work: Coroutine[Any, Any, Any]) -> None:
        """Begin the work and do not wait for it; whether it succeeds shows elsewhere."""
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._under_way.add(running)
        running.add_done_callback(self._end)

    def close(self) -> None:
        """Drop what is still under way."""
        for running in list(self._under_way):
            running.cancel()

    def _end(self, running: concurrent.futures.Future[Any]) -> None:
        self._under_way.discard(running)
        if not running.cancelled():
            running.exception()  # has been looked at: the loop need not report it
