"""LBFGS: limited-memory BFGS, divided as in Sandblaster of Dean et al., 2012."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import fsum, isfinite, nan
from typing import Protocol

import torch
from batchgrowth.choices.optimizers import LBFGSBlock
from batchgrowth.spec import JobSpec
from torch import Tensor

from batchgrowth_trainer.replica.flat import FlatParameters, Span

Table = list[list[float]]
_LONGEST = 65_536  # elements: twenty slices of it in float64 take 10 MiB


class Slices(Protocol):
    """Vectors of one length, by name, cut into slices at the same places.

    A slice's results depend only on the slice, and `total` adds exactly, so the bits do not depend on how many
    processes hold the slices, or on which.
    """

    def products(self, rows: Sequence[str], columns: Sequence[str]) -> Iterable[Table]:
        """Return for each slice, in any order, the inner products of the vectors `rows` with the vectors `columns`."""
        ...

    def absolute_sums(self, name: str) -> Iterable[float]:
        """Return for each slice of a vector, in any order, the sum of the absolute values of its elements."""
        ...

    def assign(self, name: str, terms: Mapping[str, float]) -> None:
        """Set a vector to the sum of factor · vector over the terms; the vector itself may be a term."""
        ...


def total(parts: Iterable[float]) -> float:
    """Return the sum, rounded once, so that the order does not matter; NaN if a part is not finite."""
    known = list(parts)
    return fsum(known) if all(map(isfinite, known)) else nan


class HeldSlices:
    """Slices of vectors in this process, computed in float64.

    No slice spans two of the model's parameters, so whole parameters can be held elsewhere.
    """

    def __init__(self, spans: Sequence[Span], vectors: Mapping[str, Tensor]) -> None:
        self.vectors = dict(vectors)
        self._places = [place for span in spans for place in _cut(span.place)]

    def products(self, rows: Sequence[str], columns: Sequence[str]) -> list[Table]:
        """Return a table for each slice, of shape (rows, columns)."""
        tables: list[Table] = []
        for place in self._places:
            slices = torch.stack([self.vectors[name][place] for name in rows]).double()
            others = [self.vectors[name][place].double() for name in columns]
            tables.append(torch.stack([(slices * other).sum(dim=1) for other in others], dim=1).tolist())
        return tables

    def absolute_sums(self, name: str) -> list[float]:
        """Return a sum for each slice."""
        return [self.vectors[name][place].double().abs().sum().item() for place in self._places]

    def assign(self, name: str, terms: Mapping[str, float]) -> None:
        """Set a vector to the sum of factor · vector, rounded to its dtype once."""
        for place in self._places:
            into = self.vectors[name][place]
            of_slice = torch.zeros_like(into, dtype=torch.float64)
            for term, factor in terms.items():
                of_slice.add_(self.vectors[term][place].double(), alpha=factor)
            into.copy_(of_slice)


def _cut(place: slice) -> Iterator[slice]:
    for start in range(place.start, place.stop, _LONGEST):
        yield slice(start, min(start + _LONGEST, place.stop))


# A coordinator decides by inner products alone, and orders sums of vectors that it never sees.
# Legend: s = a step, y = the change of the gradient by it, H = the approximation of the inverse Hessian.

# The names of vectors: the first three are not in the optimizer's state.
_WEIGHTS = "weights"
_SLOPE = "slope"
_CHANGE = "change"
_STEP = "step"
_GRADIENT = "gradient"
_NUMBERS = "numbers"

Products = dict[str, float]
"""The inner products of one vector with others, by their names."""


def maker(settings: LBFGSBlock) -> Callable[[JobSpec, FlatParameters], "LBFGSOptimizer"]:
    """Return a function that makes the optimizer for the parameters of a model."""
    return lambda _spec, parameters: LBFGSOptimizer(settings, parameters)


class LBFGSOptimizer:
    """The optimizer that takes steps of L-BFGS.

    `state` has the pairs "step.K" and "change.K", the last step and the gradient before it, each of shape (length,),
    and the coordinator's memory in "numbers".
    """

    def __init__(self, settings: LBFGSBlock, parameters: FlatParameters) -> None:
        vector = parameters.vector.data
        places = range(settings.history)
        names = [*map(_step, places), *map(_change, places), _STEP, _GRADIENT]
        self.state = {name: torch.zeros_like(vector) for name in names}
        self._slices = HeldSlices(parameters.spans, self.state | {_WEIGHTS: vector})
        numbers = Coordinator(settings).numbers
        self.state[_NUMBERS] = torch.tensor(numbers, dtype=torch.float64, device=vector.device)
        self._settings = settings
        self._decayed = vector[: parameters.last_from]

    @torch.no_grad()
    def step(self, gradient: Tensor, learning_rate: float, updates_done: int, unreached: Sequence[int] = ()) -> None:  # noqa: ARG002
        """Move the parameters by one update; `gradient` is the mean over the batch, shape (length,).

        An unreached parameter has the gradient 0, as in torch's L-BFGS.
        """
        slope = gradient.clone()
        # The parameters that do not decay come last.
        slope[: len(self._decayed)].add_(self._decayed, alpha=float(self._settings.weight_decay))
        self._slices.vectors |= {_SLOPE: slope, _CHANGE: torch.zeros_like(slope)}
        coordinator = Coordinator(self._settings, self.state[_NUMBERS].tolist())
        coordinator.step(self._slices, learning_rate, first=updates_done == 0)
        self.state[_NUMBERS].copy_(torch.tensor(coordinator.numbers, dtype=torch.float64))
        del self._slices.vectors[_SLOPE], self._slices.vectors[_CHANGE]


class Coordinator:
    """The memory of L-BFGS besides vectors: the number of pairs so far, and the inner products of their steps s and
    gradient changes y.

    Pair number n is at place n modulo `history`, in the names of vectors and in the tables.
    """

    def __init__(self, settings: LBFGSBlock, numbers: Sequence[float] = ()) -> None:
        """Continue from the `numbers` that the last update left; empty before the first update."""
        size = settings.history
        self._least = float(settings.least_curvature)
        given = list(numbers) or [0.0] * (1 + 2 * size**2)
        self._history = size
        self._taken = int(given[0])
        rows = [given[at : at + size] for at in range(1, len(given), size)]
        self._step_change: Table = rows[:size]  # s_i · y_j, if j is not older than i
        self._change_change: Table = rows[size:]

    @property
    def numbers(self) -> list[float]:
        """Return the 1 + 2 · history² numbers that the next update needs."""
        return [float(self._taken), *(number for row in self._step_change + self._change_change for number in row)]

    @property
    def places(self) -> list[int]:
        """Return the places of the pairs, the oldest first."""
        return [number % self._history for number in range(max(0, self._taken - self._history), self._taken)]

    def step(self, slices: Slices, learning_rate: float, *, first: bool) -> None:
        """Compute one update: a step of -learning rate · H · gradient.

        In the first update H is 1, and a step whose absolute values add up to more than the learning rate is
        shortened to that.
        """
        slices.assign(_CHANGE, {_SLOPE: 1.0, _GRADIENT: -1.0})
        names = [*map(_step, self.places), *map(_change, self.places), _STEP, _CHANGE, _SLOPE]
        tables = list(slices.products(names, [_CHANGE, _SLOPE]))
        of_change, of_slope = (
            {name: total(table[row][column] for table in tables) for row, name in enumerate(names)} for column in (0, 1)
        )
        if not first and of_change[_STEP] > self._least:
            self._take(slices, of_change, of_slope)
        rate = learning_rate
        if first:
            rate = learning_rate / max(1.0, total(slices.absolute_sums(_SLOPE)))
        direction = self._direction(of_slope)
        if not total(factor * of_slope[name] for name, factor in direction.items()) <= 0.0:
            self._taken = 0  # rounding made the direction uphill, so forget all pairs and follow the slope
            direction = {_SLOPE: -1.0}
        slices.assign(_STEP, {name: rate * factor for name, factor in direction.items()})
        slices.assign(_WEIGHTS, {_WEIGHTS: 1.0, _STEP: 1.0})
        slices.assign(_GRADIENT, {_SLOPE: 1.0})

    def _take(self, slices: Slices, of_change: Products, of_slope: Products) -> None:
        """Store the last step and the change of the gradient as the newest pair, in place of the oldest if need be."""
        new = self._taken % self._history
        slices.assign(_step(new), {_STEP: 1.0})
        slices.assign(_change(new), {_CHANGE: 1.0})
        for products in (of_change, of_slope):
            products |= {_step(new): products[_STEP], _change(new): products[_CHANGE]}
        self._taken += 1
        for place in self.places:
            self._step_change[place][new] = of_change[_step(place)]
            self._change_change[place][new] = self._change_change[new][place] = of_change[_change(place)]

    def _direction(self, of_slope: Products) -> Products:
        """Return the factors of the vectors whose sum is -H · gradient.

        Runs the two loops of Nocedal and Wright, algorithm 7.4, on the factors of a sum in place of the sum.
        """
        places = self.places
        step_change = self._step_change
        change_change = self._change_change
        if not places:
            return {_SLOPE: -1.0}
        alpha: dict[int, float] = {}  # by place; the first loop gives y the factor -alpha
        for i in reversed(places):
            above = total([of_slope[_step(i)], *(-alpha[j] * step_change[i][j] for j in alpha)])
            alpha[i] = above / step_change[i][i]
        newest = places[-1]
        scale = step_change[newest][newest] / change_change[newest][newest]
        of_step: dict[int, float] = {}
        for i in places:
            along = total(
                [
                    scale * of_slope[_change(i)],
                    *(-scale * alpha[j] * change_change[i][j] for j in places),
                    *(of_step[j] * step_change[j][i] for j in of_step),
                ]
            )
            of_step[i] = alpha[i] - along / step_change[i][i]
        by_change = {_change(i): scale * alpha[i] for i in places}
        return {_SLOPE: -scale, **by_change, **{_step(i): -of_step[i] for i in places}}


def _step(place: int) -> str:
    return f"{_STEP}.{place}"


def _change(place: int) -> str:
    return f"{_CHANGE}.{place}"
