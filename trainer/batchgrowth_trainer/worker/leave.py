"""A worker that is asked to go, as Kubernetes asks a pod: it says so, and goes when the others can do without it.

The update that is under way is finished, and the driver has the next group formed without this worker before its
process ends: nothing is lost, and nothing is done twice.
"""

from __future__ import annotations

import asyncio
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Sized
from types import FrameType
from typing import TYPE_CHECKING, Any

from batchgrowth_trainer.worker.last_resort import end_when

if TYPE_CHECKING:
    from distributed import Worker

_HEARD_SECONDS = 5.0  # a driver that is there answers at once
_GRACE_SECONDS = 45.0  # then a pod has its grace period, of which something must be left for the end itself
_END_SECONDS = 5.0  # Dask's own end may wait for a scheduler that is gone, or for a thread that trains
_LOOK_SECONDS = 0.02


def exit_when_asked() -> None:
    """Let SIGTERM end this process, as long as it has nothing to lose."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))


class Leave:
    """The leave of this process's worker from the runs whose `members` it has.

    `say` tells all of their drivers; `abandon` has the members stop at their next update boundary all the same.
    """

    def __init__(self, members: Sized, say: Callable[[Worker], None], abandon: Callable[[], None]) -> None:
        self._members, self._say, self._abandon = members, say, abandon
        self._goes_by = math.inf
        self._ends_by = math.inf  # the process, whatever still hangs in it
        self._task: asyncio.Task[None] | None = None

    def note_heard(self) -> None:
        """A driver has heard of it and will see to it that the members of its run are forgotten."""
        if time.monotonic() < self._goes_by < math.inf:
            self._goes_by = time.monotonic() + _GRACE_SECONDS
            self._ends_by = self._goes_by + _END_SECONDS

    def note_closing(self) -> None:
        """The worker closes, asked to or for want of a scheduler: its members have nobody to train for."""
        self._abandon()
        self._goes_by = min(self._goes_by, time.monotonic())
        self._ends_by = min(self._ends_by, time.monotonic() + _END_SECONDS)

    def on_sigterm(self, worker: Worker) -> None:
        """Take leave before what SIGTERM does otherwise is done; a second SIGTERM does that at once.

        The process ends soon after that, or after the worker closed for another reason, whatever Dask still waits for.
        Nothing, where the worker is none of a process of its own that Dask's command line started.
        """
        otherwise = signal.getsignal(signal.SIGTERM)
        if threading.current_thread() is not threading.main_thread() or not callable(otherwise):
            return
        loop = asyncio.get_running_loop()

        def take(number: int, frame: FrameType | None) -> None:
            signal.signal(number, otherwise)
            self._goes_by = time.monotonic() + _HEARD_SECONDS
            self._ends_by = min(self._ends_by, self._goes_by + _END_SECONDS)
            loop.call_soon_threadsafe(begin, number, frame)

        def begin(*signalled: Any) -> None:
            self._task = loop.create_task(self._take(worker))
            self._task.add_done_callback(lambda _: otherwise(*signalled))

        signal.signal(signal.SIGTERM, take)
        end_when(lambda: time.monotonic() > self._ends_by, 0)

    async def _take(self, worker: Worker) -> None:
        self._say(worker)
        while self._members and time.monotonic() < self._goes_by:
            await asyncio.sleep(_LOOK_SECONDS)
        self.note_closing()
