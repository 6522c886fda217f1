"""Amdahl's and Gunther's laws, fitted to how much work is done with N workers.

Gunther's universal scalability law says X(N) = γ N / (1 + σ (N - 1) + κ N (N - 1)); Amdahl's is the same with κ = 0.
N / X(N) is linear in γ⁻¹, σ/γ and κ/γ, so the fit is a linear one, of relative errors, in closed form.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from batchgrowth.forecast.step_time import NORMAL_QUANTILE, Estimated

FEWEST_POINTS = 4
"""A law with three parameters fits three points whatever they are."""


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
        """Return how many times faster than one worker the law ever gets."""
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
    """Return Amdahl's and Gunther's law of a curve, the seconds of the same work by the number of workers.

    None of a curve with too few points to tell how well a law fits.
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
    """Return the inverse of a positive definite matrix of at most three rows, by Gauss and Jordan."""
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
