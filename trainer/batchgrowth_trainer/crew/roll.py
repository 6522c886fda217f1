"""Who is registered with the scheduler: its own list, read again and again; events only hasten what a look would find.

An event reaches only who has subscribed by then, and nothing says when that is; a list cannot be missed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from distributed import Client
from distributed.client import ClosedClientError

from batchgrowth_trainer.crew.calls import Calls
from batchgrowth_trainer.crew.connection import LOST, SchedulerLost
from batchgrowth_trainer.crew.events import Event, Joined, Left
from batchgrowth_trainer.crew.membership import membership_plugin

_LOOK_SECONDS = 1.0
_CALL_SECONDS = 60.0
_CLOSE_SECONDS = 5.0


class Roll:
    """Keeps `calls.here` like the scheduler's list, and hands every change to `tell`."""

    def __init__(self, client: Client, calls: Calls, tell: Callable[[Event], None]) -> None:
        self._client, self._calls, self._tell = client, calls, tell
        self._missed: set[str] = set()  # by the last look
        self._asked_at = self._answered_at = 0.0

    def open(self, topic: str, handler: Callable[[Any], None]) -> None:
        """Have the scheduler report to `handler`, and read its list. Raises SchedulerLost."""
        try:
            self._client.subscribe_topic(topic, handler)
            reporting = self._client._register_scheduler_plugin(membership_plugin(topic), topic, False)
            self._calls.wait(reporting, (), _CALL_SECONDS)
            self._calls.wait(self.read(), (), _CALL_SECONDS)
        except (ClosedClientError, OSError) as error:
            raise SchedulerLost(f"{LOST} ({error})") from error

    def close(self, topic: str) -> None:
        """Have it report no longer. Raises OSError."""
        self._client.unsubscribe_topic(topic)
        self._calls.wait(self._client.scheduler.unregister_scheduler_plugin(name=topic), (), _CLOSE_SECONDS)

    def look(self) -> None:
        """Have the list read, without waiting for it; nothing where that was done a moment ago."""
        now = time.monotonic()
        if self.silence() == 0 and now - self._asked_at > _LOOK_SECONDS:
            self._asked_at = now
            self._calls.send(self.read())

    def silence(self) -> float:
        """Seconds since the scheduler was asked what it has not answered yet."""
        return 0.0 if self._answered_at >= self._asked_at else time.monotonic() - self._asked_at

    async def read(self) -> None:
        """Read the list, on the client's event loop."""
        try:
            self._follow(set(await self._client.scheduler.ncores()))
        except OSError:
            return  # the connection is lost, which shows elsewhere, or is taken up again: then the next look finds it
        finally:
            self._answered_at = time.monotonic()

    def joined(self, address: str) -> None:
        """The worker has registered."""
        self._missed.discard(address)
        if address not in self._calls.here:
            self._calls.here.add(address)
            self._tell(Joined(address))

    def left(self, address: str) -> None:
        """The worker is gone, or is to be counted on no longer."""
        self._missed.discard(address)
        self._calls.here.discard(address)
        self._tell(Left(address))

    def _follow(self, registered: set[str]) -> None:
        """A worker is gone when two lists in a row lack it: one may have been under way while the worker came."""
        for address in registered.difference(self._calls.here):
            self.joined(address)
        missed = self._calls.here - registered
        for address in missed & self._missed:
            self.left(address)
        self._missed = missed & self._calls.here
