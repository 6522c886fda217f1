"""The workers of GatherScatter that still compute a copy of an earlier update, which no longer counts.

A worker's thread cannot be interrupted, and its next part would wait behind this one. So the driver leaves the worker
out of the following updates until this one has ended.
"""

import time
from collections.abc import Callable, Iterable

from batchgrowth_trainer.crew import pulse
from batchgrowth_trainer.crew.crew import Crew
from batchgrowth_trainer.crew.events import Ended, Event
from batchgrowth_trainer.drivers.gathering import Copy
from batchgrowth_trainer.worker.messages import Left


class Stragglers:
    """Knows which workers are late, and restarts those that hang; `clock` gives seconds."""

    def __init__(
        self, crew: Crew, note: pulse.Note, patience_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._crew, self._note, self._patience, self._clock = crew, note, patience_seconds, clock
        self._late: dict[str, tuple[Copy, float]] = {}  # by worker, with the time at which its copy became useless
        self._asked_at = clock()

    def __contains__(self, worker: str) -> bool:
        """Whether the worker still computes for an earlier update."""
        return worker in self._late

    def add(self, copies: Iterable[Copy]) -> None:
        """Take the copies that were under way when their update was complete."""
        now = self._clock()
        self._late |= {copy.worker: (copy, now) for copy in copies}

    def follow(self, event: Event) -> None:
        """Forget a worker that has ended or is gone; one that ended by a fault is left out.

        One whose connection is lost is gone, or soon will be. Other errors are ignored, as the rows are: the part has
        been computed without one.
        """
        if isinstance(event, Left):
            self._late.pop(event.address, None)
        elif isinstance(event, Ended) and event.future.status != "lost" and self._is_late(event):
            del self._late[event.address]
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
