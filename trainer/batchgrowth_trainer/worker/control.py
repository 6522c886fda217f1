"""Requests of the driver to a member that trains: served at the next update boundary, free of cost until then."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from batchgrowth_trainer.record.snapshot import Snapshot


class Control:
    """Written by the worker's event loop, read by the thread that trains."""

    def __init__(self, take: Callable[[], Snapshot]) -> None:
        self.abandoned = False
        self._take = take
        self._stop_generation = self._over_generation = -1
        self._lock = threading.Lock()
        self._training = False
        self._requests: deque[Future[Snapshot]] = deque()

    def request_stop(self, generation: int) -> None:
        """Stop the members of this generation, and of earlier ones, after their update."""
        self._stop_generation = max(self._stop_generation, generation)

    def stop_requested(self, generation: int) -> bool:
        """Whether this generation should stop."""
        return self._stop_generation >= generation

    def cancel(self, generation: int) -> None:
        """Wait no longer for the members of this generation, or of earlier ones: it is over."""
        self._over_generation = max(self._over_generation, generation)

    def is_over(self, generation: int) -> bool:
        """Whether this generation ends without its next update."""
        return self.abandoned or self._over_generation >= generation

    def request_snapshot(self) -> Future[Snapshot]:
        """A copy of the state at the next update boundary; at once if the member does not train."""
        request: Future[Snapshot] = Future()
        with self._lock:
            self._requests.append(request)
            if not self._training:
                self._serve()
        return request

    def at_boundary(self) -> None:
        """Serve the requested snapshots."""
        if self._requests:
            with self._lock:
                self._serve()

    def training(self, on: bool) -> None:
        """Record whether a thread trains now."""
        with self._lock:
            self._training = on
            if not on:
                self._serve()

    def _serve(self) -> None:
        if self._requests:
            try:
                snapshot = self._take()
            except RuntimeError as error:  # of a device that has failed
                while self._requests:
                    self._requests.popleft().set_exception(error)
            while self._requests:
                self._requests.popleft().set_result(snapshot)
