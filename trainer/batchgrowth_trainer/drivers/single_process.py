"""SingleProcess: the baseline. One replica in the driver's process, and no exchange (CS744 report, task 1)."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext

from batchgrowth.contract.metrics import ExchangeFigures
from batchgrowth.contract.progress import TRAINER
from batchgrowth.looks import Timing
from batchgrowth.plan import Step
from torch import Tensor

from batchgrowth_trainer.building import build_replica
from batchgrowth_trainer.drivers.run import RunState, Undo
from batchgrowth_trainer.drivers.scaling import Join
from batchgrowth_trainer.exchange.compression import compression_in
from batchgrowth_trainer.exchange.group import LoneGroup
from batchgrowth_trainer.exchange.spot_check import Finding, Found, SpotCheck
from batchgrowth_trainer.exchange.strategy import Setting
from batchgrowth_trainer.pool.arithmetics import SHARDS
from batchgrowth_trainer.record.history import Committed, HistoryRow
from batchgrowth_trainer.record.snapshot import Trained
from batchgrowth_trainer.replica.decisions import Stopwatch
from batchgrowth_trainer.replica.evaluation import judged, trained_of
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.user_errors import reported_as_device_fault

Advance = Callable[[RunState, Replica], None]
"""Makes the next update or more, and records them."""


def train(run: RunState, _join: Join) -> Trained:
    """Train update after update, in one replica and without an exchange. Raises WorkloadError and DataError."""
    return train_here(run, _update_after_update)


def train_here(run: RunState, advancing: Callable[[Replica], AbstractContextManager[Advance]]) -> Trained:
    """Train in this process, from the newest checkpoint to the end of the plan, or until a stop is requested.

    Raises WorkloadError and DataError.
    """
    replica = build_replica(run.spec)
    with closing(replica.reader), advancing(replica) as advance:
        run.arithmetics.compare_own(SHARDS, replica.arithmetic)
        run.try_saving(replica.num_bytes)
        saved = run.checkpoint_after(0)
        if saved is not None:
            replica.restore(saved.snapshot)
        run.go_on_from(replica.position.update)
        with (
            run.saved_before_errors(lambda: run.save_if_newer(replica.position.update, replica.snapshot)),
            reported_as_device_fault(lambda: f"training at update {replica.position.update}"),
        ):
            while True:
                if not replica.position.offset:  # first: a checkpoint may be from before the evaluation that is due
                    evaluate_if_due(run, replica)
                if run.stop_requested() or replica.plan.is_done(replica.position):
                    return trained_of(replica)
                if run.checkpoint_due():
                    run.save(replica.snapshot())
                try:
                    advance(run, replica)
                except Found as found:
                    raise Undo(_cause(found.finding), found.finding.update, workers=[TRAINER]) from found


def _cause(finding: Finding) -> str:
    where = f"shard {finding.shard} of update {finding.update}"
    return f"this process computed {where} twice, and {finding.what} differs: the machine computes wrongly"


@contextmanager
def _update_after_update(replica: Replica) -> Iterator[Advance]:
    """Yield a function that makes one update: it adds all shards and commits the total."""
    stopwatch = Stopwatch() if replica.growth.course.looks_at_clock else None
    compression = compression_in(replica)
    check = SpotCheck(Setting(replica, LoneGroup(), nullcontext(), lambda: None))

    def update(run: RunState, replica: Replica) -> None:
        step = replica.plan.step_at(replica.position)
        began = time.perf_counter()
        done = make_update(replica, step, None if stopwatch is None else stopwatch.timing)
        seconds = time.perf_counter() - began
        if stopwatch is not None:
            stopwatch.lap(step, 1, seconds)
        run.record_rows([HistoryRow.now(step, replica.plan, done, 1, (seconds, 0.0, 0.0))])
        if check.after(step, step, is_last=replica.plan.is_done(replica.position)):
            run.record_figures(ExchangeFigures(checks=1, checked_update=step.after.update))
        if compression is not None and compression.error is not None:
            run.publish(ExchangeFigures(compression_error=compression.error))

    yield update


def make_update(replica: Replica, step: Step, timing: Timing | None = None) -> Committed:
    """Make the next update without an exchange: add the sums of all its shards, and take the step.

    `timing` is that of an earlier update, for a growth that looks at a clock. Raises WorkloadError and DataError.
    """
    [total] = replica.partials(step, (0, step.shards), runs=_all_shards)
    if timing is not None:
        replica.tail.write_timing(total.row, timing)
    done = replica.commit(step, total.row)
    replica.rows.release([total])  # not before `commit`, which reads and overwrites the row
    return done


def _all_shards(step: Step) -> tuple[int, int]:
    """Return all shards of an update, because one process computes them all."""
    return 0, step.shards


def evaluate_if_due(run: RunState, replica: Replica) -> bool:
    """Evaluate the replica if an evaluation is due at this end of an epoch; return whether it was."""
    judgement = replica.judgement
    position = replica.position
    if not run.evaluation_due(position, judgement.known(position.epoch)):
        return False
    values = judged(replica, 0, 1, only_one)
    run.record_evaluation(position, values, time.time(), judgement.end)
    return True


def only_one(rows: Sequence[Tensor], shards: int, like: Tensor) -> Tensor:
    """Return the total of a member without peers, which is its only row; an evaluation.Reduce."""
    assert shards
    assert rows[0].shape == like.shape
    return rows[0]
