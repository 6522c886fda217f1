"""The time that is left after each update of a run, from constants that were fitted to its updates so far."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace

from batchgrowth.forecast.course_time import plan_seconds, remaining_plan, used_workers
from batchgrowth.forecast.step_time import Constants, Estimated
from batchgrowth.plan import Plan, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What the model says after an update: the seconds to the end, and those of an update of the present stage."""

    remaining: Estimated
    update_seconds: float


NOTHING_LEFT = Estimated(value=0.0, low=0.0, high=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingTime:
    """The time left after any update of the rest of a plan, which is looked up and not added up again.

    By stage: `ends` has the update at which it ends, `later` the seconds of all stages after it, and `paces` the
    seconds of one of its updates, evaluations included. `low` and `high` are the ends of the interval, as multiples.
    """

    ends: tuple[int, ...]
    later: tuple[float, ...]
    paces: tuple[float, ...]
    low: float
    high: float

    def after(self, update: int) -> Outlook:
        """Return what is left after `update` updates."""
        place = bisect_right(self.ends, update)
        if place == len(self.ends):
            return Outlook(remaining=NOTHING_LEFT, update_seconds=self.paces[-1])
        pace = self.paces[place]
        seconds = self.later[place] + pace * (self.ends[place] - update)
        remaining = Estimated(value=seconds, low=seconds * self.low, high=seconds * self.high)
        return Outlook(remaining=remaining, update_seconds=pace)


def remaining_time(plan: Plan, update: int, constants: Constants, workers_of: Callable[[Stage], int]) -> RemainingTime:
    """Return the time left after each update from `update` on; `workers_of` says how many workers a stage will have.

    Raises ValueError if nothing is left.
    """
    rest = remaining_plan(plan, update)
    rest = replace(rest, stages=tuple(replace(stage, workers=workers_of(stage)) for stage in rest.stages))
    constants = constants.extrapolated(used_workers(rest, stage) for stage in rest.stages)
    central = plan_seconds(rest, constants.step)
    total = sum(central)
    whole = constants.estimated(total, [sum(plan_seconds(rest, draw)) for draw in constants.draws])
    later = []
    left = total
    for seconds in central:
        left -= seconds
        later.append(max(0.0, left))
    return RemainingTime(
        ends=tuple(stage.first_update + stage.updates for stage in rest.stages),
        later=tuple(later),
        paces=tuple(seconds / stage.updates for seconds, stage in zip(central, rest.stages, strict=True)),
        low=whole.low / total if total else 1.0,
        high=whole.high / total if total else 1.0,
    )
