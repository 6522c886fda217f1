"""The graceful shutdown of a pod's worker on SIGTERM, as an eviction sends it; worker_pod.py installs it.

`_announce_leave` in service.py tells the driver, whose `Scaling.tick` in drivers/scaling.py lets the worker go by
`WorkerPool.release_leaving`.
"""

import asyncio
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Sized
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from batchgrowth_trainer.worker.exits import end_unfinalized, end_when

if TYPE_CHECKING:
    from distributed import Worker

ACKNOWLEDGE_SECONDS = 5.0
"""The longest that a worker waits for its driver to acknowledge that it leaves."""
GRACE_SECONDS = 45.0
"""The longest that a leaving worker then waits to be released; the pod's terminationGracePeriodSeconds exceeds these
two and CLOSE_SECONDS."""
CLOSE_SECONDS = 5.0
"""The longest that Dask may take to close; it may wait for a lost scheduler, or a thread that trains."""
_POLL_SECONDS = 0.02

Handler = Callable[[int, FrameType | None], Any]

log = logging.getLogger(__name__)


class Termination:
    """On SIGTERM, takes this process's worker out of the runs whose `members` it holds.

    The worker announces that it leaves, and exits when its driver has released it: the update under way is finished,
    and the driver forms the next group without this worker before its process ends. No update is lost or repeated.

    `announce` notifies their drivers; `abandon` stops the members at their next update boundary.
    """

    def __init__(self, members: Sized, announce: Callable[["Worker"], None], abandon: Callable[[], None]) -> None:
        self._members = members
        self._announce = announce
        self._abandon = abandon
        self._close_at = math.inf  # the deadline for the members to be released
        self._exit_at = math.inf  # the deadline for the process to have ended, even if a thread hangs
        self._task: asyncio.Task[None] | None = None

    def install(self, worker: "Worker") -> None:
        """Handle SIGTERM by `_take`, before Dask's own handler closes the worker; a second SIGTERM closes it at once.

        The process ends soon after the worker has closed for any reason, even if Dask hangs. Does nothing unless Dask's
        command line started the worker in a process of its own.
        """
        dask_handler = signal.getsignal(signal.SIGTERM)
        if threading.current_thread() is not threading.main_thread() or not callable(dask_handler):
            return
        signal.signal(signal.SIGTERM, partial(self._take, worker, asyncio.get_running_loop(), dask_handler))
        end_when(lambda: time.monotonic() > self._exit_at, 0)
        end_unfinalized(lambda: self._exit_at < math.inf, 0)

    def _take(
        self,
        worker: "Worker",
        loop: asyncio.AbstractEventLoop,
        dask_handler: Handler,
        number: int,
        frame: FrameType | None,
    ) -> None:
        """Handle the first SIGTERM: set the deadlines, and let the event loop begin `_leave`."""
        signal.signal(number, dask_handler)
        self._close_at = time.monotonic() + ACKNOWLEDGE_SECONDS
        self._exit_at = min(self._exit_at, self._close_at + CLOSE_SECONDS)

        def begin() -> None:
            self._task = loop.create_task(self._leave(worker))
            self._task.add_done_callback(lambda _: dask_handler(number, frame))

        # The handler may interrupt the event loop anywhere, so the loop itself begins the task.
        loop.call_soon_threadsafe(begin)

    async def _leave(self, worker: "Worker") -> None:
        """Announce that the worker leaves, and close it once its drivers have released its members or time is up."""
        log.info("SIGTERM: this worker leaves %d runs", len(self._members))
        self._announce(worker)
        while self._members and time.monotonic() < self._close_at:
            await asyncio.sleep(_POLL_SECONDS)
        log.info("this worker closes, %s", "before it was released" if self._members else "released")
        self.close()

    def acknowledge(self) -> None:
        """Extend the wait to the grace period, because a driver knows that the worker leaves and will release it."""
        if time.monotonic() < self._close_at < math.inf:
            log.info("a driver knows that this worker leaves; it may train on for %.0f s", GRACE_SECONDS)
            self._close_at = time.monotonic() + GRACE_SECONDS
            self._exit_at = self._close_at + CLOSE_SECONDS

    @property
    def is_leaving(self) -> bool:
        """Return whether the worker has got SIGTERM or closes, so that its members are released, or soon will be."""
        return self._close_at < math.inf

    def close(self) -> None:
        """Abandon the members and end the process soon, because the worker closes or has lost its scheduler."""
        self._close_at = min(self._close_at, time.monotonic())
        self._exit_at = min(self._exit_at, time.monotonic() + CLOSE_SECONDS)
        self._abandon()
