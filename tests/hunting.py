"""Signals at random moments to random workers."""

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dask_workers import workers


class Hunter:
    """Sends a signal to a random worker at random moments, `most` times at most."""

    def __init__(self, seed: int, most: int, number: signal.Signals = signal.SIGKILL, pause: float = 1.0) -> None:
        self.struck = 0
        self._random, self._most, self._number, self._pause = random.Random(seed), most, number, pause
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._hunt, daemon=True)

    def _hunt(self) -> None:
        while self.struck < self._most and not self._over.wait(self._random.uniform(0.02, self._pause)):
            alive = workers()
            if alive:
                os.kill(self._random.choice(alive).pid, self._number)
                self.struck += 1

    @contextmanager
    def out(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join()
