"""When a job is evaluated, which evaluation is the best so far, and when stopEarly ends the job.

Pure and exact: all members of a group see the same values, so they come to the same result.
"""

import math
from dataclasses import dataclass, replace

from batchgrowth.plan import Plan
from batchgrowth.position import Position
from batchgrowth.spec import JobSpec, WatchedMetric


def evaluation_due(spec: JobSpec, plan: Plan, position: Position, evaluated: int) -> bool:
    """Return True if an epoch ends at `position` and an evaluation is due; epochs up to `evaluated` are evaluated.

    The last epoch is always evaluated.
    """
    if position.offset or position.epoch <= evaluated:
        return False
    return position.epoch % spec.evaluation.every_epochs == 0 or plan.is_done(position)


@dataclass(frozen=True, slots=True)
class BestEvaluation:
    """The best evaluation so far by one metric, and how many have followed without a better one.

    `evaluated` is the epoch of the last evaluation. `value`, `update` and `epoch` are those of the best one; they are
    NaN and 0 before the first finite value. `misses` counts the evaluations after the best; all, until there is one.
    """

    # A checkpoint stores these numbers in this order, so new ones come last.
    evaluated: int = 0
    value: float = math.nan
    update: int = 0
    epoch: int = 0
    misses: int = 0

    def after(self, position: Position, value: float, watched: WatchedMetric) -> "BestEvaluation":
        """Return the record with the evaluation at that position; the same record if that evaluation is known.

        The first of equal values stays the best. A value that is not finite is never the best.
        """
        if position.epoch <= self.evaluated:
            return self
        if not math.isfinite(value):
            better = False
        elif math.isnan(self.value):
            better = True
        elif watched.mode == "Maximize":
            better = value - self.value > watched.least
        else:
            better = self.value - value > watched.least
        if better:
            return BestEvaluation(position.epoch, value, position.update, position.epoch)
        return replace(self, evaluated=position.epoch, misses=self.misses + 1)


def early_end(spec: JobSpec, best: BestEvaluation) -> int | None:
    """Return the epoch after which stopEarly ends the job; None if training goes on, or ends with its last epoch
    anyway.
    """
    stop = spec.evaluation.stop_early
    if stop is None or best.misses < stop.patience or best.evaluated >= spec.epochs:
        return None
    return best.evaluated
