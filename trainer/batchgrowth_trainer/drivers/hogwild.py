"""Hogwild: threads of this process update the same weights without locks. Recht, Ré, Wright and Niu, 2011.

A thread takes the next update of the plan, computes the gradient of its whole batch with the current weights, and
steps. Other threads may change the weights meanwhile. Each thread computes with its own buffers, and adds their change
to the shared buffers when it steps.

Threads meet after 16 updates each, at the end of an epoch, and when a stop is requested. By then every update that a
thread took is applied, so the updates done are the first ones of the plan.
"""

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from functools import partial
from threading import Lock

from batchgrowth.plan import Step, round_at

from batchgrowth_trainer.drivers.run import RunState
from batchgrowth_trainer.drivers.scaling import Join
from batchgrowth_trainer.drivers.single_process import Advance, train_here
from batchgrowth_trainer.record.history import Committed, HistoryRow
from batchgrowth_trainer.record.snapshot import Trained
from batchgrowth_trainer.replica.optimizers import FlatOptimizer
from batchgrowth_trainer.replica.replica import Replica, undone_by_errors
from batchgrowth_trainer.replica.reproducible import prepare_process

_UPDATES = 16  # of each thread in a round
_LOOK_SECONDS = 0.1  # between two looks whether a stop is requested


class Hogwild:
    """The threads' replicas, which share the weights and the optimizer's state of `replica`."""

    def __init__(self, replica: Replica, pool: ThreadPoolExecutor, threads: int) -> None:
        """Raise WorkloadError if the model cannot be copied."""
        self._replica = replica
        self._pool = pool
        self._twins = [replica.twin() for _ in range(threads)]
        # An optimizer of the user's own is an object with a state of its own, so only one thread at a time steps it.
        self._stepping = nullcontext() if isinstance(replica.optimizer, FlatOptimizer) else Lock()

    def __call__(self, run: RunState, replica: Replica) -> None:
        """Make one round and record it. If it raises WorkloadError or DataError, the state is unchanged."""
        steps = round_at(replica.plan, replica.position, _UPDATES * len(self._twins))
        with undone_by_errors(replica):
            rows = self._round(run, deque(steps))
        if rows:
            replica.moved_to(steps[len(rows) - 1].after)
        run.record_rows(rows)

    def _round(self, run: RunState, left: deque[Step]) -> list[HistoryRow]:
        """Make a round of updates from `left`, and return their rows in the plan's order."""
        rows: list[HistoryRow] = []
        working = {self._pool.submit(self._work, twin, left, rows) for twin in self._twins}
        try:
            _wait_for(working, run, left)
        finally:
            left.clear()
            wait(working)
        return sorted(rows, key=lambda row: row.update)

    def _work(self, twin: Replica, left: deque[Step], rows: list[HistoryRow]) -> None:
        """Make updates in a thread until the round has none left."""
        replica = self._replica
        while True:
            try:
                step = left.popleft()
            except IndexError:
                return
            began = time.perf_counter()
            # The shared buffers as they are: other threads may be writing to them, as to the weights.
            twin.buffers.restore(replica.buffers.vectors)
            whole = twin.partials(step, (0, step.shards))
            with self._stepping:
                gradient, rest = replica.split(whole[0].row)
                taken = replica.take_step(step, gradient, rest, step.examples)
            twin.rows.release(whole)  # not before `take_step`, which overwrites the row
            done = Committed(taken.loss / step.examples, taken.learning_rate, stop=False)
            # Divided by the threads, so that the seconds of all updates add up to the time that has passed.
            seconds = (time.perf_counter() - began) / len(self._twins), 0.0, 0.0
            rows.append(HistoryRow.now(step, replica.plan, done, 1, seconds))


def _wait_for(working: set[Future[None]], run: RunState, left: deque[Step]) -> None:
    """Wait for the end of a round; a requested stop ends the round early. Raises the first error of a thread."""
    while working:
        ended, working = wait(working, _LOOK_SECONDS, return_when="FIRST_COMPLETED")
        for future in ended:
            future.result()
        if run.stop_requested():
            left.clear()


@contextmanager
def _advance(replica: Replica) -> Iterator[Advance]:
    spec = replica.spec
    threads = spec.exchange.settings.threads
    with ThreadPoolExecutor(threads, "hogwild", partial(prepare_process, spec)) as pool:
        yield Hogwild(replica, pool, threads)


def train(run: RunState, _join: Join) -> Trained:
    """Train in threads of this process, from the newest checkpoint on. Raises WorkloadError and DataError."""
    return train_here(run, _advance)
