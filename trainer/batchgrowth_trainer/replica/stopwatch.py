"""Times updates, for a growth that looks at a clock."""

from batchgrowth.plan import Step
from batchgrowth.shards import busiest
from batchgrowth.timing import NOT_TIMED, Timing


class Stopwatch:
    """Holds the timing of the last update, which the row of the next one carries.

    The first update of a generation is not timed, because it also allocates buffers and fills caches.
    """

    def __init__(self) -> None:
        self.timing = NOT_TIMED
        self._warm = False

    def lap(self, step: Step, workers: int, seconds: float) -> None:
        """Take the `seconds` of an update by that number of workers."""
        if self._warm:
            self.timing = Timing(seconds, busiest(step.examples, step.shards, workers))
        self._warm = True
