"""Delayed: a thread adds the gradients of an update along the fixed tree while the next ones are computed.

Update k uses the gradient of the weights before update k - d. In a round there are 16 updates; at its end nothing is
being added, and the gradients that wait for their update are part of the state, so how long a round is changes no bit.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import torch
from batchgrowth.schedule.stages import Step, round_at
from torch import Tensor

from batchgrowth_trainer.exchange.all_reduce import AllReduce, run_of
from batchgrowth_trainer.exchange.reduction import Reduction, bytes_sent
from batchgrowth_trainer.exchange.strategy import Round, Setting
from batchgrowth_trainer.replica.replica import Pending, undone_by_errors
from batchgrowth_trainer.replica.rows import Committed, Partial

_UPDATES = 16  # in a round


class Delayed:
    """See Strategy."""

    def __init__(self, setting: Setting) -> None:
        self._setting, self._replica, self._group = setting, setting.replica, setting.group
        self._at_once = AllReduce(setting)
        self._reduction = Reduction(self._group)
        self._run_of = partial(run_of, self._group.rank, self._group.size)
        self._room = torch.empty(self._replica.length, device=self._replica.device)
        self._wait_seconds, self._stop = 0.0, False

    def round(self, stop_requested: Callable[[], bool]) -> Round:
        """Sixteen updates, or as many as are left of the epoch; one without a delay."""
        replica = self._replica
        if replica.pending is None:
            return self._at_once.round(stop_requested)
        began = time.perf_counter()
        self._wait_seconds, self._stop = 0.0, False
        with undone_by_errors(replica), ThreadPoolExecutor(1, "exchange") as adding:
            done, sent = self._updates(replica.pending, adding, stop=stop_requested())
        waited = self._wait_seconds
        return Round(tuple(done), self._stop, time.perf_counter() - began - waited, 0.0, waited, sent)

    def _updates(
        self, waiting: Pending, adding: ThreadPoolExecutor, *, stop: bool
    ) -> tuple[list[tuple[Step, Committed]], int]:
        """The updates of a round, and the bytes that all members sent."""
        replica, group = self._replica, self._group
        done: list[tuple[Step, Committed]] = []
        under_way: deque[_Sum] = deque()
        last = round_at(replica.plan, replica.position, _UPDATES)[-1].after  # evaluations may be due at an epoch's end
        steps, sent = self._coming(len(waiting)), 0
        while replica.position != last:
            step = next(steps, None)
            if step is not None:
                with self._setting.watched:
                    partials = replica.partials(step, self._run_of(step), stop=stop, runs=self._run_of)
                rows = [node.row for node in partials]
                under_way.append((partials, adding.submit(self._added, rows, step.shards)))
                sent += bytes_sent(step.shards, group.size, replica.length, rows=len(group.grid.rows))
            if step is None or len(waiting) + len(under_way) > waiting.most:
                if not waiting:
                    self._wait_for(under_way.popleft(), waiting)
                present = replica.plan.step_at(replica.position)
                done.append((present, replica.commit(present, waiting.take())))
            self._setting.check()
        while under_way:
            self._wait_for(under_way.popleft(), waiting)
        return done, sent

    def _coming(self, ahead: int) -> Iterator[Step]:
        """The updates of the plan whose gradients are not computed yet: those after the `ahead` that wait."""
        plan, position = self._replica.plan, self._replica.position
        while not plan.is_done(position):
            step = plan.step_at(position)
            position, ahead = step.after, ahead - 1
            if ahead < 0:
                yield step

    def _added(self, rows: list[Tensor], shards: int) -> Tensor:
        return self._reduction(rows, shards, self._room).total.clone()

    def _wait_for(self, one: "_Sum", waiting: Pending) -> None:
        """Put a total behind those that wait. Every member takes a requested stop from it."""
        partials, future = one
        began = time.perf_counter()
        total = future.result()
        self._wait_seconds += time.perf_counter() - began
        self._replica.rows.release(partials)
        self._stop = self._stop or bool(total[-1] > 0)
        total[-1] = 0.0
        waiting.put(total)


_Sum = tuple[list[Partial], Future[Tensor]]
