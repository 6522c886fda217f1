"""How long updates take, for a rule of growth that looks at a clock."""

import math
from dataclasses import astuple, dataclass

_SAME_LOAD = 1e-9
"""Relative variance of the loads below which they count as equal: the rounding errors of a long run's sums."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The `seconds` of an update whose busiest worker computed `load` examples; both are 0 if it was not timed."""

    seconds: float = 0.0
    load: float = 0.0


NOT_TIMED = Timing()


@dataclass(frozen=True, slots=True)
class Timings:
    """Sums over the timed updates of a training: how many, x, t, x² and x · t, for x = load and t = seconds."""

    updates: float = 0.0
    loads: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0
    products: float = 0.0

    def plus(self, timing: Timing) -> "Timings":
        """The sums with one more update; without it if it was not timed, or its numbers make no sense."""
        load, seconds = timing.load, timing.seconds
        if not (0 < load < math.inf and 0 < seconds < math.inf):
            return self
        added = 1.0, load, seconds, load * load, load * seconds
        return Timings(*(a + b for a, b in zip(astuple(self), added, strict=True)))

    def line(self) -> tuple[float, float]:
        """(a, b), neither below 0, of the line a + b · load that fits the seconds best, by least squares.

        a is 0 while all updates had the same load; both are 0 if none was timed.
        """
        if not self.updates:
            return 0.0, 0.0
        spread = self.updates * self.squares - self.loads * self.loads
        if spread > _SAME_LOAD * self.updates * self.squares:
            a = (self.seconds * self.squares - self.loads * self.products) / spread
            b = (self.updates * self.products - self.loads * self.seconds) / spread
            if b < 0:
                return self.seconds / self.updates, 0.0
            if a >= 0:
                return a, b
        return 0.0, self.products / self.squares
