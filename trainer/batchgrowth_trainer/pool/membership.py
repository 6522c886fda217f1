"""Which workers have joined, which are lost, and which hang: the scheduler's own list, polled, and its events, which
come sooner.

`WorkerPool.follow` takes these events, and so does the driver: `GenerationsDriver._handle` then forms another
generation; `Gathering.follow` in drivers/stragglers.py notes a lost part, and `GatherScatterDriver._update` makes the
update again without that worker.

A registered worker that does not answer is restarted. The driver asks all workers at once, and gives time to workers
that may only be slow. Under load every answer is late, so the deadline depends on the other workers: a few measured
round trips if most have answered, a minute if most have not, and five minutes, as in Dask's worker-ttl, if none has,
because then only they hold the newest state. drivers/stragglers.py and exchange/downpour.py deal with workers that
answer but compute slowly.
"""

import asyncio
import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from distributed import Client, Future, Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.scheduler import KilledWorker

from batchgrowth_trainer.pool.calls import CALL_SECONDS, Calls, WorkerRequest
from batchgrowth_trainer.pool.connection import LOST, SchedulerLost, closed_is_lost
from batchgrowth_trainer.user_errors import WorkerFault
from batchgrowth_trainer.worker import service
from batchgrowth_trainer.worker.messages import Joined, Left, MemberOutcome, Message, Prepared

_POLL_SECONDS = 1.0
_CLOSE_SECONDS = 5.0


# --- Workers that join and leave ---


def membership_plugin(topic: str) -> SchedulerPlugin:
    """Return a plugin that reports on `topic`, as plain data that `messages.decode` turns into Joined and Left.

    The topic is the run's own: Dask's topic "all" also carries events with objects that cannot be serialized, such as
    those of a retirement, and each of them breaks the connection of every subscriber. The plugin's class is local, so
    that it is pickled by value: an existing scheduler may lack this package.
    """

    class MembershipPlugin(SchedulerPlugin):  # type: ignore[misc]  # Dask has no types
        def add_worker(self, scheduler: Scheduler, worker: str) -> None:
            scheduler.log_event(topic, {"kind": "joined", "address": worker})

        def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:
            scheduler.log_event(topic, {"kind": "left", "address": worker})

    return MembershipPlugin()


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker's member can join; `prepared` is None if the answer was lost on its way."""

    address: str
    prepared: Prepared | None


@dataclass(frozen=True, slots=True)
class Unready:
    """A worker's member could not be built."""

    address: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class Ended:
    """A member's task or request ended, or was lost with its worker.

    `outcome` is the result of a task that trained; None if it was lost on its way, and for other tasks.
    """

    address: str
    generation: int
    future: Future | WorkerRequest
    outcome: MemberOutcome | None = None

    def fault(self) -> WorkerFault | None:
        """Return the worker's fault that ended the task; None if the task ended otherwise."""
        if self.future.status != "error":
            return None
        error = self.future.exception()
        return error if isinstance(error, WorkerFault) else None

    def is_lost(self) -> bool:
        """Return whether the task was lost with its worker. Raise the error of a task that failed."""
        if self.future.status == "error":
            error = self.future.exception()
            if error is not None and not isinstance(error, KilledWorker | service.MemberReleased):
                raise error
        return bool(self.future.status != "finished")


Event = Message | Ready | Unready | Ended
"""What a worker pool hears of; all arrive in one queue, in the order in which they happened."""


class Membership:
    """Keeps `calls.registered` in step with the scheduler's list, and reports every change to `report`.

    The list is polled, and events only make changes known sooner. An event reaches only clients that have subscribed by
    then, and Dask does not say when that is; the list misses nothing.
    """

    def __init__(self, client: Client, calls: Calls, report: Callable[[Event], None]) -> None:
        self._client = client
        self._calls = calls
        self._report = report
        self._missing: set[str] = set()  # from the last list
        self._asked_at = 0.0
        self._answered_at = 0.0

    def open(self, topic: str, handler: Callable[[Any], None]) -> None:
        """Subscribe `handler` to the topic, and read the list. Raises SchedulerLost."""
        try:
            with closed_is_lost(self._client):
                self._client.subscribe_topic(topic, handler)
                reporting = self._client._register_scheduler_plugin(membership_plugin(topic), topic, False)
            self._calls.wait(reporting, (), CALL_SECONDS)
            self._calls.wait(self.read(), (), CALL_SECONDS)
        except OSError as error:
            raise SchedulerLost(f"{LOST} ({error})") from error

    def close(self, topic: str) -> None:
        """Unsubscribe. Raises OSError."""
        with closed_is_lost(self._client):
            self._client.unsubscribe_topic(topic)
            leaving = self._client.scheduler.unregister_scheduler_plugin(name=topic)
        self._calls.wait(leaving, (), _CLOSE_SECONDS)

    def poll(self) -> None:
        """Ask for the list once a second, without waiting for the answer."""
        now = time.monotonic()
        if self.silence() == 0 and now - self._asked_at > _POLL_SECONDS:
            self._asked_at = now
            self._calls.start(self.read())

    def silence(self) -> float:
        """Return the seconds since the oldest unanswered request to the scheduler; 0 if it has answered all."""
        if self._answered_at >= self._asked_at:
            return 0.0
        return time.monotonic() - self._asked_at

    async def read(self) -> None:
        """Read the list, on the client's event loop."""
        try:
            listed = set(await self._client.scheduler.ncores())
        except OSError:
            return  # connection.py notices a lost connection; after a reconnection the next poll catches up
        finally:
            self._answered_at = time.monotonic()
        for address in listed.difference(self._calls.registered):
            self.joined(address)
        # A worker is gone if two lists in a row lack it: one may have been sent before the worker registered.
        missed = self._calls.registered - listed
        for address in missed & self._missing:
            self.left(address)
        self._missing = missed & self._calls.registered

    def joined(self, address: str) -> None:
        """Add this worker, which has registered."""
        self._missing.discard(address)
        if address not in self._calls.registered:
            self._calls.registered.add(address)
            self._report(Joined(address))

    def left(self, address: str) -> None:
        """Remove this worker, which is gone or does not answer."""
        self._missing.discard(address)
        self._calls.registered.discard(address)
        self._report(Left(address))


# --- Workers that hang: how they are found, and how they are restarted ---

SHORTEST_SECONDS = 5.0
MOST_SILENT_SECONDS = 60.0
ALL_SILENT_SECONDS = 300.0
RESTART_SECONDS = 300.0
"""The longest that a worker without a nanny may take to come back; Dask waits as long for a silent worker."""
STUCK_SECONDS = 60.0
"""How long, beyond exchange.timeoutSeconds, others wait for a worker that answers but does not end its task."""
STUCK = "does not end its update"
STOPPING_SECONDS = 20.0  # a trainer's pod has two minutes to stop, in which another worker's state can be saved
_ROUND_TRIPS = 10
_FORGET = 0.9  # what is left of the longest round trip after each further one

Note = Callable[[str], None]
"""Called with a line for the user."""
Save = Callable[[set[str]], None]
"""Called before workers that do not answer are restarted, with the workers that do."""


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
        # `reach` also returns if the worker leaves, which is no round trip.
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
        # Unless it was restarted again meanwhile: it then has that restart's time.
        if self._given_up_at[address] == given_up_at and not self._is_back(address):
            why = f"this worker did not answer, and was not ready again within {RESTART_SECONDS:.0f} s"
            await self._client._run(service.give_up, why, workers=[address], on_error="ignore")
