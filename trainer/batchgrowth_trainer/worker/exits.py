"""How the process of a worker ends by force when its threads hang; signals.py says by which signals it ends."""

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable

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
        if stream is not None:  # as in a process that was started without it
            stream.flush()
