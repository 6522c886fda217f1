"""Whether the thread that computes hangs: it has taken far longer for a shard than for any before it.

The driver cannot tell: the process answers, and a worker that trains alone has no peers to give it up. Only this
process knows how long its shards take.
"""

import threading
import time
from collections.abc import Callable

TICK_SECONDS = 1.0
STUCK_SECONDS = 300.0
"""Beyond exchange.timeoutSeconds, the shortest time after which a thread hangs.

All may wait for one file system, and they alone hold the newest state.
"""
_LONGEST = 20.0  # how many times the longest shard before it a shard may take


class Watchdog:
    """Counts the ticks of each shard, so the time in which the whole process is stopped does not count.

    Until the first shard ends, none counts as too long: it may compile the model.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self._least = STUCK_SECONDS + timeout_seconds
        self._beats = self._seen = 0
        self._computing = False
        self._seconds = self._longest = 0.0
        self._closed = threading.Event()

    def __enter__(self) -> None:
        """The thread begins to compute."""
        self._beats += 1
        self._computing = True

    def __exit__(self, *_: object) -> None:
        """The thread does something else, such as waiting for its peers."""
        self._computing = False

    def beat(self) -> None:
        """The thread has computed a shard, or as much of something else."""
        self._longest = max(self._longest, self._seconds, TICK_SECONDS)
        self._beats += 1

    def tick(self, seconds: float) -> bool:
        """Count the seconds since the last tick; whether the thread hangs."""
        if not self._computing or self._beats != self._seen:
            self._seen, self._seconds = self._beats, 0.0
            return False
        self._seconds += seconds
        return self._longest > 0 and self._seconds > max(self._least, _LONGEST * self._longest)

    def watch(self, end: Callable[[str], None]) -> None:
        """Tick in a thread, until closed and at rest; call `end` with the reason once the computing thread hangs."""

        def tick() -> None:
            while self._computing or not self._closed.is_set():
                time.sleep(TICK_SECONDS)
                if self.tick(TICK_SECONDS):
                    end(f"a shard has taken {self._seconds:.0f} s, and none before it more than {self._longest:.0f} s")
                    return

        threading.Thread(target=tick, name="watchdog", daemon=True).start()

    def close(self) -> None:
        """Stop watching, once the thread computes no longer: a new driver waits for one that hangs."""
        self._closed.set()
