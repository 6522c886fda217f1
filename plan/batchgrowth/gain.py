"""The gain of a learning-rate rule that follows what training measures, beside a growth of any kind."""

from collections.abc import Sequence

from batchgrowth.measuring import Signals
from batchgrowth.position import Position
from batchgrowth.spec import LearningRate

_SUMS = 3  # examples, |G|² and trace of updates with two shards or more
_WINDOW, _KEPT = slice(0, _SUMS), slice(_SUMS, 2 * _SUMS)
"""Parts of the memory: the sums since the last look, and those that looks keep."""


class Gain:
    """The gain of one job's learning rate. `memory` counts the numbers that it remembers; 0 if none is measured."""

    def __init__(self, rate: LearningRate, initial: int) -> None:
        """`initial` is the first batch size, which gains nothing."""
        self._of, self._windows, self._initial = rate.entry.gain, rate.settings, initial
        self.memory = 2 * _SUMS if self._of else 0
        self._smoothing = float(self._windows.smoothing) if self._of else 0.0

    def at(self, batch_size: int, memory: Sequence[float]) -> float:
        """The factor of the learning rate for a batch of that size: 1 without a rule that measures, or before its first
        look.
        """
        if self._of is None or not memory[_KEPT.start]:
            return 1.0
        examples, square, trace = memory[_KEPT]
        return float(self._of(_signals(examples, square, trace), self._initial, batch_size))

    def is_due(self, position: Position) -> bool:
        """Whether a look is due at this position."""
        return self._of is not None and bool(self._windows.is_due(position))

    def after(self, position: Position, noise: Sequence[float], memory: Sequence[float]) -> list[float]:
        """The memory after the update that led to `position`; `noise` are its sums, 0 if it had a single shard."""
        if self._of is None:
            return []
        window = [a + b for a, b in zip(memory[_WINDOW], noise, strict=True)]
        if not (window[0] and self.is_due(position)):
            return [*window, *memory[_KEPT]]
        kept = [self._smoothing * a + b for a, b in zip(memory[_KEPT], window, strict=True)]
        return [*[0.0] * _SUMS, *kept]


def _signals(examples: float, square: float, trace: float) -> Signals:
    return Signals(loss=0.0, batch_square=0.0, square=square / examples, trace=trace / examples)
