"""AllReduce: the members add the gradients of an update, and each takes the same step.

Those of a large model are added in buckets, by a thread, as soon as the backward pass has computed them.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from batchgrowth.schedule.stages import Step
from torch import Tensor

from batchgrowth_trainer.exchange.group import PeerLost
from batchgrowth_trainer.exchange.reduction import BucketSums, Reduced, Reduction, bytes_sent, length_of
from batchgrowth_trainer.exchange.strategy import Round, Setting
from batchgrowth_trainer.replica.growth import Stopwatch
from batchgrowth_trainer.replica.rows import Partial, lay_out


class AllReduce:
    """See Strategy."""

    def __init__(self, setting: Setting) -> None:
        self._replica, self._group, self._watched = setting.replica, setting.group, setting.watched
        self._coding = self._replica.coding
        self._stream = self._replica.stream if self._group.likes_buckets else None
        self._reduction, self._uncoded = Reduction(self._group, self._coding), Reduction(self._group)
        self._stopwatch = Stopwatch() if self._replica.growth.course.looks_at_clock else None
        self._run_of = partial(run_of, self._group.rank, self._group.size)
        self._room = torch.empty(self._replica.length, device=self._replica.device)

    def round(self, stop_requested: Callable[[], bool]) -> Round:
        """One update."""
        replica, group = self._replica, self._group
        step = replica.plan.step_at(replica.position)
        began = time.perf_counter()
        partials, reduced, computed = self._sums(step, stop=stop_requested())
        exchanged = time.perf_counter()
        done = replica.commit(step, reduced.total)
        replica.rows.release(partials)
        now = time.perf_counter()
        if self._stopwatch:
            self._stopwatch.lap(step, group.size, now - began)
        waited = reduced.wait_seconds
        seconds = computed - began + now - exchanged, exchanged - computed - waited, waited
        sent, error = self._bytes_sent(step.shards), replica.rows.rounding_error
        return Round(((step, done),), done.stop, *seconds, sent, compression_error=error)

    def _sums(self, step: Step, *, stop: bool) -> tuple[list[Partial], Reduced, float]:
        """This member's sums, the total of all, and when this member had computed its own."""
        replica, stream = self._replica, self._stream
        compute = partial(replica.partials, step, self._run_of(step), stop=stop, runs=self._run_of)
        if stream is None:
            with self._watched:
                partials = compute()
            computed = self._computed(partials)
            return partials, self._reduced([p.row for p in partials], step.shards), computed
        cut, total = replica.parameters.length, self._room
        with BucketSums(self._reduction, step.shards, total) as buckets:
            with self._watched:
                partials = compute(give=buckets.give)
            computed = self._computed(partials)
            waited = buckets.wait()
        if stream.is_wrong:  # so no other member completes the rest, nor takes the step
            raise PeerLost("a gradient was sent before it was final; the next ones are sent later")
        waited += self._uncoded([p.row[cut:] for p in partials], step.shards, total[cut:]).put_into(total[cut:])
        return partials, Reduced(total, min(waited, time.perf_counter() - computed)), computed

    def _computed(self, partials: list[Partial]) -> float:
        if self._stopwatch and self._group.rank == 0:  # which has shard 0
            self._replica.write_timing(partials[0].row, self._stopwatch.timing)
        return time.perf_counter()

    def _reduced(self, rows: Sequence[Tensor], shards: int) -> Reduced:
        """The total of the rows; only the gradient in it is coded."""
        if self._coding is None:
            return self._reduction(rows, shards, self._room)
        cut = self._replica.parameters.length
        gradient, rest = self._room[:cut], self._room[cut:]
        waited = self._reduction([row[:cut] for row in rows], shards, gradient).put_into(gradient)
        waited += self._uncoded([row[cut:] for row in rows], shards, rest).put_into(rest)
        return Reduced(self._room, waited)

    def _bytes_sent(self, shards: int) -> int:
        if self._group.size == 1:
            return 0
        size, rows = self._group.size, len(self._group.grid.rows)
        cut = self._replica.parameters.length
        if self._stream is not None:
            lengths = [*map(length_of, self._stream.places), self._replica.length - cut]
            return sum(bytes_sent(shards, size, length, rows=rows) for length in lengths)
        if self._coding is None:
            return bytes_sent(shards, size, self._replica.length, rows=rows)
        coded = round(bytes_sent(shards, size, cut, rows=rows) * self._coding.width / 4)
        return coded + bytes_sent(shards, size, self._replica.length - cut, rows=rows)


def run_of(rank: int, size: int, step: Step) -> tuple[int, int]:
    """The shards of an update that a member computes."""
    return lay_out(step.shards, size).runs[rank]
