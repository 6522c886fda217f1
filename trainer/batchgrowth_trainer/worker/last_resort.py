"""The forced end of a process that is done, even if a thread or a connection hangs."""

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable

_POLL_SECONDS = 0.1
_FLUSH_SECONDS = 1.0  # how long the last log line and flushing the streams may take; they may hang as well


def end_when(over: Callable[[], bool], code: int, why: str = "something still hangs") -> None:
    """End this process with this exit code once `over` returns True, unless it ends by itself before; logs why."""

    def watch() -> None:
        while not over():
            time.sleep(_POLL_SECONDS)
        flushing = threading.Thread(target=_flush, args=(code, why), daemon=True)
        flushing.start()
        flushing.join(_FLUSH_SECONDS)
        os._exit(code)

    threading.Thread(target=watch, name="last-resort", daemon=True).start()


def end_within(seconds: float, code: int) -> None:
    """End this process with this exit code after `seconds`, unless it ends by itself before."""
    ends = time.monotonic() + seconds
    end_when(lambda: time.monotonic() > ends, code)


def end_unfinalized(over: Callable[[], bool], code: int) -> None:
    """Have this process end with this exit code before Python finalizes its interpreter, if `over` is True by then.

    A thread that is inside torch would abort the process: it cannot return to an interpreter that is being finalized.
    """

    def end() -> None:
        if over():
            logging.shutdown()
            _flush_streams()
            os._exit(code)

    atexit.register(end)


def _flush(code: int, why: str) -> None:
    logging.getLogger(__name__).warning("%s; this process ends now with code %d", why, code)
    _flush_streams()


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
