"""What a job's evaluations say about its training: which was the best, and how many have followed without a better one.

Pure and exact, so all members of a group, which see the same values, come to the same result.
"""

import math
from dataclasses import dataclass, replace

from batchgrowth.position import Position
from batchgrowth.spec import JobSpec, WatchedMetric


@dataclass(frozen=True, slots=True)
class Judged:
    """The evaluations so far, by one metric.

    `evaluated` is the epoch of the last evaluation. `value`, `update` and `epoch` are those of the best one; they are
    NaN and 0 before the first finite value. `misses` counts the evaluations after the best.
    """

    evaluated: int = 0
    value: float = math.nan
    update: int = 0
    epoch: int = 0
    misses: int = 0

    def after(self, position: Position, value: float, watched: WatchedMetric) -> "Judged":
        """Return the result with the evaluation at that position; self if it is known.

        The first of equal values stays the best.
        """
        if position.epoch <= self.evaluated:
            return self
        if not self._is_better(value, watched):
            return replace(self, evaluated=position.epoch, misses=self.misses + 1)
        return Judged(position.epoch, value, position.update, position.epoch)

    def _is_better(self, value: float, watched: WatchedMetric) -> bool:
        """Return True if the value is finite, and better than the best by more than the least change that counts."""
        if not math.isfinite(value) or math.isnan(self.value):
            return math.isfinite(value)
        if watched.mode == "Maximize":
            return value - self.value > watched.least
        return self.value - value > watched.least


def end_of(spec: JobSpec, judged: Judged) -> int | None:
    """Return the epoch after which stopEarly ends the job; None if it goes on, or has reached its last epoch anyway."""
    stop = spec.evaluation.stop_early
    if stop is None or judged.misses < stop.patience or judged.evaluated >= spec.epochs:
        return None
    return judged.evaluated
