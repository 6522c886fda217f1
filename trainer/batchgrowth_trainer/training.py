"""Trains a job, from its manifest to its summary. Call `train` to do from a program what `batchgrowth run` does."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from batchgrowth.contract.logs import DEFAULT_LOGS, Logs
from batchgrowth.errors import Interrupted, StorageError, Superseded
from batchgrowth.evaluations import BestEvaluation, early_end
from batchgrowth.plan import Plan, make_plan
from batchgrowth.position import Position
from batchgrowth.spec import BatchGrowthJob, JobSpec, WatchedMetric
from distributed import Client
from prometheus_client import CollectorRegistry
from safetensors.torch import save

from batchgrowth_trainer.building import begin, with_digest
from batchgrowth_trainer.drivers.run import RunState, Undo
from batchgrowth_trainer.drivers.scaling import Join, JoinedCluster, Scaler, Scaling
from batchgrowth_trainer.pool.connection import LoopWatch, SchedulerLost, closed_in_time, connection
from batchgrowth_trainer.pool.local_cluster import LocalScaler, existing_left_alone, local_cluster
from batchgrowth_trainer.pool.takeover import Fence, take_over_aside
from batchgrowth_trainer.pool.worker_pool import WorkerPool
from batchgrowth_trainer.record import storage
from batchgrowth_trainer.record.checkpoint import Checkpoints, CheckpointStore, Saved
from batchgrowth_trainer.record.decided import RECORD, STOP, ThisJob, course_of, decisions_in, judged_in
from batchgrowth_trainer.record.functions import FUNCTION_FILE, function_in
from batchgrowth_trainer.record.history import EVALUATIONS_FILE, GROWTH_FILE, HISTORY_FILE, History, HistoryRow
from batchgrowth_trainer.record.output import BEST_FILE, WEIGHTS_FILE, OutputFolder
from batchgrowth_trainer.record.runs import read_history
from batchgrowth_trainer.record.snapshot import Trained, weights_sha256
from batchgrowth_trainer.record.storage import CHECKPOINTS, reported_as_checkpoint_error
from batchgrowth_trainer.record.workload_source import ORIGIN_FILE, Origin
from batchgrowth_trainer.replica.reproducible import ALONE
from batchgrowth_trainer.sinks.events import (
    Finished,
    FoundFinished,
    Held,
    Journal,
    LogLines,
    Note,
    Sink,
    Sinks,
    Started,
    Stopped,
)
from batchgrowth_trainer.sinks.telemetry import Endpoint, Telemetry
from batchgrowth_trainer.sinks.trackers.tracking import check_installed, tracking
from batchgrowth_trainer.worker.addresses import host_towards, loopback
from batchgrowth_trainer.worker.service import new_run_id

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
    `checkpoint_uri` is an object store for checkpoints and results, in place of the folder, and `checkpoint_ca` a
    file with CAs that are trusted for it besides the usual ones; `function` is the workload if it has no module, see
    `record.functions`, by default the one that the run in the folder kept. `cluster` is a Dask cluster that this
    process has already, as `pool.kept` gives it, in place of a new one.
    """

    output_dir: Path
    workers: int | None = None
    scheduler: str | None = None
    resume: bool = False
    metrics_port: int = 0
    metrics_host: str = field(default_factory=loopback)
    paths: tuple[str, ...] = ()
    desired_workers: Callable[[Plan, Position], int] | None = None
    patient: bool = False
    fence: Fence | None = None
    logs: Logs = DEFAULT_LOGS
    checkpoint_uri: str | None = None
    checkpoint_ca: Path | None = None
    function: bytes = b""
    cluster: "ClusterOf | None" = None


ClusterOf = Callable[[JobSpec, Logs], AbstractContextManager[tuple[Any, Scaler]]]
"""A job's spec, and how its workers log -> a Dask cluster for the block, and what sets its number of workers."""


@existing_left_alone()
def train(
    job: BatchGrowthJob,
    options: Options,
    sinks: Sequence[Sink] | Sinks = (),
    stop_requested: Callable[[], bool] = lambda: False,
    plan: Plan | None = None,
) -> dict[str, Any]:
    """Train the job and return the summary of the finished run, as in summary.json; `sinks` receive its events.

    `plan` is what `make_plan` returned for the job's spec, if the caller has made it.

    Raises Interrupted, after writing a checkpoint, if a stop was requested, else an error of `batchgrowth.errors`.
    Before any other error ends the training, the newest committed state is saved, except before KeyboardInterrupt and
    Superseded.
    """
    name = job.metadata.name
    job = with_digest(job)
    spec = job.spec
    fence = options.fence
    check_installed(spec.trackers or ())
    plan = plan or make_plan(spec)
    watch = LoopWatch()
    audience = Sinks.of(sinks)

    def note(text: str) -> None:
        log.info("%s: %s", name, text)
        audience.handle(Note(text))

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
        # The endpoint answers the liveness probe, so it opens before the run waits for its folder.
        endpoint = Endpoint(CollectorRegistry(), options.metrics_host, options.metrics_port, watch.trouble)
        stack.enter_context(closing(endpoint))
        patience = _LOCK_PATIENCE_SECONDS if options.patient else 0.0
        folder = OutputFolder(options.output_dir, patience=patience, stop_requested=is_stopped, note=wait_for_folder)
        stack.enter_context(closing(folder))
        function = options.function or function_in(folder.path, spec.workload.entrypoint)
        with ALONE:
            begin(spec, options.paths, function)
            # Without workers this process computes to the end, and its threads and generators serve one run at a time.
            if spec.exchange.type == "SingleProcess":
                stack.enter_context(ALONE)

        checkpoints = _checkpoints(job, options, folder, plan)
        # Before any time is spent: in an object store, this proves that checkpoints can be written.
        checkpoints.prepare()
        saved = _resumed(checkpoints, folder, note) if options.resume else None
        position = saved.snapshot.position if saved else Position()
        course = course_of(spec, saved.snapshot.tensors if saved else {}, plan)
        finished = folder.summary() if options.checkpoint_uri or folder.has_weights else None
        # A longer training may have lost its trainer before it replaced the summary of a shorter one.
        if finished is not None and finished["updates"] == position.update and course.plan.is_done(position):
            note(f"{name} is trained already: {checkpoints.place} has the result. "
                 "Omit --resume, or give another --output-dir, to train it again.")  # fmt: skip
            audience.handle(FoundFinished(course.plan, position, course.decisions, finished))
            return finished

        history = stack.enter_context(_history(folder, saved))
        origin = _same_run(saved, history, folder, Origin.of(spec, options.paths, folder.path), note)
        epoch = position.epoch + position.offset / course.plan.examples_per_epoch
        telemetry = Telemetry(course.plan, epoch, endpoint.registry)
        # Held back until `_take_over` has made the folder this run's, because they write into it.
        writers = Held(
            lambda: (Journal(folder.path), *tracking(job, folder.path, lambda text: run.note(text))), audience
        )
        run = RunState(
            course,
            name=name,
            history=history,
            checkpoints=checkpoints,
            sinks=audience.put_first((LogLines(), writers, telemetry)),
            desired_workers=options.desired_workers or planned,
            stop_requested=is_stopped,
            saved=saved,
            check_held=folder.check_held,
            take_over=partial(_take_over, folder, job, origin, function, saved, finished, writers),
        )
        if saved is None and not folder.has_a_run:
            run.begin()  # at once: there is no earlier run to keep in place until the workload is tried
        run.publish(Started(name, course.plan, position, course.decisions))
        # From here on, sinks that saw the run begin also see how it ends, whatever is raised.
        stack.push(lambda _kind, error, _trace: run.publish(Stopped(error)))
        run.note(f"metrics at {endpoint.url}; results go to {checkpoints.place}")

        with _told_what_is_saved(run):
            trained = _trained(run, lambda: _joined_cluster(run, options, function, watch), patient=options.patient)
            return concluded(run, folder, checkpoints, trained)


@contextmanager
def _told_what_is_saved(run: RunState) -> Iterator[None]:
    """If an error ends the block, tell the user what can be resumed, which the error's own text may leave out."""
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.args = (f"stopped at once; {run.what_is_saved}",)
        raise
    except (Interrupted, Superseded):
        raise
    except BaseException:
        if run.update:
            run.note(run.what_is_saved)
        raise


def _trained(run: RunState, join: Join, *, patient: bool) -> Trained:
    """Train to the end of the plan, or until a stop is requested.

    After the loss of the scheduler, training goes on from the newest checkpoint if `patient`. After a check finds a
    worker that computes wrongly, it goes on from the newest checkpoint that a check covers.
    """
    # The `train` of a module in drivers/, which the exchange's entry in the registry names, ours or a distribution's.
    train_with: Callable[[RunState, Join], Trained] = run.spec.exchange.entry.load()
    while True:
        try:
            return train_with(run, join)
        except SchedulerLost as lost:
            if not patient:
                raise
            run.record_recovery(str(lost))
        except Undo as found:
            run.undo(found)


def concluded(run: RunState, folder: OutputFolder, checkpoints: Checkpoints, trained: Trained) -> dict[str, Any]:
    """Write the last checkpoint and the results, and return their summary. Raises Interrupted if updates are left."""
    if trained.snapshot is not None:
        run.save_last(trained.snapshot)
    run.check_saved()
    if trained.snapshot is None or not run.plan.is_done(trained.snapshot.position):
        if not run.update:
            raise Interrupted("stopped before the first update; there is nothing to resume")
        if run.saved_update < run.update:
            raise Interrupted(f"stopped, and the workers that held the state are gone; {run.what_is_saved}")
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

    record/summary.py says what each key means.
    """
    assert trained.snapshot is not None
    plan = run.plan
    totals = run.totals
    evaluation = run.spec.evaluation

    run.flush()  # what follows reads the history's file
    last_loss, missing = last_epoch(read_history(directory), plan)
    found = totals.evaluation

    summary: dict[str, Any] = {
        "name": run.name,
        "exchange": run.spec.exchange.type,
        "updates": plan.updates,
        "examples": plan.examples,
        "epochs": plan.epochs,
        "seconds": round(run.seconds, 3),
        "finalLoss": last_loss,
        "testLoss": None if found is None else found.loss,
        "metrics": {} if found is None else dict(found.metrics),
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
    if run.spec.batch.growth.entry.quantity:
        summary["decisions"] = [
            {"update": one.update, "batchSize": one.wanted, "value": one.value if math.isfinite(one.value) else None}
            for one in run.decisions
        ]
    if missing:
        summary["missingUpdates"] = missing
    return summary


def last_epoch(history: Sequence[HistoryRow], plan: Plan) -> tuple[float | None, list[dict[str, int]]]:
    """Return the mean loss per example over the plan's last epoch, and the ranges of updates that the history lacks.

    The loss is None if updates of that epoch may be among them.
    """
    loss = 0.0
    is_whole = True
    missing = []
    update = 0
    epoch = 0.0
    for row in history:
        if row.update != update + 1:
            missing.append({"from": update + 1, "to": row.update - 1})
        if row.epoch > plan.epochs - 1:
            is_whole = is_whole and row.update == update + 1
            loss += row.loss * (row.epoch - max(epoch, plan.epochs - 1.0))
        update = row.update
        epoch = row.epoch
    if update < plan.updates:
        missing.append({"from": update + 1, "to": plan.updates})
        is_whole = False
    return (loss if is_whole else None), missing


def _judged_json(watched: WatchedMetric, best: BestEvaluation) -> dict[str, Any]:
    value = best.value if best.update else None
    return {"metric": watched.metric, "mode": watched.mode, "value": value, "update": best.update, "epoch": best.epoch}


def _checkpoints(job: BatchGrowthJob, options: Options, folder: OutputFolder, plan: Plan) -> Checkpoints:
    this_job = ThisJob(job.spec, plan)
    keep = job.spec.checkpoint.keep
    if options.checkpoint_uri is None:
        return CheckpointStore(folder.path / CHECKPOINTS, this_job.mathematics, keep, this_job)
    # Loads for a while, and most runs need no store.
    from batchgrowth_trainer.record.remote import Bucket, RemoteCheckpoints

    bucket = Bucket.at(options.checkpoint_uri, options.checkpoint_ca)
    return RemoteCheckpoints(bucket, folder.path, this_job.mathematics, keep, this_job)


def _resumed(checkpoints: Checkpoints, folder: OutputFolder, note: Callable[[str], None]) -> Saved | None:
    """Return the newest whole checkpoint; if there is none, note where one of an earlier run is."""
    saved = checkpoints.resume(note)
    if saved is None:
        text = f"there is no checkpoint in {checkpoints.place} to resume from; training starts at the beginning"
        earlier = folder.earlier_checkpoints()
        if earlier:
            there = earlier[0]
            text += f". An earlier run is kept in {there}: --resume with --output-dir {there} goes on with that one"
        note(text)
    return saved


def _same_run(
    saved: Saved | None, history: History, folder: OutputFolder, origin: Origin, note: Callable[[str], None]
) -> Origin:
    """Return the origin with the identifier of the run that goes on from `saved`, and note what has changed since that
    checkpoint: settings, lost rows of the history, the user's code.
    """
    if saved is None:
        return origin
    update = saved.snapshot.position.update
    if saved.changes:
        note(f"{saved.changes}: the {update:,} updates that are done are the same with both, so training goes on")
    if history.last_update < update:
        note(
            f"{HISTORY_FILE} lacks updates {history.last_update + 1:,} to {update:,}, whose rows were lost; the "
            "checkpoint has their weights, so training goes on, and tables and plots leave them out"
        )
    found = saved.story.get("evaluation")
    if found is not None and history.last_evaluated < found["update"] <= update:
        note(
            f"{EVALUATIONS_FILE} lacks what was evaluated after update {history.last_evaluated:,}; the checkpoint has "
            "the last evaluation, which is written again"
        )
    decisions = decisions_in(saved.snapshot.tensors)
    if decisions and history.last_look < decisions[-1].update:
        note(f"{GROWTH_FILE} lacks looks until update {decisions[-1].update:,}; the checkpoint has what they decided")
    before = Origin.read(folder.path, origin.entrypoint)
    if before is None:
        return origin
    if changed := before.changes(origin):
        note(
            f"the workload's code has changed since this run began: {', '.join(changed)}. The updates that follow are "
            "computed by the code as it is now"
        )
    return origin.model_copy(update={"run": before.run or origin.run})


def _take_over(
    folder: OutputFolder,
    job: BatchGrowthJob,
    origin: Origin,
    function: bytes,
    saved: Saved | None,
    finished: Mapping[str, Any] | None,
    writers: Held,
) -> str:
    """Make the folder this run's: move what must not mix with it into earlier/N, and write what the run is.

    Return a line for the user, "" if nothing was moved.
    """
    aside = None
    with reported_as_checkpoint_error():
        if saved is None:
            aside = folder.set_earlier_run_aside()
        # A resumed run keeps its files. Only if it was finished, and goes on for longer, its results are moved.
        elif finished is not None and finished["updates"] == saved.snapshot.position.update:
            aside = folder.set_results_aside()
    folder.write_job(job)
    folder.write(ORIGIN_FILE, origin.to_bytes())
    if function:
        folder.write(FUNCTION_FILE, function)
    writers.release()
    return "" if aside is None else f"an earlier run was here; it is kept in {aside}"


@contextmanager
def _history(folder: OutputFolder, saved: Saved | None) -> Iterator[History]:
    """Yield the history, continued by a resume or else new. Raises CheckpointError if it cannot be written."""
    with reported_as_checkpoint_error():
        if saved is None:
            history = History(folder.path, new=True, check_held=folder.check_held)
        else:
            history = History(folder.path, saved.snapshot.position.update, check_held=folder.check_held)
    try:
        yield history
    except Superseded:
        # The folder is another run's by now, which must not find rows of this one.
        with suppress(OSError):
            history.discard()
        raise
    except BaseException:
        with suppress(OSError, StorageError, Superseded):  # the error that ends the run says more
            history.close()
        raise
    with reported_as_checkpoint_error():
        history.close()


@contextmanager
def _joined_cluster(run: RunState, options: Options, function: bytes, watch: LoopWatch) -> Iterator[JoinedCluster]:
    """Yield the pool of `options.cluster`, of the one at `options.scheduler` once it answers, or of a new local one."""
    with ExitStack() as stack:
        scaler: Scaler | None = None
        if options.cluster is not None:
            patience = _REMOTE_PATIENCE_SECONDS
            cluster, scaler = stack.enter_context(options.cluster(run.spec, options.logs))
            client = stack.enter_context(closed_in_time(Client(cluster)))
            host = host_towards(client.scheduler.address)
        elif options.scheduler is None:
            host = loopback()
            patience = _LOCAL_PATIENCE_SECONDS
            cluster = stack.enter_context(local_cluster(run.spec, options.logs))
            client = stack.enter_context(closed_in_time(Client(cluster)))
            scaler = LocalScaler(cluster)
        else:
            patience = _REMOTE_PATIENCE_SECONDS
            longest = _SCHEDULER_PATIENCE_SECONDS
            # A trainer of a pod waits for as long as Kubernetes takes to bring back what is lost.
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
