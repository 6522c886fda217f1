"""How a worker, a trainer's process and the server that forks workers end: by signals, or by force if they hang.

(Evictions: termination.py. Ctrl-C and SIGTERM in the driver's process: batchgrowth_trainer/stopping.py.)
"""

import atexit
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_TO_ALL = (signal.SIGTERM, signal.SIGHUP)
_EXIT_POLL_SECONDS = 0.1
_FLUSH_SECONDS = 1.0  # how long the last log line and flushing the streams may take; they may hang as well

log = logging.getLogger(__name__)


# --- By signals ---


def outlive_signals() -> None:
    """Let SIGINT, SIGTERM and SIGHUP do nothing in this process, because its parent acts on them.

    A terminal, `timeout` and service managers signal all processes of a run. A local worker finishes its update, and
    lives until the driver has saved its state; it ends with the driver's process at the latest.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in _TO_ALL:
        signal.signal(number, _nothing)  # programs that users' code starts would inherit SIG_IGN
    # The run's parent may have blocked SIGCHLD: the server that forks workers would then not learn of their ends.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGCHLD, *_TO_ALL})


@contextmanager
def signals_wait() -> Iterator[None]:
    """Hold back SIGINT, SIGTERM and SIGHUP inside the block, and in a process started there until `outlive_signals`.

    A starting process would otherwise end by them, or print a traceback, before it can ignore them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *_TO_ALL})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_on_signals() -> None:
    """Let SIGTERM and SIGHUP end this process, which is a child of one that outlives them."""
    for number in _TO_ALL:
        if signal.getsignal(number) is _nothing:
            signal.signal(number, signal.SIG_DFL)


def _nothing(*_: Any) -> None:
    """Do nothing."""


def exit_when_asked(code: int = 0) -> None:
    """Let SIGTERM end this process at once with this exit code, until another handler replaces this one."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(code))


# --- By force ---


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
        if stream is not None:  # it is None in a process that was started without it
            with suppress(OSError, ValueError):  # its reader is gone, or users' code has closed it
                stream.flush()
