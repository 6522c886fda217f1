"""How long an update takes: constants of a model, its machines and their network, and the seconds that follow."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from batchgrowth.shards import busiest

LONGEST_SECONDS = 1e6
"""The largest constant, in seconds."""
DEFAULT_ERROR = 0.15
"""The relative error of constants that come without one."""
CONFIDENCE = 0.9
"""The share of runs whose outcome an interval shall cover."""
EXTRAPOLATION_ERROR = 0.1
"""The further relative error of times with a number of workers that was never measured: the workers may share more
than a model knows, such as processors, memory or a link.
"""
NORMAL_QUANTILE = 1.645
"""The quantile of the standard normal distribution at (1 + CONFIDENCE) / 2."""


def _no_truth(value: Any) -> Any:
    """Return the value. Raises an error for a boolean, which pydantic takes for 0 or 1."""
    if isinstance(value, bool):
        raise PydanticCustomError("number", "Input should be a number")
    return value


Number = BeforeValidator(_no_truth)
Seconds = Annotated[float, Field(ge=0, le=LONGEST_SECONDS), Number]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The seconds of an update, as a sum of parts that grow with different things.

    A worker's task takes `per_update`, `per_shard` for each of its shards and `per_example` for each of its examples.
    P > 1 workers exchange for `per_group` + `per_doubling` · log2 P + `per_worker` · (P - 1). `overhead` lists
    (workers, further seconds of an update), linear in between. With a `lone_exchange`, one worker exchanges, too,
    because the model is not in its process. If there are fewer `slots` than workers, tasks and their exchange run in
    several rounds. `per_epoch` is for evaluations and everything else between updates. With `whole_batches`, the last
    batch of an epoch takes as long as any other, as in the simulator of the paper.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", allow_inf_nan=False, alias_generator=to_camel)

    per_example: Seconds = 0.0
    per_shard: Seconds = 0.0
    per_update: Seconds = 0.0
    per_group: Seconds = 0.0
    per_doubling: Seconds = 0.0
    per_worker: Seconds = 0.0
    per_epoch: Seconds = 0.0
    overhead: tuple[tuple[Annotated[int, Field(ge=1), Number], Seconds], ...] = ()
    lone_exchange: bool = False
    slots: Annotated[int | None, Field(ge=1), Number] = None
    whole_batches: bool = False

    def seconds(self, examples: int, shards: int, workers: int) -> float:
        """Return the seconds of an update of this many examples and shards on this many workers."""
        longest = -(-shards // workers)
        task = self.per_update + self.per_shard * longest + self.per_example * busiest(examples, shards, workers)
        rounds = 1
        if self.slots is not None:
            rounds = -(-workers // self.slots)
        return rounds * (task + self.exchange(workers)) + self.overhead_of(workers)

    def exchange(self, workers: int) -> float:
        """Return the seconds that this many workers exchange for."""
        if workers == 1 and not self.lone_exchange:
            return 0.0
        return self.per_group + self.per_doubling * math.log2(workers) + self.per_worker * (workers - 1)

    def overhead_of(self, workers: int) -> float:
        """Return the overhead of this many workers, in seconds, extrapolated beyond the table but not below 0."""
        table = self.overhead
        if len(table) < 2:
            return sum(seconds for _, seconds in table)
        place = min(max(bisect_left(table, (workers, 0.0)), 1), len(table) - 1)
        low, before = table[place - 1]
        high, after = table[place]
        return max(0.0, before + (after - before) * (workers - low) / (high - low))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """A number with an interval that holds the outcome of 9 in 10 runs."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> "Estimated":
        """Return the number and its interval, multiplied by a factor of at least 0."""
        return Estimated(value=self.value * factor, low=self.low * factor, high=self.high * factor)

    def to_json(self) -> dict[str, float]:
        """Return the number as `batchgrowth forecast --json` prints it."""
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """A step time with its uncertainty, and where both come from.

    `error` is the relative standard error that all updates share, as machines differ from day to day. `draws` are
    other step times that the measurements allow, if there are any. `seen_workers` are the numbers of workers that were
    measured; none if the number does not matter. `gradient_bytes` is the size of the gradient that a network's
    constants are for; None if they are for any. `notes` are sentences for the user, and `exchange_note` is the one
    about an exchange that was not measured; "" if it was.
    """

    label: str
    step: StepTime
    error: float = DEFAULT_ERROR
    draws: tuple[StepTime, ...] = ()
    seen_workers: frozenset[int] = frozenset()
    gradient_bytes: int | None = None
    source: str = ""
    notes: tuple[str, ...] = ()
    exchange_note: str = ""

    def with_slots(self, slots: int | None) -> "Constants":
        """Return the constants for this many workers at a time; None: all of them."""
        return replace(
            self,
            step=replace(self.step, slots=slots),
            draws=tuple(replace(draw, slots=slots) for draw in self.draws),
        )

    def extrapolated(self, workers: Iterable[int]) -> "Constants":
        """Return the constants for these numbers of workers, with a larger error if one of them was never measured."""
        if not self.seen_workers or self.seen_workers.issuperset(workers):
            return self
        return replace(self, error=math.hypot(self.error, EXTRAPOLATION_ERROR))

    def estimated(self, value: float, drawn: Sequence[float]) -> Estimated:
        """Return a number with an interval from the draws' values and the shared error; if it is 0, so are the ends."""
        if value <= 0:
            return Estimated(value=value, low=value, high=value)
        square = self.error**2
        logs = [math.log(one / value) for one in drawn if one > 0]
        if len(logs) > 1:
            square += sum(one**2 for one in logs) / len(logs)
        factor = math.exp(NORMAL_QUANTILE * math.sqrt(square))
        return Estimated(value=value, low=value / factor, high=value * factor)
