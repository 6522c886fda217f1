"""Finds registered workers that do not answer, and restarts them; membership.py notices lost workers.

The driver asks all workers at once, and gives time to workers that may only be slow. Under load every answer is late,
so the deadline depends on the other workers: a few measured round trips if most have answered, a minute if most have
not, and five minutes, as in Dask's worker-ttl, if none has, because then only they hold the newest state. A worker that
answers but computes slowly is no matter of this file: drivers/stragglers.py, exchange/downpour.py.
"""

import asyncio
import math
import time
from collections.abc import Callable, Collection

from distributed import Client

from batchgrowth_trainer.pool.calls import CALL_SECONDS, Calls
from batchgrowth_trainer.worker import service

SHORTEST_SECONDS = 5.0
MOST_SILENT_SECONDS = 60.0
ALL_SILENT_SECONDS = 300.0
RESTART_SECONDS = 300.0
"""The longest that a worker without a nanny may take to come back; Dask waits as long for a silent worker."""
STUCK_SECONDS = 60.0
"""Beyond exchange.timeoutSeconds, how long others wait for a worker that answers but does not end its task."""
STUCK = "does not end its update"
STOPPING_SECONDS = 20.0  # a trainer's pod has two minutes to stop, in which another worker's state can be saved
_ROUND_TRIPS = 10
_FORGET = 0.9  # what is left of the longest round trip after each further one

Note = Callable[[str], None]
"""Called with a line for the user."""
Save = Callable[[set[str]], None]
"""Called with the workers that answer before one that does not is restarted."""


class Heartbeat:
    """Asks workers for a sign of life; `clock` gives seconds."""

    def __init__(self, calls: Calls, clock: Callable[[], float] = time.monotonic) -> None:
        self._calls = calls
        self._clock = clock
        self._asked: set[str] = set()  # in the last round
        # Worker that has not answered yet -> when it was asked. The client's event loop removes those that answer, at
        # any moment.
        self._waiting: dict[str, float] = {}
        self._longest = 0.0  # round trip, in seconds

    def ask(self, addresses: Collection[str]) -> None:
        """Begin a round: ask each of these workers that is registered and has no unanswered question."""
        self._asked = self._calls.registered.intersection(addresses)
        for address in set(self._waiting) - self._asked:
            self._waiting.pop(address, None)
        for address in self._asked.difference(self._waiting):
            self._waiting[address] = self._clock()
            self._calls.start(self._ask(address))

    def silent(self) -> set[str]:
        """Return the workers of the last round that have not answered and are still registered."""
        return self._calls.registered.intersection(self._waiting)

    def hung(self, *, stopping: bool = False) -> set[str]:
        """Return workers silent past their deadline, each once. The deadline is shorter while `stopping`."""
        silent = self.silent()
        patience = self._patience(len(silent))
        if stopping:
            patience = min(patience, STOPPING_SECONDS)
        overdue = {a for a in silent if self._clock() - self._waiting.get(a, math.inf) > patience}
        return {address for address in overdue if self._waiting.pop(address, None) is not None}

    def _patience(self, silent: int) -> float:
        asked = len(self._calls.registered & self._asked)
        if silent >= asked:
            return ALL_SILENT_SECONDS
        if silent > asked / 2:
            return MOST_SILENT_SECONDS
        return min(max(SHORTEST_SECONDS, _ROUND_TRIPS * self._longest), MOST_SILENT_SECONDS)

    async def _ask(self, address: str) -> None:
        await self._calls.reach(service.ping, address)
        asked_at = self._waiting.pop(address, None)
        if asked_at is not None and address in self._calls.registered:
            self._longest = max(self._clock() - asked_at, _FORGET * self._longest)


class WorkerRestarts:
    """Restarts workers; `is_back` returns whether a worker is ready again, or about to exit by itself."""

    def __init__(self, client: Client, is_back: Callable[[str], bool]) -> None:
        self._client = client
        self._is_back = is_back
        self._given_up_at: dict[str, float] = {}  # when a worker without a nanny last did not answer

    async def restart(self, address: str) -> None:
        """Let the worker's nanny restart it; without a nanny, end its process if it is not back in RESTART_SECONDS.

        A worker becomes ready again only when its thread is free, so a worker that was merely slow keeps its process.
        If the event loop hangs too, this cannot reach the process, and its pod's liveness probe ends it.
        """
        try:
            await self._client._restart_workers([address], timeout=CALL_SECONDS, raise_for_error=False)
            return
        except ValueError:  # it has no nanny
            given_up_at = time.monotonic()
        self._given_up_at[address] = given_up_at
        await asyncio.sleep(RESTART_SECONDS)
        if self._given_up_at[address] == given_up_at and not self._is_back(address):
            why = f"this worker did not answer, and was not ready again within {RESTART_SECONDS:.0f} s"
            await self._client._run(service.give_up, why, workers=[address], on_error="ignore")
