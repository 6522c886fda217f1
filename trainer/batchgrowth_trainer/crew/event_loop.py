"""Whether the event loop of the connection to Dask still turns; the trainer's liveness probe asks."""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

HUNG_SECONDS = 300.0
"""The silence after which an event loop counts as hung; Dask waits as long for a silent worker."""


class LoopWatch:
    """Asks the watched event loop for a sign of life with each look.

    Only that loop: without it the driver waits forever, and nothing slow runs on it. The driver's own thread may load
    data, evaluate, or wait for storage for as long as that takes.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked_at: float | None = None  # None once the loop has answered
        self._logged = False

    @contextmanager
    def watching(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Watch this event loop inside the block."""
        self._asked_at, self._loop, self._logged = None, loop, False
        try:
            yield
        finally:
            self._loop = None

    def trouble(self) -> str:
        """What hangs; empty if nothing does. Logs it the first time, so that the pod's last lines name it."""
        loop, asked_at, now = self._loop, self._asked_at, time.monotonic()
        if loop is None:
            return ""
        if asked_at is None:
            self._asked_at = now
            with suppress(RuntimeError):  # a closed loop does not answer either
                loop.call_soon_threadsafe(self._answer)
            return ""
        if now - asked_at < HUNG_SECONDS:
            return ""
        trouble = f"the event loop of the connection to Dask has not turned for {now - asked_at:.0f} s"
        if not self._logged:
            self._logged = True
            logging.getLogger(__name__).error("%s; the liveness probe ends this trainer", trouble)
        return trouble

    def _answer(self) -> None:
        self._asked_at = None
