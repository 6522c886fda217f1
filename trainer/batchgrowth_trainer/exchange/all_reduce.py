"""AllReduce: the members add the gradients of an update, and each takes the same step."""

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from batchgrowth.plan import Step
from torch import Tensor

from batchgrowth_trainer.exchange.reduction import Reduced, Reduction, bytes_sent
from batchgrowth_trainer.exchange.strategy import Round, Setting
from batchgrowth_trainer.replica.stopwatch import Stopwatch
from batchgrowth_trainer.replica.tree import lay_out


class AllReduce:
    """See Strategy."""

    def __init__(self, setting: Setting) -> None:
        self._replica, self._group, self._watched = setting.replica, setting.group, setting.watched
        self._coding = self._replica.coding
        self._reduction, self._uncoded = Reduction(self._group, self._coding), Reduction(self._group)
        self._stopwatch = Stopwatch()
        self._run_of = partial(run_of, self._group.rank, self._group.size)
        self._like = torch.empty(self._replica.length, device=self._replica.device)

    def round(self, stop_requested: Callable[[], bool]) -> Round:
        """One update."""
        replica, group = self._replica, self._group
        step = replica.plan.step_at(replica.position)
        began = time.perf_counter()
        stop = stop_requested()
        with self._watched:
            partials = replica.partials(step, self._run_of(step), stop=stop, runs=self._run_of)
        computed = time.perf_counter()
        if group.rank == 0:  # which has shard 0
            replica.write_timing(partials[0].row, self._stopwatch.timing)
        reduced = self._reduced([p.row for p in partials], step.shards)
        exchanged = time.perf_counter()
        done = replica.commit(step, reduced.total)
        replica.release(partials)
        now = time.perf_counter()
        self._stopwatch.lap(step, group.size, now - began)
        waited = reduced.wait_seconds
        seconds = computed - began + now - exchanged, exchanged - computed - waited, waited
        sent, error = self._bytes_sent(step.shards), replica.rows.rounding_error
        return Round(((step, done),), done.stop, *seconds, sent, compression_error=error)

    def _reduced(self, rows: Sequence[Tensor], shards: int) -> Reduced:
        """The total of the rows; only the gradient in it is coded."""
        if self._coding is None:
            return self._reduction(rows, shards, self._like)
        cut = self._replica.parameters.length
        gradient = self._reduction([row[:cut] for row in rows], shards, self._like[:cut])
        rest = self._uncoded([row[cut:] for row in rows], shards, self._like[cut:])
        return Reduced(torch.cat((gradient.total, rest.total)), gradient.wait_seconds + rest.wait_seconds)

    def _bytes_sent(self, shards: int) -> int:
        size, rows = self._group.size, len(self._group.grid.rows)
        if self._coding is None:
            return bytes_sent(shards, size, self._replica.length, rows=rows)
        cut = self._replica.parameters.length
        coded = round(bytes_sent(shards, size, cut, rows=rows) * self._coding.width / 4)
        return coded + bytes_sent(shards, size, self._replica.length - cut, rows=rows)


def run_of(rank: int, size: int, step: Step) -> tuple[int, int]:
    """The shards of an update that a member computes."""
    return lay_out(step.shards, size).runs[rank]
