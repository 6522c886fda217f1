"""What workers do until they are ready: signs of life while they prepare, and why the processes of others ended."""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from batchgrowth.errors import ClusterError, duration

from batchgrowth_trainer.pool.calls import Calls
from batchgrowth_trainer.worker import service

ASK_SECONDS = 2.0
"""Seconds between two questions to a worker that prepares."""
FIRST_LINE_SECONDS = 10.0
"""How long a worker prepares before a line says what it does; each further line comes after twice that time."""
LONGEST_APART_SECONDS = 600.0
MOST_ENDS = 3
"""Number of processes that ended before their worker was ready at which the run ends; a ready worker resets it."""
MOST_FAILED_STARTS = 2
"""The same for processes that could not be started."""
MOST_KILLS = 10
"""The same for processes that SIGKILL ended: it comes from outside, so the next start may be spared."""


@dataclass(frozen=True, slots=True)
class EndedStart:
    """A worker's process that ended, by SIGKILL if `killed`, or never began; `address` is empty if it got none."""

    cause: str
    address: str = ""
    began: bool = True
    killed: bool = False


def check_starts(ended: Iterable[EndedStart]) -> None:
    """Raise ClusterError, with the first cause, if so many starts failed that the next one would probably fail too."""
    starts = list(ended)
    unable = sum(not start.began for start in starts)
    killed = sum(start.killed for start in starts)
    if len(starts) - killed < MOST_ENDS and unable < MOST_FAILED_STARTS and killed < MOST_KILLS:
        return
    raise ClusterError(
        f"no worker became ready: {starts[0].cause}; {len(starts)} tries ended. The lines above may say more; "
        "--set exchange.type=SingleProcess trains in this process, which shows whether the workload is the cause"
    )


class Preparing:
    """The workers that prepare their member: since when, when each was last heard, and what it did then.

    `clock` gives seconds.
    """

    def __init__(self, calls: Calls, run_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._calls = calls
        self._run_id = run_id
        self._clock = clock
        self._since: dict[str, float] = {}
        self._doing: dict[str, str] = {}
        self._asked_at = 0.0
        self._longest = ""  # the worker that has prepared for the longest time, of which `_line` tells
        self._line = ""
        self._due_seconds = FIRST_LINE_SECONDS
        self.heard_at = clock()
        """When a worker last began to prepare, answered, or became ready."""

    def begin(self, address: str) -> None:
        """Note that the worker begins to prepare."""
        self._since.setdefault(address, self._clock())
        self.heard_at = self._clock()

    def end(self, address: str) -> None:
        """Note that the worker is ready, has failed, or is gone."""
        self._doing.pop(address, None)
        if self._since.pop(address, None) is not None:
            self.heard_at = self._clock()

    def ask(self) -> None:
        """Ask each preparing worker what it does, every few seconds, without waiting for the answers."""
        if self._since and self._clock() - self._asked_at > ASK_SECONDS:
            self._asked_at = self._clock()
            for address in self._since:
                self._calls.start(self._ask(address))

    async def _ask(self, address: str) -> None:
        # Given up before the next question, so that questions do not pile up at a worker that answers none.
        doing = await asyncio.wait_for(
            self._calls.answer_of(service.what_it_does, self._run_id, worker=address), ASK_SECONDS
        )
        if doing is not None:
            self._doing[address] = doing
            self.heard_at = self._clock()

    def line(self) -> str:
        """Return how long a worker has prepared and what it does; the same line until the next is due, "" at first."""
        address, since = min(self._since.items(), key=lambda item: item[1], default=("", self._clock()))
        if address != self._longest:
            self._longest = address
            self._line = ""
            self._due_seconds = FIRST_LINE_SECONDS
        seconds = self._clock() - since
        if seconds >= self._due_seconds:
            self._due_seconds = min(2 * seconds, seconds + LONGEST_APART_SECONDS)
            now = self._doing.get(address)
            self._line = f"worker {address} has prepared for {duration(seconds)}{f', now {now}' if now else ''}"
        return self._line
