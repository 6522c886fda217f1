"""The rows that an update's sums are made in: kept from update to update, and added at the nodes of the fixed tree."""

import math
import time
from collections.abc import Callable, Iterable, Sequence

import torch
from batchgrowth.shards import tree_sum

from batchgrowth_trainer.replica.coding import Coding
from batchgrowth_trainer.replica.flat import FlatParameters
from batchgrowth_trainer.replica.quantities import Tail
from batchgrowth_trainer.replica.updates import Partial

_MEASURE_SECONDS = 1.0  # between two nodes whose rounding is measured, which takes half as long as rounding


class Rows:
    """Rows of shape (L,) on the parameters' device; at each node `coding`, if any, rounds the gradient.

    `rounding_error` is the norm of what that changed at the last node that was measured, divided by the norm of the
    gradient; None before the first.
    """

    def __init__(self, length: int, parameters: FlatParameters, tail: Tail, coding: Coding | None) -> None:
        self._length, self._parameters, self._tail, self._coding = length, parameters, tail, coding
        self._free: list[Partial] = []
        self.rounding_error: float | None = None
        self._measured_at = -_MEASURE_SECONDS

    def blank(self, shard: int) -> Partial:
        """Zeros for the sum of one shard."""
        if not self._free:
            row = torch.zeros(self._length, device=self._parameters.vector.device)
            gradient, views = row[: self._parameters.length], self._parameters.gradient_views(row)
            return Partial(shard, shard + 1, row, gradient, views, self._tail.places(row))
        kept = self._free.pop()
        kept.lo, kept.hi = shard, shard + 1
        kept.row.zero_()
        return kept

    def sums(self, nodes: Sequence[tuple[int, int]], shard: Callable[[int], Partial]) -> list[Partial]:
        """The sums of these subtrees, in order, of the shards that `shard` computes."""
        return [tree_sum(lo, hi, shard, self.add) for lo, hi in nodes]

    def add(self, left: Partial, right: Partial) -> Partial:
        """`left` with `right`, the subtree after it, added; `right` is released."""
        left.row.add_(right.row)
        self.round(left)
        left.hi = right.hi
        self._free.append(right)
        return left

    def round(self, node: Partial) -> None:
        """Round the gradient of a node as it would travel."""
        if self._coding is None:
            return
        gradient = node.gradient
        if time.monotonic() - self._measured_at < _MEASURE_SECONDS:
            self._coding.round(gradient)
            return
        self._measured_at, before = time.monotonic(), gradient.clone()
        self._coding.round(gradient)
        size = float(before.norm())
        changed = float(before.sub_(gradient).norm())
        if 0 < size < math.inf and math.isfinite(changed):
            self.rounding_error = changed / size

    def release(self, partials: Iterable[Partial]) -> None:
        """Take rows back for the next update."""
        self._free.extend(partials)

    @property
    def free(self) -> int:
        """The number of rows that wait for an update."""
        return len(self._free)
