"""Which signals end the process of a worker, and of the server that forks local ones.

(Evictions: termination.py. Ctrl-C and SIGTERM in the driver's process: batchgrowth_trainer/stopping.py.)
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_TO_ALL = (signal.SIGTERM, signal.SIGHUP)


def outlive_signals() -> None:
    """Let SIGINT, SIGTERM and SIGHUP do nothing in this process, because its parent acts on them.

    A terminal, `timeout` and service managers signal all processes of a run. A local worker finishes its update, and
    lives until the driver has saved its state; it ends with the driver's process at the latest.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in _TO_ALL:
        signal.signal(number, _nothing)  # programs that users' code starts would inherit SIG_IGN
    # What started the run may have blocked SIGCHLD: the server that forks workers would then not learn of their ends.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGCHLD, *_TO_ALL})


@contextmanager
def signals_wait() -> Iterator[None]:
    """Hold back SIGINT, SIGTERM and SIGHUP inside the block, and in a process started there until `outlive_signals`.

    One that starts would otherwise end by them, or print a traceback, before it can ignore them.
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
