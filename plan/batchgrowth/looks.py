"""What a measured growth rule sees of a training, when it looks, and how far one look may move the batch.

growth_decisions.py asks the rule at each look.
"""

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from typing import ClassVar, Protocol

from pydantic import Field

from batchgrowth.position import Position
from batchgrowth.schema import DecimalText, Model, Rule, decimal_rule

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


@dataclass(frozen=True, slots=True)
class Timing:
    """The `seconds` of an update whose busiest worker computed `load` examples; both are 0 without a timing."""

    seconds: float = 0.0
    load: float = 0.0


NOT_TIMED = Timing()

_SAME_LOAD = 1e-9
"""Relative variance of the loads below which they count as equal: the rounding errors of a long run's sums."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Sums over the timed updates of a training: their number, x, t, x² and x · t, for x = load and t = seconds."""

    updates: float = 0.0
    loads: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0
    products: float = 0.0

    def plus(self, timing: Timing) -> "Timings":
        """Return the sums with one more update; the same sums if it has no sensible timing."""
        load = timing.load
        seconds = timing.seconds
        if not (0 < load < math.inf and 0 < seconds < math.inf):
            return self
        added = (1.0, load, seconds, load * load, load * seconds)
        return Timings(*(a + b for a, b in zip(astuple(self), added, strict=True)))

    def line(self) -> tuple[float, float]:
        """Return (a, b), neither below 0, of the line a + b · load that fits the seconds best, by least squares.

        a is 0 while all updates had the same load; both are 0 if none was timed.
        """
        if not self.updates:
            return 0.0, 0.0
        spread = self.updates * self.squares - self.loads * self.loads
        if spread > _SAME_LOAD * self.updates * self.squares:
            a = (self.seconds * self.squares - self.loads * self.products) / spread
            b = (self.updates * self.products - self.loads * self.seconds) / spread
            # Neither the fixed cost nor the cost per example can be negative; if the fit makes one negative, the other
            # explains all of the time.
            if b < 0:
                return self.seconds / self.updates, 0.0
            if a >= 0:
                return a, b
        return 0.0, self.products / self.squares


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The state of a training when its rule is asked: `position` is the position of the next update.

    `start` are the signals of the first update, `first` those until the first look, and `now` those since the last
    look, with a share of earlier ones as `smoothing` says. `initial` is the first batch size, `wanted` the one wanted
    so far, `largest` the largest that this look may lead to within batch.maximum, and `shard` the examples of a shard.
    `workers` is a function that returns the planned workers of a batch size. `learning_rate` is that of the last
    update. `timings` are the sums over all timed updates, empty for a rule that does not look at a clock. `memory` are
    the numbers that the rule remembers; it may change their values, but not their count.
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
        """Return the measured quantity; infinity if it is too large to be measured."""
        ...

    def wanted(self, look: Look, value: float) -> float:
        """Return the batch size in examples that follows from the value; `Course.bounded` bounds it afterwards.

        Infinity is allowed.
        """
        ...


def ratio(numerator: float, denominator: float) -> float:
    """Return the quotient; infinity if the denominator is not above 0, as an estimate below its own noise can be."""
    if denominator > 0:
        return numerator / denominator
    return math.inf


class Windows(Model):
    """When training looks at its measurements, and the share of earlier sums that a look keeps."""

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
        description="Epochs from one look to the next; each look is at the end of an epoch. Not with everyUpdates. "
        "Unit: epochs. Default: 1.",
    )
    smoothing: DecimalText = Field(
        "0",
        description="Share of the earlier sums that each look adds to the sums since the last look. A decimal in "
        'quotes, at least 0 and less than 1. Default: "0".',
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
            lambda m: float(m.smoothing) < 1,
            "double(self.smoothing) < 1.0",
        ),
    )

    def is_due(self, position: Position) -> bool:
        """Return True if a look is due at this position."""
        if self.every_updates:
            return position.update % self.every_updates == 0
        return position.offset == 0 and position.epoch % (self.every_epochs or 1) == 0

    @property
    def when(self) -> str:
        """Return when looks are due, in words."""
        if self.every_updates:
            return f"every {self.every_updates:,} updates"
        if self.every_epochs is None or self.every_epochs == 1:
            return "at the end of each epoch"
        return f"every {self.every_epochs:,} epochs"


class Looks(Windows):
    """When a measured rule looks at the training, and how far one look may move the batch."""

    least_change: DecimalText = Field(
        "1.25",
        description="Smallest factor by which a look changes the wanted batch size; a smaller change is ignored. A "
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
            lambda m: 1 <= float(m.least_change) <= 1000,
            "double(self.leastChange) >= 1.0 && double(self.leastChange) <= 1000.0",
        ),
        decimal_rule("mostChange", above=1, most=1000, example="2"),
        Rule(
            "mostChange",
            "give a decimal no smaller than leastChange",
            lambda m: float(m.least_change) <= float(m.most_change),
            "double(self.leastChange) <= double(self.mostChange)",
        ),
    )


def two_shards(name: str) -> dict[str, tuple[Rule, ...]]:
    """Return the outer rules of the growth rule `name`, which compares the gradients of at least two shards."""
    remedy = (
        f"give a shard smaller than batch.initial, or a larger batch.initial: {name} compares the gradients of two "
        "shards or more"
    )
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
