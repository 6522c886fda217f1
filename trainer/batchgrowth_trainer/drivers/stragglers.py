"""The workers of GatherScatter that still compute a copy of an earlier update, which no longer counts.

A worker's thread cannot be interrupted, and its next part would wait behind this one. So the driver leaves the worker
out of the following updates until this one has ended. One that was late in each of its last updates rests for further
ones, twice as many each time, in which it may still repeat the parts of others.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable

from batchgrowth_trainer.crew import pulse
from batchgrowth_trainer.crew.crew import Crew
from batchgrowth_trainer.crew.events import Ended, Event
from batchgrowth_trainer.drivers.gathering import Copy
from batchgrowth_trainer.worker.messages import Left

FIRST_REST, LONGEST_REST = 4, 256
"""Updates for which a worker rests that was late twice in a row, and the most for one that always is."""


class Stragglers:
    """Knows which workers are late, and restarts those that hang; `clock` gives seconds."""

    def __init__(
        self, crew: Crew, note: pulse.Note, patience_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._crew, self._note, self._patience, self._clock = crew, note, patience_seconds, clock
        self._late: dict[str, tuple[Copy, float]] = {}  # by worker, with the time at which its copy became useless
        self._in_a_row = Counter[str]()  # how often each worker was late since it was last in time
        self._rests: dict[str, int] = {}  # by worker, until which update it rests
        self._updates = 0
        self._asked_at = clock()

    def __contains__(self, worker: str) -> bool:
        """Whether the worker still computes for an earlier update."""
        return worker in self._late

    def rests(self, worker: str) -> bool:
        """Whether the worker should have no part of the next update, although it could."""
        return self._rests.get(worker, 0) > self._updates

    def after(self, late: Iterable[Copy], in_time: Iterable[str]) -> None:
        """Take the copies that were under way when an update was complete, and the workers that ended their part."""
        self._updates += 1
        for worker in in_time:
            self._in_a_row.pop(worker, None)
        for copy in late:
            self._late[copy.worker] = copy, self._clock()
            self._in_a_row[copy.worker] += 1

    def follow(self, event: Event) -> None:
        """Forget a worker that has ended or is gone; one that ended by a fault is left out.

        One whose connection is lost is gone, or soon will be. Other errors are ignored, as the rows are: the part has
        been computed without one.
        """
        if isinstance(event, Left):
            for known in (self._late, self._in_a_row, self._rests):
                known.pop(event.address, None)
        elif isinstance(event, Ended) and event.future.status != "lost" and self._is_late(event):
            del self._late[event.address]
            self._rests[event.address] = self._updates + _rest(self._in_a_row[event.address])
            fault = event.fault()
            if fault is not None:
                self._note(f"worker {event.address} was left out: {fault}")
                self._crew.leave_out(event.address, fault)

    def watch(self) -> None:
        """Restart late workers that do not answer, or do not end; waits for none of them."""
        if not self._late:
            return
        now = self._clock()
        if now - self._asked_at > self._patience:
            self._asked_at = now
            self._crew.ask_whether_alive(self._late)
        self._crew.restart(self._crew.hung(), self._note)
        limit = self._patience + pulse.STUCK_SECONDS
        self._crew.restart([w for w, (_, since) in self._late.items() if now - since > limit], self._note, pulse.STUCK)

    def _is_late(self, event: Ended) -> bool:
        return event.address in self._late and self._late[event.address][0].request.key == event.future.key


def _rest(in_a_row: int) -> int:
    """The updates for which a worker rests that was late that many times in a row: none after the first time."""
    return min(FIRST_REST << min(in_a_row - 2, 16), LONGEST_REST) if in_a_row >= 2 else 0
