"""What a measured rule of growth is asked: signals, looks and timings, and exact roots and powers."""

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache
from math import isqrt
from typing import ClassVar, Protocol

from pydantic import Field

from batchgrowth.position import Position
from batchgrowth.schema import DecimalText, Model, Rule, exact

# --- How long updates take, for a rule of growth that looks at a clock ---

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


# --- What a measured rule of growth is asked, and the settings that all such rules share ---

LARGEST_BATCH = 16_777_216
"""The largest batch size of a manifest, in examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """Means over the examples of some updates.

    `loss` is the loss per example, `batch_square` the squared norm of the batches' gradients. `square` is the unbiased
    squared norm of the expected gradient, which may come out negative, and `trace` the unbiased trace of the covariance
    of one example's gradient: McCandlish et al., 2018, appendix A. Both are 0 for a rule that does not need the noise.
    """

    loss: float
    batch_square: float
    square: float
    trace: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The state of a training when its rule is asked: `position` is that of the next update.

    `start` are the signals of the first update, `first` those until the first look, `now` those since the last look,
    with earlier ones as `smoothing` says. `initial` is the first batch size, `wanted` the one wanted so far, `largest`
    the largest that this look may lead to within batch.maximum, and `shard` the examples of a shard. `workers` is a
    function: the planned workers of a batch size. `learning_rate` is that of the last update. `timings` are the sums
    over all timed updates, empty for a rule that does not look at a clock. `memory` are the numbers that the rule
    remembers, which it may change.
    """

    position: Position
    start: Signals
    first: Signals
    now: Signals
    initial: int
    wanted: int
    largest: int
    shard: int
    workers: Callable[[int], int]
    learning_rate: float
    timings: Timings
    memory: list[float] = field(default_factory=list)


class MeasuredRule(Protocol):
    """A rule of growth that follows what training measures; it is asked at each look."""

    def value(self, look: Look) -> float:
        """The measured quantity; infinity if it is too large to be measured."""
        ...

    def wanted(self, look: Look, value: float) -> float:
        """The batch size in examples that follows from the value, before the bounds of Looks; infinity is allowed."""
        ...


def ratio(numerator: float, denominator: float) -> float:
    """The quotient; infinity if the denominator is not above 0, as an estimate may be that its noise exceeds."""
    return numerator / denominator if denominator > 0 else math.inf


class Windows(Model):
    """When training looks at what it measures, and how much of the earlier sums a look keeps."""

    every_updates: int | None = Field(
        None,
        ge=1,
        le=1_000_000_000,
        description="Updates from one look at the measured quantity to the next; nothing changes in between. Unit: "
        "updates. Default: looks by epoch, as everyEpochs says.",
    )
    every_epochs: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Epochs from one look to the next, which is at the end of an epoch; not with everyUpdates. Unit: "
        "epochs. Default: 1.",
    )
    smoothing: DecimalText = Field(
        "0",
        description="Share of the earlier sums that each look keeps beside those since the last look. "
        'A decimal in quotes, at least 0 and less than 1. Default: "0".',
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "everyEpochs",
            "give either everyEpochs or everyUpdates",
            lambda m: m.every_epochs is None or m.every_updates is None,
            "!has(self.everyEpochs) || !has(self.everyUpdates)",
        ),
        Rule(
            "smoothing",
            'give a decimal of at least 0 and less than 1, such as "0.5"',
            lambda m: exact(m.smoothing) < 1,
            "double(self.smoothing) < 1.0",
        ),
    )

    def is_due(self, position: Position) -> bool:
        """Whether a look is due at this position."""
        if self.every_updates:
            return position.update % self.every_updates == 0
        return position.offset == 0 and position.epoch % (self.every_epochs or 1) == 0

    @property
    def when(self) -> str:
        """When looks are due, in words."""
        if self.every_updates:
            return f"every {self.every_updates:,} updates"
        return f"every {self.every_epochs:,} epochs" if (self.every_epochs or 1) > 1 else "at the end of each epoch"


class Looks(Windows):
    """When a measured rule looks at the training, and how far one look may move the batch."""

    least_change: DecimalText = Field(
        "1.25",
        description="Smallest factor by which a look changes the wanted batch size; a smaller one is ignored. A "
        'decimal in quotes, from 1 to 1000. Default: "1.25".',
    )
    most_change: DecimalText = Field(
        "2",
        description="Largest factor by which one look changes the wanted batch size. A decimal in quotes, at least "
        'leastChange, more than 1 and at most 1000. Default: "2".',
    )
    may_shrink: bool = Field(
        False, description="True lets the batch shrink again, but never below batch.initial. Default: false."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        *Windows.rules,
        Rule(
            "leastChange",
            'give a decimal from 1 to 1000, such as "1.25"',
            lambda m: 1 <= exact(m.least_change) <= 1000,
            "double(self.leastChange) >= 1.0 && double(self.leastChange) <= 1000.0",
        ),
        Rule(
            "mostChange",
            'give a decimal more than 1 and at most 1000, such as "2"',
            lambda m: 1 < exact(m.most_change) <= 1000,
            "double(self.mostChange) > 1.0 && double(self.mostChange) <= 1000.0",
        ),
        Rule(
            "mostChange",
            "give a decimal no smaller than leastChange",
            lambda m: exact(m.least_change) <= exact(m.most_change),
            "double(self.leastChange) <= double(self.mostChange)",
        ),
    )


def two_shards(name: str) -> dict[str, tuple[Rule, ...]]:
    """The outer rules of the growth rule `name`, which compares the gradients of at least two shards."""
    remedy = f"give a shard smaller than batch.initial: {name} compares the gradients of two shards or more"
    return {
        "JobSpec": (
            Rule(
                "batch.shard",
                remedy,
                lambda s: s.batch.growth.type != name or s.shard < s.batch.initial,
                f"self.batch.growth.type != '{name}' || self.batch.initial > "
                "(has(self.batch.shard) ? self.batch.shard : self.workers.examplesPerWorker)",
            ),
        )
    }


# --- Roots and powers as fractions: exact if rational, else to fifty digits and more, and the same on every machine ---
# A float of the C library may differ in its last bit from one machine to the next, and with it the weights.

__all__ = ["SIXTY_DIGITS", "power", "square_root"]

SIXTY_DIGITS = Context(prec=60, Emin=-999)
"""Decimals of 60 digits; a number below 10^-999 is 0."""
_SCALE = 10**50
_MOST_EXACT_BITS = 4096
"""The largest denominator of an exact power; a longer one is rounded to 60 digits."""


def square_root(number: Fraction) -> Fraction:
    """The root of a number that is not negative: exact if it is rational, else to 50 digits after the point."""
    above, below = isqrt(number.numerator), isqrt(number.denominator)
    if above**2 == number.numerator and below**2 == number.denominator:
        return Fraction(above, below)
    return Fraction(isqrt(number.numerator * _SCALE**2 // number.denominator), _SCALE)


@lru_cache(maxsize=4096)
def power(base: Fraction, exponent: Fraction) -> Fraction:
    """`base` from 0 to 1 to the power of `exponent` > 0: exact if that is short, else to 60 digits."""
    if exponent.denominator == 1 and exponent * base.denominator.bit_length() <= _MOST_EXACT_BITS:
        return base**exponent.numerator
    return Fraction(SIXTY_DIGITS.power(_decimal(base), _decimal(exponent)))


def _decimal(number: Fraction) -> Decimal:
    return SIXTY_DIGITS.divide(Decimal(number.numerator), Decimal(number.denominator))
