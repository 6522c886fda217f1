"""Ctrl-C once: write a checkpoint and stop. Twice: stop now. SIGTERM, as Kubernetes sends it, counts as Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """Counts the requests to stop."""

    def __init__(self) -> None:
        self.count = 0

    def requested(self) -> bool:
        """Whether anyone asked to stop."""
        return self.count > 0


@contextmanager
def interrupts(on_first: Callable[[], None]) -> Iterator[Interrupts]:
    """Take SIGINT and SIGTERM inside the block; the second one raises KeyboardInterrupt."""
    seen = Interrupts()

    def take(_number: int, _frame: FrameType | None) -> None:
        seen.count += 1
        if seen.count > 1:
            raise KeyboardInterrupt
        on_first()

    before = {number: signal.signal(number, take) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
