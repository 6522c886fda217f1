"""The totals of buckets of gradients, which a thread adds while the one that trains still computes."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from torch import Tensor

from batchgrowth_trainer.exchange.reduction import Reduction


class BucketSums:
    """The buckets of one update of `shards` shards, in the order in which they are given; `total` gets their totals.

    Leaving the block waits for what is under way.
    """

    def __init__(self, reduction: Reduction, shards: int, total: Tensor) -> None:
        self._reduction, self._shards, self._total = reduction, shards, total
        self._thread = ThreadPoolExecutor(1, "exchange")
        self._under_way: list[Future[float]] = []
        self._is_broken = False

    def give(self, place: slice, rows: list[Tensor]) -> None:
        """Add the sums of the members' subtrees of that part of the gradient; `rows` are this member's."""
        self._under_way.append(self._thread.submit(self._add, place, rows))

    def wait(self) -> float:
        """The seconds in which the thread waited for peers, once all totals are there. Raises PeerLost."""
        return sum(future.result() for future in self._under_way)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _add(self, place: slice, rows: list[Tensor]) -> float:
        if self._is_broken:
            return 0.0
        try:
            part = self._total[place]
            return self._reduction(rows, self._shards, part).put_into(part)
        except BaseException:
            self._is_broken = True
            raise
