"""The parts of an update's learning rate: the rule's rate, the schedule's factor, and AdaScale's gain.

`Plan.learning_rate_at` in plan.py multiplies the first two and warms up. A training that measures the gain asks
`Course.learning_rate` in growth_decisions.py at each update, through replica/decisions.py.
"""

from collections.abc import Sequence
from fractions import Fraction

from batchgrowth.extend import ScheduleRule
from batchgrowth.looks import Signals
from batchgrowth.position import Position
from batchgrowth.spec import LearningRate, Schedule

NUM_NOISE = 3
"""How many sums of an update a gain needs: examples, |G|² and trace of the noise."""
_WINDOW = slice(0, NUM_NOISE)
_KEPT = slice(NUM_NOISE, 2 * NUM_NOISE)
"""Parts of the gain's memory, counted from its own beginning."""


def rate_by_rule(rate: LearningRate, initial: int, wanted: int, used: int) -> Fraction:
    """Return the learning rate of a batch of `used` examples if the growth wants `wanted` and began with `initial`.

    The result is exact if it is rational, else far more precise than a float.
    """
    result: Fraction = rate.entry.load()(Fraction(rate.initial), initial, wanted, used)
    return result


def schedule_of(rate: LearningRate, epochs: int) -> ScheduleRule:
    """Return the schedule of a job of `epochs` epochs."""
    chosen = rate.schedule or Schedule()
    schedule: ScheduleRule = chosen.entry.load()(chosen.settings, epochs)
    return schedule


class Gain:
    """The gain of a measured learning-rate rule; it works with any growth rule.

    `memory` counts the numbers that it remembers; 0 if no gain is measured.
    """

    def __init__(self, rate: LearningRate, initial: int) -> None:
        """Begin with the first batch size, whose gain is 1."""
        self._function = rate.entry.gain
        self._windows = rate.settings
        self._initial = initial
        self._smoothing = 0.0
        self.memory = 0
        if self._function is not None:
            self._smoothing = float(self._windows.smoothing)
            self.memory = 2 * NUM_NOISE

    def at(self, batch_size: int, memory: Sequence[float]) -> float:
        """Return the factor of the learning rate for a batch of that size.

        The factor is 1 before the first look, and without a rule that measures.
        """
        if self._function is None or not memory[_KEPT.start]:  # no look has kept anything yet
            return 1.0
        examples, square, trace = memory[_KEPT]
        signals = Signals(loss=0.0, batch_square=0.0, square=square / examples, trace=trace / examples)
        return float(self._function(signals, self._initial, batch_size))

    def is_due(self, position: Position) -> bool:
        """Return True if a look is due at this position."""
        return self._function is not None and bool(self._windows.is_due(position))

    def after(self, position: Position, noise: Sequence[float], memory: Sequence[float]) -> list[float]:
        """Return the new memory after an update; `position` is the position after it.

        `noise` are the update's sums, which are 0 if it had a single shard.
        """
        if self._function is None:
            return []
        window = [a + b for a, b in zip(memory[_WINDOW], noise, strict=True)]
        # A window whose updates had one shard each shows no noise, so it goes on until the next look.
        if not (window[0] and self.is_due(position)):
            return [*window, *memory[_KEPT]]
        kept = [self._smoothing * a + b for a, b in zip(memory[_KEPT], window, strict=True)]
        return [*[0.0] * NUM_NOISE, *kept]
