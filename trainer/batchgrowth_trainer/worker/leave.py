"""The graceful shutdown of a worker on SIGTERM, and the forced end of a process whose threads hang."""

import asyncio
import atexit
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sized
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import Worker

ACKNOWLEDGE_SECONDS = 5.0
"""The longest that a worker waits for its driver to acknowledge that it leaves."""
GRACE_SECONDS = 45.0
"""The longest that it then waits to be released; the pod's terminationGracePeriodSeconds exceeds these
two and CLOSE_SECONDS."""
CLOSE_SECONDS = 5.0
"""The longest that Dask may take to close; it may wait for a lost scheduler, or a thread that trains."""
_POLL_SECONDS = 0.02
_EXIT_POLL_SECONDS = 0.1
_FLUSH_SECONDS = 1.0  # how long the last log line and flushing the streams may take; they may hang as well

log = logging.getLogger(__name__)


def end_when(over: Callable[[], bool], code: int, why: str = "something still hangs") -> None:
    """End this process with this exit code, and log `why`, once `over` returns True, unless it ends earlier."""

    def watch() -> None:
        while not over():
            time.sleep(_EXIT_POLL_SECONDS)
        flushing = threading.Thread(target=_flush, args=(code, why), daemon=True)
        flushing.start()
        flushing.join(_FLUSH_SECONDS)
        os._exit(code)

    threading.Thread(target=watch, name="last-resort", daemon=True).start()


def end_within(seconds: float, code: int) -> None:
    """End this process with this exit code after `seconds`, unless it ends earlier."""
    ends = time.monotonic() + seconds
    end_when(lambda: time.monotonic() > ends, code)


def end_unfinalized(over: Callable[[], bool], code: int) -> None:
    """When this process exits, end it with this exit code before Python finalizes the interpreter, if `over` returns
    True.

    A thread that is inside torch would abort the process: it cannot return to an interpreter that is being finalized.
    """

    def end() -> None:
        if over():
            logging.shutdown()
            _flush_streams()
            os._exit(code)

    atexit.register(end)


def _flush(code: int, why: str) -> None:
    log.warning("%s; this process ends now with code %d", why, code)
    _flush_streams()


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


_TO_ALL = (signal.SIGTERM, signal.SIGHUP)


def outlive_signals() -> None:
    """Let SIGINT, SIGTERM and SIGHUP do nothing in this process, because its parent acts on them.

    A terminal, `timeout` and service managers signal all processes of a run. A local worker finishes its update, and
    lives until the driver has saved its state; it ends with the driver's process at the latest.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in _TO_ALL:
        signal.signal(number, _nothing)  # programs that users' code starts would inherit SIG_IGN


def end_on_signals() -> None:
    """Let SIGTERM and SIGHUP end this process, which is a child of one that outlives them."""
    for number in _TO_ALL:
        if signal.getsignal(number) is _nothing:
            signal.signal(number, signal.SIG_DFL)


def _nothing(*_: Any) -> None:
    """Do nothing."""


def exit_when_asked() -> None:
    """Let SIGTERM end this process at once, as long as it has no member."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))


class Leave:
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

    def acknowledge(self) -> None:
        """Extend the wait to the grace period, because a driver knows of it and will release its member."""
        if time.monotonic() < self._close_at < math.inf:
            log.info("a driver knows that this worker leaves; it may train on for %.0f s", GRACE_SECONDS)
            self._close_at = time.monotonic() + GRACE_SECONDS
            self._exit_at = self._close_at + CLOSE_SECONDS

    @property
    def is_over(self) -> bool:
        """Return whether the members are abandoned, or soon will be because the worker closes."""
        return time.monotonic() >= self._close_at

    def close(self) -> None:
        """Abandon the members and end the process soon, because the worker closes or has lost its scheduler."""
        self._close_at = min(self._close_at, time.monotonic())
        self._exit_at = min(self._exit_at, time.monotonic() + CLOSE_SECONDS)
        self._abandon()

    def on_sigterm(self, worker: "Worker") -> None:
        """Leave on SIGTERM, before Dask's own handler closes the worker; a second SIGTERM closes it at once.

        The process ends soon after the worker has closed for any reason, even if Dask hangs. Does nothing unless Dask's
        command line started the worker in a process of its own.
        """
        dask_handler = signal.getsignal(signal.SIGTERM)
        if threading.current_thread() is not threading.main_thread() or not callable(dask_handler):
            return
        loop = asyncio.get_running_loop()

        async def leave() -> None:
            log.info("SIGTERM: this worker leaves %d runs", len(self._members))
            self._announce(worker)
            while self._members and time.monotonic() < self._close_at:
                await asyncio.sleep(_POLL_SECONDS)
            log.info("this worker closes, %s", "before it was released" if self._members else "released")
            self.close()

        def begin(*signalled: Any) -> None:
            self._task = loop.create_task(leave())
            self._task.add_done_callback(lambda _: dask_handler(*signalled))

        def take(number: int, frame: FrameType | None) -> None:
            signal.signal(number, dask_handler)
            self._close_at = time.monotonic() + ACKNOWLEDGE_SECONDS
            self._exit_at = min(self._exit_at, self._close_at + CLOSE_SECONDS)
            # The handler may interrupt the event loop anywhere, so the loop itself begins the task.
            loop.call_soon_threadsafe(begin, number, frame)

        signal.signal(signal.SIGTERM, take)
        end_when(lambda: time.monotonic() > self._exit_at, 0)
        end_unfinalized(lambda: self._exit_at < math.inf, 0)
