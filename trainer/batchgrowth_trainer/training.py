"""Trains a job: sets up the run, chooses the exchange, and writes the results."""

import math
import signal
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from batchgrowth.contract.logs import DEFAULT_LOGS, Logs
from batchgrowth.errors import Interrupted, Superseded
from batchgrowth.measured.course import Course
from batchgrowth.measured.judging import Judged, end_of
from batchgrowth.position import Position
from batchgrowth.schedule.plan import make_plan
from batchgrowth.schedule.stages import Plan
from batchgrowth.spec import BatchGrowthJob, JobSpec, Watched, mathematics
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
from batchgrowth_trainer.sinks.recorder import Journal
from batchgrowth_trainer.sinks.telemetry import Endpoint, Telemetry
from batchgrowth_trainer.sinks.trackers.tracking import check_installed, tracking
from batchgrowth_trainer.worker.addresses import host_towards
from batchgrowth_trainer.workers.connection import LoopWatch, SchedulerLost, closed_in_time, connection
from batchgrowth_trainer.workers.crew import Crew
from batchgrowth_trainer.workers.local_cluster import LOOPBACK, LocalScaler, existing_left_alone, local_cluster
from batchgrowth_trainer.workers.takeover import Fence, take_over_aside

# --- Ctrl-C once ---
# Ctrl-C once: write a checkpoint and stop. Twice: stop at once. SIGTERM, which Kubernetes sends, counts as Ctrl-C.


@contextmanager
def interrupts(on_first: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Handles SIGINT and SIGTERM inside the block, and yields a function: whether a stop was requested.

    The first signal calls `on_first`, the second raises KeyboardInterrupt. Only a program's main thread receives
    signals; in another one nothing is handled.
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


# --- The end of a run: its last checkpoint, and if it is finished, its results and their summary ---


def concluded(
    run: RunState, job: BatchGrowthJob, folder: OutputFolder, checkpoints: Checkpoints, trained: Trained
) -> dict[str, Any]:
    """The summary of the finished run, whose results are written. Raises Interrupted if updates are left."""
    if trained.snapshot is not None:
        run.save_last(trained.snapshot)
    if trained.snapshot is None or not run.plan.is_done(trained.snapshot.position):
        run.check_saved()
        if not run.saved_update:
            raise Interrupted("stopped before the first update; there is nothing to resume")
        raise Interrupted(
            f"stopped after update {run.saved_update:,}; the checkpoint is in {checkpoints.place}, "
            "and --resume continues from it"
        )
    run.check_saved()
    for file, state_dict in ((WEIGHTS_FILE, trained.state_dict), (BEST_FILE, trained.best)):
        if state_dict is not None:
            weights = save({name: tensor.contiguous() for name, tensor in state_dict.items()})
            storage.retried(partial(folder.write, file, weights), storage.LAST_SECONDS, run.note)
    summary = summary_of(run, folder.path, job.metadata.name, weights_sha256(trained.state_dict))
    summary |= evaluation_of(run.spec, trained)
    storage.retried(lambda: folder.write_summary(summary), storage.LAST_SECONDS, run.note)
    storage.retried(checkpoints.keep_results, storage.LAST_SECONDS, run.note)
    run.publish(Finished(summary["weightsSha256"]))
    return summary


def summary_of(run: RunState, directory: Path, name: str, sha256: str) -> dict[str, Any]:
    """The content of summary.json; `finalLoss` is the mean training loss per example over the last epoch."""
    plan, totals = run.plan, run.totals
    return {
        "name": name,
        "exchange": run.spec.exchange.type,
        "updates": plan.updates,
        "examples": plan.examples,
        "epochs": plan.epochs,
        "seconds": round(run.seconds, 3),
        "finalLoss": _last_epochs_loss(run, directory),
        "accuracy": totals.accuracy,
        "weightsSha256": sha256,
        "resizes": [row.to_json() for row in totals.resizes],
        "recoveries": totals.recoveries,
        "arithmetic": run.arithmetics.to_json(),
    }


def evaluation_of(spec: JobSpec, trained: Trained) -> dict[str, Any]:
    """What the summary says of the best evaluation and of an early end, null if there is none; each only if asked for.

    `best` has the SHA-256 of the weights of best.safetensors.
    """
    assert trained.snapshot is not None
    kept, stop, tensors, found = spec.evaluation.keep_best, spec.evaluation.stop_early, trained.snapshot.tensors, {}
    best, last = judged_in(tensors, RECORD, kept), judged_in(tensors, STOP, stop)
    if kept is not None:
        sha256 = {} if trained.best is None else {"weightsSha256": weights_sha256(trained.best)}
        found["best"] = {**_named(kept, best), **sha256} if best and best.update else None
    if stop is not None:
        ended = last is not None and end_of(spec, last) is not None
        found["stoppedEarly"] = {**_named(stop, last), "afterEpoch": last.evaluated} if last and ended else None
    return found


def _named(watched: Watched, best: Judged) -> dict[str, Any]:
    value = best.value if best.update else None
    return {"metric": watched.metric, "mode": watched.mode, "value": value, "update": best.update, "epoch": best.epoch}


def _last_epochs_loss(run: RunState, directory: Path) -> float:
    run.flush()
    rows = read_run(directory).history
    begin = run.plan.epochs - 1
    total, before = 0.0, float(begin)
    for row in rows:
        if row.epoch > begin:
            total += row.loss * (row.epoch - before)
            before = row.epoch
    return total


# --- Trains a job: sets up the run, chooses the exchange, and writes the results ---
# Call `train` to do from a program what `batchgrowth run` does.

_LOCAL_PATIENCE_SECONDS, _REMOTE_PATIENCE_SECONDS, _SCHEDULER_PATIENCE_SECONDS = 180.0, 600.0, 15.0
_LOCK_PATIENCE_SECONDS = 300.0  # a file server may release the lock of a lost node after minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of a run beyond its manifest; none of them changes the weights.

    `workers` caps the plan's workers; `scheduler` is the address of an existing Dask cluster; `paths` precede sys.path
    when the workload is imported; `wanted` replaces the plan's number of workers; `patient` waits without a limit for
    workers and for the scheduler, reconnects to a lost one, and waits a while for another run to leave the folder;
    `fence` ends the run if a later one claims the scheduler; `logs` applies to the workers of a local cluster;
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
    wanted: Callable[[Plan, Position], int] | None = None
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
) -> dict[str, Any]:
    """The summary of the finished run, as in summary.json; `sinks` receive its events.

    Raises Interrupted, after writing a checkpoint, if a stop was requested, else an error of `batchgrowth.errors`.
    """
    check_installed(job.spec.trackers or ())
    _, watch, fence = make_plan(job.spec), LoopWatch(), options.fence

    def note(text: str) -> None:
        publish(sinks, Note(text))

    def stops() -> bool:
        if fence is not None:
            fence.check()
        return stop_requested()

    def wait_for_folder(text: str) -> None:
        note(text)
        if fence is not None and options.scheduler is not None:
            take_over_aside(options.scheduler, fence, stops)

    patience = _LOCK_PATIENCE_SECONDS if options.patient else 0.0
    # The endpoint answers the liveness probe, so it opens before the run waits for its folder and reads checkpoints.
    with (
        closing(Endpoint(CollectorRegistry(), options.metrics_host, options.metrics_port, watch.trouble)) as endpoint,
        closing(
            OutputFolder(options.output_dir, patience=patience, stop_requested=stops, note=wait_for_folder)
        ) as folder,
    ):
        options = _with_function(job, options, folder)
        checkpoints = _checkpoints(job, options, folder)
        checkpoints.prepare()
        saved = checkpoints.resume(note) if options.resume else None
        if saved is None and options.resume:
            note(f"there is no checkpoint in {checkpoints.place} to resume from; training starts at the beginning")
        finished = folder.summary()
        course = course_of(job.spec, saved.snapshot.tensors if saved else {})
        if saved is not None and finished is not None and course.plan.is_done(saved.snapshot.position):
            note(f"{job.metadata.name} is trained already: {checkpoints.place} has the result. "
                 "Omit --resume, or give another --output-dir, to train it again.")  # fmt: skip
            return finished
        with _run(job, options, course, endpoint, folder, checkpoints, saved, sinks, stops) as run:
            trained = _trained(run, options, watch)
            return concluded(run, job, folder, checkpoints, trained)


def _with_function(job: BatchGrowthJob, options: Options, folder: OutputFolder) -> Options:
    """The options with the workload's function, if it has no module. Raises DataError if it is missing."""
    given = options.function or function_in(folder.path, job.spec.workload.entrypoint)
    if given:
        receive(given)
    return replace(options, function=given)


def _checkpoints(job: BatchGrowthJob, options: Options, folder: OutputFolder) -> Checkpoints:
    known, keep = mathematics(job.spec), job.spec.checkpoint.keep
    if options.checkpoint_uri is None:
        return CheckpointStore(folder.path / CHECKPOINTS, known, keep)
    from batchgrowth_trainer.record.remote import (
        Bucket,  # loads for a while, and most runs need no store
        RemoteCheckpoints,
    )

    return RemoteCheckpoints(Bucket.at(options.checkpoint_uri), folder.path, known, keep)


@contextmanager
def _run(
    job: BatchGrowthJob,
    options: Options,
    course: Course,
    endpoint: Endpoint,
    folder: OutputFolder,
    checkpoints: Checkpoints,
    saved: Saved | None,
    sinks: Sequence[Sink],
    stop_requested: Callable[[], bool],
) -> Iterator[RunState]:
    position, plan = saved.snapshot.position if saved else Position(), course.plan
    telemetry = Telemetry(plan, position.epoch + position.offset / plan.examples_per_epoch, endpoint.registry)
    with ExitStack() as stack:
        history = stack.enter_context(_history(folder, saved, sinks))
        trackers = tracking(job, folder.path, lambda text: run.note(text))
        run = RunState(
            course, history=history, checkpoints=checkpoints,
            sinks=(telemetry, Journal(folder.path), *trackers, *sinks),
            wanted=options.wanted or _planned(options.workers), stop_requested=stop_requested, saved=saved,
            check_held=folder.check_held,
        )  # fmt: skip
        folder.write_job(job)
        if options.function:
            folder.write(FUNCTION_FILE, options.function)
        run.publish(Started(job.metadata.name, plan, run.position, course.decisions))
        stack.push(lambda _kind, error, _trace: run.publish(Stopped(error)))
        run.note(f"metrics at {endpoint.url}; results go to {checkpoints.place}")
        yield run


@contextmanager
def _history(folder: OutputFolder, saved: Saved | None, sinks: Sequence[Sink]) -> Iterator[History]:
    """The history, continued by a resume or else new. Raises CheckpointError if it cannot be written."""
    with reported_as_checkpoint_error():
        aside = None if saved else folder.set_earlier_run_aside()
        history = History(folder.path)
        if saved is not None:
            history.truncate(saved.snapshot.position.update)
    if aside is not None:
        publish(sinks, Note(f"an earlier run was here; it is kept in {aside}"))
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


def _planned(most: int | None) -> Callable[[Plan, Position], int]:
    def wanted(plan: Plan, position: Position) -> int:
        planned = plan.stage_at(position.update).workers
        return planned if most is None else min(planned, most)

    return wanted


# --- training ---------------------------------------------------------------------------------------------------------


def _trained(run: RunState, options: Options, watch: LoopWatch) -> Trained:
    """Train with the job's exchange; if `options.patient`, once more each time the scheduler is lost."""
    train_with: Callable[[RunState, Join], Trained] = run.spec.exchange.entry.load()
    while True:
        try:
            return train_with(run, lambda: _workforce(run, options, watch))
        except SchedulerLost as lost:
            if not options.patient:
                raise
            run.record_recovery(str(lost))


@contextmanager
def _workforce(run: RunState, options: Options, watch: LoopWatch) -> Iterator[JoinedCluster]:
    with _cluster(run, options) as (client, scaler, host, patience), watch.watching(client.loop.asyncio_loop):
        given = (run.spec, options.paths, run.stop_requested, options.fence, options.function, run.arithmetics)
        crew = Crew(client, uuid.uuid4().hex, *given)
        scaling = Scaling(run, crew, scaler, patience)
        crew.open()
        try:
            yield JoinedCluster(crew, scaling, host)
        finally:
            crew.close()


@contextmanager
def _cluster(run: RunState, options: Options) -> Iterator[tuple[Client, Scaler | None, str, float]]:
    if options.scheduler is None:
        with local_cluster(run.spec, options.logs) as cluster, closed_in_time(Client(cluster)) as client:
            yield client, LocalScaler(cluster), LOOPBACK, _LOCAL_PATIENCE_SECONDS
        return
    bounds = _REMOTE_PATIENCE_SECONDS, _SCHEDULER_PATIENCE_SECONDS
    patience, longest = (math.inf, math.inf) if options.patient else bounds
    with connection(options.scheduler, longest, run.stop_requested, run.wait_for) as client:
        yield client, None, host_towards(options.scheduler), patience
