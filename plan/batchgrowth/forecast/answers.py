"""Answers to a user's questions before a run: how many workers are worth it, how many keep a deadline or a budget, and
how much longer the run takes if machines are reclaimed.

The answers vary `workers.maximum` alone, so the weights stay the same.

Amdahl's and Gunther's laws are fitted to how much work is done with N workers. Gunther's universal scalability law says
X(N) = γ N / (1 + σ (N - 1) + κ N (N - 1)); Amdahl's is the same with κ = 0. N / X(N) is linear in γ⁻¹, σ/γ and κ/γ, so
the fit is by linear least squares of the relative errors, in closed form.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

from batchgrowth.forecast.course_time import (
    RunTime,
    plan_seconds,
    run_time,
    stage_seconds,
    used_workers,
    worker_hours_of,
)
from batchgrowth.forecast.step_time import NORMAL_QUANTILE, Constants, Estimated, StepTime
from batchgrowth.plan import Plan
from batchgrowth.spec import JobSpec
from batchgrowth.spec.workers import MOST_WORKERS

# --- Laws of scalability ---

FEWEST_POINTS = 4
"""The fewest points of a fit: a law with three parameters fits any three points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalabilityLaw:
    """A law fitted to a curve: contention σ, coherency κ (0 in Amdahl's), and the relative error of the fit.

    `single_seconds` is what a single worker takes by the law.
    """

    name: str
    contention: Estimated
    coherency: Estimated
    misfit: float
    single_seconds: float

    @property
    def peak(self) -> float:
        """Return the number of workers at which the law is fastest; infinite if more are always faster."""
        return _peak(self.contention.value, self.coherency.value)

    @property
    def limit(self) -> float:
        """Return the largest speed-up over one worker by the law; infinite if it has no bound."""
        return _limit(self.contention.value, self.coherency.value)

    def speedup(self, workers: float) -> float:
        """Return how many times faster than one worker this many are."""
        return _speedup(self.contention.value, self.coherency.value, workers)

    def efficiency(self, workers: float) -> float:
        """Return the speed-up per worker."""
        return self.speedup(workers) / workers

    def peaks(self) -> tuple[float, float]:
        """Return the interval of the peak, by the ends of the two parameters' intervals."""
        low = _peak(self.contention.high, self.coherency.high)
        return low, _peak(self.contention.low, self.coherency.low)

    def limits(self) -> tuple[float, float]:
        """Return the interval of the limit, by the ends of the two parameters' intervals."""
        low = _limit(self.contention.high, self.coherency.high)
        return low, _limit(self.contention.low, self.coherency.low)

    def efficiencies(self, workers: float) -> Estimated:
        """Return the speed-up per worker with its interval, by the ends of the two parameters' intervals."""
        low = _speedup(self.contention.high, self.coherency.high, workers) / workers
        high = _speedup(self.contention.low, self.coherency.low, workers) / workers
        return Estimated(value=self.efficiency(workers), low=low, high=high)

    def to_json(self) -> dict[str, object]:
        """Return the law as `batchgrowth forecast --json` prints it; null: no bound."""
        return {
            "law": self.name,
            "contention": self.contention.to_json(),
            "coherency": self.coherency.to_json(),
            "peak": _with_ends(self.peak, self.peaks()),
            "limit": _with_ends(self.limit, self.limits()),
            "misfit": self.misfit,
        }


def _peak(sigma: float, kappa: float) -> float:
    if kappa <= 0:
        return math.inf
    return math.sqrt(max(0.0, 1 - sigma) / kappa)


def _speedup(sigma: float, kappa: float, workers: float) -> float:
    return workers / (1 + sigma * (workers - 1) + kappa * workers * (workers - 1))


def _limit(sigma: float, kappa: float) -> float:
    peak = _peak(sigma, kappa)
    if not math.isinf(peak):
        return _speedup(sigma, kappa, max(peak, 1.0))
    return math.inf if sigma <= 0 else 1 / sigma


def _with_ends(value: float, ends: tuple[float, float]) -> dict[str, float | None]:
    low, high = ends
    return {"value": _finite(value), "low": _finite(low), "high": _finite(high)}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def laws(seconds: Mapping[int, float]) -> tuple[ScalabilityLaw, ...]:
    """Return Amdahl's and Gunther's laws, fitted to a curve: the seconds of the same work by the number of workers.

    Returns no law if the curve has too few points to tell how well one fits.
    """
    if len(seconds) < FEWEST_POINTS:
        return ()
    return _fitted("Amdahl", seconds, 2), _fitted("Gunther", seconds, 3)


def _fitted(name: str, seconds: Mapping[int, float], terms: int) -> ScalabilityLaw:
    """Fit N / X(N) = a + b (N - 1) + c N (N - 1), without a negative coefficient, weighted by the inverse of N / X(N).

    With seconds T(N) of the same work, N / X(N) is N · T(N).
    """
    rows = []
    for workers, time in seconds.items():
        cost = workers * time
        rows.append([term / cost for term in (1.0, workers - 1.0, workers * (workers - 1.0))])
    used = list(range(terms))
    while True:
        inverse = _inverse([[sum(row[i] * row[j] for row in rows) for j in used] for i in used])
        right = [sum(row[i] for row in rows) for i in used]
        found = [sum(a * b for a, b in zip(line, right, strict=True)) for line in inverse]
        negative = [place for place, value in enumerate(found) if value < 0 and used[place]]
        if not negative:
            break
        del used[max(negative)]  # at its bound, 0
    wide = dict(zip(used, found, strict=True))
    errors = [1 - sum(row[i] * wide[i] for i in used) for row in rows]
    left = len(rows) - len(used)
    variance = sum(error**2 for error in errors) / left
    contention = _relative(used, found, inverse, variance, 1)
    coherency = _relative(used, found, inverse, variance, 2)
    misfit = math.sqrt(sum(error**2 for error in errors) / len(errors))
    return ScalabilityLaw(name=name, contention=contention, coherency=coherency, misfit=misfit, single_seconds=found[0])


def _relative(
    used: Sequence[int], found: Sequence[float], inverse: Sequence[Sequence[float]], variance: float, term: int
) -> Estimated:
    """Return a coefficient as a share of the first, with the interval of the delta method; 0 if it is not used."""
    if term not in used:
        return Estimated(value=0.0, low=0.0, high=0.0)
    place = used.index(term)
    scale = found[0]
    value = found[place] / scale
    square = (inverse[place][place] - 2 * value * inverse[0][place] + value**2 * inverse[0][0]) / scale**2
    half = NORMAL_QUANTILE * math.sqrt(max(0.0, variance * square))
    return Estimated(value=value, low=max(0.0, value - half), high=value + half)


def _inverse(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the inverse of a positive definite matrix of at most three rows, by Gauss-Jordan elimination."""
    size = len(matrix)
    rows = [[*row, *(1.0 if i == j else 0.0 for j in range(size))] for i, row in enumerate(matrix)]
    for place in range(size):
        best = max(range(place, size), key=lambda row: abs(rows[row][place]))
        rows[place], rows[best] = rows[best], rows[place]
        pivot = rows[place][place]
        rows[place] = [value / pivot for value in rows[place]]
        for other in range(size):
            if other != place:
                factor = rows[other][place]
                rows[other] = [a - factor * b for a, b in zip(rows[other], rows[place], strict=True)]
    return [row[size:] for row in rows]


# --- Numbers of workers ---

EACH_UP_TO = 64
"""The number of workers up to which every number is tried; from there on, each next one is a twentieth larger."""
KNEE_SHARE = 0.02
"""The share of the run's time that one more worker must save to be worth it."""
RATIO = 1.05
MOST_EVALUATIONS = 100_000
"""The most stage times that are computed for one answer."""


@dataclass(frozen=True)
class Candidates:
    """A job with other numbers of workers: the central time with each number, without an interval.

    `plan` is the job's own. Its stages have the workers that the batch needs, within the job's bounds.
    """

    spec: JobSpec
    plan: Plan
    step: StepTime

    @cached_property
    def seconds(self) -> Mapping[int, float]:
        """Return the time of the run by `workers.maximum`, up to the largest that changes anything."""
        known: dict[tuple[int, int], float] = {}
        found = {}
        for maximum in self.maxima():
            total = 0.0
            for stage in self.plan.stages:
                asked = self.spec.workers.desired(stage.batch_size, maximum)
                workers = min(asked, self.plan.useful_workers(stage.batch_size))
                key = (stage.index, workers)
                if key not in known:
                    known[key] = stage_seconds(self.plan, stage, self.step, workers)
                total += known[key]
            found[maximum] = total
        return found

    def maxima(self) -> Iterator[int]:
        """Yield the numbers of workers that are tried, in increasing order."""
        largest = max(stage.batch_size for stage in self.plan.stages)
        most = min(max(largest // self.spec.workers.examples_per_worker, 1), MOST_WORKERS)
        maximum = self.spec.workers.minimum
        # The rules bound the workers from above, so every refused number is larger than every allowed one.
        most = maximum + bisect_left(range(maximum + 1, most + 1), True, key=self._is_refused)
        while maximum < most:
            yield maximum
            maximum = maximum + 1 if maximum < EACH_UP_TO else min(ceil(maximum * RATIO), most)
        yield most

    def _is_refused(self, maximum: int) -> bool:
        """Return whether the manifest would be refused with so many workers, as each exchange has its own bound."""
        workers = self.spec.workers.model_copy(update={"maximum": maximum})
        spec = self.spec.model_copy(update={"workers": workers})
        return not all(rule.holds(spec) for rule in JobSpec.rules)

    def plan_with(self, maximum: int) -> Plan:
        """Return the plan of the job with another `workers.maximum`."""
        workers = self.spec.workers
        stages = (replace(stage, workers=workers.desired(stage.batch_size, maximum)) for stage in self.plan.stages)
        return replace(self.plan, stages=tuple(stages))

    def worker_hours(self, maximum: int) -> float:
        """Return the worker-hours that the run requests with another `workers.maximum`."""
        plan = self.plan_with(maximum)
        return worker_hours_of(plan, plan_seconds(plan, self.step))

    def knee(self, share: float = KNEE_SHARE) -> int:
        """Return the number of workers after which no further one shortens the run by this share."""
        return knee_of(self.seconds, share)


def knee_of(seconds: Mapping[int, float], share: float) -> int:
    """Return the number of workers after which no further one shortens a run by this share, from its times by workers.

    Since no shard is divided, one more worker may save nothing and two may save much. So a number is past the knee if
    no larger number saves that share per additional worker, on average.
    """

    def is_past(maximum: int) -> bool:
        later = ((more, time) for more, time in seconds.items() if more > maximum)
        return all(seconds[maximum] / time < (1 + share) ** (more - maximum) for more, time in later)

    return next(maximum for maximum in seconds if is_past(maximum))  # the largest always is


@dataclass(frozen=True, slots=True, kw_only=True)
class AffordableWorkers:
    """A number of workers for a deadline or a budget, with its forecast; `kept` is False if no number keeps them."""

    maximum: int
    made: RunTime
    kept: bool


def cheapest(candidates: Candidates, constants: Constants, price: float | None, deadline: float | None,
             budget: float | None) -> AffordableWorkers:  # fmt: skip
    """Return the workers that keep a deadline in seconds and a budget with the fewest worker-hours.

    With a budget alone, they are those that keep it with the shortest run. A forecast keeps both if the upper ends of
    its intervals do. If none does, returns the nearest: the quickest if none keeps the deadline, else the cheapest that
    keeps it.
    """
    # An interval needs the time of each stage once for every draw of the constants. If these times are too many, only
    # every second number of workers is tried, or every third and so on, but always the most workers and the knee.
    every = list(candidates.seconds)
    work = len(every) * len(candidates.plan.stages) * (1 + len(constants.draws))
    step = max(1, work // MOST_EVALUATIONS)
    worth_trying = sorted({*every[::step], every[-1], candidates.knee()})

    tried = [(run_time(candidates.plan_with(maximum), constants, price), maximum) for maximum in worth_trying]
    kept = [one for one in tried if _keeps(one[0], deadline, budget)]
    in_time = [one for one in tried if _keeps(one[0], deadline, None)]
    # Of equal ones, the one with the fewest workers.
    if kept and deadline is not None:
        made, maximum = min(kept, key=lambda one: (one[0].worker_hours.value, one[1]))
    elif kept:
        made, maximum = min(kept, key=lambda one: (one[0].seconds.value, one[1]))
    elif budget is not None and in_time:  # it is the budget that nothing keeps
        made, maximum = min(in_time, key=lambda one: (one[0].worker_hours.high, one[1]))
    else:
        made, maximum = min(tried, key=lambda one: (one[0].seconds.high, one[1]))
    return AffordableWorkers(maximum=maximum, made=made, kept=bool(kept))


def _keeps(made: RunTime, deadline: float | None, budget: float | None) -> bool:
    if deadline is not None and made.seconds.high > deadline:
        return False
    return budget is None or (made.money is not None and made.money.high <= budget)


# --- Reclaimed machines ---

REPLACE_SECONDS = 120.0
"""The time until a reclaimed worker is replaced, if the user gives none."""
PAUSE_SECONDS = 0.5
"""The pause of a run when a worker leaves or joins."""


def reclaimed_seconds(spec: JobSpec, plan: Plan, step: StepTime, every: float, replaced_after: float) -> list[float]:
    """Return the seconds that each stage takes longer if every worker is reclaimed once in `every` seconds on average.

    The other workers go on without the reclaimed one until its replacement joins, and pause at both changes. If there
    are no others, the run waits for the replacement and repeats the updates since its last checkpoint, on average half
    of the time between two checkpoints. Reclaims are assumed not to overlap.
    """
    longer = []
    for stage in plan.stages:
        workers = used_workers(plan, stage)
        seconds = stage_seconds(plan, stage, step, workers)
        if workers == 1:
            lost = replaced_after + spec.checkpoint.every_seconds / 2
        else:
            fewer = stage_seconds(plan, stage, step, workers - 1)
            lost = max(0.0, replaced_after * (1 - seconds / fewer))
        reclaims = workers * seconds / every
        longer.append(reclaims * (lost + 2 * PAUSE_SECONDS))
    return longer


def with_reclaims(spec: JobSpec, plan: Plan, constants: Constants, every: float, replaced_after: float) -> Estimated:
    """Return the time of the run with reclaimed workers, with its interval."""

    def total(step: StepTime) -> float:
        return sum(plan_seconds(plan, step)) + sum(reclaimed_seconds(spec, plan, step, every, replaced_after))

    return constants.estimated(total(constants.step), [total(draw) for draw in constants.draws])
