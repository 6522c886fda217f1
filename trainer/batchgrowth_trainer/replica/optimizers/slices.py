"""Vectors in slices: what a coordinator that never sees a vector can order of those that hold the slices."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import fsum, isfinite, nan
from typing import Protocol

import torch
from torch import Tensor

from batchgrowth_trainer.replica.flat import Span

Table = list[list[float]]
_LONGEST = 65_536  # elements: twenty slices of it in float64 take 10 MiB


class Slices(Protocol):
    """Vectors of one length, by name, cut into slices at the same places.

    What is computed of a slice depends on nothing outside of it, and `total` adds exactly, so the bits do not depend
    on how many processes hold the slices, or which.
    """

    def products(self, rows: Sequence[str], columns: Sequence[str]) -> Iterable[Table]:
        """For each slice, in any order, the inner products of the vectors `rows` with those of `columns`."""
        ...

    def absolute_sums(self, name: str) -> Iterable[float]:
        """For each slice of a vector, in any order, the sum of the absolute values of its elements."""
        ...

    def assign(self, name: str, terms: Mapping[str, float]) -> None:
        """Set a vector to the sum of factor · vector; it may be among the terms."""
        ...


def total(parts: Iterable[float]) -> float:
    """The sum, rounded once, so that the order does not matter; NaN if a part is not finite."""
    known = list(parts)
    return fsum(known) if all(map(isfinite, known)) else nan


class HeldSlices:
    """Slices of vectors in this process, computed in float64. See Slices.

    No slice spans two of the model's parameters, so whole parameters can be held elsewhere.
    """

    def __init__(self, spans: Sequence[Span], vectors: Mapping[str, Tensor]) -> None:
        self.vectors = dict(vectors)
        self._places = [place for span in spans for place in _cut(span.place)]

    def products(self, rows: Sequence[str], columns: Sequence[str]) -> list[Table]:
        """A table for each slice, of shape (rows, columns)."""
        return [self._products(place, rows, columns) for place in self._places]

    def absolute_sums(self, name: str) -> list[float]:
        """A sum for each slice."""
        return [self.vectors[name][place].double().abs().sum().item() for place in self._places]

    def assign(self, name: str, terms: Mapping[str, float]) -> None:
        """Set a vector to the sum of factor · vector, rounded to its dtype once."""
        for place in self._places:
            into = self.vectors[name][place]
            of_slice = torch.zeros_like(into, dtype=torch.float64)
            for term, factor in terms.items():
                of_slice.add_(self.vectors[term][place].double(), alpha=factor)
            into.copy_(of_slice)

    def _products(self, place: slice, rows: Sequence[str], columns: Sequence[str]) -> Table:
        slices = torch.stack([self.vectors[name][place] for name in rows]).double()
        others = [self.vectors[name][place].double() for name in columns]
        table: Table = torch.stack([(slices * other).sum(dim=1) for other in others], dim=1).tolist()
        return table


def _cut(place: slice) -> Iterator[slice]:
    for start in range(place.start, place.stop, _LONGEST):
        yield slice(start, min(start + _LONGEST, place.stop))
