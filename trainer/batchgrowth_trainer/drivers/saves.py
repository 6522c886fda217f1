"""The checkpoints of a run while it trains: when the next is due, and how long training goes on without one."""

import time
from collections.abc import Callable

from batchgrowth.errors import CheckpointError

from batchgrowth_trainer.record import storage
from batchgrowth_trainer.record.snapshot import Snapshot
from batchgrowth_trainer.sinks import events

FAILING_SECONDS = 1800.0
"""The longest that training goes on while no checkpoint can be written."""
RETRY_SECONDS = 60.0
"""The longest time from a failed checkpoint to the next."""
LEAST_FAILURES = 3
"""The fewest failures in a row that end a run, if its updates are longer than RETRY_SECONDS."""


class Saves:
    """Writes checkpoints by `write`, which returns their bytes; `update` is that of the newest that is whole."""

    def __init__(
        self,
        write: Callable[[Snapshot], int],
        every_seconds: float,
        publish: Callable[[events.Event], None],
        update: int,
    ) -> None:
        self._write, self._every_seconds, self._publish = write, every_seconds, publish
        self.update = update
        self._tried_at = self._failing_since = time.monotonic()
        self._failures = 0
        self._error: CheckpointError | None = None

    def due(self) -> bool:
        """Whether checkpoint.everySeconds have passed since the last one; after a failure at most RETRY_SECONDS."""
        pause = min(self._every_seconds, RETRY_SECONDS) if self._failures else self._every_seconds
        return time.monotonic() - self._tried_at >= pause

    def save(self, snapshot: Snapshot) -> None:
        """Write a checkpoint. A failure is published, and training goes on: the next one may succeed.

        Raises CheckpointError, or StorageError if the cause may pass, after FAILING_SECONDS of failures alone.
        """
        self._tried_at = began = time.monotonic()
        try:
            size = self._write(snapshot)
        except CheckpointError as error:
            self._fail(error)
            return
        self._failures, self._error, self.update = 0, None, snapshot.position.update
        self._publish(events.CheckpointSaved(self.update, time.monotonic() - began, size))

    def save_last(self, snapshot: Snapshot) -> None:
        """Write a checkpoint, and try again for LAST_SECONDS. Raises CheckpointError if it is not written."""

        def write() -> None:
            self.save(snapshot)
            self.check()

        storage.retried(write, storage.LAST_SECONDS)

    def check(self) -> None:
        """Raise the error of the last checkpoint if it failed."""
        if self._error is not None:
            raise self._error

    def _fail(self, error: CheckpointError) -> None:
        now = time.monotonic()
        if not self._failures:
            self._failing_since = now
        self._failures, self._error = self._failures + 1, error
        self._publish(events.CheckpointFailed(str(error)))
        if self._failures >= LEAST_FAILURES and now - self._failing_since >= FAILING_SECONDS:
            raise type(error)(
                f"no checkpoint could be written for {now - self._failing_since:.0f} s, in {self._failures} tries; "
                f"the newest is of update {self.update:,}. The last error: {error}"
            ) from error
