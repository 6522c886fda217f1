"""Ctrl-C once: write a checkpoint and stop. Twice: stop at once. SIGTERM, which Kubernetes sends, counts as Ctrl-C."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts(on_first: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Handles SIGINT and SIGTERM inside the block, and yields a function: whether a stop was requested.

    The first signal calls `on_first`, the second raises KeyboardInterrupt. Only a program's main thread receives
    signals; in another one nothing is handled.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            raise KeyboardInterrupt
        on_first()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
