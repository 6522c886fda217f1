"""How often the progress of jobs is written, so that a thousand trainers do not keep the API server busy with it."""

from dataclasses import replace

from batchgrowth_operator.decide.defaults import Defaults
from batchgrowth_operator.server.store import Key

MOST_PROGRESS_WRITES = 20.0
"""Status writes per second, of all jobs together, that differ in progress only."""


class Pace:
    """The settings for a job's next decision: the more jobs train, the less often each has its progress written."""

    def __init__(self, defaults: Defaults) -> None:
        self._defaults = defaults
        self._training: set[Key] = set()

    def settings(self, key: Key, *, trains: bool) -> Defaults:
        """The settings, given whether this job has a cluster now."""
        if trains:
            self._training.add(key)
        else:
            self._training.discard(key)
        shared = len(self._training) / MOST_PROGRESS_WRITES
        return replace(self._defaults, report_seconds=max(self._defaults.report_seconds, shared))

    def forget(self, key: Key) -> None:
        """Counts a job no more that is gone, or another operator's."""
        self._training.discard(key)
