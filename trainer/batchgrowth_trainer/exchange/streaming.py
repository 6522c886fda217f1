"""Sends sums of gradients as soon as they are final, while the backward pass of a member's last shard goes on.

The gradient is cut into buckets of whole parameters, which depend only on the model. A bucket is final once each of its
parameters has its gradient in the last shard; then its sums are added along the tree (batchgrowth/shards.py) as all
others are, so the bits are the same as if whole rows were added at the end.
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
"""Minimum number of elements in a bucket, 1 MiB of float32; a remainder may have fewer."""

Give = Callable[[slice, list[Tensor]], None]
"""A function that is called for each bucket, in order, with its slice of the gradient and its sum in each subtree."""


def stream_of(replica: Replica) -> "Stream | None":
    """Return the stream of a job with AllReduce; None if the job has fewer than two buckets, or needs whole rows. All
    processes get the same answer, since they must exchange the same buckets; on a GPU, buckets are given after the
    backward pass.
    """
    spec = replica.spec
    places = buckets(replica.parameters)
    whole = spec.exchange.type != "AllReduce" or spec.exchange.compression or spec.compile or replica.parameters.tied
    if whole or replica.growth.course.needs_noise or replica.parameters.length < 2 * BUCKET or len(places) < 2:
        return None
    return Stream(replica, places)


def buckets(parameters: FlatParameters) -> list[slice]:
    """Return the places of the buckets from the last layer on, the order in which most models get their gradients.

    The parameters from `last_from` on, which all layers share, come at the end.
    """
    found = []
    for lo, end in ((0, parameters.last_from), (parameters.last_from, parameters.length)):
        for start in sorted((span.start for span in parameters.spans if lo <= span.start < end), reverse=True):
            if end - start >= BUCKET or start == lo:
                found.append(slice(start, end))
                end = start
    return found


class Stream:
    """Hands buckets of gradients to the reduction: during backward, once an earlier shard has shown which gradients
    come.

    If backward reaches a parameter after its bucket was given, `is_wrong` becomes true: the sums of that update are
    worthless. From then on no bucket of this replica is given early, also in later generations, whose streams are new.
    """

    def __init__(self, replica: Replica, places: Sequence[slice]) -> None:
        self.places = tuple(places)
        self.is_wrong = False
        self._replica = replica
        self._reached: set[int] = set()  # the numbers of the parameters that have had a gradient
        # The number of each parameter's bucket, by the number of the parameter.
        self.bucket_of = [
            next(number for number, place in enumerate(places) if place.start <= span.start < place.stop)
            for span in replica.parameters.spans
        ]

    @property
    def is_early(self) -> bool:
        """Return whether buckets are given before the backward pass is over."""
        return self._may_be_early and bool(self._reached)

    @property
    def _may_be_early(self) -> bool:
        return self._replica.may_send_early and self._replica.parameters.vector.is_cpu

    def sums(self, nodes: Sequence[tuple[int, int]], compute: ComputeShard, give: Give) -> list[Partial]:
        """Compute these subtrees' shards by `compute`, hand all their buckets to `give`, and return the subtrees' sums.

        The caller must use the gradients of the buckets instead of those in the result.
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
        # Before any shard has shown which parameters get a gradient, each one is expected to get one.
        expected = self._reached or range(len(self.bucket_of))
        counts = Counter(self.bucket_of[number] for number in expected)
        missing = [counts[number] for number in range(len(self.places))]
        last = _LastShard(self, missing, [p.row for p in done], [p.row for p in lefts], give)
        chain = [*lefts, compute(first, partial(self._followed, last))]
        last.end(chain[-1].row, replica.parameters.length)
        replica.may_send_early = replica.may_send_early and not (last.has_twice or last.is_wrong)
        self.is_wrong = last.is_wrong
        self._reached |= last.reached
        chain[0].hi = end
        replica.rows.release(chain[1:])
        return [*done, chain[0]]

    @contextmanager
    def _followed(self, last: "_LastShard", present: Partial) -> Iterator[None]:
        """Let `last` follow each gradient that backward adds to `present`, if buckets may be given early."""
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
    """A member's last shard, whose gradients complete the buckets.

    `row` has the shard's own gradients. `lefts` are the sums of the subtrees to its left, from the root on, and `done`
    the sums of the run's other subtrees. Bucket n is complete after `missing[n]` more gradients.
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
        """Note that the parameter's gradient is computed, and give a bucket that is now complete."""
        bucket = self._stream.bucket_of[number]
        self.is_wrong = self.is_wrong or bucket < self._next
        if number in self.reached:
            # The second gradient is added after the first, which may have completed its bucket.
            self.has_twice = True
            return
        self.reached.add(number)
        self._missing[bucket] -= 1
        while self._stream.is_early and not self.has_twice and self._next < len(self._missing):
            if self._missing[self._next]:
                break
            self._give_next()

    def end(self, row: Tensor, gradient_length: int) -> None:
        """Give the remaining buckets, and add the rest of the shard's row, from element `gradient_length` on."""
        self.row = row
        while self._next < len(self._missing):
            self._give_next()
        self._added(slice(gradient_length, None))

    def _give_next(self) -> None:
        place = self._stream.places[self._next]
        total = self._added(place)
        self._next += 1
        self._give(place, [*(row[place] for row in self._done), total])

    def _added(self, place: slice) -> Tensor:
        """Add that part of the subtrees' rows, and return that part of the root's row."""
        *lefts, total = (row[place] for row in (*self._lefts, self.row))
        # From the innermost node outwards, the order of the tree and so of the bits.
        for left in reversed(lefts):
            total = left.add_(total)
        return total
