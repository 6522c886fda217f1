"""What the driver may ask of a member while it trains; answered at the next update boundary, at no cost until then."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from batchgrowth_trainer.record.snapshot import Snapshot


class Control:
    """Set by the worker's event loop, read by the thread that trains."""

    def __init__(self, take: Callable[[], Snapshot]) -> None:
        self.abandoned = False
        self._take = take
        self._stop_generation = -1
        self._lock = threading.Lock()
        self._training = False
        self._wanted: deque[Future[Snapshot]] = deque()

    def request_stop(self, generation: int) -> None:
        """Ask the members of this generation to stop after their update."""
        self._stop_generation = max(self._stop_generation, generation)

    def asks_stop(self, generation: int) -> bool:
        """Whether this generation is to end."""
        return self._stop_generation >= generation

    def request_snapshot(self) -> Future[Snapshot]:
        """A copy of the state, at the next update boundary, or now where nothing is being trained."""
        wanted: Future[Snapshot] = Future()
        with self._lock:
            self._wanted.append(wanted)
            if not self._training:
                self._serve()
        return wanted

    def at_boundary(self) -> None:
        """Serve the snapshots that are waited for."""
        if self._wanted:
            with self._lock:
                self._serve()

    def training(self, on: bool) -> None:
        """Say that a thread trains now, or no longer."""
        with self._lock:
            self._training = on
            if not on:
                self._serve()

    def _serve(self) -> None:
        if self._wanted:
            snapshot = self._take()
            while self._wanted:
                self._wanted.popleft().set_result(snapshot)
