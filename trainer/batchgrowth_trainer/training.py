"""Trains a job, from its manifest to its summary. Call `train` to do from a program what `batchgrowth run` does."""

import logging
import math
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from batchgrowth.contract.logs import DEFAULT_LOGS, Logs
from batchgrowth.errors import Interrupted, Superseded
from batchgrowth.evaluations import BestEvaluation, early_end
from batchgrowth.plan import Plan, make_plan
from batchgrowth.position import Position
from batchgrowth.spec import BatchGrowthJob, WatchedMetric, mathematics
from distributed import Client
from prometheus_client import CollectorRegistry
from safetensors.torch import save

from batchgrowth_trainer.drivers.run import RunState
from batchgrowth_trainer.drivers.scaling import Join, JoinedCluster, Scaler, Scaling
from batchgrowth_trainer.record import storage
from batchgrowth_trainer.record.checkpoint import Checkpoints, CheckpointStore, Saved
from batchgrowth_trainer.record.functions import FUNCTION_FILE, function_in, receive
from batchgrowth_trainer.record.history import History
from batchgrowth_trainer.record.output import BEST_FILE, CHECKPOINTS, WEIGHTS_FILE, OutputFolder
from batchgrowth_trainer.record.runs import read_run
from batchgrowth_trainer.record.snapshot import Trained, weights_sha256
from batchgrowth_trainer.record.storage import reported_as_checkpoint_error
from batchgrowth_trainer.replica.judgement import RECORD, STOP, course_of, judged_in
from batchgrowth_trainer.sinks.events import Finished, Note, Sink, Started, Stopped, publish
from batchgrowth_trainer.sinks.log import Journal, LogLines
from batchgrowth_trainer.sinks.telemetry import Endpoint, Telemetry
from batchgrowth_trainer.sinks.trackers.tracking import check_installed, tracking
from batchgrowth_trainer.worker.addresses import host_towards
from batchgrowth_trainer.worker.service import new_run_id
from batchgrowth_trainer.workers.connection import LoopWatch, SchedulerLost, closed_in_time, connection
from batchgrowth_trainer.workers.local_cluster import LOOPBACK, LocalScaler, existing_left_alone, local_cluster
from batchgrowth_trainer.workers.pool import WorkerPool
from batchgrowth_trainer.workers.takeover import Fence, take_over_aside

_LOCAL_PATIENCE_SECONDS = 180.0
_REMOTE_PATIENCE_SECONDS = 600.0
_SCHEDULER_PATIENCE_SECONDS = 15.0
_LOCK_PATIENCE_SECONDS = 300.0  # a file server may release the lock of a lost node after minutes

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of a run beyond its manifest; none of them changes the weights.

    `workers` caps the plan's workers; `scheduler` is the address of an existing Dask cluster; `paths` precede sys.path
    when the workload is imported; `desired_workers` replaces the plan's number of workers; `patient` waits without a
    limit for workers and for the scheduler, reconnects to a lost one, and waits a while for another run to leave the
    folder; `fence` ends the run if a later start takes over; `logs` applies to the workers of a local cluster;
    `checkpoint_uri` is an object store for checkpoints and results, in place of the folder; `function` is the workload
    if it has no module, see `record.functions`, by default that of the run in the folder.
    """

    output_dir: Path
    workers: int | None = None
    scheduler: str | None = None
    resume: bool = False
    metrics_port: int = 0
    metrics_host: str = LOOPBACK
    paths: tuple[str, ...] = ()
    desired_workers: Callable[[Plan, Position], int] | None = None
    patient: bool = False
    fence: Fence | None = None
    logs: Logs = DEFAULT_LOGS
    checkpoint_uri: str | None = None
    function: bytes = b""


@existing_left_alone()
def train(
    job: BatchGrowthJob,
    options: Options,
    sinks: Sequence[Sink] = (),
    stop_requested: Callable[[], bool] = lambda: False,
    plan: Plan | None = None,
) -> dict[str, Any]:
    """Train the job and return the summary of the finished run, as in summary.json; `sinks` receive its events.

    `plan` is what `make_plan` returned for the job's spec, if the caller has made it.

    Raises Interrupted, after writing a checkpoint, if a stop was requested, else an error of `batchgrowth.errors`.
    """
    name = job.metadata.name
    spec = job.spec
    fence = options.fence
    check_installed(spec.trackers or ())
    plan = plan or make_plan(spec)
    watch = LoopWatch()

    def note(text: str) -> None:
        log.info("%s: %s", name, text)
        publish(sinks, Note(text))

    def is_stopped() -> bool:
        if fence is not None:
            fence.check()
        return stop_requested()

    def wait_for_folder(text: str) -> None:
        note(text)
        if fence is not None and options.scheduler is not None:
            take_over_aside(options.scheduler, fence, is_stopped)

    def planned(plan: Plan, position: Position) -> int:
        count = plan.stage_at(position.update).workers
        return count if options.workers is None else min(count, options.workers)

    with ExitStack() as stack:
        # The endpoint answers the liveness probe, so it opens before the run waits for its folder, reads checkpoints.
        endpoint = Endpoint(CollectorRegistry(), options.metrics_host, options.metrics_port, watch.trouble)
        stack.enter_context(closing(endpoint))
        patience = _LOCK_PATIENCE_SECONDS if options.patient else 0.0
        folder = OutputFolder(options.output_dir, patience=patience, stop_requested=is_stopped, note=wait_for_folder)
        stack.enter_context(closing(folder))
        function = options.function or function_in(folder.path, spec.workload.entrypoint)
        if function:
            receive(function)

        checkpoints = _checkpoints(job, options.checkpoint_uri, folder)
        # Before any time is spent: in an object store, this proves that checkpoints can be written.
        checkpoints.prepare()
        saved: Saved | None = None
        position = Position()
        if options.resume:
            saved = checkpoints.resume(note)
            if saved is None:
                note(f"there is no checkpoint in {checkpoints.place} to resume from; training starts at the beginning")
            else:
                position = saved.snapshot.position
        course = course_of(spec, saved.snapshot.tensors if saved else {}, plan)
        finished = folder.summary()
        if saved is not None and finished is not None and course.plan.is_done(position):
            note(f"{name} is trained already: {checkpoints.place} has the result. "
                 "Omit --resume, or give another --output-dir, to train it again.")  # fmt: skip
            return finished

        history = stack.enter_context(_history(folder, saved, note))
        epoch = position.epoch + position.offset / course.plan.examples_per_epoch
        telemetry = Telemetry(course.plan, epoch, endpoint.registry)
        trackers = tracking(job, folder.path, lambda text: run.note(text))
        run = RunState(
            course,
            name=name,
            history=history,
            checkpoints=checkpoints,
            sinks=(telemetry, Journal(folder.path), LogLines(), *trackers, *sinks),
            desired_workers=options.desired_workers or planned,
            stop_requested=is_stopped,
            saved=saved,
            check_held=folder.check_held,
        )
        folder.write_job(job)
        if function:
            folder.write(FUNCTION_FILE, function)
        run.publish(Started(name, course.plan, position, course.decisions))
        # From here on, sinks that saw the run begin also see how it ends, whatever is raised.
        stack.push(lambda _kind, error, _trace: run.publish(Stopped(error)))
        run.note(f"metrics at {endpoint.url}; results go to {checkpoints.place}")

        # The `train` of a module in drivers/, which the entry in choices/exchanges.py names.
        train_with: Callable[[RunState, Join], Trained] = spec.exchange.entry.load()
        while True:
            try:
                trained = train_with(run, lambda: _joined_cluster(run, options, function, watch))
                break
            except SchedulerLost as lost:
                if not options.patient:
                    raise
                run.record_recovery(str(lost))

        return concluded(run, folder, checkpoints, trained)


def concluded(run: RunState, folder: OutputFolder, checkpoints: Checkpoints, trained: Trained) -> dict[str, Any]:
    """Write the last checkpoint and the results, and return their summary. Raises Interrupted if updates are left."""
    if trained.snapshot is not None:
        run.save_last(trained.snapshot)
    run.check_saved()
    if trained.snapshot is None or not run.plan.is_done(trained.snapshot.position):
        if not run.saved_update:
            raise Interrupted("stopped before the first update; there is nothing to resume")
        raise Interrupted(
            f"stopped after update {run.saved_update:,}; the checkpoint is in {checkpoints.place}, "
            "and --resume continues from it"
        )
    # The summary comes after the weights, because its presence marks the run as finished.
    for file, state_dict in ((WEIGHTS_FILE, trained.state_dict), (BEST_FILE, trained.best)):
        if state_dict is not None:
            weights = save({tensor_name: tensor.contiguous() for tensor_name, tensor in state_dict.items()})
            storage.retried(partial(folder.write, file, weights), storage.LAST_SECONDS, run.note)
    summary = summary_of(run, folder.path, trained)
    storage.retried(lambda: folder.write_summary(summary), storage.LAST_SECONDS, run.note)
    storage.retried(checkpoints.keep_results, storage.LAST_SECONDS, run.note)
    run.publish(Finished(summary["weightsSha256"]))
    return summary


def summary_of(run: RunState, directory: Path, trained: Trained) -> dict[str, Any]:
    """Return the content of summary.json.

    `finalLoss` is the mean training loss per example over the last epoch. `best` and `stoppedEarly` are there if the
    job asks for them, null if no evaluation was the best or training did not end early; `best` has the SHA-256 of the
    weights of best.safetensors.
    """
    assert trained.snapshot is not None
    plan = run.plan
    totals = run.totals
    evaluation = run.spec.evaluation

    run.flush()
    last_loss = 0.0
    last_epoch = plan.epochs - 1
    before = float(last_epoch)
    for row in read_run(directory).history:
        if row.epoch > last_epoch:
            last_loss += row.loss * (row.epoch - before)
            before = row.epoch

    summary: dict[str, Any] = {
        "name": run.name,
        "exchange": run.spec.exchange.type,
        "updates": plan.updates,
        "examples": plan.examples,
        "epochs": plan.epochs,
        "seconds": round(run.seconds, 3),
        "finalLoss": last_loss,
        "accuracy": totals.accuracy,
        "weightsSha256": weights_sha256(trained.state_dict),
        "resizes": [row.to_json() for row in totals.resizes],
        "recoveries": totals.recoveries,
        "arithmetic": run.arithmetics.to_json(),
    }
    kept = evaluation.keep_best
    if kept is not None:
        summary["best"] = None
        best = judged_in(trained.snapshot.tensors, RECORD, kept)
        if best is not None and best.update:
            summary["best"] = _judged_json(kept, best)
            if trained.best is not None:
                summary["best"]["weightsSha256"] = weights_sha256(trained.best)
    stop = evaluation.stop_early
    if stop is not None:
        summary["stoppedEarly"] = None
        last = judged_in(trained.snapshot.tensors, STOP, stop)
        if last is not None and early_end(run.spec, last) is not None:
            summary["stoppedEarly"] = {**_judged_json(stop, last), "afterEpoch": last.evaluated}
    return summary


def _judged_json(watched: WatchedMetric, best: BestEvaluation) -> dict[str, Any]:
    value = best.value if best.update else None
    return {"metric": watched.metric, "mode": watched.mode, "value": value, "update": best.update, "epoch": best.epoch}


def _checkpoints(job: BatchGrowthJob, uri: str | None, folder: OutputFolder) -> Checkpoints:
    known = mathematics(job.spec)
    keep = job.spec.checkpoint.keep
    if uri is None:
        return CheckpointStore(folder.path / CHECKPOINTS, known, keep)
    # Loads for a while, and most runs need no store.
    from batchgrowth_trainer.record.remote import Bucket, RemoteCheckpoints

    return RemoteCheckpoints(Bucket.at(uri), folder.path, known, keep)


@contextmanager
def _history(folder: OutputFolder, saved: Saved | None, note: Callable[[str], None]) -> Iterator[History]:
    """Yield the history, continued by a resume or else new. Raises CheckpointError if it cannot be written."""
    with reported_as_checkpoint_error():
        aside = None if saved else folder.set_earlier_run_aside()
        history = History(folder.path)
        if saved is not None:
            history.truncate(saved.snapshot.position.update)
    if aside is not None:
        note(f"an earlier run was here; it is kept in {aside}")
    try:
        yield history
    except Superseded:
        with suppress(OSError):
            history.discard()
        raise
    except BaseException:
        with suppress(OSError):  # the error that ends the run says more
            history.close()
        raise
    with reported_as_checkpoint_error():
        history.close()


@contextmanager
def _joined_cluster(run: RunState, options: Options, function: bytes, watch: LoopWatch) -> Iterator[JoinedCluster]:
    """Yield the worker pool of a new local cluster, or of the cluster at `options.scheduler` once that answers."""
    with ExitStack() as stack:
        scaler: Scaler | None = None
        if options.scheduler is None:
            host = LOOPBACK
            patience = _LOCAL_PATIENCE_SECONDS
            cluster = stack.enter_context(local_cluster(run.spec, options.logs))
            client = stack.enter_context(closed_in_time(Client(cluster)))
            scaler = LocalScaler(cluster)
        else:
            patience = _REMOTE_PATIENCE_SECONDS
            longest = _SCHEDULER_PATIENCE_SECONDS
            if options.patient:
                patience = longest = math.inf
            connecting = connection(options.scheduler, longest, run.stop_requested, run.wait_for)
            client = stack.enter_context(connecting)
            host = host_towards(options.scheduler)
        log.info("%s: connected to the Dask scheduler at %s", run.where, client.scheduler.address)
        stack.enter_context(watch.watching(client.loop.asyncio_loop))
        pool = WorkerPool(
            client,
            new_run_id(run.name),
            run.spec,
            options.paths,
            run.stop_requested,
            options.fence,
            function,
            run.arithmetics,
        )
        scaling = Scaling(run, pool, scaler, patience)
        pool.open()
        try:
            yield JoinedCluster(pool, scaling, host)
        finally:
            pool.close()


@contextmanager
def interrupts(on_first: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Handle SIGINT and SIGTERM inside the block, and yield a function that returns whether a stop was requested.

    The first signal, such as Ctrl-C or the SIGTERM of Kubernetes, calls `on_first`: the run writes a checkpoint and
    stops. The second raises KeyboardInterrupt. Only a program's main thread receives signals; in another one nothing is
    handled.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            raise KeyboardInterrupt
        on_first()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
