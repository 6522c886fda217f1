"""Sums of gradients that are final, and can be sent, while the backward pass of a run's last shard still goes on.

A gradient is cut into buckets of whole parameters, which the model alone decides. A bucket is final once each of its
parameters has its gradient in the last shard; then its sums are added along the fixed tree as all others are, so the
bits are those of adding whole rows at the end.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Protocol

from batchgrowth.shards import split, tree_sum
from batchgrowth.spec import JobSpec
from torch import Tensor

from batchgrowth_trainer.replica.flat import FlatParameters
from batchgrowth_trainer.replica.rows import Partial, Rows

BUCKET = 1 << 18
"""The elements that a bucket has at least, 1 MiB; the last one may have fewer."""

Watched = Callable[[Partial], AbstractContextManager[None]]
"""The sum of a shard that is being computed -> a context for its backward pass."""


def unwatched(_: Partial) -> AbstractContextManager[None]:
    """No context."""
    return nullcontext()


class Shard(Protocol):
    """Computes one shard."""

    def __call__(self, shard: int, watched: Watched = ...) -> Partial:
        """Its sum; the backward pass is in the context."""


Give = Callable[[slice, list[Tensor]], None]
"""Takes the place of a bucket in the gradient, and its sums, one for each subtree of the run; in the buckets' order."""


def buckets(parameters: FlatParameters) -> list[slice]:
    """The places of the buckets, in the order in which most models get their gradients: from the last layer on.

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

    def __init__(self, parameters: FlatParameters, places: Sequence[slice]) -> None:
        self.places = tuple(places)
        self.is_wrong = False
        self._parameters, self._may_be_early = parameters, parameters.vector.is_cpu
        self._reached: set[int] | None = None  # the numbers of the parameters that have a gradient
        self._bucket_of = [
            next(number for number, place in enumerate(places) if place.start <= span.start < place.stop)
            for span in parameters.spans
        ]

    @property
    def is_early(self) -> bool:
        """Whether buckets are given before the backward pass is over."""
        return self._may_be_early and self._reached is not None

    def sums(self, rows: Rows, give: Give, nodes: Sequence[tuple[int, int]], shard: Shard) -> list[Partial]:
        """The sums of these subtrees, in order, of the shards that `shard` computes; gives all buckets of them."""
        self.is_wrong = False
        if not nodes:
            for place in self.places:
                give(place, [])
            return []
        done = rows.sums(nodes[:-1], shard)
        (first, end), lefts = nodes[-1], []
        while end - first > 1:
            middle = split(first, end)
            lefts.append(tree_sum(first, middle, shard, rows.add))
            first = middle
        last = _LastShard(self, self._waited_for(), [p.row for p in done], [p.row for p in lefts], give)
        chain = [*lefts, shard(first, partial(self._followed, last))]
        last.end(chain[-1].row, self._parameters.length)
        self._learn(last)
        chain[0].hi = end
        rows.release(chain[1:])
        return [*done, chain[0]]

    def bucket_of(self, parameter: int) -> int:
        """The number of the bucket of the parameter with that number."""
        return self._bucket_of[parameter]

    def _waited_for(self) -> list[int]:
        """How many parameters of each bucket should have a gradient."""
        expected = range(len(self._bucket_of)) if self._reached is None else self._reached
        counts = Counter(self._bucket_of[number] for number in expected)
        return [counts[number] for number in range(len(self.places))]

    def _learn(self, last: "_LastShard") -> None:
        self._may_be_early = self._may_be_early and not (last.has_twice or last.is_wrong)
        self._reached = last.reached if self._reached is None else self._reached
        self.is_wrong = last.is_wrong

    @contextmanager
    def _followed(self, last: "_LastShard", present: Partial) -> Iterator[None]:
        """Have `last` follow each gradient of a backward pass into that sum, if that may be of use."""
        last.row = present.row
        if not self._may_be_early:
            yield
            return
        hooks = [
            parameter.register_post_accumulate_grad_hook(partial(last.follow, number))  # type: ignore[no-untyped-call]
            for number, (parameter, _) in enumerate(self._parameters.members)
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
        self._stream, self._missing, self._give = stream, missing, give
        self._done, self._lefts = done, lefts
        self.reached: set[int] = set()
        self._next = 0
        self.has_twice = self.is_wrong = False

    def follow(self, number: int, _: Tensor) -> None:
        """That parameter has its gradient."""
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
        """The shard is computed: add what is left of its row, whose first `weights` numbers are the gradient."""
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
        """The sum of that part of the subtree's rows, which is the root's afterwards."""
        *lefts, total = (row[place] for row in (*self._lefts, self.row))
        for left in reversed(lefts):
            total = left.add_(total)
        return total


def stream_of(spec: JobSpec, parameters: FlatParameters, *, needs_rows: bool) -> Stream | None:
    """The stream of a job that adds gradients by AllReduce; None if it has no two buckets, or needs whole rows.

    The same in all processes, since they exchange the same buckets; on a GPU they are given after the backward pass.
    """
    exchange, places = spec.exchange, buckets(parameters)
    whole = exchange.type != "AllReduce" or exchange.compression or needs_rows or spec.compile
    if whole or parameters.length < 2 * BUCKET or len(places) < 2:
        return None
    return Stream(parameters, places)
