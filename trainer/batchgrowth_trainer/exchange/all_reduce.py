"""AllReduce: the members add the gradients of an update, and each takes the same step.

The gradients of a large model are added in buckets, by a thread, as soon as the backward pass has computed them.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from batchgrowth.contract.figures import ExchangeFigures
from batchgrowth.plan import Step
from torch import Tensor

from batchgrowth_trainer.exchange.compression import compression_in
from batchgrowth_trainer.exchange.group import PeerLost
from batchgrowth_trainer.exchange.reduction import BucketSums, Reduction
from batchgrowth_trainer.exchange.strategy import Round, Setting
from batchgrowth_trainer.exchange.streaming import Stream, stream_of
from batchgrowth_trainer.replica.data import run_of
from batchgrowth_trainer.replica.flat import Partial
from batchgrowth_trainer.replica.growth_state import Stopwatch
from batchgrowth_trainer.replica.replica import ComputeShard


class AllReduce:
    """The strategy of AllReduce.

    By default, whole rows are added at once. A compressed gradient is added separately from the rest of the row, and a
    large gradient in buckets during the backward pass.
    """

    def __init__(self, setting: Setting) -> None:
        replica = setting.replica
        group = setting.group
        self._replica = replica
        self._group = group
        self._watchdog = setting.watchdog
        self._compression = compression_in(replica)
        self.stream = stream_of(replica) if group.likes_buckets else None
        self._reduction = Reduction(group, self._compression.coding if self._compression else None)
        self._uncoded = Reduction(group)
        self._stopwatch = Stopwatch() if replica.growth.course.looks_at_clock else None
        self._run_of = partial(run_of, group.rank, group.size)
        self._gradient_length = replica.parameters.length
        # Where the total goes. When whole rows are added, the last addition may leave it in one of them instead.
        self._room = torch.empty(replica.length, dtype=torch.float32, device=replica.device)

    def round(self, stop_requested: Callable[[], bool]) -> Round:
        """Make one update: add this member's shards, reduce the sums over all members, and commit the total."""
        replica = self._replica
        group = self._group
        step = replica.plan.step_at(replica.position)
        run = self._run_of(step)  # the shards [lo, hi) of this member
        stop = stop_requested()
        began = time.perf_counter()
        if self.stream is not None:
            partials, computed, waited = self._reduce_in_buckets(self.stream, step, run, stop=stop)
            total = self._room
        else:
            with self._watchdog:
                partials = replica.partials(step, run, stop=stop, runs=self._run_of)
            self._write_timing(partials)  # before the rows are added: the total brings it to all members
            computed = time.perf_counter()
            rows = [node.row for node in partials]
            if self._compression is None:
                reduced = self._reduction(rows, step.shards, self._room)
                total = reduced.total
                waited = reduced.wait_seconds
            else:
                total = self._room
                gradient = total[: self._gradient_length]
                reduced = self._reduction([row[: self._gradient_length] for row in rows], step.shards, gradient)
                waited = reduced.put_into(gradient) + self._reduce_rest(rows, step.shards)
        exchanged = time.perf_counter()
        committed = replica.commit(step, total)
        replica.rows.release(partials)  # not before: the total may be one of these rows
        now = time.perf_counter()
        if self._stopwatch:
            self._stopwatch.lap(step, group.size, now - began)
        return Round(
            done=((step, committed),),
            stop=committed.stop,
            compute_seconds=computed - began + now - exchanged,
            exchange_seconds=exchanged - computed - waited,
            wait_seconds=waited,
            figures=ExchangeFigures(compression_error=self._compression.error if self._compression else None),
        )

    def _write_timing(self, partials: Sequence[Partial]) -> None:
        if self._stopwatch and self._group.rank == 0:  # which has shard 0
            self._replica.tail.write_timing(partials[0].row, self._stopwatch.timing)

    def _reduce_rest(self, rows: Sequence[Tensor], shards: int) -> float:
        """Put the total of the rest of the row, after the gradient, into `_room` uncompressed; return the seconds spent
        waiting.
        """
        rest = self._room[self._gradient_length :]
        return self._uncoded([row[self._gradient_length :] for row in rows], shards, rest).put_into(rest)

    def _reduce_in_buckets(
        self, stream: Stream, step: Step, run: tuple[int, int], *, stop: bool
    ) -> tuple[list[Partial], float, float]:
        """Put the total into `_room`, adding its gradient during the backward pass of the last shard.

        Return this member's sums, the time at which they were computed, and the seconds spent waiting for peers
        since.
        """
        replica = self._replica
        with BucketSums(self._reduction, step.shards, self._room) as bucket_sums:

            def in_buckets(nodes: Sequence[tuple[int, int]], compute: ComputeShard) -> list[Partial]:
                return stream.sums(nodes, compute, bucket_sums.give)

            with self._watchdog:
                partials = replica.partials(step, run, stop=stop, runs=self._run_of, sum_nodes=in_buckets)
            self._write_timing(partials)
            computed = time.perf_counter()
            waited = bucket_sums.wait()
        if stream.is_wrong:  # so no other member completes the rest, nor takes the step
            raise PeerLost("a gradient was sent before it was final; the next ones are sent later")
        waited += self._reduce_rest([node.row for node in partials], step.shards)
        return partials, computed, min(waited, time.perf_counter() - computed)
