"""For extensions: the parts of a registry's entry, ours or a third party's, and exact arithmetic for their numbers.

registry.py finds the entries: ours in choices/, a third party's by the entry points of its distribution
(docs/extending.md). Entries are loaded while the manifest's models are built, so the module of an entry imports nothing
at its top that needs these models: not spec, plan, or what imports them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache
from math import isqrt
from typing import Any, Literal, Protocol

from batchgrowth.errors import Fault
from batchgrowth.looks import LARGEST_BATCH, Look, MeasuredRule, Signals, Windows, ratio, two_shards
from batchgrowth.position import Position
from batchgrowth.registry import Entry, Faults, FinishedPlan, always_acts, growth_idle, rate_idle, schedule_idle
from batchgrowth.schema import ENTRYPOINT, DecimalText, Model, Rule, decimal_rule, module_rule
from batchgrowth.shards import busiest

__all__ = [
    "ENTRYPOINT", "LARGEST_BATCH", "SIXTY_DIGITS", "Coarser", "DecimalText", "ExchangeEntry", "Fault", "Faults",
    "FinishedPlan", "GrowthEntry", "GrowthRule", "Look", "MeasuredEntry", "MeasuredRule", "Model", "OptimizerEntry",
    "Position", "RateEntry", "RateRule", "Rule", "ScheduleEntry", "ScheduleRule", "Signals", "Until", "Windows",
    "always_acts", "busiest", "decimal_rule", "exact", "module_rule", "power", "ratio", "square_root", "two_shards",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Until:
    """When to ask a growth rule again: at the start of an epoch, before an update, or by default never."""

    epoch: int | None = None
    update: int | None = None


@dataclass(frozen=True, slots=True)
class Coarser:
    """A setting that reduces the number of stages: its path below batch.growth, its value, and an adequate value.

    The values are numbers of updates if the path ends with Updates, otherwise of epochs.
    """

    field: str
    given: int
    enough: int


class GrowthRule(Protocol):
    """A rule of growth: which batch size is wanted at a position, and how long that answer holds."""

    def wanted(self, position: Position) -> int:
        """Return the wanted batch size in examples (the AdaDamp paper's damping); it may exceed batch.maximum."""
        ...

    def until(self, position: Position) -> Until:
        """Return how long the answer at `position` holds."""
        ...


def nothing_coarser(settings: Any, epochs: int, updates: int, stages: int) -> Coarser | None:  # noqa: ARG001
    """Return None: the rule's settings bound the number of its stages."""
    return None


def no_update(settings: Any) -> tuple[str, int] | None:  # noqa: ARG001
    """Return None: the settings name no update."""
    return None


def nothing_remembered(settings: Any) -> int:  # noqa: ARG001
    """Return 0: the rule remembers nothing but the sums."""
    return 0


def never(settings: Any) -> bool:  # noqa: ARG001
    """Return False: the batch only grows."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthEntry(Entry):
    """A growth rule. `implementation` is a function (initial batch size, settings, schedule) -> GrowthRule; the
    schedule is the ScheduleRule of the learning rate.

    `coarser` is a function (settings, epochs, most updates, most stages) -> Coarser, the change of the settings that
    makes a plan with too many stages short enough; or None. `last_update` is a function (settings) -> the path of a
    setting below batch.growth and the last update that it names; or None. That update must come before the end of the
    plan. `shrinks` is a function (settings) -> True if the batch becomes smaller somewhere.

    `quantity` names what a measured rule measures; it is empty if the plan follows from the spec alone. `needs_noise`
    is True if the quantity needs the gradient's noise, and so two shards or more. `compares_squares` is True if the
    quantity compares |G|² with |G|² until the first look; later looks extend this reference until it is above 0.
    `looks_at_clock` is True if the quantity needs the duration of updates, so that only a replay repeats a run.
    `memory` is a function (settings) -> how many numbers of its own the rule remembers from look to look.
    """

    coarser: Callable[[Any, int, int, int], Coarser | None] = nothing_coarser
    last_update: Callable[[Any], tuple[str, int] | None] = no_update
    shrinks: Callable[[Any], bool] = never
    memory: Callable[[Any], int] = nothing_remembered
    quantity: str = ""
    needs_noise: bool = False
    compares_squares: bool = False
    looks_at_clock: bool = False
    idle: Callable[[FinishedPlan], Faults] = growth_idle


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredEntry(GrowthEntry):
    """A growth rule that measures `quantity`. `implementation` is a function (settings) -> MeasuredRule.

    The manifest's block `looks` says when the rule is asked, and bounds the batch sizes that it asks for.
    """

    quantity: str


class RateRule(Protocol):
    """The learning rate of a batch: exact if it is rational, else to 50 digits."""

    def __call__(self, rate: Fraction, initial: int, wanted: int, used: int) -> Fraction:
        """Return the learning rate of a batch of `used` examples if the growth wants `wanted` examples.

        `rate` is the learning rate of a batch of `initial` examples.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RateEntry(Entry):
    """A learning-rate rule. `implementation` is a RateRule.

    `falls_past_maximum` is True if the learning rate still changes when the batch is at its maximum and more is wanted.
    `gain` is a function (signals, initial batch size, batch size) -> a further factor, for a rule that follows what
    training measures; the block of such a rule derives from Windows, which says when to look.
    """

    falls_past_maximum: bool = False
    gain: Callable[[Signals, int, int], float] | None = None
    idle: Callable[[FinishedPlan], Faults] = rate_idle

    def __post_init__(self) -> None:
        if self.gain is not None and not (self.block and issubclass(self.block, Windows)):
            raise TypeError(f"{self.name}: a rule with a gain needs a block that derives from Windows")


class ScheduleRule(Protocol):
    """A schedule of the learning rate: frozen, and picklable because a plan is sent to the workers."""

    def factor(self, epoch: int) -> Fraction:
        """Return the factor of the learning rate during `epoch`, counted from 0: it begins at 1 and never rises.

        Exact if it is rational, else to so many digits that its nearest float is the same on every machine.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleEntry(Entry):
    """A schedule of the learning rate. `implementation` is a function (settings, epochs of the job) -> ScheduleRule."""

    idle: Callable[[FinishedPlan], Faults] = schedule_idle


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerEntry(Entry):
    """An optimizer. `implementation` names a function of the settings that returns either a Stepper or a function
    (spec, parameters) -> AnyOptimizer; both types are in batchgrowth_trainer.replica.optimizers.

    `compares_gradients` is True if it compares the gradients of consecutive updates, so that each must be the gradient
    of the weights that the optimizer moved.
    """

    compares_gradients: bool = False


def nothing_waits(_: Any) -> int:
    """Return 0: no gradient waits for its update (`waiting`), or rounds begin at once (`before_rounds`)."""
    return 0


def always_one(settings: Any) -> int:  # noqa: ARG001
    """Return 1: all workers hold the same weights after each update."""
    return 1


Promise = Literal["Exact", "Repeatable", "Nondeterministic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeEntry(Entry):
    """An exchange. `implementation` names its driver: a function (run, join) -> Trained. `run` is a
    batchgrowth_trainer.drivers.run.RunState, and `join` a batchgrowth_trainer.drivers.scaling.Join, which connects to
    the workers. The trainer loads it in training.py, and `strategy` in exchange/strategy.py.

    `strategy` names the strategy of the members, for the driver that all exchanges between workers share: a function
    (setting) -> batchgrowth_trainer.exchange.strategy.Strategy. It says what the members do in a round: from one point
    at which all members have the same state to the next.
    `uses_workers` is False if the driver trains in its own process.
    `promise` says what the weights depend on. Exact: on the mathematics of the job alone, so they are the weights of
    one process. Repeatable: on the settings of the exchange too, which then belong to the mathematics.
    Nondeterministic: also on how fast each worker happens to be. Exact and Repeatable weights never depend on the
    number of workers.
    `replicas` is a function (settings) -> the number of logical replicas, between which each batch is divided.
    `keeps` is what each replica has of its own at the end of a round, besides buffers and the optimizer's state: its
    Weights, or a Residual (error feedback) if all have the same weights. With Nothing they share one state.
    `all_connected` is True if any two members may exchange; otherwise more than 64 are connected as a grid.
    `lone_exchange` is True if a lone worker exchanges, too, because the model is not in its process.
    `longest_round` is a function (settings) -> the most updates from one message between workers to the next.
    `before_rounds` is a function (settings) -> how many updates have an exchange each, before the rounds begin.
    `computes_ahead` is True if workers compute gradients of later updates before an update is made; at the end of a
    plan there are none. `waiting` is a function (settings) -> how many of these gradients wait at the end of a round,
    as part of the state.
    """

    uses_workers: bool = True
    promise: Promise = "Exact"
    replicas: Callable[[Any], int] = always_one
    keeps: Literal["Nothing", "Weights", "Residual"] = "Nothing"
    all_connected: bool = False
    lone_exchange: bool = False
    longest_round: Callable[[Any], int] = always_one
    before_rounds: Callable[[Any], int] = nothing_waits
    computes_ahead: bool = False
    waiting: Callable[[Any], int] = nothing_waits
    strategy: str = "batchgrowth_trainer.exchange.all_reduce:AllReduce"


# Numbers of a rule are fractions: exact if they are rational, else to fifty digits and more. A float of the C library
# may differ in its last bit from one machine to the next, and with it the weights.

exact = Fraction
"""The exact value of a decimal of the manifest, such as "0.05"."""
SIXTY_DIGITS = Context(prec=60, Emin=-999)
"""Decimals of 60 digits; below 10^-999 they have fewer, and below 10^-1058 they become 0."""
_SCALE = 10**50
"""The denominator of a root that is not rational."""
_MOST_EXACT_BITS = 4096
"""The longest denominator of an exact power, in bits; a longer one is rounded to 60 digits."""


def square_root(number: Fraction) -> Fraction:
    """Return the root of a number of at least 0: exact if it is rational, else to 50 digits after the point."""
    above = isqrt(number.numerator)
    below = isqrt(number.denominator)
    if above**2 == number.numerator and below**2 == number.denominator:
        return Fraction(above, below)
    return Fraction(isqrt(number.numerator * _SCALE**2 // number.denominator), _SCALE)


@lru_cache(maxsize=4096)
def power(base: Fraction, exponent: Fraction) -> Fraction:
    """Return `base`, from 0 to 1, to the power of `exponent` > 0: exact if that is short, else to 60 digits."""
    if exponent.denominator == 1 and exponent * base.denominator.bit_length() <= _MOST_EXACT_BITS:
        return base**exponent.numerator
    return Fraction(SIXTY_DIGITS.power(_decimal(base), _decimal(exponent)))


def _decimal(number: Fraction) -> Decimal:
    return SIXTY_DIGITS.divide(Decimal(number.numerator), Decimal(number.denominator))
