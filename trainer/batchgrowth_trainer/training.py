"""Trains a job: sets up the run, chooses the exchange, and writes the results.

Call `train` to do from a program what `batchgrowth run` does.
"""

import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from batchgrowth.course import Course
from batchgrowth.errors import Superseded
from batchgrowth.logs import DEFAULT_LOGS, Logs
from batchgrowth.plan import Plan, Position, make_plan
from batchgrowth.spec import BatchGrowthJob, mathematics
from distributed import Client
from prometheus_client import CollectorRegistry

from batchgrowth_trainer.crew.claims import announce
from batchgrowth_trainer.crew.connection import SchedulerLost, closed_in_time, connection
from batchgrowth_trainer.crew.crew import Crew
from batchgrowth_trainer.crew.event_loop import LoopWatch
from batchgrowth_trainer.crew.fence import Fence
from batchgrowth_trainer.crew.garbage import existing_left_alone
from batchgrowth_trainer.crew.local_cluster import LOOPBACK, LocalScaler, local_cluster
from batchgrowth_trainer.drivers.run import Run
from batchgrowth_trainer.drivers.scaling import Scaler, Scaling
from batchgrowth_trainer.drivers.workforce import Join, Workforce
from batchgrowth_trainer.record.checkpoint import Checkpoints, CheckpointStore
from batchgrowth_trainer.record.functions import FUNCTION_FILE, function_in, receive
from batchgrowth_trainer.record.history import History
from batchgrowth_trainer.record.output import CHECKPOINTS, OutputFolder
from batchgrowth_trainer.record.sealed import Saved
from batchgrowth_trainer.record.snapshot import Trained
from batchgrowth_trainer.record.storage import reported_as_checkpoint_error
from batchgrowth_trainer.replica.judgement import course_of
from batchgrowth_trainer.sinks.events import Note, Sink, Started, Stopped, publish
from batchgrowth_trainer.sinks.journal import Journal
from batchgrowth_trainer.sinks.telemetry import Endpoint, Telemetry
from batchgrowth_trainer.sinks.trackers.installed import check_installed
from batchgrowth_trainer.sinks.trackers.tracking import tracking
from batchgrowth_trainer.summary import concluded
from batchgrowth_trainer.worker.addresses import host_towards

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
            announce(options.scheduler, fence, stops)

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
    from batchgrowth_trainer.record.bucket import Bucket  # loads for a while, and most runs need no store
    from batchgrowth_trainer.record.remote import RemoteCheckpoints

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
) -> Iterator[Run]:
    position, plan = saved.snapshot.position if saved else Position(), course.plan
    telemetry = Telemetry(plan, position.epoch + position.offset / plan.examples_per_epoch, endpoint.registry)
    with ExitStack() as stack:
        history = stack.enter_context(_history(folder, saved, sinks))
        trackers = tracking(job, folder.path, lambda text: run.note(text))
        run = Run(
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


def _trained(run: Run, options: Options, watch: LoopWatch) -> Trained:
    """Train with the job's exchange; if `options.patient`, once more each time the scheduler is lost."""
    train_with: Callable[[Run, Join], Trained] = run.spec.exchange.entry.load()
    while True:
        try:
            return train_with(run, lambda: _workforce(run, options, watch))
        except SchedulerLost as lost:
            if not options.patient:
                raise
            run.record_recovery(str(lost))


@contextmanager
def _workforce(run: Run, options: Options, watch: LoopWatch) -> Iterator[Workforce]:
    with _cluster(run, options) as (client, scaler, host, patience), watch.watching(client.loop.asyncio_loop):
        given = (run.spec, options.paths, run.stop_requested, options.fence, options.function, run.arithmetics)
        crew = Crew(client, uuid.uuid4().hex, *given)
        scaling = Scaling(run, crew, scaler, patience)
        crew.open()
        try:
            yield Workforce(crew, scaling, host)
        finally:
            crew.close()


@contextmanager
def _cluster(run: Run, options: Options) -> Iterator[tuple[Client, Scaler | None, str, float]]:
    if options.scheduler is None:
        with local_cluster(run.spec, options.logs) as cluster, closed_in_time(Client(cluster)) as client:
            yield client, LocalScaler(cluster), LOOPBACK, _LOCAL_PATIENCE_SECONDS
        return
    bounds = _REMOTE_PATIENCE_SECONDS, _SCHEDULER_PATIENCE_SECONDS
    patience, longest = (math.inf, math.inf) if options.patient else bounds
    with connection(options.scheduler, longest, run.stop_requested, run.wait_for) as client:
        yield client, None, host_towards(options.scheduler), patience
