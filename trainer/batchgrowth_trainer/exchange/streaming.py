"""Sums of gradients that are final, and can be sent, while the backward pass of a run's last shard still goes on.

A gradient is cut into buckets of whole parameters, which the model alone decides. A bucket is final once each of its
parameters has its gradient in the last shard; then its sums are added along the fixed tree as all others are, so the
bits are those of adding whole rows at the end.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from batchgrowth.shards import split, tree_sum
from torch import Tensor

from batchgrowth_trainer.replica.flat import FlatParameters, Partial
from batchgrowth_trainer.replica.replica import ComputeShard, Replica

BUCKET = 1 << 18
"""The elements that a bucket has at least, 1 MiB; the last one may have fewer."""

Give = Callable[[slice, list[Tensor]], None]
"""Takes the place of a bucket in the gradient, and its sums, one for each subtree of the run; in the buckets' order."""


def stream_of(replica: Replica) -> "Stream | None":
    """Return the stream of a job that adds gradients by AllReduce; None if it has no two buckets, or needs whole rows.

    The same in all processes, since they exchange the same buckets; on a GPU they are given after the backward pass.
    """
    spec = replica.spec
    places = buckets(replica.parameters)
    whole = spec.exchange.type != "AllReduce" or spec.exchange.compression or spec.compile
    if whole or replica.growth.course.needs_noise or replica.parameters.length < 2 * BUCKET or len(places) < 2:
        return None
    return Stream(replica, places)


def buckets(parameters: FlatParameters) -> list[slice]:
    """Return the places of the buckets, in the order in which most models get their gradients: from the last layer on.

    The parameters behind `last_from`, which belong to all layers, come at the end.
    """
    found = []
    for lo, end in ((0, parameters.last_from), (parameters.last_from, parameters.length)):
        for start in sorted((span.start for span in parameters.spans if lo <= span.start < end), reverse=True):
            if end - start >= BUCKET or start == lo:
                found.append(slice(start, end))
                end = start
    return found


class Stream:
    """Knows from an earlier shard which gradients backward computes, each once, and only then gives buckets early.

    A model whose backward reaches a parameter when its bucket was given already makes `is_wrong` true: the sums of that
    update are worthless, and no later bucket is given early.
    """

    def __init__(self, replica: Replica, places: Sequence[slice]) -> None:
        self.places = tuple(places)
        self.is_wrong = False
        self._replica = replica
        self._may_be_early = replica.parameters.vector.is_cpu
        self._reached: set[int] | None = None  # the numbers of the parameters that have a gradient
        self._bucket_of = [
            next(number for number, place in enumerate(places) if place.start <= span.start < place.stop)
            for span in replica.parameters.spans
        ]

    @property
    def is_early(self) -> bool:
        """Whether buckets are given before the backward pass is over."""
        return self._may_be_early and self._reached is not None

    def sums(self, nodes: Sequence[tuple[int, int]], compute: ComputeShard, give: Give) -> list[Partial]:
        """Return the sums of these subtrees, in order, of the shards that `compute` computes; give all their buckets.

        The gradients in the result are not to be used: the buckets have them.
        """
        self.is_wrong = False
        if not nodes:
            for place in self.places:
                give(place, [])
            return []
        replica = self._replica
        done = [tree_sum(lo, hi, compute, replica.add) for lo, hi in nodes[:-1]]
        # The last subtree, down to its last shard: the left halves on the way are whole before that shard begins.
        first, end = nodes[-1]
        lefts = []
        while end - first > 1:
            middle = split(first, end)
            lefts.append(tree_sum(first, middle, compute, replica.add))
            first = middle
        last = _LastShard(self, self._waited_for(), [p.row for p in done], [p.row for p in lefts], give)
        chain = [*lefts, compute(first, partial(self._followed, last))]
        last.end(chain[-1].row, replica.parameters.length)
        self._may_be_early = self._may_be_early and not (last.has_twice or last.is_wrong)
        self.is_wrong = last.is_wrong
        if self._reached is None:
            self._reached = last.reached
        chain[0].hi = end
        replica.rows.release(chain[1:])
        return [*done, chain[0]]

    def bucket_of(self, parameter: int) -> int:
        """Return the number of the bucket of the parameter with that number."""
        return self._bucket_of[parameter]

    def _waited_for(self) -> list[int]:
        """Return how many parameters of each bucket should have a gradient."""
        expected = range(len(self._bucket_of)) if self._reached is None else self._reached
        counts = Counter(self._bucket_of[number] for number in expected)
        return [counts[number] for number in range(len(self.places))]

    @contextmanager
    def _followed(self, last: "_LastShard", present: Partial) -> Iterator[None]:
        """Have `last` follow each gradient of a backward pass into that sum, if that may be of use."""
        last.row = present.row
        if not self._may_be_early:
            yield
            return
        hooks = [
            parameter.register_post_accumulate_grad_hook(partial(last.follow, number))  # type: ignore[no-untyped-call]
            for number, (parameter, _) in enumerate(self._replica.parameters.members)
            if parameter.requires_grad
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


class _LastShard:
    """The last shard of a run: its sums with the subtrees `lefts` before it, from the root on, and the sums `done`.

    A bucket with number n is complete with `missing[n]` gradients. `row` is the shard's own.
    """

    row: Tensor

    def __init__(self, stream: Stream, missing: list[int], done: list[Tensor], lefts: list[Tensor], give: Give) -> None:
        self._stream = stream
        self._missing = missing
        self._give = give
        self._done = done
        self._lefts = lefts
        self._next = 0
        self.reached: set[int] = set()
        self.has_twice = False
        self.is_wrong = False

    def follow(self, number: int, _: Tensor) -> None:
        """Take that parameter's gradient as computed, and give the buckets that are complete with it."""
        bucket = self._stream.bucket_of(number)
        self.is_wrong = self.is_wrong or bucket < self._next
        if number in self.reached:
            self.has_twice = True
            return
        self.reached.add(number)
        self._missing[bucket] -= 1
        while self._stream.is_early and not self.has_twice and self._next < len(self._missing):
            if self._missing[self._next]:
                break
            self._give_next()

    def end(self, row: Tensor, weights: int) -> None:
        """Add what is left of the shard's row, whose first `weights` numbers are the gradient."""
        self.row = row
        while self._next < len(self._missing):
            self._give_next()
        self._added(slice(weights, None))

    def _give_next(self) -> None:
        place = self._stream.places[self._next]
        total = self._added(place)
        self._next += 1
        self._give(place, [*(row[place] for row in self._done), total])

    def _added(self, place: slice) -> Tensor:
        """Return the sum of that part of the subtree's rows, which is the root's afterwards."""
        *lefts, total = (row[place] for row in (*self._lefts, self.row))
        for left in reversed(lefts):
            total = left.add_(total)
        return total
