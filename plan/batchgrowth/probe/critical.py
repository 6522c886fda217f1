"""What the branches of a probe reached, and the critical batch that follows.

The critical batch is the largest with which an example is worth as much as with smaller ones: the loss after the same
examples exceeds that of the best smaller batch by no more than a tolerance (Merrill et al., 2025). The learning rate
follows the batch by the job's rule, so it is the critical batch with this rule.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Any

CONFIDENCE = 2.0
"""The standard errors by which an interval extends to both sides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """What the branches with one batch size reached: a loss for each order of the examples.

    `learning_rate` is that of the first update. A branch whose loss is not finite has an infinite one.
    """

    batch_size: int
    learning_rate: float
    updates: int
    losses: tuple[float, ...]

    @property
    def loss(self) -> float:
        """Return the mean loss."""
        return fmean(self.losses)


@dataclass(frozen=True, slots=True)
class Compared:
    """A branch beside the best with a smaller batch: by which share its loss is larger, and the standard error of that
    share. `error` is that of its loss. The errors are 0 if there is one order of the examples.
    """

    branch: Branch
    error: float
    excess: float
    excess_error: float

    def to_json(self) -> dict[str, Any]:
        """Return what `probe --json` prints; an infinite loss is null."""
        finite = math.isfinite(self.branch.loss)
        return {
            "batchSize": self.branch.batch_size,
            "learningRate": self.branch.learning_rate,
            "updates": self.branch.updates,
            "loss": self.branch.loss if finite else None,
            "error": self.error if finite else None,
            "excess": self.excess if finite else None,
            "excessError": self.excess_error,
        }


@dataclass(frozen=True, slots=True)
class Critical:
    """The critical batch: `within` is the largest tried within the tolerance, and `beyond` the next one tried.

    By the errors of the losses, it lies from `low` to `high`. `beyond` and `high` are None if no batch that was tried
    exceeds the tolerance.
    """

    within: int
    beyond: int | None
    low: int
    high: int | None

    @property
    def value(self) -> float:
        """Return the middle between the two, as a ratio; `within` if there is no other."""
        return math.sqrt(self.within * (self.beyond or self.within))

    def to_json(self) -> dict[str, Any]:
        """Return what `probe --json` prints."""
        value = None if self.beyond is None else self.value
        return {"value": value, "within": self.within, "beyond": self.beyond, "low": self.low, "high": self.high}


def compared(branches: Sequence[Branch]) -> list[Compared]:
    """Return the branches in the order of their batch sizes, each beside the best of those before it.

    The relative error is taken to be the same for all of them, since each has few losses.
    """
    relative = _relative_error(branches)
    rows: list[Compared] = []
    best = math.inf
    for branch in sorted(branches, key=lambda one: one.batch_size):
        excess = 0.0
        error = 0.0
        if rows:
            excess = _excess(branch.loss, best)
            error = math.sqrt(2) * relative
        rows.append(Compared(branch, relative * abs(branch.loss), excess, error))
        best = min(best, branch.loss)
    return rows


def _excess(loss: float, best: float) -> float:
    if loss == best:
        return 0.0
    return (loss - best) / abs(best) if best else math.copysign(math.inf, loss)


def _relative_error(branches: Sequence[Branch]) -> float:
    """Return the standard error of a mean loss, as a share of it, from what differs between orders of the examples."""
    several = [one for one in branches if len(one.losses) > 1 and math.isfinite(one.loss) and one.loss]
    shares = [variance(one.losses) / len(one.losses) / one.loss**2 for one in several]
    return math.sqrt(fmean(shares)) if shares else 0.0


def critical_of(rows: Sequence[Compared], tolerance: float) -> Critical:
    """Return the critical batch of compared branches; `tolerance` is a share of the loss, such as 0.02."""
    within, beyond = _edge(rows, tolerance, 0.0)
    low, _ = _edge(rows, tolerance, CONFIDENCE)
    _, high = _edge(rows, tolerance, -CONFIDENCE)
    return Critical(within, beyond, low, high)


def _edge(rows: Sequence[Compared], tolerance: float, errors: float) -> tuple[int, int | None]:
    """Return the last batch size within the tolerance, and the first beyond it or None.

    So many standard errors are added to what is compared; a negative number subtracts them.
    """
    within = rows[0].branch.batch_size
    for row in rows[1:]:
        if not row.excess + errors * row.excess_error <= tolerance:
            return within, row.branch.batch_size
        within = row.branch.batch_size
    return within, None
