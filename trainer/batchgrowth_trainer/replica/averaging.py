"""An exponential moving average of the weights, which a job with spec.optimizer.averaging evaluates and exports.

The decay begins small, so that the first weights are soon forgotten, as in TensorFlow's ExponentialMovingAverage.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from batchgrowth.spec import Averaging, JobSpec
from torch import Tensor

_ALL = slice(None)


class Average:
    """The average of `vector`, shape (length,), so far; begins as the vector itself."""

    def __init__(self, averaging: Averaging, vector: Tensor) -> None:
        self._decay, self._vector = float(averaging.decay), vector
        self.vector = vector.clone()

    @torch.no_grad()
    def follow(self, updates_done: int, place: slice = _ALL) -> None:
        """Take the vector after an update into account, at `place`; `updates_done` counts those before."""
        decay = min(self._decay, (1 + updates_done) / (10 + updates_done))
        self.vector[place].lerp_(self._vector[place], 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The average in place of the vector, for the block."""
        kept = self._vector.clone()
        self._vector.copy_(self.vector)
        try:
            yield
        finally:
            self._vector.copy_(kept)


def average_of(spec: JobSpec, vector: Tensor) -> Average | None:
    """The average that a job asks for."""
    asked = spec.optimizer.averaging
    return None if asked is None else Average(asked, vector)
