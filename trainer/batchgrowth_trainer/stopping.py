"""How a user stops a run: the first Ctrl-C or SIGTERM lets it end after this update, the second at once.

The driver's process acts on them. Its loop asks `stop_requested` before each update, and training.py then writes the
checkpoint and raises Interrupted. (The processes of workers: worker/exits.py; evictions: worker/termination.py.)
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from batchgrowth.errors import Interrupted

from batchgrowth_trainer.sinks.events import Note, Sink

_SAME_SIGNAL_SECONDS = 0.5


@contextmanager
def stoppable(first_stop: str, sink: Sink) -> Iterator[Callable[[], bool]]:
    """Handle signals as `interrupts` does: the first gives the sink this note, and the second raises Interrupted."""
    try:
        with interrupts(lambda: sink.handle(Note(first_stop))) as requested:
            yield requested
    except KeyboardInterrupt as stop:
        raise Interrupted(str(stop) or "stopped at once, before anything was trained") from None


@contextmanager
def interrupts(on_first: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Handle SIGINT, SIGTERM and SIGHUP inside the block, and yield a function that returns whether a stop was
    requested.

    The first signal, such as Ctrl-C, the SIGTERM of Kubernetes or the SIGHUP of a lost connection, calls `on_first`:
    the run writes a checkpoint and stops. A later one raises KeyboardInterrupt, unless it is SIGHUP or comes within
    0.5 s and so may repeat the first: `timeout`, a shell and a service manager signal a process and its group, or send
    SIGTERM and SIGHUP. Only a program's main thread receives signals; in another thread, nothing is handled.
    """
    received: list[float] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    process = os.getpid()

    def handle(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != process:  # users' code has forked this process
            if number != signal.SIGINT:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            return
        received.append(time.monotonic())
        if len(received) == 1:
            on_first()
        elif number != signal.SIGHUP and received[-1] - received[0] > _SAME_SIGNAL_SECONDS:
            raise KeyboardInterrupt

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` has it ignored
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
