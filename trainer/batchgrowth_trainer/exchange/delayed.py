"""Delayed: a thread adds the gradients of an update along the fixed tree while the next updates' gradients are
computed.

Update k uses the gradient of the weights before update k - d. A round has 16 updates. At its end no addition is under
way, and the gradients that wait for their update are part of the state, so the length of a round changes no bit.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import torch
from batchgrowth.plan import Step, round_at
from torch import Tensor

from batchgrowth_trainer.exchange.all_reduce import AllReduce, Reduction
from batchgrowth_trainer.exchange.strategy import Round, Setting
from batchgrowth_trainer.record.history import Committed
from batchgrowth_trainer.replica.data import run_of
from batchgrowth_trainer.replica.flat import Partial
from batchgrowth_trainer.replica.replica import Replica, undone_by_errors

_UPDATES = 16  # in a round
_ROWS = "pending.rows"
_COUNT = "pending.count"

_Sum = tuple[list[Partial], Future[Tensor]]
"""A member's sums of an update, and the future of the total over all members, which a thread adds up."""


class Delayed:
    """The strategy of Delayed."""

    @staticmethod
    def register(replica: Replica) -> None:
        """Register the totals that wait for their update: as many as the job's delay."""
        updates = replica.spec.exchange.settings.updates
        if updates:
            replica.register(_ROWS, torch.zeros(updates, replica.length, dtype=torch.float32, device=replica.device))
            replica.register(_COUNT, torch.zeros(1, dtype=torch.float64))

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._replica = setting.replica
        self._at_once = None if _ROWS in self._replica.registered else AllReduce(setting)
        self._reduction = Reduction(setting.group)
        self._run_of = partial(run_of, setting.group.rank, setting.group.size)
        self._room = torch.empty(self._replica.length, dtype=torch.float32, device=self._replica.device)
        self._wait_seconds = 0.0
        self._stop = False

    def round(self, stop_requested: Callable[[], bool]) -> Round:
        """Make sixteen updates, or as many as the epoch has left; without a delay, make one."""
        replica = self._replica
        if self._at_once is not None:
            return self._at_once.round(stop_requested)
        pending = PendingTotals(replica)
        began = time.perf_counter()
        self._wait_seconds = 0.0
        self._stop = False
        with undone_by_errors(replica), ThreadPoolExecutor(1, "exchange") as adding:
            try:
                done = self._updates(pending, adding, stop=stop_requested())
            except BaseException:
                # After a failed addition, connections are out of step: each further one would wait for its timeout.
                adding.shutdown(wait=False, cancel_futures=True)
                raise
        waited = self._wait_seconds
        return Round(tuple(done), self._stop, time.perf_counter() - began - waited, 0.0, waited)

    def _updates(
        self, pending: "PendingTotals", adding: ThreadPoolExecutor, *, stop: bool
    ) -> list[tuple[Step, Committed]]:
        """Make the updates of a round, and return them."""
        replica = self._replica
        done: list[tuple[Step, Committed]] = []
        under_way: deque[_Sum] = deque()
        last = round_at(replica.plan, replica.position, _UPDATES)[-1].after  # evaluations may be due at an epoch's end
        steps = self._coming(len(pending))
        while replica.position != last:
            step = next(steps, None)
            if step is not None:
                with self._setting.watchdog:
                    partials = replica.partials(step, self._run_of(step), stop=stop, runs=self._run_of)
                rows = [node.row for node in partials]
                under_way.append((partials, adding.submit(self._added, rows, step.shards)))
            # With more sums than the job's delay, the oldest one belongs to the update that is due.
            if step is None or len(pending) + len(under_way) > pending.most:
                if not pending:
                    self._wait_for(under_way.popleft(), pending)
                present = replica.plan.step_at(replica.position)
                done.append((present, replica.commit(present, pending.take())))
            self._setting.check()
        while under_way:
            self._wait_for(under_way.popleft(), pending)
        return done

    def _coming(self, ahead: int) -> Iterator[Step]:
        """Yield the plan's updates after the next `ahead` updates, whose gradients are computed already."""
        plan = self._replica.plan
        position = self._replica.position
        while not plan.is_done(position):
            step = plan.step_at(position)
            position = step.after
            ahead -= 1
            if ahead < 0:
                yield step

    def _added(self, rows: list[Tensor], shards: int) -> Tensor:
        # A copy, since the next addition uses the same room.
        return self._reduction(rows, shards, self._room).total.clone()

    def _wait_for(self, one: _Sum, pending: "PendingTotals") -> None:
        """Wait for an addition and put its total into the queue. The total tells every member of a requested stop."""
        partials, future = one
        began = time.perf_counter()
        total = future.result()
        self._wait_seconds += time.perf_counter() - began
        self._replica.rows.release(partials)
        stop = self._replica.tail.pop_stop(total)
        self._stop = self._stop or stop
        pending.put(total)


class PendingTotals:
    """The queue of totals that wait for their update: at most `most` rows, in the tensors that `register` made."""

    def __init__(self, replica: Replica) -> None:
        self._rows = replica.registered[_ROWS]
        self._count = replica.registered[_COUNT]
        self.most = len(self._rows)

    def __len__(self) -> int:
        return int(self._count.item())

    def put(self, row: Tensor) -> None:
        """Add a row at the end of the queue."""
        self._rows[len(self)] = row
        self._count += 1

    def take(self) -> Tensor:
        """Remove the first row, and return a copy."""
        first = self._rows[0].clone()
        # A copy, since the two ranges overlap.
        self._rows[:-1] = self._rows[1:].clone()
        self._count -= 1
        return first
