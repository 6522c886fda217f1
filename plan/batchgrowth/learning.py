"""Learning rates as fractions until the last step: exact if rational, else far more precise than a float."""

from fractions import Fraction

from batchgrowth.extend import ScheduleRule
from batchgrowth.schema.model import exact
from batchgrowth.spec import LearningRate, Schedule, Warmup


def learning_rate(rate: LearningRate, initial: int, wanted: int, used: int) -> Fraction:
    """The learning rate of a batch of `used` examples when `wanted` were wanted and `initial` at the start."""
    result: Fraction = rate.entry.load()(exact(rate.initial), initial, wanted, used)
    return result


def schedule_of(rate: LearningRate, epochs: int) -> ScheduleRule:
    """The schedule of a job of `epochs`."""
    chosen = rate.schedule or Schedule()
    result: ScheduleRule = chosen.entry.load()(chosen.settings, epochs)
    return result


def warmed(warmup: Warmup | None, update: int, learning_rate: float) -> float:
    """The learning rate of update number `update`, counted from 0, during or after the warm-up."""
    if warmup is None or update >= warmup.updates - 1:
        return learning_rate
    start = float(exact(warmup.initial))
    return start + (learning_rate - start) * ((update + 1) / warmup.updates)
