"""The workers of a Dask cluster as a run sees them: joining, ready to train, gone.

The only place that looks at Dask's membership. Everything that happens arrives in one queue, so the driver's loop is
the only one who decides.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
from batchgrowth.errors import BatchGrowthError
from batchgrowth.plan import Plan
from batchgrowth.spec import JobSpec
from distributed import Client, Future
from distributed.client import ClosedClientError
from distributed.scheduler import KilledWorker

from batchgrowth_trainer.crew.calls import Calls
from batchgrowth_trainer.crew.connection import LOST, SchedulerLost
from batchgrowth_trainer.crew.events import Ended, Event, Joined, Leaving, Left, Ready, Said, Unready
from batchgrowth_trainer.crew.membership import JOINED, LEFT
from batchgrowth_trainer.crew.roll import Roll
from batchgrowth_trainer.worker import service
from batchgrowth_trainer.worker.service import Prepared

_CALL_SECONDS = 60.0
_ANSWER_SECONDS = 5.0


class Crew:
    """Knows who is ready, in the order in which they came; puts every change into `events`."""

    def __init__(
        self,
        client: Client,
        run_id: str,
        spec: JobSpec,
        plan: Plan,
        paths: Sequence[str],
        stop_requested: Callable[[], bool] = lambda: False,
    ) -> None:
        self.client, self.run_id, self._stop_requested = client, run_id, stop_requested
        self._connection = client.scheduler_comm  # another one after a reconnection
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.ready: dict[str, Prepared] = {}
        self.leaving: set[str] = set()  # asked to go: they train on to the end of their generation, and no further
        self._seen_off: set[str] = set()
        self._topic = service.topic(run_id)
        self._arguments = (run_id, spec, plan, tuple(paths))
        self._preparing: dict[str, Future] = {}
        self._calls = Calls(client, self.check_connected)
        self._roll = Roll(client, self._calls, self.events.put)
        self.trouble = ""  # why a worker could not be made ready, if it is nothing of the workload's

    def open(self) -> None:
        """Begin to watch, and to prepare every worker that is there. Raises SchedulerLost."""
        self._roll.open(self._topic, self._on_event)

    def close(self) -> None:
        """Watch no longer, and free what the members hold."""
        try:
            self.check_connected()
            here = [address for address in (*self.ready, *self.leaving) if address in self._calls.here]
            self.ask(service.forget, self.run_id, workers=here, seconds=_ANSWER_SECONDS)
            self._roll.close(self._topic)
        except (SchedulerLost, OSError):
            return  # then nobody knows of this run any longer
        finally:
            self._calls.close()

    def check_connected(self) -> None:
        """Look who is there; raise SchedulerLost where the scheduler is gone, or was: this run's tasks are lost then.

        One that only does not answer is waited for, unless a stop is asked for.
        """
        if self.client.status != "running" or self.client.scheduler_comm is not self._connection:
            raise SchedulerLost(LOST)
        self._roll.look()
        if self._roll.silence() > _ANSWER_SECONDS and self._stop_requested():
            raise SchedulerLost(LOST)

    def attend(self, seconds: float, handle: Callable[[Event], None]) -> None:
        """Hand over the events there are, waiting at most so long for the first."""
        try:
            event = self.events.get(timeout=seconds)
            while True:
                handle(event)
                event = self.events.get_nowait()
        except queue.Empty:
            return

    def take_note(self, event: Event) -> None:
        """Follow joins and departures. Raises what a workload did wrong while a member was made."""
        if isinstance(event, Joined):
            self._prepare(event.address)
        elif isinstance(event, Left | Leaving):
            self.ready.pop(event.address, None)
            self._preparing.pop(event.address, None)
            self._follow(event)
        elif isinstance(event, Ready) and self._preparing.pop(event.address, None) is not None:
            self._welcome(event)
        elif isinstance(event, Unready):
            self._preparing.pop(event.address, None)
            if isinstance(event.error, BatchGrowthError):
                raise event.error
            self.trouble = f"{event.address}: {type(event.error).__name__}: {event.error}"

    def see_off(self, busy: Collection[str]) -> None:
        """Let those go who are leaving, but for the busy ones, who train."""
        for address in self.leaving.difference(busy, self._seen_off):
            self._seen_off.add(address)
            self.tell(service.forget, self.run_id, worker=address)

    @property
    def is_preparing(self) -> bool:
        """Whether somebody who has registered is about to be ready."""
        return bool(self._preparing)

    @property
    def here(self) -> set[str]:
        """The workers that are registered, ready or not."""
        return self._calls.here

    def submit(self, address: str, function: Callable[..., Any], *arguments: Any) -> Future:
        """Run a task on exactly this worker; it is not tried again elsewhere."""
        where = {"workers": [address], "allow_other_workers": False, "pure": False, "retries": 0}
        try:
            return self.client.submit(function, *arguments, **where)
        except ClosedClientError as error:
            raise SchedulerLost(LOST) from error

    def in_order(self, updates: Mapping[str, int]) -> list[str]:
        """The workers that are ready: those who are furthest by `updates` first, then by number, else as they came."""
        best = max(updates.values(), default=0)

        def place(address: str) -> tuple[bool, int, int]:
            name, behind = self.ready[address].name, updates.get(address, 0) < best
            return (behind, 0, int(name)) if name.isdigit() else (behind, 1, 0)

        return sorted(self.ready, key=place)

    def silent(self, addresses: Sequence[str]) -> list[str]:
        """Those who are there and do not answer."""
        here = [address for address in addresses if address in self._calls.here]
        return [a for a in here if not self.ask(service.answer, workers=[a], seconds=_ANSWER_SECONDS)]

    def restart(self, address: str) -> None:
        """Have its nanny end the worker and start it anew; without a nanny, just count on it no longer."""
        self._roll.left(address)
        # Where there is no nanny, or none that answers either, the exchange's timeout frees the others.
        self._calls.send(self.client._restart_workers([address], timeout=_CALL_SECONDS, raise_for_error=False))

    def announce(self, address: str, generation: int) -> Callable[[Future], None]:
        """A callback that puts the end of this worker's task into the queue."""
        return lambda done: self.events.put(Ended(address, generation, done))

    def scatter(self, data: Mapping[str, np.ndarray], addresses: Sequence[str], seconds: float) -> list[Future] | None:
        """One future per worker: the arrays, sent to it directly, under a key of their own; None where one is gone.

        One by one and not as a broadcast: a broadcast's event cannot be sent to whoever watches the cluster's events.
        """

        async def all_of_them() -> list[list[Future]]:
            sent = [self.client._scatter([data], workers=[a], direct=True, hash=False) for a in addresses]
            return list(await asyncio.gather(*sent))

        try:
            sent = self._calls.wait(all_of_them(), addresses, seconds)
        except (OSError, TimeoutError):
            return None
        return None if sent is None else [future for [future] in sent]

    def gather(self, futures: Mapping[str, Future], seconds: float) -> list[Any] | None:
        """The results of the workers' finished tasks, fetched from them directly; None where one is gone."""
        try:
            return self._calls.wait(self.client._gather(list(futures.values()), direct=True), futures, seconds)
        except (CancelledError, KilledWorker, OSError, TimeoutError):
            return None

    def ask(
        self, function: Callable[..., Any], *arguments: Any, workers: list[str], seconds: float = _CALL_SECONDS
    ) -> dict[str, Any]:
        """Call a coroutine on the event loops of these workers: {address: answer}; who is gone is left out.

        Raises what the function raised, and SchedulerLost where the scheduler does not answer.
        """
        if not workers:
            return {}
        asking = self.client._run(function, *arguments, workers=workers, on_error="return")
        try:
            answers: dict[str, Any] = self._calls.wait(asking, workers, seconds) or {}
        except (CancelledError, TimeoutError):
            return {}
        except OSError as error:
            raise SchedulerLost(f"{LOST} ({error})") from error
        for answer in answers.values():
            if isinstance(answer, BatchGrowthError):
                raise answer
        return {address: answer for address, answer in answers.items() if not isinstance(answer, BaseException)}

    def tell(self, function: Callable[..., Any], *arguments: Any, worker: str) -> None:
        """Call a coroutine on the event loop of this worker, and do not wait for it."""
        self._calls.send(self.client._run(function, *arguments, workers=[worker], on_error="ignore"))

    def _follow(self, event: Left | Leaving) -> None:
        if isinstance(event, Left):
            self.leaving.discard(event.address)
            self._seen_off.discard(event.address)
        else:
            self.leaving.add(event.address)
            self.tell(service.take_leave, worker=event.address)

    def _prepare(self, address: str) -> None:
        if address in self._preparing or address in self.ready:
            return
        self.tell(service.abandon_others, self.run_id, worker=address)
        future = self.submit(address, service.prepare_member, *self._arguments)
        self._preparing[address] = future
        future.add_done_callback(lambda done: self._on_prepared(address, done))

    def _welcome(self, event: Ready) -> None:
        answers = self.gather({event.address: event.future}, _ANSWER_SECONDS)
        if answers is not None:
            self.ready[event.address] = answers[0]
        elif event.address in self.here:
            self._prepare(event.address)

    def _on_prepared(self, address: str, future: Future) -> None:
        # Dask has one thread for all callbacks: one that fetched the result of a dead worker would hold up the others.
        if future.status == "finished":
            self.events.put(Ready(address, future))
        elif future.status == "error":
            self.events.put(Unready(address, future.exception()))

    def _on_event(self, event: tuple[float, dict[str, Any]]) -> None:
        message = event[1]
        if message["kind"] == JOINED:
            self._roll.joined(message["worker"])
        elif message["kind"] == LEFT:
            self._roll.left(message["worker"])
        elif message["kind"] == service.LEAVING:
            self.events.put(Leaving(message["worker"]))
        else:
            self.events.put(Said(message))
