"""A fit: the job of an estimator trained by the code that trains a manifest, in a folder of its own."""

import math
import multiprocessing
import sys
import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
from batchgrowth.errors import Fault, SpecError
from batchgrowth.growth_decisions import Course
from batchgrowth.notes import notes
from batchgrowth.plan import Plan, make_plan
from batchgrowth.position import Position
from batchgrowth.spec import BatchGrowthJob, Exchange, mathematics
from distributed import LocalCluster
from safetensors.torch import load_file
from torch import Tensor, nn

from batchgrowth_trainer import training
from batchgrowth_trainer.api import InPython, process_as_it_was, reported_in_python, shell
from batchgrowth_trainer.building import model_seed
from batchgrowth_trainer.estimators.workload import Recipe
from batchgrowth_trainer.pool.kept import KEPT, Borrowed
from batchgrowth_trainer.pool.local_cluster import scratch_folder
from batchgrowth_trainer.record.checkpoint import CheckpointStore, Saved, newest_whole, state_bytes
from batchgrowth_trainer.record.decided import course_of
from batchgrowth_trainer.record.functions import is_importable, lent, pickled
from batchgrowth_trainer.record.history import EvaluationRow, HistoryRow
from batchgrowth_trainer.record.output import WEIGHTS_FILE, OutputFolder
from batchgrowth_trainer.record.snapshot import Snapshot
from batchgrowth_trainer.record.storage import CHECKPOINTS
from batchgrowth_trainer.replica.flat import modules_of
from batchgrowth_trainer.replica.reproducible import ALONE
from batchgrowth_trainer.replica.seeds import untouched_randomness
from batchgrowth_trainer.replica.state_dict import load_exported
from batchgrowth_trainer.sinks.display import NotebookDisplay, make_display
from batchgrowth_trainer.sinks.events import Event, Note, Sink, Sinks
from batchgrowth_trainer.stopping import stoppable
from batchgrowth_trainer.user_code import seed_for_model

_ONE_AT_A_TIME = threading.Lock()
"""A run sets the threads and generators of its process, so fits in several threads take turns."""
_LARGEST_PICKLE_BYTES = 1 << 30
"""The most that a fit sends to workers of another machine; a Dataset that reads there has no such bound."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """What a fit leaves. `saved` is its last checkpoint, with which training can go on."""

    summary: Mapping[str, Any]
    state_dict: Mapping[str, Tensor]
    saved: Saved
    epochs: Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class _EpochTable:
    """A sink that keeps a row for each epoch."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    _open: bool = False
    _before: float = 0.0

    def handle(self, event: Event) -> None:
        """Add an update to the row of its epoch, and an evaluation to the newest row."""
        if isinstance(event, EvaluationRow) and self.rows:
            self.rows[-1].update(test_loss=event.loss, **{f"test_{name}": one for name, one in event.metrics.items()})
        if not isinstance(event, HistoryRow):
            return
        if not self._open:
            self.rows.append({"epoch": 0, "updates": 0, "loss": 0.0})
            # An update that fills an epoch by itself began a whole one before.
            self._before = float(int(event.epoch)) if event.epoch % 1 else event.epoch - 1
            self._open = True
        last = self.rows[-1]
        last["loss"] += event.loss * (event.epoch - self._before)
        self._before = event.epoch
        last.update(
            epoch=math.ceil(event.epoch),
            updates=event.update,
            batch_size=event.batch_size,
            lr=event.learning_rate,
            n_workers=event.workers,
            seconds=event.seconds,
        )
        self._open = event.epoch % 1 != 0


def fit(
    job: BatchGrowthJob,
    recipe: Recipe,
    *,
    cluster: Any = None,
    before: Saved | None = None,
    folder: Path | None = None,
    sinks: Sequence[Sink] = (),
    progress: bool = False,
) -> Fitted | None:
    """Train the job on from `before`, or from the beginning, and return what it leaves; None if no update is left.

    `cluster` is a Dask cluster or the address of one; by default, this process trains if there is work for only one
    worker, and otherwise workers of this machine do, which are kept for the next fit.

    The run's files are in a temporary folder, which is removed, or in `folder`. Raises what `batchgrowth_trainer.train`
    raises.
    """
    with ExitStack() as stack:
        # First in and last out, since the others set what belongs to the whole process.
        stack.enter_context(_ONE_AT_A_TIME)
        stack.enter_context(reported_in_python())
        stack.enter_context(process_as_it_was())
        scratch = stack.enter_context(scratch_folder())
        place = folder or scratch / "run"
        plan = make_plan(job.spec)
        if before is not None:
            course = course_of(job.spec, before.snapshot.tensors, plan)
            at = _position_from(course, before.snapshot.position)
            if course.plan.is_done(at):
                return None
        workers: dict[str, Any] = {"cluster": KEPT.lent}
        travels = "file"
        if cluster is None and is_alone(job, plan):
            job = in_this_process(job)
            # `lent`, below, hands the recipe over as it is; the pickle is only a record of the fit.
            travels = "not at all"
        elif isinstance(cluster, str):
            workers = {"scheduler": cluster}
            travels = "inside"
        elif cluster is not None:
            workers = {"cluster": Borrowed(cluster).lent}
            # Workers of a LocalCluster see the files of this machine; those of any other may be elsewhere.
            travels = "file" if isinstance(cluster, LocalCluster) else "inside"
        for name, examples in (("train", recipe.train), ("validation", recipe.validation)):
            if examples is not None:
                examples.travel(travels, scratch, name)
        if before is not None:
            _save(place, job, before, at)
        entrypoint = job.spec.workload.entrypoint
        stack.enter_context(lent(entrypoint, recipe.workload))
        options = training.Options(
            output_dir=place,
            resume=before is not None,
            paths=(str(Path.cwd()),),
            function=_pickled(recipe, entrypoint),
            **workers,
        )
        epochs = _EpochTable()
        audience = Sinks([epochs, *sinks])
        if progress:
            audience.put_first([InPython(NotebookDisplay() if shell() is not None else make_display())])
        for line in notes(job.spec, plan):
            audience.handle(Note(line))
        with stoppable("stopping after this update; interrupt again to stop at once", audience) as requested:
            summary = training.train(job, options, audience, requested, plan)
        saved = newest_whole(place / CHECKPOINTS)
        assert saved is not None
        return Fitted(summary, load_file(place / WEIGHTS_FILE), saved, epochs.rows)


def _pickled(recipe: Recipe, entrypoint: str) -> bytes:
    """Return the pickle of the workload's function; it has the code of modules that no other process can import."""
    registered = []
    for given in (recipe.module, recipe.loss, *recipe.metrics.values()):
        kind = given if hasattr(given, "__qualname__") else type(given)
        home = sys.modules.get(kind.__module__)
        if home is not None and home.__name__ != "__main__" and not is_importable(home.__name__):
            registered.append(home)
            cloudpickle.register_pickle_by_value(home)
    try:
        return pickled(recipe.workload, entrypoint, {}, _LARGEST_PICKLE_BYTES)
    finally:
        # A set, since cloudpickle raises if a module is unregistered twice.
        for home in set(registered):
            cloudpickle.unregister_pickle_by_value(home)


def is_alone(job: BatchGrowthJob, plan: Plan) -> bool:
    """Return whether this process trains an AllReduce job by itself: because it may start no processes, as a Dask
    worker may not, or because no stage has two workers and no look can begin such a stage.
    """
    if job.spec.exchange.type != "AllReduce":
        return False
    if multiprocessing.current_process().daemon:
        return True
    if job.spec.batch.growth.entry.quantity and job.spec.workers.maximum > 1:
        return False
    return all(stage.workers == 1 for stage in plan.stages)


def in_this_process(job: BatchGrowthJob) -> BatchGrowthJob:
    """Return the job with the exchange of one process, whose weights have the same bits."""
    spec = job.spec.model_copy(update={"exchange": Exchange.model_validate({"type": "SingleProcess"})})
    return job.model_copy(update={"spec": spec})


def _position_from(course: Course, before: Position) -> Position:
    """Return the position from which the course goes on: `before`, if the course's plan passes through it, else the
    position after as many epochs.

    Raises SpecError if a measured growth's plan does not pass through `before`.
    """
    plan = course.plan
    if before.update <= plan.updates and plan.position_at(before.update) == before:
        return before
    if course.is_measured:
        given = f"{course.plan.examples_per_epoch:,} examples were given, or other parameters than before"
        remedy = "give as many as in the calls before: what a measured growth has decided belongs to the updates done"
        raise SpecError([Fault("X", given, remedy)])
    # With other data or another batch, the same epochs are another number of updates.
    update = bisect_left(range(plan.updates), before.epoch, key=lambda one: plan.position_at(one).epoch)
    return plan.position_at(update)


def _save(folder: Path, job: BatchGrowthJob, before: Saved, at: Position) -> None:
    """Write the state from which the job goes on as a checkpoint of the job.

    A run in the folder that has not ended in this state is set aside, since a resume would go on from that run.
    """
    there = newest_whole(folder / CHECKPOINTS)
    has_ended_here = (
        there is not None
        and there.snapshot.position == before.snapshot.position == at
        and state_bytes(there.snapshot) == state_bytes(before.snapshot)
    )
    if not has_ended_here:
        with closing(OutputFolder(folder)) as output:
            output.set_earlier_run_aside()
    kept = {key: before.story[key] for key in ("seconds", "resizes", "recoveries")}
    story = {**kept, "evaluated": at.epoch}
    store = CheckpointStore(folder / CHECKPOINTS, mathematics(job.spec), job.spec.checkpoint.keep)
    store.save(Snapshot(at, before.snapshot.tensors), story)


def trained_module(job: BatchGrowthJob, recipe: Recipe, state_dict: Mapping[str, Tensor]) -> nn.Module:
    """Return the recipe's module with these weights, on the CPU and in eval mode."""
    with ALONE, untouched_randomness():
        seed_for_model(model_seed(job.spec))
        workload = recipe.workload()
    load_exported(modules_of(workload.model, workload.loss_module), state_dict)
    return workload.model.eval()
