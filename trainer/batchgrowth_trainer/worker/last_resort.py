"""The end of a process that has nothing more to do, whatever still hangs in it."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable

_LOOK_SECONDS = 0.1
_TELL_SECONDS = 1.0  # what is to be written may hang, too


def end_when(over: Callable[[], bool], code: int) -> None:
    """End this process with this exit code as soon as `over` says so, unless it has ended by itself before."""

    def watch() -> None:
        while not over():
            time.sleep(_LOOK_SECONDS)
        telling = threading.Thread(target=_tell, args=(code,), daemon=True)
        telling.start()
        telling.join(_TELL_SECONDS)
        os._exit(code)

    threading.Thread(target=watch, name="last-resort", daemon=True).start()


def end_within(seconds: float, code: int) -> None:
    """End this process with this exit code after so many seconds, unless it has ended by itself before."""
    ends = time.monotonic() + seconds
    end_when(lambda: time.monotonic() > ends, code)


def _tell(code: int) -> None:
    logging.getLogger(__name__).warning("something still hangs in this process; it ends now with code %d", code)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
