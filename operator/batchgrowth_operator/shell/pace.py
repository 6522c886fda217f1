"""How often the progress of jobs is looked at and written, so that a thousand trainers do not keep the server busy."""

from dataclasses import replace

from batchgrowth_operator.decide.defaults import Defaults
from batchgrowth_operator.server.store import Key

MOST_PROGRESS_WRITES = 20.0
"""Passes and status writes per second, of all jobs together, for reports of progress only."""


class Pace:
    """The settings for a job's next decision: the more jobs train, the less often each has its progress written."""

    def __init__(self, defaults: Defaults) -> None:
        self._defaults = defaults
        self._training: set[Key] = set()

    @property
    def seconds_apart(self) -> float:
        """The shortest time between two passes of one job for progress only."""
        return len(self._training) / MOST_PROGRESS_WRITES

    def settings(self, key: Key, *, trains: bool) -> Defaults:
        """The settings, given whether this job has a cluster now."""
        if trains:
            self._training.add(key)
        else:
            self._training.discard(key)
        return replace(self._defaults, report_seconds=max(self._defaults.report_seconds, self.seconds_apart))

    def forget(self, key: Key) -> None:
        """Counts a job no more that is gone, or another operator's."""
        self._training.discard(key)
